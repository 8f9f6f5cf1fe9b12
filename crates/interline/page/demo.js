// The demo's page: one session, two clients of it. A run can be started, answered and stopped on either; the other one sees it live.

import { SocketClient } from "./socketio.js";
import { SseClient, post } from "./sse.js";

const CELL = (new URLSearchParams(location.search).get("cell") ?? "").replace(/\/+$/, "") || "my-cell";
const OWN_SESSION = CELL === "my-cell"; // Socket.IO sessions have no cell; those it makes belong to the first one
const BASE = `/cells/${encodeURIComponent(CELL)}`;

const byId = (id) => document.getElementById(id);

function problem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = text === "";
}

/** A run is being started, and no client has heard of it yet. */
let starting = false;
let startingOnSse = false;
let clients;

/** Which buttons are of use. */
function changed() {
  if (clients === undefined) return;
  const { sse, socketio } = clients;
  const isBusy = starting || sse.column.isRunning || socketio.column.isRunning;
  byId("send").disabled = isBusy;
  byId("send-socketio").disabled = isBusy || (!OWN_SESSION && socketio.session === undefined);
  byId("stop").disabled = !sse.column.isRunning || sse.run === undefined;
  byId("stop-socketio").disabled = !socketio.column.isRunning;
}

clients = {
  sse: new SseClient(BASE, {
    changed,
    problem,
    started: ({ session_id, run_id }) => {
      byId("ids").textContent = `session ${session_id}, run ${run_id}`;
    },
  }),
  socketio: new SocketClient({
    changed,
    problem,
    // What this page started over SSE is read there already, or about to be.
    started: (run) => {
      if (!startingOnSse && clients.sse.run !== run) clients.sse.follow(run);
    },
  }),
};
async function session() {
  if (clients.socketio.session === undefined && OWN_SESSION) {
    await clients.socketio.open((await (await post("/api/sessions", { intent: "" })).json()).session_id);
  }
  return clients.socketio.session;
}

async function send(prompt, over) {
  problem("");
  clients.sse.run = undefined;
  for (const { column } of Object.values(clients)) column.clear();
  starting = true;
  startingOnSse = over === "sse";
  changed();
  const begun = () => {
    [starting, startingOnSse] = [false, false];
    changed();
  };
  try {
    const session_id = await session();
    if (over === "socketio") await clients.socketio.send(prompt);
    else {
      await clients.sse.send(prompt, session_id, (id) => {
        begun();
        clients.socketio.open(id);
      });
    }
  } catch (error) {
    problem(error.message);
  }
  if (starting) begun();
}

const typed = () => byId("prompt").value.trim() || byId("prompt").placeholder;

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!byId("send").disabled) send(typed(), "sse");
});

byId("send-socketio").addEventListener("click", () => send(typed(), "socketio"));

byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("form").requestSubmit();
  }
});

for (const [button, client] of [["stop", clients.sse], ["stop-socketio", clients.socketio]]) {
  byId(button).addEventListener("click", async () => {
    byId(button).disabled = true;
    await client.stop();
  });
}

for (const idea of document.querySelectorAll("[data-idea]")) {
  idea.addEventListener("click", () => {
    byId("prompt").value = idea.dataset.idea;
    byId("prompt").focus();
  });
}

changed();
