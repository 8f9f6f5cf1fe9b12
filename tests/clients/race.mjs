#!/usr/bin/env node
// Three people at three frontends answer the same questions at the same moment, and do not agree: one over SSE's HTTP, one over
// Socket.IO, one as a native client. Starts `--runs` runs with `--asks` permissions each, on the surface that is named. Prints a line for
// each permission: who won, by the record of decisions, and what each of the three was told.

import { io } from "socket.io-client";
import { WebSocket } from "ws";
import { headers, print, programArguments, request, required, run } from "./program.mjs";

const POLL_MS = 10;
/** Asks that are answered at the same time, by three each. */
const AT_ONCE = 5;
/** An open socket is quicker than a request: so much head start, at random, gives each the same chance. */
const HEAD_START_MS = { sse: 0, socketio: 6, native: 9 };

await run(async () => {
  const args = programArguments({
    cell: { type: "string" },
    start: { type: "string" },
    runs: { type: "string", default: "1" },
    asks: { type: "string", default: "50" },
  });
  const socket = io(args.base, { auth: { token: args.token }, transports: ["websocket"], forceNew: true });
  await new Promise((resolve, reject) => {
    socket.on("connect", resolve);
    socket.on("connect_error", reject);
  });
  for (let n = 0; n < Number(args.runs); n++) await oneRun(args, socket);
  socket.disconnect();
});

async function oneRun(args, socket) {
  const cell = `/cells/${encodeURIComponent(required(args, "cell"))}`;
  const { session_id } = await json(args, "POST", "/api/sessions", { intent: "", is_persistent: false });
  await socket.emitWithAck("session:subscribe", { session_id });
  const prompt = `scene asks ${args.asks}`;
  let stream;
  if (required(args, "start") === "sse") {
    const body = JSON.stringify({ actor: "a", session_id, messages: [{ role: "user", content: prompt }] });
    stream = await fetch(`${args.base}${cell}/run`, { method: "POST", headers: headers(args), body });
    if (stream.status !== 200) throw new Error(`POST …/run: ${stream.status} ${await stream.text()}`);
  } else {
    const ack = await socket.emitWithAck("chat:send", { session_id, message: prompt });
    if (!ack.ok) throw new Error(`chat:send: ${JSON.stringify(ack)}`);
  }
  const asks = await poll(async () => {
    const { asks } = await json(args, "GET", `${cell}/sessions/${session_id}/asks`);
    return asks.length === Number(args.asks) ? asks : undefined;
  });
  const run_id = asks[0].run_id;
  const native = await nativeSocket(args, run_id);
  const answers = [];
  for (let from = 0; from < asks.length; from += AT_ONCE) {
    const some = asks.slice(from, from + AT_ONCE);
    answers.push(...(await Promise.all(some.map((ask, n) => contradictory(args, socket, native, cell, ask, n)))));
  }

  const { decisions } = await json(args, "GET", `${cell}/sessions/${session_id}/decisions`);
  for (const answer of answers) {
    const decided = decisions.filter(({ request_id }) => request_id === answer.request_id);
    print({ ...answer, decisions: decided.map(({ surface, outcome }) => ({ surface, outcome })) });
  }
  await poll(async () => (await json(args, "GET", `${cell}/runs/${run_id}`)).status !== "running" || undefined);
  native.terminate();
  await stream?.text();
}

/** All three as good as at once, in an order that is another one for each; the second always says the opposite of the first. */
async function contradictory(args, socket, native, cell, ask, n) {
  const { request_id, session_id } = ask;
  const verdicts = n % 2 ? ["allow", "deny", "allow"] : ["deny", "allow", "deny"];
  const said = {};
  const ways = {
    async sse(grant) {
      const answer = await fetch(`${args.base}${cell}/hitl/${encodeURIComponent(request_id)}`, {
        method: "POST",
        headers: headers(args),
        body: JSON.stringify({ grant }),
      });
      return { status: answer.status, ...(await answer.json()) };
    },
    async socketio(verdict) {
      const askuser_answer = {
        tool_call_id: `ask_${request_id}`,
        selections: { 0: [verdict === "allow" ? 0 : ask.always ? 2 : 1] },
        custom: {},
      };
      return socket.emitWithAck("chat:send", { session_id, message: "", askuser_answer });
    },
    async native(verdict) {
      const response =
        verdict === "allow" ? { behavior: "allow", updatedInput: ask.arguments } : { behavior: "deny", message: "no" };
      const frame = { type: "control_response", response: { subtype: "success", request_id, response } };
      native.send(JSON.stringify(frame));
    },
  };
  const order = ["sse", "socketio", "native"].sort(() => Math.random() - 0.5);
  const told = await Promise.all(
    order.map(async (surface, at) => {
      said[surface] = verdicts[at];
      await new Promise((resolve) => setTimeout(resolve, Math.random() * HEAD_START_MS[surface]));
      return ways[surface](verdicts[at]);
    }),
  );
  return { request_id, said, ...Object.fromEntries(order.map((surface, at) => [surface, told[at]])) };
}

/** A native client that joins the run. */
async function nativeSocket(args, run_id) {
  const { session_token } = await json(args, "POST", `/v1/agent/sessions/${run_id}/refresh-token`);
  const query = new URLSearchParams({ session_token });
  const socket = new WebSocket(`${args.base.replace(/^http/, "ws")}/v1/agent/sessions/${run_id}/stream?${query}`);
  await new Promise((resolve, reject) => {
    socket.on("open", resolve);
    socket.on("error", reject);
  });
  return socket;
}

async function json(args, method, path, body) {
  return JSON.parse(await request(args, method, path, body));
}

async function poll(look) {
  for (;;) {
    const found = await look();
    if (found !== undefined) return found;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}
