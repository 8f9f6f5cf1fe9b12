#!/usr/bin/env node
// The loop that the vendor's page documents for JavaScript: fetch, a reader, split at line feeds, `data: ` in front.

import { programArguments, run } from "./program.mjs";
import { EventLog, RUN_OPTIONS, startRun } from "./sse.mjs";

await run(async () => {
  const args = programArguments(RUN_OPTIONS);
  const log = new EventLog(args);
  const reader = (await startRun(args)).body.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    buffer += decoder.decode(value, { stream: true });
    const lines = buffer.split("\n");
    buffer = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ")) log.see(line.slice("data: ".length));
    }
  }
  await log.close();
});
