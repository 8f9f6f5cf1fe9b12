#!/usr/bin/env node
// socket.io-client that stays: it is connected, loses its server, and is expected to come back by itself. Prints
// {"connected": N} each time it is connected and {"disconnected": REASON} each time it is not; ends when it was connected
// as often as --times says.

import { io } from "socket.io-client";
import { print, programArguments, remark, run } from "./program.mjs";

const TRANSPORTS = { websocket: ["websocket"], polling: ["polling"], default: undefined };

await run(async () => {
  const args = programArguments({
    transport: { type: "string", default: "default" },
    times: { type: "string", default: "2" },
  });
  const socket = io(args.base, {
    auth: { token: args.token },
    forceNew: true,
    ...(TRANSPORTS[args.transport] && { transports: TRANSPORTS[args.transport] }),
  });
  let connected = 0;
  await new Promise((resolve) => {
    socket.on("connect", () => {
      print({ connected: ++connected });
      if (connected >= Number(args.times)) resolve();
    });
    socket.on("disconnect", (reason) => print({ disconnected: reason }));
    socket.on("connect_error", (error) => remark(`connecting again: ${error.message}`));
  });
  socket.disconnect();
});
