#!/usr/bin/env node
// socket.io-client that watches one session until a run (or --ends N runs) has ended, whatever becomes of its server meanwhile: it comes back by itself and
// subscribes behind the last event it saw. Prints {"connected": N} each time, and {"raw": [...]} with every event at the end; with --typed it
// reads turns, and prints {"typed": {"text", "turn_ends", "chat_ends"}}: what it shows, how often it was told the end of each turn, and the run
// of each end of a chat that it was told.

import { io } from "socket.io-client";
import { print, programArguments, remark, required, run } from "./program.mjs";

await run(async () => {
  const args = programArguments({
    session: { type: "string" },
    typed: { type: "boolean" },
    ends: { type: "string", default: "1" },
    transport: { type: "string", default: "websocket" },
  });
  const ends = Number(args.ends);
  required(args, "session");
  const socket = io(args.base, {
    auth: { token: args.token },
    forceNew: true,
    transports: [args.transport],
    reconnectionDelay: 20,
    reconnectionDelayMax: 200,
  });
  const raw = [];
  const typed = { turns: new Map(), turn_ends: {}, chat_ends: [] };
  const said = (turn) => turn.blocks.filter((block) => block.type === "text").map((block) => block.content).join("");
  let connected = 0;
  await new Promise((resolve, reject) => {
    socket.on("connect", () => {
      const after_sequence = raw.at(-1)?.stream_sequence ?? 0;
      const from = { event_format: "raw", after_sequence, resume: connected > 0 };
      const wanted = { session_id: args.session, ...(args.typed ? {} : from) };
      socket.emit("session:subscribe", wanted, () => print({ connected: ++connected }));
    });
    socket.on("connect_error", (error) => remark(`connecting again: ${error.message}`));
    socket.on("system:error", (data) => reject(new Error(JSON.stringify(data))));
    socket.on("turn:events", ({ events }) => {
      raw.push(...events);
      if (events.at(-1)?.type === "chat:end" && raw.filter(({ type }) => type === "chat:end").length >= ends) resolve();
    });
    if (!args.typed) return;
    socket.on("turn:start", (turn) => turn.role === "assistant" && typed.turns.set(turn.turn_id, said(turn)));
    socket.on("turn:patch", ({ turn_id, patch_type, data }) => {
      if (patch_type === "add_content" && data.type === "text") typed.turns.set(turn_id, typed.turns.get(turn_id) + data.text_delta);
    });
    socket.on("turn:end", (turn) => {
      if (turn.role !== "assistant") return;
      if (typed.turns.get(turn.turn_id) !== said(turn)) reject(new Error(`its patches said ${typed.turns.get(turn.turn_id)}, its end ${said(turn)}`));
      typed.turn_ends[turn.turn_id] = (typed.turn_ends[turn.turn_id] ?? 0) + 1;
    });
    socket.on("chat:end", ({ chat_run_id }) => {
      typed.chat_ends.push(chat_run_id);
      if (typed.chat_ends.length >= ends) resolve();
    });
  });
  // What comes behind the end is one too many.
  await new Promise((later) => setTimeout(later, 50));
  const { turns, turn_ends, chat_ends } = typed;
  print(args.typed ? { typed: { text: [...turns.values()].join(""), turn_ends, chat_ends } } : { raw });
  socket.disconnect();
});
