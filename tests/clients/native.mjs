#!/usr/bin/env node
// A plain WebSocket client (npm `ws`) of the native protocol, on the cloud or the bridge access surface. Prints the raw
// text of each frame.

import { WebSocket } from "ws";
import { controlResponse } from "./answers.mjs";
import { fail, printText, programArguments, request, required, run } from "./program.mjs";

const NORMAL_CLOSURE = 1000;

await run(async () => {
  const args = programArguments({
    surface: { type: "string" },
    mode: { type: "string", default: "chat" },
    prompt: { type: "string" },
    session: { type: "string" },
    model: { type: "string" },
    answer: { type: "string", default: "allow" },
    watch: { type: "boolean", default: false },
    since: { type: "string" },
    "stop-after": { type: "string" },
  });
  const surface = { cloud, bridge }[required(args, "surface")];
  if (surface === undefined) fail("--surface takes cloud or bridge");
  if (args.watch) required(args, "session");
  else required(args, "prompt");
  await surface(args);
});

/** One session a run: create (or, to watch, ask for a token), connect at once, leave after the final result. */
async function cloud(args) {
  let session_id = args.session;
  let session_token;
  if (args.watch) {
    const text = await request(args, "POST", `/v1/agent/sessions/${session_id}/refresh-token`);
    ({ session_token } = JSON.parse(text));
  } else {
    const body = { mode: args.mode, prompt: args.prompt, thread_id: args.session, model: args.model };
    ({ session_id, session_token } = JSON.parse(await request(args, "POST", "/v1/agent/sessions", body)));
  }
  const query = new URLSearchParams({ session_token });
  if (args.since !== undefined) query.set("since_seq", args.since);
  const stop = { type: "control_cancel_request", request_id: "stop-1" };
  const socket = connect(args, `/v1/agent/sessions/${session_id}/stream?${query}`);
  let result;
  const { code } = await frames(socket, args, stop, (frame) => {
    if (!isFinalResult(frame, args.mode)) return;
    result = frame;
    socket.close(NORMAL_CLOSURE);
  });
  if (result === undefined) throw new Error(`closed with ${code} before a final result`);
}

/** One session for good: submit, attach, and read until the server has closed. */
async function bridge(args) {
  const id = args.session ?? JSON.parse(await request(args, "POST", "/v1/code/sessions")).id;
  if (!args.watch) await request(args, "POST", `/v1/code/sessions/${id}/messages`, { prompt: args.prompt });
  const query = args.since === undefined ? "" : `?last_event_id=${args.since}`;
  const stop = { type: "control_request", request_id: "stop-1", request: { subtype: "interrupt" } };
  const socket = connect(args, `/v1/code/sessions/${id}/ws${query}`);
  let last;
  const { code } = await frames(socket, args, stop, (frame) => {
    last = frame;
  });
  if (last?.type !== "keep_alive") throw new Error(`the last frame is ${last?.type}, not keep_alive`);
  if (code !== NORMAL_CLOSURE) throw new Error(`closed with ${code}, not ${NORMAL_CLOSURE}`);
}

function connect(args, path) {
  const url = args.base.replace(/^http/, "ws") + path;
  const headers = args.token === undefined ? {} : { Authorization: `Bearer ${args.token}` };
  return new WebSocket(url, { headers: args.surface === "bridge" ? headers : {}, perMessageDeflate: false });
}

/** A success; an error too if it is not recoverable, which in chat mode none is. */
function isFinalResult(frame, mode) {
  if (frame?.type !== "result") return false;
  return !frame.is_error || mode === "chat" || !frame.errors?.some(({ recoverable }) => recoverable === true);
}

/** Prints every frame, answers and stops as the arguments say, and gives the close. */
function frames(socket, args, stop, see) {
  const stopAfter = args["stop-after"] === undefined ? undefined : Number(args["stop-after"]);
  let texts = 0;
  return new Promise((resolve, reject) => {
    socket.on("message", (message, isBinary) => {
      try {
        if (isBinary) throw new Error("a binary message");
        const text = message.toString();
        printText(text);
        const frame = JSON.parse(text);
        if (frame?.type === "streamlined_text" && ++texts === stopAfter) socket.send(JSON.stringify(stop));
        if (frame?.type === "control_request" && !args.watch && args.answer !== "none") {
          const answer = controlResponse(frame, args.answer);
          if (answer !== undefined) socket.send(JSON.stringify(answer));
        }
        see(frame);
      } catch (error) {
        reject(error);
      }
    });
    socket.on("unexpected-response", (_, response) => reject(new Error(`no upgrade: ${response.statusCode}`)));
    socket.on("error", reject);
    socket.on("close", (code) => resolve({ code }));
  });
}
