// node tokens.mjs URL: a dormouse that wants a token of whoever asks.

import assert from "node:assert/strict";
import { check, finish, open, until } from "./common.mjs";

const url = process.argv[2];
const { page, complaints, foreign, close } = await open(url);
const [ann, bob] = ["token-of-ann-0123456789", "token-of-bob-0123456789"];
const signIn = async (token) => {
  const dialog = page.getByRole("dialog", { name: "Sign in" });
  await dialog.getByLabel("Bearer token").fill(token);
  await dialog.getByRole("button", { name: "Continue" }).click();
};
const said = async (thread, token, text) => {
  const headers = { "content-type": "application/json", authorization: `Bearer ${token}` };
  const body = JSON.stringify({ text });
  const answer = await fetch(`${url}/threads/${thread}/messages`, { method: "POST", headers, body });
  assert.equal(answer.status, 202);
  await until(`${thread} answers`, async () => {
    const { items } = await (await fetch(`${url}/threads/${thread}`, { headers })).json();
    return items?.some((one) => one.item.kind === "assistant");
  });
};

await check("without a token nothing is shown, and a wrong one is asked for again", async () => {
  await page.getByRole("dialog", { name: "Sign in" }).waitFor();
  assert.equal(await page.getByRole("treeitem").count(), 0);
  await signIn("not-a-token-of-anybody");
  await until("the field is empty again", async () => (await page.getByLabel("Bearer token").inputValue()) === "");
});

await check("with one, its own threads, with their children", async () => {
  await said("of-ann", ann, 'call spawn_thread {"instructions": "look it up", "child_of": ["of-ann"]}');
  await said("of-bob", bob, "say hello");
  await signIn(ann);
  await page.locator('[data-thread="of-ann"]').waitFor();
  await page.locator('[data-relation="child"]', { hasText: "look it up" }).waitFor();
  assert.equal(await page.locator('[data-thread="of-bob"]').count(), 0);
});

await check("the chat is hers", async () => {
  await page.locator('[data-thread="of-ann"]').click();
  const field = page.getByRole("textbox", { name: "Message to of-ann" });
  await field.fill("say good night");
  await field.press("Enter");
  await page.locator('[data-kind="assistant"]', { hasText: "good night" }).waitFor();
  await page.locator('[data-kind="user"]', { hasText: "say good night" }).getByText("ann", { exact: true }).waitFor();
});

await check("a link to somebody else’s thread shows nothing of it", async () => {
  await page.goto(`${url}/inspector#/threads/of-bob`);
  await page.getByRole("heading", { name: "of-bob" }).waitFor();
  await page.getByRole("heading", { name: "Nothing is said here yet" }).waitFor();
  assert.equal(await page.locator("[data-entry]").count(), 0);
});

await check("nothing is asked of anybody else, and the browser has no complaint", async () => {
  assert.deepEqual(foreign, []);
  assert.deepEqual(complaints, []);
});

await close();
finish();
