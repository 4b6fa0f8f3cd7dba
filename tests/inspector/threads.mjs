// node threads.mjs URL: the threads that tests/inspector.rs has prepared, and what happens while the page is open.

import assert from "node:assert/strict";
import { check, finish, open, post, screenshot, sleep, until } from "./common.mjs";

const url = process.argv[2];
const { page, complaints, foreign, close } = await open(url);
const main = page.getByRole("main");
const node = (name) => page.locator(`[role="treeitem"][data-thread="${name}"]`);
const entry = (kind) => page.locator(`[data-entry][data-kind="${kind}"]`);
const show = async (name) => {
  await node(name).click();
  await main.getByRole("heading", { level: 2, name, exact: true }).waitFor();
};
const item = async (thread, kind) => {
  const { items } = await (await fetch(`${url}/threads/${thread}`)).json();
  return items.filter((one) => one.item.kind === kind);
};

await check("the tree has children and forks below their threads", async () => {
  await node("family").waitFor();
  const child = page.locator('[data-relation="child"]', { hasText: "Read the logs of last night" });
  await child.waitFor();
  assert.equal(await child.getAttribute("aria-level"), "2");
  const fork = node("family-copy");
  assert.equal(await fork.getAttribute("data-relation"), "fork");
  assert.equal(await fork.getAttribute("aria-level"), "2");
  const order = await page.getByRole("treeitem").evaluateAll((all) => all.map((one) => one.dataset.thread));
  const at = order.indexOf("family");
  const below = new Set(order.slice(at + 1, at + 4));
  assert.ok(below.has("family-copy") && below.has(await child.getAttribute("data-thread")), order.join());
});

await check("a call that is out says how long, and the thread what it waits for", async () => {
  await show("calls");
  const card = entry("tool_call").last();
  await card.getByText("srv_slow").waitFor();
  const timer = card.getByRole("timer");
  const before = await timer.innerText();
  assert.match(before, /^out for \d/);
  await until("the timer goes on", async () => (await timer.innerText()) !== before);
  await main.getByText("Waiting for tools").waitFor();
  const out = page.getByRole("complementary", { name: "Details" });
  await out.getByRole("heading", { name: "Calls without a result" }).waitFor();
  assert.match(await node("calls").getAttribute("aria-label"), /waits for 1 call/);
  await screenshot(page, "2-running-call");
});

await check("calls out and back, slices, reasoning and errors", async () => {
  const echo = entry("tool_result").filter({ hasText: "srv_echo" });
  await echo.getByText('"unit": "billing"').waitFor();
  assert.match(await echo.innerText(), /Result of srv_echo\s+after/);
  await entry("tool_result").filter({ hasText: "tool broke" }).getByText("Error of").waitFor();
  assert.match(await entry("tool_call").first().innerText(), /back after/);
  const woken = await page.locator("[data-slice] > .slice-head").allInnerTexts();
  assert.ok(woken.some((text) => text.includes("woken by a message")), woken.join("; "));
  assert.ok(woken.some((text) => text.includes("woken by a tool’s result")), woken.join("; "));
  const reasoning = entry("reasoning");
  await reasoning.getByRole("button").click();
  await reasoning.getByText("thinking about it", { exact: true }).last().waitFor();
});

await check("a link leads from a result to its call", async () => {
  await entry("tool_result").first().getByRole("link", { name: "srv_echo" }).click();
  const focused = await page.evaluate(() => document.activeElement?.getAttribute("data-kind"));
  assert.equal(focused, "tool_call");
});

await check("children: the call leads to its thread, the thread to its parent", async () => {
  await show("family");
  const details = page.getByRole("complementary", { name: "Details" });
  await details.getByRole("heading", { name: "Children and forks" }).waitFor();
  await entry("event").getByText("a child’s report").first().waitFor();
  await screenshot(page, "3-children");
  await entry("tool_call").first().getByRole("button", { name: "Child thread: Read the logs of last night and say what failed" }).click();
  await main.getByRole("heading", { level: 2, name: "Read the logs of last night and say what failed" }).waitFor();
  await page.getByText(/Begins with \d+ items? of its parent’s conversation/).waitFor();
  await details.getByRole("button", { name: "family", exact: true }).click();
  await main.getByRole("heading", { level: 2, name: "family", exact: true }).waitFor();
});

