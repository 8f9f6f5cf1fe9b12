// The native protocol over a plain WebSocket, on the cloud access surface: one session is one turn. Prints the text as
// it comes, allows what is asked, and after a lost connection goes on from the frame count that it has.
//
//   node examples/native.mjs [BASE_URL] [PROMPT]

import WebSocket from "ws"; // browsers, and Node from 22 on, have it built in: without this line it works there, too

const [server = "http://127.0.0.1:9091", prompt = "What does median do?"] = process.argv.slice(2);
const base = server.replace(/\/+$/, "");
const ATTEMPTS = 5;

const response = await fetch(`${base}/v1/agent/sessions`, {
  method: "POST",
  headers: { "Content-Type": "application/json" }, // where a token is wanted: Authorization: `Bearer ${token}`
  body: JSON.stringify({ mode: "chat", prompt }),
});
if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
const { session_id, session_token } = await response.json();

let seen = 0;
let failures = 0;
const tools = new Set();
connect();

function connect() {
  const query = new URLSearchParams({ session_token });
  if (seen > 0) query.set("since_seq", seen);
  const socket = new WebSocket(`${base.replace(/^http/, "ws")}/v1/agent/sessions/${session_id}/stream?${query}`);
  let over = false;
  socket.onmessage = ({ data }) => {
    seen += 1;
    failures = 0;
    over = see(socket, JSON.parse(data));
    if (over) socket.close(); // the server keeps the connection after the result
  };
  socket.onerror = ({ message }) => console.error(`\n${message ?? "connection failed"}`);
  socket.onclose = () => {
    if (over) return;
    console.error(`\nconnection lost after frame ${seen}`);
    failures += 1;
    if (failures === ATTEMPTS) throw new Error("the session is out of reach");
    setTimeout(connect, 500);
  };
}

/** Shows one frame. True for the one that ends the turn. */
function see(socket, frame) {
  switch (frame?.type) {
    case "streamlined_text": // reasoning stands in it between <think> and </think>
      process.stdout.write(frame.text);
      return false;
    case "tool_progress": // a tool may be announced more than once
      if (!tools.has(frame.tool_use_id)) console.log(`\n[tool] ${frame.tool_name}`);
      tools.add(frame.tool_use_id);
      return false;
    case "control_request":
      answer(socket, frame);
      return false;
    case "result":
      console.log(`\n[result] ${frame.subtype}, ${frame.stop_reason ?? JSON.stringify(frame.errors)}`);
      process.exitCode = frame.is_error ? 1 : 0;
      return true;
    default: // unknown frames and members are to be expected
      return false;
  }
}

/** What a form takes: its defaults, and of what else it demands the first choice. */
function filledIn({ properties = {}, required = [] }) {
  const first = { boolean: true, integer: 0, number: 0, array: [] };
  const value = (member) =>
    member.default ?? member.enum?.[0] ?? member.oneOf?.[0].const ?? member.minimum ?? first[member.type] ?? "you decide";
  const wanted = Object.entries(properties).filter(([name, member]) => required.includes(name) || member.default !== undefined);
  return Object.fromEntries(wanted.map(([name, member]) => [name, value(member)]));
}

/** Asks nobody: permissions are given, questions get their first option, forms their defaults. */
function answer(socket, { request_id, request }) {
  let kind;
  let response;
  if (request.subtype === "can_use_tool") {
    const { questions } = request.input;
    const first = ({ question, options }) => [question, options?.[0]?.label ?? "you decide"];
    const answers = questions && { answers: Object.fromEntries(questions.map(first)) };
    kind = "permission_response";
    response = { behavior: "allow", updatedInput: { ...request.input, ...answers } };
  } else if (request.subtype === "elicitation") {
    kind = "elicitation_response";
    response = { action: "accept", content: filledIn(request.requested_schema ?? {}) };
  } else {
    return; // not for a person
  }
  console.log(`\n[asked] ${request.tool_name ?? request.message}\n[answered] ${JSON.stringify(response)}`);
  const inner = { subtype: "success", request_id, response };
  socket.send(JSON.stringify({ type: "control_response", kind, response: inner }));
}
