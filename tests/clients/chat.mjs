// What a Socket.IO client must remember of a chat to know whether it is over or waits for an answer: the brackets and
// the state of each tool call.

/** The events a client of this family listens to. */
export const EVENTS = [
  "chat:start",
  "turn:start",
  "turn:patch",
  "turn:end",
  "chat:end",
  "session:updated",
  "system:error",
  "system:notification",
  "workspace:files_changed",
];

export class Chat {
  /** Between `chat:start` and `chat:end`. */
  open = false;
  #calls = new Map();

  see(event, data) {
    switch (event) {
      case "chat:start":
        this.open = true;
        break;
      case "chat:end":
        this.open = false;
        break;
      case "turn:start":
      case "turn:end":
        for (const call of data.tool_calls) this.#calls.set(call.id, { ...call });
        break;
      case "turn:patch":
        this.#patch(data.patch_type, data.data);
        break;
    }
  }

  #patch(type, data) {
    if (type === "add_tool_call") this.#calls.set(data.id, { ...data });
    if (type !== "tool_result" && type !== "set_tool_status") return;
    const call = this.#calls.get(data.tool_call_id);
    if (call === undefined) throw new Error(`${type} for an unknown call ${data.tool_call_id}`);
    call.status = data.status;
    if (data.arguments !== undefined) call.arguments = data.arguments;
  }

  #awaiting() {
    return [...this.#calls.values()].filter(({ status }) => status === "awaiting_answer");
  }

  /** Whether the chat only pauses, for an answer. */
  get awaiting() {
    return this.#awaiting().length > 0;
  }

  /** The first call that a person is to answer. Others may wait beside it for what comes of the answer. */
  question() {
    const question = this.#awaiting().find(({ tool_name }) => tool_name.includes("AskUserQuestion"));
    if (question === undefined) throw new Error("a call awaits an answer, but none is a question");
    return question;
  }
}