await check("a rewound branch is folded where it was left, and shown superseded", async () => {
  await show("rewound");
  const branch = page.locator('[data-branch="0"]');
  await branch.getByText(/superseded here/).waitFor();
  assert.equal(await page.getByText("the wrong way", { exact: true }).count(), 0);
  await branch.getByRole("button", { name: /Rewound/ }).click();
  await branch.locator('[data-kind="assistant"]', { hasText: "the wrong way" }).waitFor();
  const order = await page.locator("[data-entry]").evaluateAll((all) => all.map((one) => one.innerText));
  const at = (text) => order.findIndex((one) => one.includes(text));
  assert.ok(at("the first step") < at("the wrong way") && at("the wrong way") < at("the right way"), order.join("\n"));
  await screenshot(page, "4-rewound");
});

await check("a log that was left is shown as it stood", async () => {
  await page.getByRole("button", { name: /^Log 0/ }).click();
  await page.getByText(/As it stood in log 0/).waitFor();
  await entry("assistant").filter({ hasText: "the wrong way" }).waitFor();
  assert.equal(await entry("assistant").filter({ hasText: "the right way" }).count(), 0);
  assert.equal(await page.getByRole("form", { name: "Chat" }).count(), 0);
  await page.getByRole("button", { name: "Back to the current log" }).click();
  await entry("assistant").filter({ hasText: "the right way" }).waitFor();
});

await check("a summary stands below what it stands for", async () => {
  await show("long");
  const summary = page.locator('[data-generation="1"]');
  await summary.waitFor();
  const covered = Number(/the (\d+) items? above/.exec(await summary.innerText())?.[1]);
  assert.ok(covered > 0, await summary.innerText());
  assert.equal(await page.locator(".entry.summarised").count(), covered);
  await summary.getByRole("button").click();
  await summary.getByText("cut-over is on Sunday").waitFor();
  await summary.scrollIntoViewIfNeeded();
  await screenshot(page, "5-compacted");
});

await check("results that requests hold shortened say so", async () => {
  await show("pruned");
  const results = entry("tool_result");
  await results.first().getByText("shortened in requests").waitFor();
  assert.equal(await results.last().getByText("in requests").count(), 0, "the newest is sent whole");
  await page.getByRole("complementary", { name: "Details" }).getByText(/^shortened before turn \d$/).waitFor();
});

await check("long texts are folded until somebody wants them", async () => {
  await show("long");
  const card = entry("assistant").first();
  const more = card.getByRole("button", { name: /^Show all · [\d,]+ characters$/ });
  assert.equal(await more.getAttribute("aria-expanded"), "false");
  const folded = (await card.boundingBox()).height;
  await more.click();
  await until("the card grows", async () => (await card.boundingBox()).height > folded * 1.5);
  await card.getByRole("button", { name: "Show less" }).click();
});

await check("what is said elsewhere appears by itself", async () => {
  await show("live");
  const before = await page.locator("[data-entry]").count();
  await post(url, "/threads/live/messages", { text: "say something from a shell" });
  await entry("assistant").filter({ hasText: "something from a shell" }).waitFor();
  assert.ok((await page.locator("[data-entry]").count()) >= before + 2);
});

