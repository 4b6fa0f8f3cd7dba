// node empty.mjs URL: the page of a dormouse in which nothing was ever said, up to the first answer.

import assert from "node:assert/strict";
import { check, finish, open, screenshot } from "./common.mjs";

const url = process.argv[2];
const { page, complaints, foreign, close } = await open(url);

await check("an empty list says how to begin", async () => {
  await page.getByRole("heading", { name: "Nobody has said anything yet" }).waitFor();
  assert.equal(await page.getByRole("treeitem").count(), 0);
  assert.match(await page.getByRole("navigation", { name: "Threads" }).innerText(), /No threads yet\./);
  await screenshot(page, "1-empty");
});

await check("a thread is made in the page and answers", async () => {
  await page.keyboard.press("n");
  const dialog = page.getByRole("dialog", { name: "New thread" });
  await dialog.getByLabel("Name").fill("first");
  await dialog.getByLabel("Agent").selectOption("default");
  await dialog.getByRole("button", { name: "Create" }).click();
  await page.getByRole("heading", { name: "Nothing is said here yet" }).waitFor();
  const field = page.getByRole("textbox", { name: "Message to first" });
  await field.fill("say good morning");
  await field.press("Enter");
  await page.locator('[data-kind="assistant"]', { hasText: "good morning" }).waitFor();
  await page.locator('[data-kind="user"]', { hasText: "say good morning" }).waitFor();
  await page.locator("[data-live]").waitFor({ state: "detached" });
  assert.equal(await page.locator("[data-entry]").count(), 2, "what streamed gave way to its items");
  await page.getByRole("treeitem", { name: /^first, conversation/ }).waitFor();
  assert.equal(await field.inputValue(), "");
});

await check("nothing is asked of anybody else, and the browser has no complaint", async () => {
  assert.deepEqual(foreign, []);
  assert.deepEqual(complaints, []);
});

await close();
finish();
