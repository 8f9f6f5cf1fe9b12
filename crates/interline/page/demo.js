// The demo's page: starts a run over SSE, reads it there and, as a second client of the same session, on Socket.IO. Whatever the
// agent asks can be answered in either column.
"use strict";

const CELL = (new URLSearchParams(location.search).get("cell") ?? "").replace(/\/+$/, "") || "my-cell";
const OWN_SESSION = CELL === "my-cell"; // Socket.IO sessions have no cell; those it makes belong to the first one
const BASE = `/cells/${encodeURIComponent(CELL)}`;
const ACK_MS = 3000;
const RECONNECT_MS = 1000;
const SETTLE_MS = 4000;

const byId = (id) => document.getElementById(id);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function problem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = text === "";
}

const brief = (value) => {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text === "{}" || text === undefined ? "" : text;
};

/** What one client shows: answer, reasoning, tools, questions, and whether it runs. */
class Column {
  constructor(id, route) {
    const root = byId(id);
    this.find = (selector) => root.querySelector(selector);
    this.find(".route").textContent = route;
    this.clear();
    this.state("idle");
  }

  clear() {
    this.tools = new Map();
    this.cards = new Map();
    this.events = 0;
    for (const part of [".answer", ".tools", ".asks", ".count", ".reasoning p"]) this.find(part).replaceChildren();
    this.find(".reasoning").hidden = true;
  }

  state(state, outcome) {
    const shown = this.find("[data-state]");
    if (outcome === undefined) delete shown.dataset.outcome;
    else shown.dataset.outcome = outcome;
    shown.textContent = outcome ?? state;
    shown.dataset.state = state;
    this.running = state === "running";
    if (state === "ended") for (const key of [...this.cards.keys()]) this.settle(key);
  }

  count() {
    this.events += 1;
    this.find(".count").textContent = `${this.events} events`;
  }

  /** The answer so far, a text for each turn. */
  answer(texts) {
    const answer = this.find(".answer");
    for (const [number, text] of texts.entries()) {
      const turn = answer.children[number] ?? answer.appendChild(element("div"));
      if (text.startsWith(turn.textContent)) turn.append(text.slice(turn.textContent.length));
      else turn.textContent = text;
    }
  }

  beginTurn() {
    if (this.find(".answer").lastChild?.textContent !== "") this.find(".answer").append(element("div"));
  }

  append(text) {
    if (this.find(".answer").lastChild === null) this.beginTurn();
    this.find(".answer").lastChild.append(text);
  }

  reasoning(text) {
    this.find(".reasoning").hidden = text === "";
    this.find(".reasoning p").textContent = text;
  }

  think(text) {
    this.find(".reasoning").hidden = false;
    this.find(".reasoning p").append(text);
  }

  tool(id, { name, input, output, status }) {
    let tool = this.tools.get(id);
    if (tool === undefined) {
      const verdict = element("span", { className: "verdict" });
      const code = element("code");
      const title = element("strong");
      const pre = element("pre");
      const root = element("details", { className: "tool" }, element("summary", {}, title, code, verdict), pre);
      tool = { root, title, code, verdict, pre };
      this.tools.set(id, tool);
      this.find(".tools").append(root);
    }
    if (name !== undefined) tool.title.textContent = name;
    if (input !== undefined) tool.code.textContent = brief(input);
    if (output !== undefined) tool.pre.textContent = output;
    if (status !== undefined) {
      tool.root.dataset.status = status;
      tool.verdict.textContent = status;
    }
    return tool;
  }

  /** Shows a question; `reply` is called once, with what was chosen. */
  ask(key, { title, detail, fields = [], choices }) {
    if (this.cards.has(key)) return;
    const card = element("div", { className: "card" }, element("h3", { textContent: title }));
    if (detail) card.append(element("pre", { textContent: detail }));
    for (const { label, hint, control } of fields) {
      card.append(element("label", { className: "field", title: hint ?? "" }, element("span", { textContent: label }), control));
    }
    for (const row of choices) {
      const line = element("div", { className: "choices" });
      if (row.question) card.append(element("span", { textContent: row.question }));
      for (const option of row.options) {
        const button = element("button", { type: "button", textContent: option.label, title: option.description ?? "" });
        button.dataset.answer = option.deny ? "deny" : "allow";
        button.addEventListener("click", () => row.choose(option, button, line, card));
        line.append(button);
      }
      card.append(line);
    }
    this.cards.set(key, card);
    this.find(".asks").append(card);
  }

