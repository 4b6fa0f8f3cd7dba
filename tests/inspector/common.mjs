// A headless Chromium with a profile of its own, and checks that are counted.

import assert from "node:assert/strict";
import { mkdtempSync, mkdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const STEP_MS = 20_000;
const SIZE = { width: 1360, height: 860 };
const ARGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

export async function open(url) {
  const profile = mkdtempSync(join(tmpdir(), "inspector-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.DORMOUSE_TEST_CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    args: ARGS,
    viewport: SIZE,
    locale: "en-GB",
    timezoneId: "UTC",
    colorScheme: "light",
  });
  context.setDefaultTimeout(STEP_MS);
  const page = context.pages()[0] ?? (await context.newPage());
  const complaints = [];
  const foreign = [];
  page.on("pageerror", (error) => complaints.push(`exception: ${error.message}`));
  page.on("console", (message) => {
    // The browser itself notes every answer that is no success.
    const status = /the server responded with a status of (401|404|503)/.test(message.text());
    if (["error", "warning"].includes(message.type()) && !status) complaints.push(message.text());
  });
  page.on("request", (request) => {
    if (new URL(request.url()).protocol !== "data:" && !request.url().startsWith(url)) foreign.push(request.url());
  });
  await page.goto(`${url}/inspector`);
  return {
    page,
    complaints,
    foreign,
    async close() {
      await context.close();
      rmSync(profile, { recursive: true, force: true });
    },
  };
}

let passed = 0;
let failed = 0;

export async function check(name, test) {
  try {
    await test();
    passed += 1;
    console.log(`ok   ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}\n     ${String(error.stack ?? error).split("\n").slice(0, 12).join("\n     ")}`);
  }
}

export function finish() {
  console.log(`${passed} passed, ${failed} failed`);
  process.exitCode = failed === 0 ? 0 : 1;
}

export async function screenshot(page, name) {
  const folder = process.env.DORMOUSE_TEST_SCREENSHOTS;
  assert.ok(folder, "DORMOUSE_TEST_SCREENSHOTS names a folder");
  mkdirSync(folder, { recursive: true });
  // What moves stands still.
  await page.screenshot({ path: join(folder, `${name}.png`), animations: "disabled" });
}

export async function post(url, path, body) {
  const response = await fetch(`${url}${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  assert.ok(response.ok, `${path}: ${response.status} ${await response.clone().text()}`);
  return response;
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export async function until(what, enough) {
  const end = Date.now() + STEP_MS;
  for (;;) {
    const found = await enough();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not in ${STEP_MS} ms: ${what}`);
    await sleep(50);
  }
}
