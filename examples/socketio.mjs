// A chat over Socket.IO: makes a session by REST, sends a message, prints the turns as they come, answers the questions,
// and catches up by REST after a lost connection. A chat that asks pauses; the answer is a new `chat:send`.
//
//   node examples/socketio.mjs [BASE_URL] [PROMPT]

import { io } from "socket.io-client";

const [server = "http://127.0.0.1:9091", prompt = "What does median do?"] = process.argv.slice(2);
const base = server.replace(/\/+$/, "");
const token = "any"; // yours, where tokens are wanted

async function rest(path, body) {
  const response = await fetch(`${base}/api/sessions${path}`, {
    method: body ? "POST" : "GET",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
    body: body && JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return response.json();
}

const { session_id } = await rest("", { intent: prompt });
const texts = new Map(); // a turn's id, and its text so far
const finished = new Set(); // turns that get no more text
const questions = new Map(); // open ones, by the id of their call

/** Prints what is new of a turn's text. */
function show(turn_id, text) {
  process.stdout.write(text.slice(texts.get(turn_id)?.length ?? 0));
  texts.set(turn_id, text);
}

/** A whole turn: when it starts or ends, for those who subscribe in the middle of it, and in the history. */
function seeTurn({ turn_id, role, status, blocks, tool_calls }) {
  if (role !== "assistant" || finished.has(turn_id)) return;
  show(turn_id, blocks.filter(({ type }) => type === "text").map(({ content }) => content).join(""));
  if (status === "streaming") return;
  finished.add(turn_id);
  console.log();
  for (const call of tool_calls) {
    if (call.status === "awaiting_answer" && call.tool_name.includes("AskUserQuestion")) questions.set(call.id, call);
  }
}

/** Asks nobody: the first option of each question, which for a permission is to allow. The fields of a form are questions, too. */
function answer({ id, arguments: json }) {
  questions.delete(id);
  const { questions: asked, ask } = JSON.parse(json);
  const [selections, custom] = [{}, {}];
  for (const [number, { question, header, options }] of asked.entries()) {
    console.log(`[asked] ${question} ${options.map(({ label }) => label).join(" / ")}`);
    const field = number > 0 ? ask?.input.requested_schema?.properties[header] : undefined; // only forms have them
    const preset = (field?.enum ?? [true, false]).indexOf(field?.default); // its values are the options, in this order
    const skip = options.findIndex(({ label }) => field && label === "Skip"); // what has no default and may stay empty stays so
    if (field?.default !== undefined && preset < 0) custom[number] = String(field.default);
    else if (options.length > 0) selections[number] = [[preset, skip, 0].find((option) => option >= 0)];
    else custom[number] = String(field?.minimum ?? "you decide");
  }
  socket.emit("chat:send", { session_id, message: "", askuser_answer: { tool_call_id: id, selections, custom } });
}

/** The turns that ended unseen. One that is still open comes with the subscription. */
async function catchUp() {
  for (const turn of await rest(`/${session_id}/messages`)) if (turn.status !== "streaming") seeTurn(turn);
}

/** The chat has paused or ended, or may have: answers what is open, or leaves. */
async function settle() {
  await catchUp();
  const { status } = await rest(`/${session_id}`);
  const [question] = questions.values();
  if (question) return answer(question);
  if (!["completed", "failed", "interrupted"].includes(status) || !socket.active) return;
  console.log(`[${status}]`);
  process.exitCode = status === "completed" ? 0 : 1;
  socket.close();
}

const socket = io(base, { auth: { token } }); // it reconnects by itself, but a subscription ends with its connection
let begun = false;
socket.on("connect", async () => {
  if (begun) await catchUp();
  socket.emit("session:subscribe", { session_id });
  if (begun) return settle();
  begun = true;
  socket.emit("chat:send", { session_id, message: prompt });
});
socket.on("turn:start", seeTurn);
socket.on("turn:patch", ({ turn_id, patch_type, data }) => {
  if (patch_type === "add_content" && data.type === "text" && !finished.has(turn_id)) {
    show(turn_id, (texts.get(turn_id) ?? "") + data.text_delta);
  }
  // What is asked is a call, too; it is shown when it is answered.
  if (patch_type === "add_tool_call" && !data.tool_name.includes("AskUserQuestion")) console.log(`\n[tool] ${data.display_name}`);
  if (patch_type === "tool_result") questions.delete(data.tool_call_id); // answered, perhaps by somebody else
});
socket.on("turn:end", seeTurn);
socket.on("chat:end", settle);
socket.on("disconnect", (reason) => socket.active && console.error(`\nconnection lost: ${reason}`));
for (const event of ["system:error", "connect_error"]) socket.on(event, ({ message }) => console.error(`\n[${event}] ${message}`));
