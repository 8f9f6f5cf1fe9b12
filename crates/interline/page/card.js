// A card for what an agent asks: a permission, questions, a form, or a link. Both columns draw the same card from the same ask; what was
// chosen they put into the words of their protocol.

import { element, inputText } from "./column.js";

/** What is asked, from an ask's kind and input, which both protocols carry. */
export function readAsk(kind, tool_name, input) {
  switch (kind) {
    case "question":
      return { title: "The agent asks", questions: input?.questions ?? [] };
    case "form":
    case "link":
      return { title: input?.message || "The agent asks", detail: input?.url, fields: fieldsOf(input?.requested_schema), consent: true };
    default:
      return { title: `May ${tool_name || "the agent"} go on?`, detail: inputText(input) };
  }
}

function fieldsOf(schema) {
  const isRequired = (name) => schema.required?.includes(name) ?? false;
  return Object.entries(schema?.properties ?? {}).map(([name, member]) => schemaField(name, member, isRequired(name)));
}

/**
 * The card of an ask. `reply` sends what was chosen, `{ allow, always, content }` or `{ chosen }` with a list of `{ label, index }` for each
 * question, and gives what was wrong with it, or nothing. A card that was answered goes away when the server says so.
 */
export function card(ask, reply) {
  const problem = element("p", { className: "problem", hidden: true });
  problem.setAttribute("role", "alert");
  const root = element("form", { className: "card" }, element("h3", { textContent: ask.title }));
  root.addEventListener("submit", (event) => event.preventDefault());
  if (ask.detail) root.append(element("pre", { textContent: ask.detail }));
  const send = async (answer, reopen) => {
    problem.hidden = true;
    const open = [...root.querySelectorAll("button, input, select")].filter((each) => !each.disabled);
    for (const each of open) each.disabled = true;
    const wrong = await reply(answer);
    if (wrong === undefined) return;
    for (const each of open) each.disabled = false;
    for (const each of root.querySelectorAll(".chosen")) each.classList.remove("chosen");
    reopen?.();
    problem.textContent = wrong;
    problem.hidden = false;
  };
  if (ask.questions) questionRows(root, ask.questions, send);
  else verdictRow(root, ask, send);
  root.append(problem);
  return root;
}

function choiceButton(label, deny, description = "") {
  const made = element("button", { type: "button", textContent: label, title: description });
  made.dataset.answer = deny ? "deny" : "allow";
  return made;
}

/** The fields, and a row of buttons: one click answers all, once the fields may be sent as they are. */
function verdictRow(root, { fields = [], consent = false, always = false }, send) {
  for (const { label, hint, control } of fields) {
    root.append(element("label", { className: "field", title: hint ?? "" }, element("span", { textContent: label }), control));
  }
  const content = () => Object.fromEntries(fields.map(({ name, value }) => [name, value()]).filter(([, value]) => value !== undefined));
  const row = element("div", { className: "choices" });
  const offer = (label, answer) => {
    const made = choiceButton(label, !answer.allow);
    made.addEventListener("click", () => {
      if (answer.allow && !fields.every(({ control }) => control.reportValidity())) return;
      made.classList.add("chosen");
      send(answer.allow && fields.length > 0 ? { ...answer, content: content() } : answer);
    });
    row.append(made);
  };
  offer(consent ? "Send" : "Allow", { allow: true });
  if (always) offer("Allow always", { allow: true, always: true });
  offer(consent ? "Decline" : "Deny", { allow: false });
  root.append(row);
}

/** A row for each question; the answer goes out when each has one. Where several may be chosen, or words written, `Done` ends it. */
function questionRows(root, questions, send) {
  const chosen = questions.map(() => []);
  const open = new Set(questions.keys());
  const reopen = () => {
    for (const number of questions.keys()) open.add(number);
    for (const each of chosen) each.length = 0;
    for (const each of root.querySelectorAll("button, input")) each.disabled = false;
  };
  for (const [number, question] of questions.entries()) {
    const line = element("div", { className: "choices" });
    const done = () => {
      for (const each of line.querySelectorAll("button, input")) each.disabled = true;
      open.delete(number);
      if (open.size === 0) send({ chosen }, reopen);
    };
    const options = question.options ?? [];
    for (const [index, { label, description }] of options.entries()) {
      const made = choiceButton(label, false, description);
      made.addEventListener("click", () => {
        made.disabled = true;
        made.classList.add("chosen");
        chosen[number].push({ label, index });
        if (!question.multiSelect) done();
      });
      line.append(made);
    }
    const words = element("input", { type: "text" });
    if (options.length === 0) line.append(words);
    if (options.length === 0 || question.multiSelect) {
      const made = choiceButton("Done", false);
      made.addEventListener("click", () => {
        if (options.length === 0 && words.value !== "") chosen[number].push({ label: words.value });
        if (chosen[number].length > 0) done();
      });
      line.append(made);
    }
    root.append(element("span", { textContent: question.question }), line);
  }
}

/** A list to choose from. */
function list(labels, { multiple = false, required = false, chosen = [] } = {}) {
  const select = element("select", { multiple, required });
  for (const [number, label] of labels.entries()) select.append(element("option", { textContent: label, selected: chosen.includes(number) }));
  return select;
}

const INPUT_TYPES = { email: "email", uri: "url", date: "date" };

/** The values of `enum`, or of `oneOf` and `anyOf`, each with its label. */
function optionsOf(member) {
  const titled = member.oneOf ?? member.anyOf;
  const values = member.enum ?? titled?.map((each) => each.const);
  return values?.map((value, number) => ({ value, label: String(member.enumNames?.[number] ?? titled?.[number]?.title ?? value) }));
}

/**
 * The field of a form for one member of its schema: `value` gives what stands in it, `undefined` if nothing does; `options` are the values
 * that it lets choose from, if it does.
 */
function schemaField(name, schema, required) {
  const field = { name, label: (schema.title ?? name) + (required ? " *" : ""), hint: schema.description };
  const multiple = schema.type === "array";
  const options = optionsOf(multiple ? (schema.items ?? {}) : schema);
  if (options !== undefined) {
    const labels = options.map(({ label }) => label);
    const chosen = [schema.default ?? []].flat().map((value) => options.findIndex((option) => option.value === value));
    if (multiple) {
      const control = list(labels, { multiple, required, chosen });
      const picked = () => [...control.selectedOptions].map(({ index }) => options[index].value);
      return { ...field, options, control, value: () => (picked().length > 0 ? picked() : undefined) };
    }
    // Who need not choose may leave it at nothing.
    const nothing = required || schema.default !== undefined ? 0 : 1;
    const control = list([...Array(nothing).fill("—"), ...labels], { chosen: chosen.map((number) => number + nothing) });
    return { ...field, options, control, value: () => options[control.selectedIndex - nothing]?.value };
  }
  const control = element("input", { type: "text", required: required && schema.type !== "boolean" });
  if (schema.type === "boolean") {
    Object.assign(control, { type: "checkbox", checked: schema.default === true });
    const either = [true, false].map((value) => ({ value, label: value ? "Yes" : "No" }));
    return { ...field, options: either, control, value: () => control.checked };
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