  settle(key) {
    this.cards.get(key)?.remove();
    this.cards.delete(key);
  }
}

/** A row of buttons for a permission or a form: one click answers all, once the fields may be sent as they are. */
function verdictRow(options, reply, fields = []) {
  const choose = async (option, button, line, card) => {
    if (!option.deny && !fields.every(({ control }) => control.reportValidity())) return;
    for (const each of card.querySelectorAll("button, input, select")) each.disabled = true;
    button.classList.add("chosen");
    await reply(option);
  };
  return [{ options, choose }];
}

/** A row of buttons for each question; the answer goes out when each has one. Where several may be chosen, `Done` ends the choice. */
function questionRows(questions, reply) {
  const chosen = questions.map(() => []);
  const open = new Set(questions.keys());
  return questions.map((question, number) => {
    const options = question.options.map((option, index) => ({ ...option, index }));
    if (question.multiSelect) options.push({ label: "Done", done: true });
    const choose = async (option, button, line) => {
      button.disabled = true;
      if (!option.done) {
        button.classList.add("chosen");
        chosen[number].push(option);
        if (question.multiSelect) return;
      } else if (chosen[number].length === 0) {
        button.disabled = false;
        return;
      }
      for (const each of line.querySelectorAll("button")) each.disabled = true;
      open.delete(number);
      if (open.size === 0) await reply(chosen);
    };
    return { question: question.question, options, choose };
  });
}

/** A list to choose from. */
function list(labels, { multiple = false, required = false, chosen = [] } = {}) {
  const select = element("select", { multiple, required });
  for (const [number, label] of labels.entries()) select.append(element("option", { textContent: label, selected: chosen.includes(number) }));
  return select;
}

const picked = (select) => [...select.selectedOptions].map(({ index }) => index);

const INPUT_TYPES = { email: "email", uri: "url", date: "date" };

/** The field of a form for one member of its schema; `value` gives what stands in it, `undefined` if nothing does. */
function schemaField(name, schema, required) {
  const field = { name, label: (schema.title ?? name) + (required ? " *" : ""), hint: schema.description };
  const multiple = schema.type === "array";
  const member = multiple ? (schema.items ?? {}) : schema;
  const values = member.enum ?? (member.oneOf ?? member.anyOf)?.map((each) => each.const);
  if (values !== undefined) {
    const titles = member.enumNames ?? (member.oneOf ?? member.anyOf)?.map((each) => each.title);
    const labels = values.map((value, number) => String(titles?.[number] ?? value));
    const chosen = [schema.default ?? []].flat().map((value) => values.indexOf(value));
    if (multiple) {
      const control = list(labels, { multiple, required, chosen });
      return { ...field, control, value: () => picked(control).map((number) => values[number]) };
    }
    // Who need not choose may leave it at nothing.
    const open = required || schema.default !== undefined ? 0 : 1;
    const control = list([...Array(open).fill("—"), ...labels], { chosen: chosen.map((number) => number + open) });
    return { ...field, control, value: () => values[control.selectedIndex - open] };
  }
  const control = element("input", { type: "text", required: required && schema.type !== "boolean" });
  if (schema.type === "boolean") {
    Object.assign(control, { type: "checkbox", checked: schema.default === true });
    return { ...field, control, value: () => control.checked };
  }
  if (schema.type === "integer" || schema.type === "number") {
    const { minimum = "", maximum = "" } = schema;
    const first = schema.default ?? (required ? minimum : "");
    Object.assign(control, { type: "number", step: schema.type === "integer" ? "1" : "any", min: minimum, max: maximum, value: first });
    return { ...field, control, value: () => (control.value === "" ? undefined : Number(control.value)) };
  }
  Object.assign(control, { type: INPUT_TYPES[schema.format] ?? "text", value: schema.default ?? "" });
  if (schema.maxLength !== undefined) control.maxLength = schema.maxLength;
  return { ...field, control, value: () => (control.value === "" ? undefined : control.value) };
}

async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!response.ok && response.status !== 409) {
    const answer = await response.json().catch(() => ({}));
    throw new Error(answer.error ?? answer.detail ?? `${path}: ${response.status}`);
  }
  return response;
}

// ------------------------------------------------------------------ SSE

const sse = new Column("sse", `POST ${BASE}/run`);

/** The vendor's reading loop: lines that begin with `data: `, one JSON object each. */
async function readEvents(response, see) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) see(JSON.parse(line.slice("data: ".length)));
  }
}

