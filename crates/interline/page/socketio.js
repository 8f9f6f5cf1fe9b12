// The Socket.IO column: a dashboard as others are. It knows turns by their ids, as events tell of them; what it missed while it had no
// connection it takes from the REST list. It asks no clock, and knows nothing of the other column.

import { Column } from "./column.js";
import { card, readAsk } from "./card.js";

const RECONNECT_MS = 1000;
const STATUS = { pending: "running", awaiting_answer: "waiting", done: "done", error: "failed", cancelled: "failed" };
const OUTCOMES = { completed: "done", interrupted: "interrupted", failed: "error" };

/** As much of Engine.IO 4 and Socket.IO 5 as one page needs. `connected` is awaited after each connection, `see` gets each event. */
class Socket {
  constructor(connected, see) {
    Object.assign(this, { connected, see });
    this.acks = new Map();
    this.nextAck = 0;
    this.ready = this.connect();
  }

  connect() {
    const url = new URL("/socket.io/?EIO=4&transport=websocket", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    return new Promise((resolve) => {
      this.socket = new WebSocket(url);
      this.socket.addEventListener("message", ({ data }) => this.receive(String(data), resolve));
      this.socket.addEventListener("close", () => {
        // Nobody answers these any more.
        for (const acked of this.acks.values()) acked({ ok: false, message: "the connection was lost" });
        this.acks.clear();
        this.ready = new Promise((later) => setTimeout(later, RECONNECT_MS)).then(() => this.connect());
        resolve(this.ready);
      });
    });
  }

  receive(text, resolve) {
    if (text[0] === "0") this.socket.send(`40${JSON.stringify({ token: "demo" })}`);
    else if (text === "2") this.socket.send("3");
    else if (text.startsWith("40")) {
      resolve();
      this.connected();
    } else if (text.startsWith("44")) this.see("system:error", { message: JSON.parse(text.slice(2)).message });
    else if (text.startsWith("42") || text.startsWith("43")) {
      const [, kind, number, body] = /^(4[23])(\d*)(\[[^]*)$/.exec(text);
      const values = JSON.parse(body);
      if (kind === "42") this.see(values[0], values[1]);
      else this.acked(Number(number), values[0]);
    }
  }

  acked(number, answer) {
    // A refusal is told twice, by the ack and, right behind it, by an event.
    if (answer?.ok === false) this.refused = answer.message;
    this.acks.get(number)?.(answer);
    this.acks.delete(number);
  }

  /** Sends an event and gives its ack. */
  async emit(name, payload) {
    await this.ready;
    const number = this.nextAck++;
    const ack = new Promise((resolve) => this.acks.set(number, resolve));
    this.socket.send(`42${number}${JSON.stringify([name, payload])}`);
    return (await ack) ?? {};
  }
}

const blocks = (turn, type) => turn.blocks.filter((block) => block.type === type).map((block) => block.content);

const isFinal = ({ status }) => status !== "streaming" && status !== "paused";

/** An answer is a turn of the user, too; what begins a run is no answer. */
const isPrompt = (turn) => turn.role === "user" && turn.blocks.every(({ type }) => type !== "ask_user_answer");

export class SocketClient {
  /** `started` hears of each run that begins in the session, whoever started it. */
  constructor({ changed, problem, started }) {
    Object.assign(this, { problem, started });
    this.column = new Column("socketio", "/socket.io/, session:subscribe, chat:send, chat:stop", changed);
    this.turns = new Map();
    this.socket = new Socket(() => this.session !== undefined && this.subscribe(), (name, data) => this.see(name, data));
  }

  /** The session to show from now on. */
  async open(session_id) {
    if (this.session === session_id) return;
    this.session = session_id;
    await this.socket.ready;
    await this.subscribe();
  }

  /** A subscription ends with its connection. What it does not bring is what ended before it: that is in the list. */
  async subscribe() {
    const session_id = this.session;
    const { ok, message } = await this.socket.emit("session:subscribe", { session_id });
    if (ok === false) return this.problem(`Socket.IO: ${message}`);
    const { run } = this;
    const get = async (path) => (await fetch(`/api/sessions/${encodeURIComponent(session_id)}${path}`)).json();
    try {
      const [list, { status }] = [await get("/messages"), await get("")];
      if (this.session !== session_id || this.run !== run) return;
      for (const turn of list) {
        const known = this.turns.get(turn.turn_id);
        if (known === undefined || (isFinal(turn) && !isFinal(known))) this.turns.set(turn.turn_id, turn);
      }
      this.show();
      if (list.length > 0 && status in OUTCOMES && !this.column.isEnded) this.column.state("ended", OUTCOMES[status]);
    } catch (error) {
      this.problem(`Socket.IO: ${error.message}`);
    }
  }

  async send(prompt) {
    const { ok, message } = await this.socket.emit("chat:send", { session_id: this.session, message: prompt, model: "demo" });
    if (ok === false) this.problem(message);
  }

  async stop() {
    const { ok, message } = await this.socket.emit("chat:stop", { session_id: this.session });
    if (ok === false) this.problem(message);
  }

  see(name, data) {
    if (name === "system:error") {
      if (data.message === this.socket.refused) delete this.socket.refused;
      else this.problem(data.message);
      return;
    }
    if (data?.session_id !== this.session) return;
    if (name === "chat:start") this.begin(data.chat_run_id);
    this.column.count();
    if (name === "turn:start" || name === "turn:end") this.turns.set(data.turn_id, data);
    else if (name === "turn:patch") this.patch(data);
    this.show();
    if (name === "chat:end") {
      if (data.pause_tool) this.column.state("waiting");
      else this.column.state("ended", OUTCOMES[data.status] ?? "done");
    }
  }

  /** A chat begins: a new run, or one that goes on after an answer. */
  begin(run) {
    if (run !== this.run) {
      this.run = run;
      this.turns.clear();
      this.column.clear();
      this.started(run);
    }
    this.column.state("running");
  }

  /** What the patch says, where it brings no snapshot of the turn. */
  patch({ turn_id, patch_type, data }) {
    if (data.turn) this.turns.set(turn_id, data.turn);
    const turn = this.turns.get(turn_id);
    if (data.turn || turn === undefined) return;
    if (patch_type === "add_content" && (data.type === "text" || data.type === "thinking")) {
      const last = turn.blocks.at(-1);
      const text = data.text_delta ?? "";
      if (last?.type !== data.type) turn.blocks.push({ type: data.type, content: data.content ?? text });
      else last.content = data.type === "thinking" && data.content !== undefined ? data.content : last.content + text;
    } else if (patch_type === "add_tool_call") turn.tool_calls.push({ result: null, ...data });
    else if (patch_type === "tool_result" || patch_type === "set_tool_status") {
      const call = turn.tool_calls.find(({ id }) => id === data.tool_call_id);
      if (call) Object.assign(call, data);
    } else if (patch_type === "set_status") turn.status = data.status;
  }

  /** Shows what came after the prompt of the last run. */
  show() {
    const all = [...this.turns.values()].sort((one, other) => one.sequence - other.sequence);
    const turns = all.slice(all.findLastIndex(isPrompt) + 1);
    const mine = turns.filter((turn) => turn.role === "assistant" && turn.parent_fork_tool_call_id == null);
    this.column.answer(mine.map((turn) => blocks(turn, "text").join("")));
    this.column.reasoning(mine.flatMap((turn) => blocks(turn, "thinking")).join("\n"));
    const calls = turns.flatMap((turn) => turn.tool_calls);
    for (const call of calls) this.showCall(call);
    this.column.order(calls.map(({ id }) => id));
  }

  showCall(call) {
    const { column } = this;
    const input = typeof call.arguments === "string" ? JSON.parse(call.arguments || "{}") : call.arguments;
    const isQuestion = call.tool_name.includes("AskUserQuestion");
    if (isQuestion && call.status === "awaiting_answer") this.ask(call, input);
    else if (column.cards.has(call.id)) column.settle(call.id);
    // The server's own calls stand for permissions and forms; they are no tool's.
    if (isQuestion && input.ask) return;
    const output = call.result == null ? undefined : typeof call.result === "string" ? call.result : JSON.stringify(call.result, null, 1);
    const name = call.display_name || call.tool_name;
    column.tool(call.id, { name, input, output, status: STATUS[call.status] ?? call.status });
  }

  ask(call, { questions, ask }) {
    const kind = ask?.kind ?? "question";
    const shown = { ...readAsk(kind, ask?.tool_name, ask?.input ?? { questions }), always: questions[0]?.options.some(({ label }) => label === "Allow always") };
    this.column.ask(call.id, () => card(shown, (answer) => this.answer(call.id, questions, shown.fields ?? [], answer)));
  }

  /** Gives what was wrong with the answer, or nothing. */
  async answer(tool_call_id, questions, fields, { allow, always, content, chosen }) {
    const [selections, custom] = [{}, {}];
    const choose = (number, ...labels) => (selections[number] = labels.map((label) => questions[number].options.findIndex((option) => option.label === label)));
    if (chosen) {
      for (const [number, each] of chosen.entries()) {
        if (each.some(({ index }) => index === undefined)) custom[number] = each.map(({ label }) => label).join(", ");
        else selections[number] = each.map(({ index }) => index);
      }
    } else {
      const verdicts = allow ? [always ? "Allow always" : "Allow", "Accept"] : ["Deny", "Decline"];
      choose(0, verdicts.find((verdict) => questions[0].options.some(({ label }) => label === verdict)));
      // The fields of a form are the further questions; the header of each is its field's name.
      for (const { name, options } of content ? fields : []) {
        const number = questions.findIndex(({ header }, at) => at > 0 && header === name);
        const value = content[name];
        if (number < 0) continue;
        if (value === undefined) choose(number, "Skip");
        else if (options) choose(number, ...[value].flat().map((each) => options.find((option) => option.value === each).label));
        else custom[number] = String(value);
      }
    }
    const askuser_answer = { tool_call_id, selections, custom };
    const { ok, code, message } = await this.socket.emit("chat:send", { session_id: this.session, message: "", askuser_answer });
    if (ok === false && code !== "not_pending" && code !== "already_resolved") return message;
  }
}
