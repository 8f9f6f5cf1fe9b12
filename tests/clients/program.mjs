// What every Node client here shares: its arguments, its output of one JSON line per thing seen, and a guard on its time.

import { inspect, parseArgs } from "node:util";

const DEFAULT_TIMEOUT_SECONDS = "60";

/** The command line `BASE_URL [--name value] …`: the base URL without a trailing slash, and the options by name. */
export function programArguments(options = {}) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      token: { type: "string" },
      timeout: { type: "string", default: DEFAULT_TIMEOUT_SECONDS },
      ...options,
    },
  });
  if (positionals.length !== 1) fail("exactly one BASE_URL is needed");
  const seconds = Number(values.timeout);
  if (!(seconds > 0)) fail("--timeout takes a number of seconds");
  setTimeout(() => fail(`not done after ${seconds} s`), seconds * 1000).unref();
  if ("answer" in values && !["allow", "deny", "none"].includes(values.answer)) {
    fail("--answer takes allow, deny or none");
  }
  return { base: positionals[0].replace(/\/+$/, ""), ...values };
}

/** The value of an option that the program cannot do without. */
export function required(args, name) {
  if (args[name] === undefined) fail(`--${name} is needed`);
  return args[name];
}

/** One line of output, exactly this text. */
export function printText(text) {
  process.stdout.write(`${text}\n`);
}

/** One line of output: this value as JSON. */
export function print(value) {
  printText(JSON.stringify(value));
}

/** A remark for people. */
export function remark(text) {
  process.stderr.write(`${text}\n`);
}

/** Ends the program as failed, saying why. */
export function fail(text) {
  remark(`failed: ${text}`);
  process.exit(1);
}

/** The headers of an HTTP request: the bearer token if there is one, and the media type of a JSON body. */
export function headers(args) {
  const bearer = args.token === undefined ? {} : { Authorization: `Bearer ${args.token}` };
  return { ...bearer, "Content-Type": "application/json" };
}

/** An HTTP request that must be answered with a success; gives the body's text. */
export async function request(args, method, path, body) {
  const response = await fetch(args.base + path, {
    method,
    headers: headers(args),
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  return text;
}

/** Runs the program: whatever it throws ends it as failed. */
export async function run(main) {
  try {
    await main();
  } catch (error) {
    fail(inspect(error));
  }
  // A pipe takes megabytes one after another: what is still on its way would be lost with the process.
  process.stdout.write("", () => process.exit(0));
}
