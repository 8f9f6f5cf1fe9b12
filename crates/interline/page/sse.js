// The SSE column: reads the stream of one run at a time, and answers and stops it by requests. It asks for `extras=events`, which tell
// beside the documented events when an ask is settled, whoever settled it; strict clients leave them out.

import { Column } from "./column.js";
import { card, readAsk } from "./card.js";

const KINDS = { ask_user: "question", elicitation: "form" };

/** Sends JSON; a refusal is thrown in the server's words. */
export async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw Object.assign(new Error(answer.error ?? answer.detail ?? `${path}: ${response.status}`), { status: response.status });
}

export class SseClient {
  constructor(base, { changed, problem, started }) {
    Object.assign(this, { base, problem, started });
    this.column = new Column("sse", `POST ${base}/run?extras=events`, changed);
    this.run = undefined;
  }

  /** Starts a run, and reads it to its end; `begun` hears in which session it is. */
  async send(prompt, session_id, begun) {
    this.column.clear();
    this.column.state("running");
    const messages = [{ role: "user", content: [{ type: "text", text: prompt }] }];
    try {
      const response = await post(`${this.base}/run?extras=events`, { actor: "demo", model: "demo", messages, session_id });
      this.run = response.headers.get("X-Run-Id");
      begun(response.headers.get("X-Session-Id"));
      await this.read(response);
    } catch (error) {
      this.fail(error);
    }
  }

  /** Reads a run that somebody else started. */
  async follow(run) {
    this.run = run;
    this.column.clear();
    this.column.state("running");
    try {
      const response = await fetch(`${this.base}/runs/${encodeURIComponent(run)}/events?extras=events`);
      if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error ?? `run ${run}: ${response.status}`);
      await this.read(response);
    } catch (error) {
      this.fail(error);
    }
  }

  async stop() {
    try {
      await post(`${this.base}/runs/${encodeURIComponent(this.run)}/interrupt`, { reason: "user" });
    } catch (error) {
      this.problem(error.message);
    }
  }

  fail(error) {
    this.problem(error.message);
    if (this.column.isRunning) this.column.state("ended", "error");
  }

  /** The vendor's reading loop: lines that begin with `data: `, one JSON object each. */
  async read(response) {
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data: ")) this.see(JSON.parse(line.slice("data: ".length)));
    }
    if (this.column.isRunning) throw new Error("the stream ended without an end of the run");
  }

  see(event) {
    const { column } = this;
    column.count();
    switch (event.type) {
      case "run_start":
        this.started(event);
        break;
      case "turn_start":
        column.beginTurn();
        break;
      case "stream_delta":
        column.append(event.content);
        break;
      case "thinking_delta":
        column.think(event.content);
        break;
      case "tool_start":
        column.tool(event.call_id, { name: event.tool_name, input: event.arguments, status: "running" });
        break;
      case "tool_input":
        column.tool(event.call_id, { input: event.arguments });
        break;
      case "tool_progress":
        column.tool(event.call_id, {}).pre.append(event.output);
        break;
      case "tool_end":
        column.tool(event.call_id, { output: event.result, status: event.is_error ? "failed" : "done" });
        break;
      case "approval_request":
        this.ask(event);
        break;
      case "hitl_resolved":
        this.settled(event.request_id);
        break;
      case "done":
        column.state("ended", event.reason === "context_cancelled" ? "interrupted" : "done");
        break;
      case "interrupted":
        column.state("ended", "interrupted");
        break;
      case "error":
        this.problem(event.error);
        column.state("ended", "error");
        break;
    }
  }

  /** While something is asked, what goes on waits. */
  ask({ request_id, tool_name, arguments: input, call_id }) {
    const { column } = this;
    const kind = KINDS[tool_name];
    // The input of a form is none of its call's.
    if (kind !== "form" && column.tools.has(call_id)) column.tool(call_id, { input });
    column.ask(request_id, () => card(readAsk(kind, tool_name, input), (answer) => this.answer(request_id, input, answer)));
    column.restatus("running", "waiting");
    column.state("waiting");
  }

  settled(request_id) {
    const { column } = this;
    column.settle(request_id);
    if (column.cards.size > 0 || !column.isWaiting) return;
    column.restatus("waiting", "running");
    column.state("running");
  }

  /** Gives what was wrong with the answer, or nothing. Who comes too late hears so by `hitl_resolved`, as everybody does. */
  async answer(request_id, input, { allow, content, chosen }) {
    const answers = () => Object.fromEntries(input.questions.map(({ question }, number) => [question, chosen[number].map(({ label }) => label).join(", ")]));
    const body = chosen ? { answers: answers() } : { grant: allow ? "allow" : "deny", ...(content && { content }) };
    try {
      await post(`${this.base}/hitl/${encodeURIComponent(request_id)}`, body);
    } catch (error) {
      if (error.status !== 409) return error.message;
    }
  }
}
