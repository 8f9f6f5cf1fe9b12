//! `interline demo`: a simulated agent server and the proxy in one process, and what to try on them.

use std::error::Error;

use interline_sim::{Options, Simulator};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::args::{self, Demo};
use crate::config::{self, Layer};
use crate::signals::Signals;
use crate::sim::bind;
use crate::{logging, page};

/// Serves until a signal.
pub(crate) async fn run(args: Demo) -> Result<(), Box<dyn Error>> {
    let agents = bind("127.0.0.1:0").await?;
    let settings = Layer::file("the demo's own settings", settings(&format!("http://{}", agents.local_addr()?)));
    let checked = config::from_layers(&[settings, Layer::flag("--listen", "server.listen", &args.listen)])?;
    let _ = logging::start(&checked.config.log);
    let listener = bind(&checked.config.server.listen.to_string()).await?;
    let mut signals = Signals::catch()?;
    let stop = CancellationToken::new();
    let simulator = Simulator::new(Options::default())?;
    let simulation = tokio::spawn(simulator.serve(agents, stop.clone()));
    let mut app = App::start(checked, listener, page::router(), None)?;
    print!("{}", guide(&format!("http://{}", app.address()), &args::program()));
    tokio::select! {
        _ = signals.next() => {}
        deaf = app.deaf() => return Err(deaf.into()),
    }
    signals.end_at_next();
    app.end().await;
    stop.cancel();
    Ok(simulation.await?)
}

pub(crate) fn settings(simulator: &str) -> String {
    // In agent mode the cloud plane asks for permissions; the simulator takes any device but the two it has plans for.
    format!(
        r#"
[server]
drain_ms = 1000

[log]
filter = "warn"

[sse]
explain = true

[socketio]
explain = true

[[upstream]]
name = "cloud"
kind = "cloud"
url = "{simulator}"
credential = {{ value = "demo" }}
mode = "agent"
environment_id = "11111111-1111-4111-8111-111111111111"

[[upstream]]
name = "bridge"
kind = "bridge"
url = "{simulator}"

[[route]]
cell = "my-cell"
upstream = "cloud"

[[route]]
cell = "bridge-cell"
upstream = "bridge"

[[route]]
cell = "*"
upstream = "cloud"
"#
    )
}

/// What is printed: addresses, and a command to copy for each surface.
fn guide(base: &str, program: &str) -> String {
    format!(
        r#"Interline demo: the proxy, and a simulated agent server behind it. Ctrl-C ends both.

  {base}/
  one run, live on SSE and Socket.IO side by side, in your browser

What to send, there and below: any sentence is answered by a small scripted agent, with a permission and a question; a word in it chooses:
  quick      no questions, the shortest      ask        a permission only
  question   a question only                 form       a form
  long       a long answer, to be stopped
  play NAME  a recorded run: chat-thinking, chat-with-tools, agent-with-permission, agent-with-elicitation, ask, error, multi
  scene NAME one thing alone: permission, questions, form, link, asks 3, subagent, overtake, replayed, settings 5000, task 9000, compaction
  fault NAME a server that misbehaves: drop 3, cancel late 2000, deaf 31000, cli 5000 and others; `{program} sim --help` lists them

A terminal chat, over any surface:
  {program} chat {base}
  {program} chat {base} --surface socketio
  {program} chat {base} --surface native --mode agent

SSE run events with curl (another cell: bridge-cell, the local bridge instead of the cloud plane):
  curl -N {base}/cells/my-cell/run -H 'Content-Type: application/json' \
    -d '{{"actor":"me","model":"gpt-4o","messages":[{{"role":"user","content":[{{"type":"text","text":"hello, be quick"}}]}}]}}'

The same run again from its 5th event; the run's id is in the first one:
  curl -N '{base}/cells/my-cell/runs/RUN_ID/events?from_seq=5'

Why each of its events is there: the agent server's messages behind it, and the rules:
  curl '{base}/cells/my-cell/runs/RUN_ID/events?explain=1'

Socket.IO with Python, in an environment of its own (on Debian it needs the package python3-venv):
  python3 -m venv interline-venv
  interline-venv/bin/pip install "python-socketio[asyncio-client]" requests
  interline-venv/bin/python -c "
import asyncio, requests, socketio
async def main():
    session = requests.post('{base}/api/sessions', json={{'intent': ''}}).json()['session_id']
    io, over = socketio.AsyncClient(), asyncio.Event()
    io.on('turn:patch', lambda p: print(p['data'].get('text_delta') or '', end='', flush=True))
    io.on('chat:end', lambda _: over.set())
    await io.connect('{base}', auth={{'token': 'any'}})
    await io.emit('chat:send', {{'session_id': session, 'message': 'hello, be quick'}})
    await over.wait()
    await io.disconnect()
asyncio.run(main())"

Socket.IO with Node (npm install socket.io-client, then as an .mjs file):
  import {{ io }} from "socket.io-client";
  const made = await fetch("{base}/api/sessions", {{ method: "POST", headers: {{ "Content-Type": "application/json" }}, body: '{{"intent":""}}' }});
  const {{ session_id }} = await made.json();
  const socket = io("{base}", {{ auth: {{ token: "any" }} }});
  socket.on("turn:patch", (patch) => process.stdout.write(patch.data.text_delta ?? ""));
  socket.on("chat:end", () => socket.close());
  socket.emit("chat:send", {{ session_id, message: "hello, be quick" }});

The native protocol, for whoever speaks it already, as the cloud agent plane and as the local bridge. A session begins with a POST, the
rest goes over its WebSocket; this does both:
  {program} chat {base} --surface native --mode agent --prompt quick
  {program} chat {base} --surface bridge --prompt quick

For operators: {base}/healthz  {base}/readyz  {base}/metrics
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_is_a_sound_config_that_stays_on_this_machine() {
        let layers = |listen| [Layer::file("demo", settings("http://127.0.0.1:1")), Layer::flag("--listen", "server.listen", listen)];
        assert!(config::from_layers(&layers("127.0.0.1:0")).is_ok());
        let refused = config::from_layers(&layers("0.0.0.0:9091")).err().unwrap().to_string();
        assert!(refused.starts_with("option --listen: server.listen: "), "{refused}");
    }

    #[test]
    fn the_first_address_of_the_guide_is_where_the_proxy_listens() {
        let guide = guide("http://127.0.0.1:4711", "target/debug/interline");
        assert!(guide.split("http://").nth(1).unwrap().starts_with("127.0.0.1:4711/"));
    }
}
