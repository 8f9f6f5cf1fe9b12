// A run over SSE: prints the answer as it comes, allows what is asked, and survives a lost connection, because the run
// goes on without its readers and can be read on from any event.
//
//   node examples/sse.mjs [BASE_URL] [PROMPT]

import { setTimeout as sleep } from "node:timers/promises";

const [server = "http://127.0.0.1:9091", prompt = "What does median do?"] = process.argv.slice(2);
const base = server.replace(/\/+$/, "");
const cell = `${base}/cells/my-cell`;
const ATTEMPTS = 5;

async function request(path, body) {
  const response = await fetch(cell + path, {
    method: body ? "POST" : "GET",
    headers: { "Content-Type": "application/json" }, // where a token is wanted: Authorization: `Bearer ${token}`
    body: body && JSON.stringify(body),
  });
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return response;
}

/** The events in a response's body: lines that begin with `data: `, a JSON object each. */
async function* events(response) {
  let rest = "";
  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield JSON.parse(line.slice("data: ".length));
  }
}

/** Starts a run and gives its events, each once, up to the one that ends it. */
async function* run(prompt) {
  const messages = [{ role: "user", content: [{ type: "text", text: prompt }] }];
  let response = await request("/run", { actor: "me", model: "gpt-4o", messages });
  let id;
  let seen = 0;
  for (let failures = 0; failures < ATTEMPTS; failures += 1) {
    try {
      response ??= await request(`/runs/${id}/events?from_seq=${seen + 1}`);
      for await (const event of events(response)) {
        id ??= event.run_id; // the first event is run_start
        seen += 1;
        failures = 0;
        yield event;
        if (["done", "error", "interrupted"].includes(event.type)) return;
      }
    } catch (error) {
      console.error(`\n${error.message}`);
    }
    console.error(`\nconnection lost after event ${seen}`);
    if (id === undefined) break;
    await sleep(500);
    response = undefined;
  }
  throw new Error("the run is out of reach");
}

/** What a form takes: its defaults, and of what else it demands the first choice. */
function filledIn({ properties = {}, required = [] }) {
  const first = { boolean: true, integer: 0, number: 0, array: [] };
  const value = (member) =>
    member.default ?? member.enum?.[0] ?? member.oneOf?.[0].const ?? member.minimum ?? first[member.type] ?? "you decide";
  const wanted = Object.entries(properties).filter(([name, member]) => required.includes(name) || member.default !== undefined);
  return Object.fromEntries(wanted.map(([name, member]) => [name, value(member)]));
}

/** Asks nobody: permissions are given, questions get their first option, forms their defaults. A frontend shows `arguments` and waits. */
async function answer({ request_id, tool_name, arguments: input }) {
  const first = ({ question, options }) => [question, options?.[0]?.label ?? "you decide"];
  const body = { grant: "allow" };
  if (input.questions) body.answers = Object.fromEntries(input.questions.map(first));
  if (input.requested_schema) body.content = filledIn(input.requested_schema);
  console.log(`\n[asked] ${tool_name} ${JSON.stringify(input)}\n[answered] ${JSON.stringify(body)}`);
  await request(`/hitl/${encodeURIComponent(request_id)}`, body);
}

for await (const event of run(prompt)) {
  switch (event.type) {
    case "stream_delta":
      process.stdout.write(event.content);
      break;
    case "tool_start":
      console.log(`\n[tool] ${event.tool_name}`);
      break;
    case "approval_request":
      await answer(event);
      break;
    case "done":
      console.log(`\n[done] ${event.reason}`);
      break;
    case "error":
    case "interrupted":
      console.error(`\n[${event.type}] ${event.error ?? event.reason}`);
      process.exitCode = 1;
  }
}
