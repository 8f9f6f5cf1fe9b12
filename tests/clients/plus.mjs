#!/usr/bin/env node
// A run read through `event-source-plus`, which sends its POST again after every break, and after every clean end too unless it is told to
// stop. Prints {"opened": RUN} for each answer and each event's JSON text; stops at the `--ends`-th terminal event.

import { EventSourcePlus } from "event-source-plus";
import { headers, print, printText, programArguments, run } from "./program.mjs";
import { RUN_OPTIONS, runRequest, TERMINALS } from "./sse.mjs";

await run(async () => {
  const args = programArguments({
    ...RUN_OPTIONS,
    ends: { type: "string", default: "1" },
    key: { type: "string" },
  });
  const [url, { method, body }] = runRequest(args);
  const key = args.key === undefined ? {} : { "Idempotency-Key": args.key };
  const source = new EventSourcePlus(url, { method, body, headers: { ...headers(args), ...key } });
  let ends = Number(args.ends);
  await new Promise((resolve, reject) => {
    const controller = source.listen({
      onResponse({ response }) {
        if (response.status !== 200) return reject(new Error(`POST …/run: ${response.status}`));
        print({ opened: response.headers.get("x-run-id") });
      },
      onMessage({ data }) {
        printText(data);
        if (!TERMINALS.includes(JSON.parse(data).type) || --ends > 0) return;
        controller.abort();
        resolve();
      },
    });
  });
});
