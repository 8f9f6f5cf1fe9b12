#!/usr/bin/env node
// A chat over socket.io-client 4, the way the vendor's JavaScript frontends do it: make a session by REST, connect, and
// at once emit the subscription and the message, which the library holds back and sends behind the CONNECT packet.
// Prints {"event", "data"} for each event, {"ack", "of"} for each acknowledgement asked for, and at last
// {"messages": [...]} as REST gives them right after the end.

import { io } from "socket.io-client";
import { askUserAnswer } from "./answers.mjs";
import { Chat, EVENTS } from "./chat.mjs";
import { fail, print, printText, programArguments, remark, request, required, run } from "./program.mjs";

const TRANSPORTS = { websocket: ["websocket"], polling: ["polling"], default: undefined };

await run(async () => {
  const args = programArguments({
    prompt: { type: "string" },
    session: { type: "string" },
    model: { type: "string" },
    answer: { type: "string", default: "allow" },
    transport: { type: "string", default: "default" },
    watch: { type: "boolean", default: false },
    acks: { type: "boolean", default: false },
    "stop-after": { type: "string" },
  });
  if (!(args.transport in TRANSPORTS)) fail("--transport takes websocket, polling or default");
  const stopAfter = args["stop-after"] === undefined ? undefined : Number(args["stop-after"]);
  const answering = !args.watch && args.answer !== "none";
  if (args.watch) required(args, "session");
  else required(args, "prompt");
  const session_id = args.session ?? (await createSession(args));

  const socket = io(args.base, {
    auth: { token: args.token },
    autoConnect: false,
    forceNew: true,
    ...(TRANSPORTS[args.transport] && { transports: TRANSPORTS[args.transport] }),
  });
  const acks = [];
  // Early clients ask for an acknowledgement of `chat:stop` alone; with --acks everything is to be acknowledged.
  function emit(event, payload, wantsAck = args.acks) {
    if (!wantsAck) return void socket.emit(event, payload);
    const acked = socket.emitWithAck(event, payload).then((ack) => print({ ack, of: event }));
    acked.catch(() => {});
    acks.push(acked);
  }

  const chat = new Chat();
  let patches = 0;
  let over = false;
  const ended = new Promise((resolve, reject) => {
    function see(event, data) {
      print({ event, data });
      chat.see(event, data);
      if (event === "turn:patch" && ++patches === stopAfter) emit("chat:stop", { session_id }, true);
      if (event === "system:error" && !chat.open) throw new Error(`refused: ${data.message}`);
      if (event !== "chat:end") return;
      if (!chat.awaiting || args.answer === "none") return resolve();
      if (answering) {
        const askuser_answer = askUserAnswer(chat.question(), args.answer);
        emit("chat:send", { session_id, message: "", askuser_answer });
      }
    }
    for (const event of EVENTS) {
      socket.on(event, (data) => {
        try {
          see(event, data);
        } catch (error) {
          reject(error);
        }
      });
    }
    socket.on("connect_error", (error) => {
      if (!socket.active) reject(new Error(`not connected: ${error.message}`));
      else remark(`connecting again: ${error.message}`);
    });
    socket.on("disconnect", (reason) => over || remark(`disconnected: ${reason}`));
  });

  socket.connect();
  emit("session:subscribe", { session_id });
  if (!args.watch) emit("chat:send", { session_id, message: args.prompt, model: args.model });

  await ended;
  const messages = await request(args, "GET", `/api/sessions/${encodeURIComponent(session_id)}/messages`);
  await Promise.all(acks);
  if (!Array.isArray(JSON.parse(messages))) throw new Error(`messages are no list: ${messages}`);
  // The text as it came; outside strings, where alone they can be, line feeds mean nothing.
  printText(`{"messages": ${messages.replaceAll("\n", " ")}}`);
  over = true;
  socket.disconnect();
});

async function createSession(args) {
  const body = { intent: "", is_persistent: false, model: args.model };
  return JSON.parse(await request(args, "POST", "/api/sessions", body)).session_id;
}
