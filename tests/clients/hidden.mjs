#!/usr/bin/env node
// A run read through `@microsoft/fetch-event-source` in headless Chromium, as a page does it that leaves all options alone: the library drops
// the stream while the tab is hidden and sends its POST again when it is shown, and again after every break. The tab is hidden and shown
// `--hide` times. Prints {"opened": RUN} for each answer and each event's JSON text, until the library gives up or is content.
//
// Headless tabs are never hidden, so what the page is told is: `document.hidden` and its event are the test's, the rest is the browser's.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { fail, print, printText, programArguments, remark, run } from "./program.mjs";
import { RUN_OPTIONS, runRequest } from "./sse.mjs";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server"];
const LIBRARY = new URL("./node_modules/@microsoft/fetch-event-source/lib/esm/", import.meta.url);
const HIDDEN_MS = 150;
const POLL_MS = 20;
const SHOWN_MS = 400;

await run(async () => {
  const args = programArguments({
    ...RUN_OPTIONS,
    hide: { type: "string", default: "0" },
    key: { type: "string" },
  });
  const profile = mkdtempSync(join(tmpdir(), "interline-hidden-"));
  process.on("exit", () => rmSync(profile, { recursive: true, force: true, maxRetries: 5 }));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: execFileSync("sh", ["-c", "command -v chromium"], { encoding: "utf8" }).trim(),
    headless: true,
    args: FLAGS,
  });
  const page = context.pages()[0] ?? (await context.newPage());
  page.on("console", (message) => remark(`console: ${message.text()}`));
  page.on("pageerror", (error) => fail(`uncaught in the page: ${error.stack ?? error}`));
  await page.route("**/again/**", (route) => {
    const name = new URL(route.request().url()).pathname.split("/").pop();
    if (name === "page") return route.fulfill({ contentType: "text/html", body: "<!doctype html><title>again</title>" });
    const file = new URL(name.endsWith(".js") ? name : `${name}.js`, LIBRARY);
    return route.fulfill({ contentType: "text/javascript", body: readFileSync(file, "utf8") });
  });
  let answers = 0;
  await page.exposeFunction("opened", (id) => {
    answers++;
    print({ opened: id });
  });
  await page.exposeFunction("seen", (data) => printText(data));
  await page.goto(`${args.base}/again/page`);
  await page.evaluate(() => {
    globalThis.isHidden = false;
    Object.defineProperty(document, "hidden", { get: () => globalThis.isHidden });
  });

  const [url, init] = runRequest(args);
  if (args.key !== undefined) init.headers["Idempotency-Key"] = args.key;
  const reading = page.evaluate(
    async ([url, init]) => {
      const { fetchEventSource } = await import("/again/index.js");
      let last;
      await fetchEventSource(url, {
        ...init,
        async onopen(response) {
          await globalThis.opened(response.headers.get("x-run-id"));
          if (response.status !== 200) throw new Error(`POST …/run: ${response.status}`);
        },
        onmessage({ data }) {
          last = JSON.parse(data).type;
          globalThis.seen(data);
        },
        onclose() {
          if (!["done", "error", "interrupted"].includes(last)) throw new Error(`the stream ended after ${last}`);
        },
      });
    },
    [url, init],
  );
  for (let n = 0; n < Number(args.hide); n++) {
    while (answers <= n) await page.waitForTimeout(POLL_MS);
    await page.waitForTimeout(SHOWN_MS);
    await show(page, false);
    await page.waitForTimeout(HIDDEN_MS);
    await show(page, true);
  }
  await reading;
  await context.close();
});

function show(page, shown) {
  return page.evaluate((shown) => {
    globalThis.isHidden = !shown;
    document.dispatchEvent(new Event("visibilitychange"));
  }, shown);
}