await check("another client’s run is followed while its slice runs", async () => {
  const run = post(url, "/agui/agent/default/run", {
    threadId: "live",
    runId: "of-another-client",
    tools: [],
    context: [],
    messages: [{ id: "m-other", role: "user", content: "slow 80 elsewhere" }],
    forwardedProps: { dormouse: { mode: "append" } },
  }).then((response) => response.text());
  const text = page.locator('[data-live] [data-live-kind="text"]');
  await text.waitFor();
  const first = (await text.innerText()).length;
  await until("the text grows", async () => (await text.innerText()).length > first + 20);
  assert.equal((await item("live", "assistant")).some((one) => one.item.text.includes("elsewhere")), false, "nothing is stored yet");
  await main.getByText("Running", { exact: true }).waitFor();
  await run;
  await page.locator("[data-live]").waitFor({ state: "detached" });
  await entry("assistant").filter({ hasText: "elsewhere" }).waitFor();
  assert.equal(await page.getByText("elsewhere elsewhere").count(), 1, "it is shown once");
});

await check("a chat streams, and is stopped", async () => {
  await page.keyboard.press("c");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "composer");
  await page.keyboard.type("slow 400 word");
  await page.keyboard.press("Enter");
  const text = page.locator('[data-live] [data-live-kind="text"]');
  await text.waitFor();
  await until("the text grows", async () => (await text.innerText()).length > 40);
  await page.getByRole("button", { name: "Stop the response" }).click();
  await page.locator("[data-live]").waitFor({ state: "detached" });
  const said = (await item("live", "assistant")).at(-1);
  assert.ok(said.item.text.startsWith("word word") && said.item.text.length < 1_900, said.item.text);
  await entry("assistant").filter({ hasText: "word word" }).waitFor();
});

await check("a message interrupts a call that is out, and the marker says so", async () => {
  await show("calls");
  const field = page.getByRole("textbox", { name: "Message to calls" });
  await page.getByPlaceholder("interrupts the calls that are out").waitFor();
  await field.fill("say never mind");
  await field.press("Enter");
  await entry("interrupt").getByText("srv_slow").waitFor();
  await entry("assistant").filter({ hasText: "never mind" }).waitFor();
  await entry("tool_call").last().getByText(/interrupted after/).waitFor();
  await main.getByText("Asleep", { exact: true }).waitFor();
});

await check("a question is answered in the page", async () => {
  await post(url, "/threads/asks/messages", { text: 'call srv_guarded {"table": "invoices"}' });
  await node("asks").waitFor();
  await show("asks");
  await main.getByText("Waiting for approval").waitFor();
  const question = page.getByRole("group", { name: "Question" });
  const answers = await question.getByRole("button").allInnerTexts();
  assert.ok(answers.length >= 2, answers.join());
  await question.getByRole("button").first().click();
  await entry("tool_result").waitFor();
  await question.waitFor({ state: "detached" });
});

await check("the keyboard reaches everything", async () => {
  await show("calls");
  await entry("user").first().waitFor();
  await page.locator("#main").focus();
  await page.keyboard.press("g");
  const focused = () => page.evaluate(() => document.activeElement?.getAttribute("data-entry"));
  const first = await focused();
  assert.equal(first, "1");
  await page.keyboard.press("j");
  assert.equal(await focused(), "2");
  const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(ring, "solid", "the focus is visible");
  await page.keyboard.press("k");
  assert.equal(await focused(), "1");
  await page.keyboard.press("G");
  assert.ok(Number(await focused()) > 2);
  // Enter folds and unfolds.
  await entry("reasoning").focus();
  const fold = entry("reasoning").locator("[aria-expanded]");
  const was = await fold.getAttribute("aria-expanded");
  await page.keyboard.press("Enter");
  assert.notEqual(await fold.getAttribute("aria-expanded"), was);
  // The tree, with arrows.
  await page.keyboard.press("t");
  const row = () => page.evaluate(() => document.activeElement?.getAttribute("data-thread"));
  assert.equal(await row(), "calls");
  await page.keyboard.press("Home");
  const firstRow = await page.getByRole("treeitem").first().getAttribute("data-thread");
  const top = await until("the first thread has the focus", async () => (await row()) === firstRow && firstRow);
  await page.keyboard.press("ArrowDown");
  await until("the focus moves", async () => (await row()) !== top);
  await node("family").focus();
  assert.equal(await node("family").getAttribute("aria-expanded"), "true");
  await page.keyboard.press("ArrowLeft");
  assert.equal(await node("family").getAttribute("aria-expanded"), "false");
  assert.equal(await node("family-copy").count(), 0);
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await until("the focus is on a child", async () => (await row()) !== "family");
  await node("family-copy").focus();
  await page.keyboard.press("Enter");
  await main.getByRole("heading", { level: 2, name: "family-copy", exact: true }).waitFor();
  // The filter, and out of it.
  await page.keyboard.press("/");
  await page.keyboard.type("rewou");
  await until("the list is filtered", async () => (await page.getByRole("treeitem").count()) === 1);
  await page.getByRole("searchbox", { name: "Filter threads" }).fill("");
  await page.keyboard.press("Escape");
  // The shortcuts are told in the page.
  await page.keyboard.press("?");
  const help = page.getByRole("dialog", { name: "Keyboard shortcuts" });
  await help.getByText("next, previous entry of the timeline").waitFor();
  await page.keyboard.press("Escape");
  await help.waitFor({ state: "detached" });
});

