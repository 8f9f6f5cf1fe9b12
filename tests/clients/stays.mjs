#!/usr/bin/env node
// socket.io-client that watches one session until a run has ended, whatever becomes of its server meanwhile: it comes back by itself and
// subscribes behind the last event it saw. Prints {"connected": N} each time, and {"raw": [...]} with every event at the end.

import { io } from "socket.io-client";
import { print, programArguments, remark, required, run } from "./program.mjs";

await run(async () => {
  const args = programArguments({ session: { type: "string" }, transport: { type: "string", default: "websocket" } });
  required(args, "session");
  const socket = io(args.base, {
    auth: { token: args.token },
    forceNew: true,
    transports: [args.transport],
    reconnectionDelay: 20,
    reconnectionDelayMax: 200,
  });
  const raw = [];
  let connected = 0;
  await new Promise((resolve, reject) => {
    socket.on("connect", () => {
      const after_sequence = raw.at(-1)?.stream_sequence ?? 0;
      const wanted = { session_id: args.session, event_format: "raw", after_sequence, resume: connected > 0 };
      socket.emit("session:subscribe", wanted, () => print({ connected: ++connected }));
    });
    socket.on("connect_error", (error) => remark(`connecting again: ${error.message}`));
    socket.on("system:error", (data) => reject(new Error(JSON.stringify(data))));
    socket.on("turn:events", ({ events }) => {
      raw.push(...events);
      if (events.at(-1)?.type === "chat:end") resolve();
    });
  });
  // What comes behind the end is one too many.
  await new Promise((later) => setTimeout(later, 50));
  print({ raw });
  socket.disconnect();
});
