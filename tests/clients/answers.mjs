// How the clients answer what an agent asks, on each surface: permissions by the verdict, questions with the first
// choice, forms with the least that their schema demands.

const DENIAL = "denied by the test client";
const FREE_TEXT = "ok";

/** Values for the required members of a form's schema. */
export function formContent(schema) {
  const content = {};
  for (const name of schema?.required ?? []) content[name] = formValue(schema.properties?.[name] ?? {});
  return content;
}

function formValue(member) {
  if (member.default !== undefined) return member.default;
  if (member.enum !== undefined) return member.enum[0];
  if (member.oneOf !== undefined) return member.oneOf[0].const;
  switch (member.type) {
    case "boolean":
      return false;
    case "integer":
    case "number":
      return member.minimum ?? 0;
    default:
      return member.format === "email" ? "someone@example.org" : FREE_TEXT.padEnd(member.minLength ?? 0, ".");
  }
}

/** Each question's text with the label of its first option. */
function firstLabels(questions) {
  return Object.fromEntries(questions.map((each) => [each.question, each.options?.[0]?.label ?? FREE_TEXT]));
}

/** The body that answers an `approval_request`. */
export function approvalAnswer(event, verdict) {
  if (verdict === "deny") return { grant: "deny" };
  switch (event.tool_name) {
    case "ask_user":
      return { answers: firstLabels(event.arguments.questions) };
    case "elicitation":
      return { grant: "allow", content: formContent(event.arguments.requested_schema ?? event.arguments.schema) };
    default:
      return { grant: "allow" };
  }
}

/** The `askuser_answer` for a call that awaits one: the option of the verdict where there is one, else the first. */
export function askUserAnswer(call, verdict) {
  const selections = {};
  const custom = {};
  JSON.parse(call.arguments).questions.forEach(({ options }, index) => {
    if (!options?.length) {
      custom[index] = FREE_TEXT;
      return;
    }
    const chosen = options.findIndex(({ label }) => label.toLowerCase().startsWith(verdict));
    selections[index] = [Math.max(chosen, 0)];
  });
  return { tool_call_id: call.id, selections, custom };
}

/** The `control_response` to a `control_request`, or nothing if it asks for no person's answer. */
export function controlResponse({ request_id, request }, verdict) {
  const allowed = verdict === "allow";
  let response;
  switch (request.subtype) {
    case "can_use_tool":
      response = allowed
        ? { behavior: "allow", updatedInput: updatedInput(request) }
        : { behavior: "deny", message: DENIAL };
      break;
    case "elicitation":
      response = allowed
        ? { action: "accept", content: formContent(request.requested_schema) }
        : { action: "decline" };
      break;
    default:
      return undefined;
  }
  return { type: "control_response", response: { subtype: "success", request_id, response } };
}

function updatedInput({ tool_name, input }) {
  if (tool_name !== "AskUserQuestion") return input;
  return { ...input, answers: firstLabels(input.questions) };
}
