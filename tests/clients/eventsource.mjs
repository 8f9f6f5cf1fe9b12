#!/usr/bin/env node
// A run followed by npm `eventsource`, which behaves as the browser's: it connects again after every end of the body,
// until the server says that there is no more (204). Prints {"lastEventId", "data"} for each event and at last
// {"closed": true}.

import { EventSource } from "eventsource";
import { fail, print, programArguments, remark, required, run } from "./program.mjs";
import { EventLog } from "./sse.mjs";

const NO_CONTENT = 204;

await run(async () => {
  const args = programArguments({
    cell: { type: "string" },
    run: { type: "string" },
    "from-seq": { type: "string" },
    answer: { type: "string", default: "none" },
  });
  const cell = encodeURIComponent(required(args, "cell"));
  const url = new URL(`${args.base}/cells/${cell}/runs/${encodeURIComponent(required(args, "run"))}/events`);
  if (args["from-seq"] !== undefined) url.searchParams.set("from_seq", args["from-seq"]);
  // An EventSource can set no header.
  if (args.token !== undefined) url.searchParams.set("access_token", args.token);

  const log = new EventLog(args);
  await new Promise((resolve, reject) => {
    const source = new EventSource(url);
    source.onmessage = ({ data, lastEventId }) => {
      try {
        log.see(data, () => print({ lastEventId, data }));
      } catch (error) {
        reject(error);
      }
    };
    source.onerror = ({ code, message }) => {
      if (source.readyState !== EventSource.CLOSED) remark(`connecting again${message ? `: ${message}` : ""}`);
      else if (code === NO_CONTENT) resolve();
      else fail(`closed: ${code} ${message}`);
    };
  });
  await log.close();
  print({ closed: true });
});