function seeEvent(event) {
  sse.count();
  switch (event.type) {
    case "run_start":
      run.id = event.run_id;
      byId("ids").textContent = `session ${event.session_id}, run ${event.run_id}`;
      break;
    case "turn_start":
      sse.beginTurn();
      break;
    case "stream_delta":
      sse.append(event.content);
      break;
    case "thinking_delta":
      sse.think(event.content);
      break;
    case "tool_start":
      sse.tool(event.call_id, { name: event.tool_name, input: event.arguments, status: "running" });
      break;
    case "tool_progress":
      sse.tool(event.call_id, {}).pre.append(event.output);
      break;
    case "tool_end":
      sse.tool(event.call_id, { output: event.result, status: event.is_error ? "failed" : "done" });
      break;
    case "approval_request":
      askOnSse(event);
      break;
    case "done":
      ended(sse, event.reason === "context_cancelled" ? "interrupted" : "done");
      break;
    case "interrupted":
      ended(sse, "interrupted");
      break;
    case "error":
      problem(event.error);
      ended(sse, "error");
      break;
  }
}

function askOnSse({ request_id, tool_name, arguments: input }) {
  const answer = async (body) => {
    try {
      await post(`${BASE}/hitl/${encodeURIComponent(request_id)}`, body);
    } catch (error) {
      problem(String(error.message ?? error));
    }
    sse.settle(request_id);
  };
  const questions = Array.isArray(input?.questions) ? input.questions.filter((each) => Array.isArray(each.options)) : [];
  if (questions.length > 0) {
    const choices = questionRows(questions, (chosen) => {
      const answers = questions.map((each, number) => [each.question, chosen[number].map(({ label }) => label).join(", ")]);
      return answer({ answers: Object.fromEntries(answers) });
    });
    sse.ask(request_id, { title: "The agent asks", choices });
    return;
  }
  const schema = input?.requested_schema;
  if (schema?.properties) {
    const isRequired = (name) => schema.required?.includes(name) ?? false;
    const fields = Object.entries(schema.properties).map(([name, member]) => schemaField(name, member, isRequired(name)));
    const content = () => Object.fromEntries(fields.map(({ name, value }) => [name, value()]).filter(([, value]) => value !== undefined));
    const options = [{ label: "Send" }, { label: "Decline", deny: true }];
    const reply = ({ deny }) => answer(deny ? { grant: "deny" } : { grant: "allow", content: content() });
    sse.ask(request_id, { title: input.message || "The agent asks", fields, choices: verdictRow(options, reply, fields) });
    return;
  }
  const options = [{ label: "Allow" }, { label: "Deny", deny: true }];
  const choices = verdictRow(options, ({ deny }) => answer({ grant: deny ? "deny" : "allow" }));
  sse.ask(request_id, { title: `May ${tool_name || "the agent"} go on?`, detail: brief(input), choices });
}

// ------------------------------------------------------------------ Socket.IO

const socketio = new Column("socketio", "/socket.io/, session:subscribe");

/** As much of Engine.IO 4 and Socket.IO 5 as one page needs. */
class Socket {
  constructor(handle) {
    this.handle = handle;
    this.acks = new Map();
    this.nextAck = 0;
    this.sessions = new Set();
    this.ready = this.connect();
  }

