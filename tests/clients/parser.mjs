#!/usr/bin/env node
// A run read through npm `eventsource-parser`, the parser inside many SDKs.

import { createParser } from "eventsource-parser";
import { programArguments, run } from "./program.mjs";
import { EventLog, RUN_OPTIONS, startRun } from "./sse.mjs";

await run(async () => {
  const args = programArguments(RUN_OPTIONS);
  const log = new EventLog(args);
  const parser = createParser({
    onEvent: ({ data }) => log.see(data),
    onError: (error) => {
      throw error;
    },
  });
  const response = await startRun(args);
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) parser.feed(text);
  await log.close();
});
