#!/usr/bin/env node
// Chats over socket.io-client 4 with its default transports: it begins by polling and tries to go on by WebSocket while
// events come. Prints, for each of --count chats of which --together run at a time, what became of its connection:
// {"text", "transport", "connects", "disconnects", "polls", "upgrade_ms", "upgrade_error", "first_ms"}.

import { io } from "socket.io-client";
import { print, programArguments, request, required, run } from "./program.mjs";

await run(async () => {
  const args = programArguments({
    prompt: { type: "string" },
    count: { type: "string", default: "1" },
    together: { type: "string", default: "1" },
  });
  required(args, "prompt");
  let left = Number(args.count);
  const one = async () => {
    while (left-- > 0) print(await chat(args));
  };
  await Promise.all(Array.from({ length: Number(args.together) }, one));
});

async function chat(args) {
  const { session_id } = JSON.parse(await request(args, "POST", "/api/sessions", { intent: "" }));
  const socket = io(args.base, { auth: { token: args.token }, autoConnect: false, forceNew: true });
  const begun = performance.now();
  const since = () => Math.round(performance.now() - begun);
  const seen = { text: "", connects: 0, disconnects: 0, polls: 0 };
  socket.io.on("open", () => {
    const { engine } = socket.io;
    engine.transport.on?.("poll", () => seen.polls++);
    engine.on("upgrade", () => (seen.upgrade_ms = since()));
    engine.on("upgradeError", (error) => (seen.upgrade_error = error.message));
  });
  socket.on("connect", () => seen.connects++);
  socket.on("disconnect", () => seen.disconnects++);
  socket.on("turn:patch", ({ patch_type, data }) => {
    seen.first_ms ??= since();
    if (patch_type === "add_content" && data.type === "text") seen.text += data.text_delta;
  });
  const ended = new Promise((resolve) => socket.on("chat:end", resolve));
  socket.connect();
  socket.emit("session:subscribe", { session_id });
  socket.emit("chat:send", { session_id, message: args.prompt });
  await ended;
  const { name: transport } = socket.io.engine.transport;
  const result = { ...seen, transport };
  socket.disconnect();
  return result;
}
