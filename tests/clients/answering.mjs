#!/usr/bin/env node
// The other half of `curl.sh`: reads the raw body of a run from stdin, answers what the run asks, and checks that it
// ends. Prints nothing.

import { createInterface } from "node:readline";
import { programArguments, required, run } from "./program.mjs";
import { EventLog, RUN_OPTIONS } from "./sse.mjs";

await run(async () => {
  const args = programArguments(RUN_OPTIONS);
  required(args, "cell");
  const log = new EventLog(args);
  for await (const line of createInterface({ input: process.stdin })) {
    if (line.startsWith("data: ")) log.see(line.slice("data: ".length), () => {});
  }
  await log.close();
});