await check("everything that can be pressed has a name", async () => {
  const nameless = await page.locator("button, a[href], input, textarea, select").evaluateAll((all) =>
    all
      .filter((one) => !(one.getAttribute("aria-label") || one.innerText?.trim() || one.labels?.[0]?.innerText))
      .map((one) => one.outerHTML),
  );
  assert.deepEqual(nameless, []);
  for (const role of ["navigation", "main", "complementary", "tree"]) await page.getByRole(role).first().waitFor();
});

await check("dark as the system has it, and by the toggle; texts keep their contrast", async () => {
  const seen = () =>
    page.evaluate(() => {
      const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const light = (colour) => {
        paint.fillStyle = colour;
        paint.fillRect(0, 0, 1, 1);
        const parts = [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => {
          const linear = part / 255;
          return linear <= 0.04045 ? linear / 12.92 : ((linear + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
      };
      const ground = light(getComputedStyle(document.body).backgroundColor);
      const contrast = (selector) => {
        const ink = light(getComputedStyle(document.querySelector(selector)).color);
        return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
      };
      return { ground, text: contrast(".entry.user .prose"), muted: contrast(".slice-head"), faint: contrast(".turn time") };
    });
  await show("calls");
  await entry("user").first().waitFor();
  const inLight = await seen();
  assert.ok(inLight.ground > 0.8, JSON.stringify(inLight));
  await page.emulateMedia({ colorScheme: "dark" });
  const bySystem = await seen();
  assert.ok(bySystem.ground < 0.05, JSON.stringify(bySystem));
  await page.emulateMedia({ colorScheme: "light" });
  await page.locator("#main").focus();
  await page.keyboard.press("d");
  const byToggle = await seen();
  assert.equal(byToggle.ground, bySystem.ground);
  for (const some of [inLight, bySystem]) assert.ok(some.text >= 7 && some.muted >= 4.5 && some.faint >= 4.5, JSON.stringify(some));
  await screenshot(page, "6-dark");
  await page.reload();
  await entry("user").first().waitFor();
  assert.equal((await seen()).ground, byToggle.ground, "the choice is kept");
  await page.getByRole("button", { name: "Theme: dark" }).click();
  assert.ok((await seen()).ground > 0.8);
});

await check("nothing is asked of anybody else, and the browser has no complaint", async () => {
  assert.deepEqual(foreign, []);
  assert.deepEqual(complaints, []);
});

await check("a server that is gone is said, and what was read stays", async () => {
  await page.route("**/threads**", (route) => route.abort());
  await page.getByRole("alert").first().waitFor();
  assert.ok((await page.locator("[data-entry]").count()) > 0);
  await page.unroute("**/threads**");
  await page.getByRole("alert").first().waitFor({ state: "detached" });
});

await sleep(0);
await close();
finish();
