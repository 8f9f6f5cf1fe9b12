#!/usr/bin/env node
// A person at the demo page, in headless Chromium: types prompts, one as soon as the one before has ended, sends them,
// answers, and reads what the two columns show once both have ended. Prints one line for each prompt: the texts, the
// tools, and the outcomes. An error that the page does not catch fails the program, and so does one that it shows.

import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { fail, print, programArguments, remark, required, run } from "./program.mjs";

// No sandbox, because CI is root; and no talk to anybody but the page.
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--disable-dev-shm-usage",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-default-apps",
  "--no-first-run",
  "--no-proxy-server",
];
const POLL_MS = 50;
const OPEN = ".card button:enabled";
/** Messages of a connection until it is cut: more than its handshake, and less than a run. */
const CUT_AFTER = 25;
const COLUMNS = ["sse", "socketio"];
/** What the ids of a side's buttons end with, for each prompt in turn. */
const BUTTONS = { sse: [""], socketio: ["-socketio"], both: ["", "-socketio"] };

await run(async () => {
  const args = programArguments({
    prompt: { type: "string", multiple: true },
    over: { type: "string", default: "sse" },
    answer: { type: "string", default: "allow" },
    column: { type: "string" },
    screenshot: { type: "string" },
    stop: { type: "boolean", default: false },
    look: { type: "boolean", default: false },
    cuts: { type: "string", default: "0" },
  });
  required(args, "prompt");
  const buttons = BUTTONS[args.over];
  if (buttons === undefined) throw new Error("--over takes sse, socketio or both");
  const profile = mkdtempSync(join(tmpdir(), "interline-browser-"));
  process.on("exit", () => rmSync(profile, { recursive: true, force: true, maxRetries: 5 }));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: execFileSync("sh", ["-c", "command -v chromium"], { encoding: "utf8" }).trim(),
    headless: true,
    args: FLAGS,
    viewport: { width: 1280, height: 900 },
  });
  const page = context.pages()[0] ?? (await context.newPage());
  page.on("console", (message) => {
    if (message.type() === "error") remark(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => fail(`uncaught in the page: ${error.stack ?? error}`));
  page.on("crash", () => fail("the page crashed"));

  if (args.cuts !== "0") await cutSockets(page, Number(args.cuts));
  await page.goto(`${args.base}/`, { waitUntil: "load" });
  await page.evaluate(recordStates, COLUMNS);
  for (const [number, prompt] of args.prompt.entries()) {
    const side = buttons[number % buttons.length];
    await page.fill("#prompt", prompt);
    await page.click(`#send${side}`);
    print(await follow(page, args, side));
  }
  if (args.screenshot !== undefined) await page.screenshot({ path: args.screenshot, fullPage: true });
  await context.close();
});

/** In the page: writes down each state of each column. */
function recordStates(columns) {
  window.states = Object.fromEntries(columns.map((column) => [column, []]));
  for (const column of columns) {
    const state = document.querySelector(`#${column} [data-state]`);
    const seen = (records) => window.states[column].push(...records.slice(1).map(({ oldValue }) => oldValue), state.dataset.state);
    new MutationObserver(seen).observe(state, { attributeFilter: ["data-state"], attributeOldValue: true });
  }
}

/** Answers, and perhaps stops, until both columns have ended; gives what they show, and which states they went through. */
async function follow(page, args, side) {
  let stopped = !args.stop;
  const looks = [];
  while (!(await bothEnded(page))) {
    if (!stopped && (await anyText(page))) {
      await page.click(`#stop${side}`);
      stopped = true;
    }
    const seen = args.look ? await look(page) : null;
    if (seen !== null) looks.push(seen);
    // Nothing is answered that was not looked at.
    if (args.answer !== "none" && (!args.look || seen !== null)) await answer(page, args);
    await page.waitForTimeout(POLL_MS);
  }
  if (!stopped) throw new Error("the run ended before there was a text to stop at");
  const problem = page.locator("#problem:visible");
  const seen = { looks, problem: (await problem.count()) > 0 ? await problem.textContent() : null };
  for (const column of COLUMNS) {
    seen[`${column}_text`] = await page.locator(`#${column} .answer`).textContent();
    seen[`${column}_tools`] = await page.locator(`#${column} .tool`).allTextContents();
    seen[`${column}_states`] = await page.evaluate((column) => window.states[column].splice(0), column);
    seen[`${column}_outcome`] = await page.locator(`#${column} [data-state]`).getAttribute("data-outcome");
  }
  return seen;
}

/** The first connections over Socket.IO, so many of them, are lost after a while. */
async function cutSockets(page, cuts) {
  let left = cuts;
  await page.routeWebSocket(/\/socket\.io\//, (socket) => {
    const server = socket.connectToServer();
    let messages = left > 0 ? CUT_AFTER : Infinity;
    left -= 1;
    server.onMessage((message) => {
      messages -= 1;
      if (messages >= 0) socket.send(message);
      else if (messages === -1) {
        socket.close();
        server.close();
      }
    });
  });
}

async function bothEnded(page) {
  const ended = await Promise.all(COLUMNS.map((each) => page.locator(`#${each} [data-state="ended"]`).count()));
  return ended.every((count) => count > 0);
}

async function anyText(page) {
  const texts = await Promise.all(COLUMNS.map((each) => page.locator(`#${each} .answer`).textContent()));
  return texts.some((text) => text.trim() !== "");
}

/**
 * What both columns say of their tools and of themselves once both wait; null if nothing is asked. The events of one may still be on their
 * way to the other.
 */
async function look(page) {
  const until = Date.now() + 5000;
  for (;;) {
    if ((await page.$(OPEN)) === null) return null;
    const [waiting, texts] = await page.evaluate((columns) => {
      const all = (column, what) => [...document.querySelectorAll(`#${column} ${what}`)];
      const texts = columns.map((column) => all(column, ":is(.state, .tool summary, .card)").map((each) => each.textContent));
      return [columns.every((column) => all(column, '[data-state="waiting"]').length > 0), texts];
    }, COLUMNS);
    const [one, other] = texts.map((each) => JSON.stringify(each).replaceAll("Allow always", ""));
    if ((waiting && one === other) || Date.now() > until) return texts;
    await page.waitForTimeout(POLL_MS);
  }
}

/** Clicks the first visible button of the verdict, and waits until that button is gone or of no use any more. */
async function answer(page, { answer: verdict, column }) {
  const within = column === undefined ? "" : `#${column} `;
  const button = await page.$(`${within}[data-answer="${verdict}"]:visible:enabled`);
  if (button === null) return;
  const isUsable = (each) => each.isConnected && !each.disabled && each.checkVisibility();
  try {
    await button.click({ timeout: 1000 });
    await page.waitForFunction((each) => !(each.isConnected && !each.disabled && each.checkVisibility()), button, {
      timeout: 5000,
    });
  } catch (error) {
    // Somebody else, or the end of the run, may have taken it away before the click; not so if it is still there.
    if (await button.evaluate(isUsable)) throw error;
  }
}
