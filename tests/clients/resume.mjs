#!/usr/bin/env node
// Many sockets of socket.io-client 4 watch one run, and each loses its connection once: the k-th behind its k-th event (--from to --to), half of them
// orderly, half by a reset. The library comes back by itself; the page subscribes again, as real ones do on `connect`, with --raw behind the
// last event it saw. With --later they come back once the run is over. Prints what the library told before, {"whole": …} of a socket that
// is not cut, and for each of the others {"cut", "connects", "events", "turns" or "raw"}: the turns as the last word on each, or the raw
// events as they came.

import { io } from "socket.io-client";
import { print, programArguments, request, required, run } from "./program.mjs";

const EVENTS = ["chat:start", "turn:start", "turn:patch", "turn:end", "chat:end", "turn:events", "system:error"];

await run(async () => {
  const args = programArguments({
    prompt: { type: "string" },
    from: { type: "string", default: "1" },
    to: { type: "string" },
    raw: { type: "boolean", default: false },
    later: { type: "boolean", default: false },
    transport: { type: "string", default: "websocket" },
  });
  required(args, "prompt");
  const { session_id } = JSON.parse(await request(args, "POST", "/api/sessions", { intent: "" }));
  const over = {};
  over.promise = new Promise((resolve) => (over.resolve = resolve));
  const whole = watch(args, session_id, undefined, over);
  const cuts = [];
  for (let k = Number(args.from); k <= Number(args.to); k++) cuts.push(watch(args, session_id, k, over));
  await Promise.all([whole, ...cuts].map(({ subscribed }) => subscribed));
  whole.socket.emit("chat:send", { session_id, message: args.prompt });
  const seen = await whole.ended;
  over.resolve();
  print({ whole: seen });
  for (const { ended } of cuts) print(await ended);
  const messages = JSON.parse(await request(args, "GET", `/api/sessions/${session_id}/messages`));
  print({ messages });
});

/** One socket: `ended` is what it has seen when the run is over. */
function watch(args, session_id, cut, over) {
  const transports = [args.transport];
  const socket = io(args.base, { auth: { token: args.token }, forceNew: true, transports, reconnectionDelay: 10, reconnectionDelayMax: 50 });
  const turns = new Map();
  const seen = { cut, connects: 0, raw: [] };
  let events = 0;
  let last = 0;
  let broken = false;
  let isDeaf = false;
  let isSubscribed;
  const subscribed = new Promise((resolve) => (isSubscribed = resolve));
  const subscribe = () => {
    const raw = args.raw ? { event_format: "raw", after_sequence: last, resume: broken } : {};
    socket.emit("session:subscribe", { session_id, ...raw }, isSubscribed);
  };
  socket.on("connect", () => {
    seen.connects++;
    isDeaf = false;
    if (broken && args.later) over.promise.then(subscribe);
    else subscribe();
  });
  const ended = new Promise((resolve, reject) => {
    const end = async () => {
      if (!args.raw) seen.turns = [...turns.values()];
      // What comes behind the end is one too many.
      await new Promise((later) => setTimeout(later, 50));
      socket.disconnect();
      resolve(seen);
    };
    const see = (event, data) => {
      if (event === "system:error") reject(new Error(JSON.stringify(data)));
      if (event === "turn:events") {
        for (const one of data.events) {
          seen.raw.push(one);
          last = one.stream_sequence;
        }
      }
      const turn = event === "turn:patch" ? data.data.turn : event === "turn:start" || event === "turn:end" ? data : undefined;
      if (turn !== undefined) turns.set(turn.turn_id, turn);
      if (event === "chat:end") {
        seen.ended = true;
        end();
      }
      seen.events = ++events;
      if (events === cut) {
        broken = isDeaf = true;
        // It has the copy of the end, so it does not wait for the end itself.
        if (seen.raw.at(-1)?.type === "chat:end") end();
        lose(socket, cut);
      }
    };
    for (const event of EVENTS) {
      socket.on(event, (data) => {
        // What was received behind the cut is as good as not received.
        if (!isDeaf) see(event, data);
      });
    }
    // Nothing is said of a run that is over: whoever comes back so late reads the messages.
    if (!args.raw && cut !== undefined) over.promise.then(() => setTimeout(end, 500));
  });
  return { socket, subscribed, ended };
}

/** The connection is gone, as far as anybody is told. */
function lose(socket, k) {
  const { engine } = socket.io;
  const tcp = engine.transport.ws?._socket;
  if (tcp === undefined) engine._onClose("transport error");
  else if (k % 2 === 0) tcp.destroy();
  else tcp.resetAndDestroy();
}
