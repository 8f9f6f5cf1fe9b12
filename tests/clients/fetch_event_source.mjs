#!/usr/bin/env node
// A run read through `@microsoft/fetch-event-source`, which starts it again after an error or a hidden tab. Here it
// must not: a second POST would be a second run, so any reason for one fails the program.

import { expectStream, EventLog, RUN_OPTIONS, runRequest } from "./sse.mjs";
import { programArguments, run } from "./program.mjs";

// The library expects a browser; of it, it uses timers and the visibility of the page.
globalThis.window = globalThis;
globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };
const { fetchEventSource } = await import("@microsoft/fetch-event-source");

await run(async () => {
  const args = programArguments(RUN_OPTIONS);
  const log = new EventLog(args);
  const [url, init] = runRequest(args);
  await fetchEventSource(url, {
    ...init,
    onopen: expectStream,
    onmessage: ({ data }) => log.see(data),
    onerror: (error) => {
      throw error;
    },
  });
  await log.close();
});