  connect() {
    const url = new URL("/socket.io/?EIO=4&transport=websocket", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    return new Promise((resolve) => {
      this.socket = new WebSocket(url);
      this.socket.addEventListener("message", ({ data }) => this.receive(String(data), resolve));
      this.socket.addEventListener("close", () => {
        const again = () => {
          this.ready = this.connect();
          for (const session_id of this.sessions) this.emit("session:subscribe", { session_id });
        };
        setTimeout(again, RECONNECT_MS);
      });
    });
  }

  receive(text, connected) {
    if (text[0] === "0") this.socket.send(`40${JSON.stringify({ token: "demo" })}`);
    else if (text === "2") this.socket.send("3");
    else if (text.startsWith("40")) connected();
    else if (text.startsWith("44")) problem(`Socket.IO: ${JSON.parse(text.slice(2)).message}`);
    else if (text.startsWith("42") || text.startsWith("43")) {
      const [, kind, number, body] = /^(4[23])(\d*)(\[[^]*)$/.exec(text);
      const values = JSON.parse(body);
      if (kind === "42") this.handle(values[0], values[1]);
      else this.acks.get(Number(number))?.(values[0]);
    }
  }

  /** Sends an event and waits a while for its ack. */
  async emit(name, payload) {
    await this.ready;
    const number = this.nextAck++;
    const ack = new Promise((resolve) => {
      this.acks.set(number, resolve);
      setTimeout(resolve, ACK_MS);
    });
    this.socket.send(`42${number}${JSON.stringify([name, payload])}`);
    const answer = await ack;
    this.acks.delete(number);
    if (answer?.ok === false) problem(`Socket.IO: ${answer.message}`);
  }

  async subscribe(session_id) {
    if (this.sessions.has(session_id)) return;
    this.sessions.add(session_id);
    await this.emit("session:subscribe", { session_id });
  }
}

const turns = new Map();

/** Text or reasoning of a turn as it stands. */
const blocks = (turn, type) => turn.blocks.filter((block) => block.type === type).map((block) => block.content);

function seeTurn(turn) {
  turns.set(turn.turn_id, {
    mine: turn.role === "assistant" && turn.parent_fork_tool_call_id == null,
    text: blocks(turn, "text").join(""),
    thinking: blocks(turn, "thinking").join("\n"),
    calls: new Map(turn.tool_calls.map((call) => [call.id, call])),
  });
}

function seePatch({ turn_id, patch_type, data }) {
  if (data.turn) return seeTurn(data.turn);
  const turn = turns.get(turn_id);
  if (turn === undefined) return;
  if (patch_type === "add_content" && data.type === "text") turn.text += data.text_delta ?? "";
  else if (patch_type === "add_content" && data.type === "thinking") turn.thinking = data.content ?? turn.thinking + (data.text_delta ?? "");
  else if (patch_type === "add_tool_call") turn.calls.set(data.id, { ...data, result: null });
  else if (patch_type === "tool_result" || patch_type === "set_tool_status") {
    const call = turn.calls.get(data.tool_call_id);
    if (call) Object.assign(call, data);
  }
}

function seeSocketEvent(name, data) {
  if (data?.session_id !== run.session) return;
  socketio.count();
  if (name === "chat:start") socketio.state("running");
  else if (name === "turn:start" || name === "turn:end") seeTurn(data);
  else if (name === "turn:patch") seePatch(data);
  else if (name === "system:error") problem(data.message);
  showTurns();
  if (name === "chat:end" && !isAsking()) {
    ended(socketio, { completed: "done", interrupted: "interrupted", failed: "error" }[data.status] ?? "done");
  }
}

const calls = () => [...turns.values()].flatMap((turn) => [...turn.calls.values()]);
const isAsking = () => calls().some((call) => call.status === "awaiting_answer" && call.tool_name.includes("AskUserQuestion"));

const STATUS = { pending: "running", awaiting_answer: "waiting", done: "done", error: "failed", cancelled: "failed" };

function showTurns() {
  const mine = [...turns.values()].filter((turn) => turn.mine);
  socketio.answer(mine.map((turn) => turn.text));
  socketio.reasoning(mine.map((turn) => turn.thinking).filter(Boolean).join("\n"));
  for (const call of calls()) {
    if (call.status === "awaiting_answer" && call.tool_name.includes("AskUserQuestion")) {
      askOnSocket(call);
      if (!call.id.startsWith("ask_")) socketio.tool(call.id, { name: call.display_name || call.tool_name, status: STATUS.awaiting_answer });
      continue;
    }
    if (socketio.cards.has(call.id)) {
      socketio.settle(call.id);
      // One answer settles it everywhere; a strict SSE stream has no event for that.
      sse.settle(call.id.replace(/^ask_/, ""));
      if (!isAsking()) for (const key of [...sse.cards.keys()]) sse.settle(key);
    }
    if (call.id.startsWith("ask_")) continue;
    const output = call.result == null ? undefined : typeof call.result === "string" ? call.result : JSON.stringify(call.result, null, 1);
    const name = call.display_name || call.tool_name;
    socketio.tool(call.id, { name, input: call.arguments, output, status: STATUS[call.status] ?? call.status });
  }
}

function askOnSocket(call) {
  const { questions } = JSON.parse(call.arguments);
  const reply = async (selections, custom = {}) => {
    const askuser_answer = { tool_call_id: call.id, selections, custom };
    await socket.emit("chat:send", { session_id: run.session, message: "", askuser_answer });
    socketio.settle(call.id);
  };
  if (!call.id.startsWith("ask_")) {
    const choices = questionRows(questions, (chosen) => reply(Object.fromEntries(chosen.map((each, number) => [number, each.map(({ index }) => index)]))));
    socketio.ask(call.id, { title: "The agent asks", choices });
    return;
  }
  const options = questions[0].options.map((option, index) => ({ ...option, index, deny: /^(deny|decline|cancel)/i.test(option.label) }));
  // The fields of a form are the further questions.
  const fields = questions.slice(1).map(({ question, options: answers, multiSelect: multiple }) => {
    // The option that leaves a field out stands alone where anything may be written.
    const skip = answers.findIndex(({ label }) => label === "Skip");
    const isWritten = answers.length === (skip < 0 ? 0 : 1);
    const labels = answers.map(({ label }) => label);
    const control = isWritten
      ? element("input", { type: "text", required: skip < 0, placeholder: skip < 0 ? "" : "may be empty" })
      : list(labels, { multiple, required: skip < 0, chosen: [skip] });
    const [label, ...hints] = question.split("\n\n");
    return { label, hint: hints.join("\n"), control, skip };
  });
  const send = ({ index, deny }) => {
    const [selections, custom] = [{ 0: [index] }, {}];
    for (const [before, { control, skip }] of deny ? [] : fields.entries()) {
      if (control.selectedOptions) selections[before + 1] = picked(control);
      else if (control.value !== "") custom[before + 1] = control.value;
      else if (skip >= 0) selections[before + 1] = [skip];
    }
    return reply(selections, custom);
  };
  const [asked, ...details] = questions[0].question.split("\n\n");
  socketio.ask(call.id, { title: asked, detail: details.join("\n\n"), fields, choices: verdictRow(options, send, fields) });
}

const socket = new Socket((name, data) => {
  if (run.session === undefined) run.early.push([name, data]);
  else seeSocketEvent(name, data);
});

// ------------------------------------------------------------------ the run

const run = { session: undefined, id: undefined, early: [] };

function ended(column, outcome) {
  if (!column.running) return;
  column.state("ended", outcome);
  const over = !sse.running && !socketio.running;
  byId("send").disabled = !over;
  byId("stop").disabled = over;
}

async function send(prompt) {
  problem("");
  byId("send").disabled = true;
  turns.clear();
  for (const column of [sse, socketio]) {
    column.clear();
    column.state("running");
  }
  run.id = undefined;
  byId("stop").disabled = false;
  try {
    if (run.session === undefined && OWN_SESSION) {
      run.session = (await (await post("/api/sessions", { intent: "" })).json()).session_id;
    }
    if (run.session !== undefined) await socket.subscribe(run.session);
    const messages = [{ role: "user", content: [{ type: "text", text: prompt }] }];
    const response = await post(`${BASE}/run`, { actor: "demo", model: "demo", messages, session_id: run.session });
    if (run.session === undefined) {
      run.session = response.headers.get("X-Session-Id");
      socket.subscribe(run.session);
      for (const [name, data] of run.early.splice(0)) seeSocketEvent(name, data);
    }
    await readEvents(response, seeEvent);
    if (sse.running) throw new Error("the stream ended without an end of the run");
  } catch (error) {
    problem(String(error.message ?? error));
    ended(sse, "error");
  }
  setTimeout(() => catchUp(run.id), SETTLE_MS);
}

/** Socket.IO has no end of this run yet: it came too late for it, perhaps. The history has it in any case. */
async function catchUp(id) {
  if (!socketio.running || run.id !== id || run.session === undefined) return;
  const history = await (await fetch(`/api/sessions/${encodeURIComponent(run.session)}/messages`)).json();
  const last = history.findLastIndex((turn) => turn.role === "user");
  turns.clear();
  for (const turn of history.slice(last + 1)) seeTurn(turn);
  showTurns();
  const status = history.at(-1)?.status;
  if (!isAsking()) ended(socketio, { interrupted: "interrupted", failed: "error" }[status] ?? "done");
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const prompt = byId("prompt").value.trim() || byId("prompt").placeholder;
  if (!byId("send").disabled) send(prompt);
});

byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("form").requestSubmit();
  }
});

byId("stop").addEventListener("click", async () => {
  byId("stop").disabled = true;
  try {
    if (run.id !== undefined) await post(`${BASE}/runs/${encodeURIComponent(run.id)}/interrupt`, { reason: "user" });
  } catch (error) {
    problem(String(error.message ?? error));
  }
});

for (const idea of document.querySelectorAll("[data-idea]")) {
  idea.addEventListener("click", () => {
    byId("prompt").value = idea.dataset.idea;
    byId("prompt").focus();
  });
}
