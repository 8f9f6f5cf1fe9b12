// What the Node clients of the SSE surface share: the request that starts a run, and what is done with each event.

import { approvalAnswer } from "./answers.mjs";
import { headers, printText, request, required } from "./program.mjs";

export const TERMINALS = ["done", "error", "interrupted"];

/** The options of a client that starts a run. */
export const RUN_OPTIONS = {
  cell: { type: "string" },
  prompt: { type: "string" },
  session: { type: "string" },
  model: { type: "string", default: "gpt-4o" },
  answer: { type: "string", default: "allow" },
};

/** `POST …/run` as arguments for `fetch`: the documented body. */
export function runRequest(args) {
  const body = {
    actor: "user-001",
    model: args.model,
    messages: [{ role: "user", content: [{ type: "text", text: required(args, "prompt") }] }],
    session_id: args.session,
  };
  const url = `${args.base}/cells/${encodeURIComponent(required(args, "cell"))}/run`;
  return [url, { method: "POST", headers: headers(args), body: JSON.stringify(body) }];
}

/** `runRequest`, sent; gives the response whose body is the stream. */
export async function startRun(args) {
  const response = await fetch(...runRequest(args));
  await expectStream(response);
  return response;
}

export async function expectStream(response) {
  if (response.status !== 200) throw new Error(`POST …/run: ${response.status} ${await response.text()}`);
}

/** Prints each event, answers what it asks while the reading goes on, and knows at the end whether the run had an end. */
export class EventLog {
  #args;
  #last;
  #answers = [];

  constructor(args) {
    this.#args = args;
  }

  /** One event's JSON text, as it came. Gives the event. */
  see(text, print = printText) {
    print(text);
    const event = JSON.parse(text);
    if (this.ended) throw new Error(`an event came after ${this.#last.type}: ${text}`);
    this.#last = event;
    if (event.type === "approval_request" && this.#args.answer !== "none") this.#answers.push(this.#answer(event));
    return event;
  }

  get ended() {
    return TERMINALS.includes(this.#last?.type);
  }

  /** To be called when the stream has ended: throws unless the run has too and every answer was taken. */
  async close() {
    await Promise.all(this.#answers);
    if (!this.ended) throw new Error(`the stream ended without a terminal event, after ${this.#last?.type}`);
  }

  #answer(event) {
    const path = `/cells/${encodeURIComponent(this.#args.cell)}/hitl/${encodeURIComponent(event.request_id)}`;
    const sent = request(this.#args, "POST", path, approvalAnswer(event, this.#args.answer));
    // Its failure is reported by `close`; until then it must not count as unhandled.
    sent.catch(() => {});
    return sent;
  }
}
