#!/usr/bin/env node
// A socket.io-client that does what its --plan says, step by step: a JSON array of
//   ["connect"], ["disconnect"], ["drop"]          drop: the transport is lost, without a farewell
//   ["emit", EVENT, PAYLOAD]                        asks for an acknowledgement and waits for nothing
//   ["ask", EVENT, PAYLOAD]                         the same, and waits for it
//   ["until", EVENT]                                the next event of this name, counted from where the last `until` stopped
//   ["answer", VERDICT]                             answers the question that waits, and waits for the acknowledgement
//   ["hold"]                                        remembers the question that waits, as if it had been answered
//   ["answer-again", VERDICT]                       answers once more the call that was answered or held last
//   ["sleep", MS], ["messages"], ["mark", TEXT]
// `session_id` is added to every payload. Prints {"event", "data"}, {"ack", "of"}, {"messages"}, {"mark"} in the order in which things came.
// desk.py is the same over python-socketio.

import { io } from "socket.io-client";
import { askUserAnswer } from "./answers.mjs";
import { Chat } from "./chat.mjs";
import { print, programArguments, request, required, run } from "./program.mjs";

const TRANSPORTS = { websocket: ["websocket"], polling: ["polling"], default: undefined };

await run(async () => {
  const args = programArguments({
    plan: { type: "string" },
    session: { type: "string" },
    transport: { type: "string", default: "websocket" },
  });
  required(args, "plan");
  const create = () => request(args, "POST", "/api/sessions", { intent: "" });
  const session_id = args.session ?? JSON.parse(await create()).session_id;
  print({ session_id });

  let socket;
  let chat = new Chat();
  let answered;
  const seen = [];
  let read = 0;
  let wake = () => {};

  async function connect() {
    chat = new Chat();
    socket = io(args.base, {
      auth: { token: args.token },
      forceNew: true,
      reconnection: false,
      ...(TRANSPORTS[args.transport] && { transports: TRANSPORTS[args.transport] }),
    });
    socket.onAny((event, data) => {
      print({ event, data });
      try {
        chat.see(event, data);
      } catch {
        // A patch of a turn that this socket has not seen: it came late.
      }
      seen.push(event);
      wake();
    });
    await new Promise((resolve, reject) => {
      socket.on("connect", resolve);
      socket.on("connect_error", reject);
    });
  }

  function ask(event, payload = {}) {
    // A callback, and not a promise: that would be told later than what comes behind it.
    return new Promise((resolve) => {
      socket.emit(event, { session_id, ...payload }, (ack) => {
        print({ ack, of: event });
        resolve(ack);
      });
    });
  }

  async function until(event) {
    for (;;) {
      while (read < seen.length) if (seen[read++] === event) return;
      await new Promise((resolve) => (wake = resolve));
    }
  }

  const pending = [];
  for (const [step, ...rest] of JSON.parse(args.plan)) {
    if (step === "connect") await connect();
    else if (step === "disconnect") socket.disconnect();
    else if (step === "drop") socket.io.engine.close();
    else if (step === "emit") pending.push(ask(...rest));
    else if (step === "ask") await ask(...rest);
    else if (step === "until") await until(...rest);
    else if (step === "answer") {
      answered = chat.question();
      await ask("chat:send", { message: "", askuser_answer: askUserAnswer(answered, rest[0]) });
    } else if (step === "hold") answered = chat.question();
    else if (step === "answer-again") {
      await ask("chat:send", { message: "", askuser_answer: askUserAnswer(answered, rest[0]) });
    } else if (step === "sleep") await new Promise((resolve) => setTimeout(resolve, rest[0]));
    else if (step === "mark") print({ mark: rest[0] });
    else if (step === "messages") {
      const path = `/api/sessions/${encodeURIComponent(session_id)}/messages`;
      print({ messages: JSON.parse(await request(args, "GET", path)) });
    } else throw new Error(`no such step: ${step}`);
  }
  await Promise.all(pending);
  socket?.disconnect();
});
