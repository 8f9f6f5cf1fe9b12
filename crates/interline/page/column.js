// What one client shows: answer, reasoning, tools, cards for what is asked, and whether it runs. Both columns are one of these, so that
// they differ in nothing but in how they came by what they show.

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** A tool's input without JSON around it, where all of it is questions, or one text and perhaps the agent's description of that. */
export function inputText(input) {
  if (typeof input === "string") return input;
  if (input === null || typeof input !== "object") return "";
  if (Array.isArray(input.questions)) return input.questions.map(({ question }) => question).join(" ");
  const { description, ...others } = input;
  const values = Object.values(others);
  const isTold = description === undefined || typeof description === "string";
  if (values.length === 1 && typeof values[0] === "string" && isTold) return description ? `${values[0]} (${description})` : values[0];
  const text = JSON.stringify(input);
  return text === "{}" ? "" : text;
}

export class Column {
  /** `changed` hears of every change of the state. */
  constructor(id, route, changed) {
    const root = document.getElementById(id);
    this.find = (selector) => root.querySelector(selector);
    this.find(".route").textContent = route;
    this.changed = changed;
    this.clear();
  }

  clear() {
    this.tools = new Map();
    this.cards = new Map();
    this.events = 0;
    for (const part of [".answer", ".tools", ".asks", ".count", ".reasoning p"]) this.find(part).replaceChildren();
    this.find(".reasoning").hidden = true;
    this.state("idle");
  }

  /** `idle`, `running`, `waiting` for an answer, or `ended` with an outcome. */
  state(state, outcome) {
    const shown = this.find("[data-state]");
    if (outcome === undefined) delete shown.dataset.outcome;
    else shown.dataset.outcome = outcome;
    shown.textContent = outcome ?? state;
    shown.dataset.state = state;
    this.isRunning = state === "running" || state === "waiting";
    this.isWaiting = state === "waiting";
    this.isEnded = state === "ended";
    if (state === "ended") for (const key of [...this.cards.keys()]) this.settle(key);
    this.changed();
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
    while (answer.children.length > texts.length) answer.lastChild.remove();
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

  /** Shows a tool's call. An input that says nothing does not replace one that does. */
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
    const text = inputText(input);
    if (text !== "") tool.code.textContent = text;
    if (output !== undefined) tool.pre.textContent = output;
    if (status !== undefined) {
      tool.root.dataset.status = status;
      tool.verdict.textContent = status;
    }
    return tool;
  }

  /** Every tool of one status gets another. */
  restatus(from, to) {
    for (const [id, { root }] of this.tools) if (root.dataset.status === from) this.tool(id, { status: to });
  }

  /** Puts the tools in this order: who was away hears of an earlier one later. */
  order(ids) {
    const wanted = ids.filter((id) => this.tools.has(id)).map((id) => this.tools.get(id).root);
    if (wanted.some((root, number) => this.find(".tools").children[number] !== root)) this.find(".tools").replaceChildren(...wanted);
  }

  /** Shows a card, unless it is there already. */
  ask(key, makeCard) {
    if (this.cards.has(key)) return;
    const card = makeCard();
    this.cards.set(key, card);
    this.find(".asks").append(card);
  }

  settle(key) {
    this.cards.get(key)?.remove();
    this.cards.delete(key);
  }
}
