//! The examples, run as their README says, against the demo: each ends well and prints the answer, with and without being asked.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use axum::response::Html;
use interline_testkit::{Program, in_repository};
use support::{INTERLINE, end, events, text};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::{Instant, sleep_until};

/// What the demo's agent answers without a question, and after asking for a permission and a choice.
const QUICK: (&str, &str) = ("hello, be quick", "That is all there is to do for “hello, be quick”.");
const ASKING: (&str, &str) = ("What does median do?", "So it goes to staging. That is all there is to do for “What does median do?”.");

/// What it answers once a form was filled in.
const FORM: (&str, &str) = ("a form, please", "Build 418 is live on staging.");

const PATIENCE: Duration = Duration::from_secs(60);

async fn demo() -> Program {
    Program::start(INTERLINE, &["demo", "--listen", "127.0.0.1:0"]).await
}

/// An example as a command: the packages of its language are those of `tests/clients`.
fn command(example: &str) -> Command {
    let clients = in_repository("tests/clients");
    let path = in_repository("examples").join(example);
    match example.rsplit_once('.') {
        Some((_, "mjs")) => {
            // From standard input it is a module of the working directory, so it finds the packages there.
            let mut node = Command::new("node");
            let script = std::fs::File::open(path).expect("the example is there");
            node.args(["--input-type=module", "-"]).current_dir(clients).stdin(script);
            node
        }
        Some((_, "py")) => {
            let mut python = Command::new(clients.join(".venv/bin/python"));
            python.arg(path);
            python
        }
        Some((_, "rs")) => Command::new(cargo_example(example.trim_end_matches(".rs"))),
        _ => {
            let mut bash = Command::new("bash");
            bash.arg(path);
            bash
        }
    }
}

/// Where cargo puts the examples that it builds along with the tests; built now if only this test was asked for.
fn cargo_example(name: &str) -> std::path::PathBuf {
    let test = std::env::current_exe().expect("this test's path");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let example = profile.join("examples").join(name);
    if !example.exists() {
        let built = std::process::Command::new(env!("CARGO")).args(["build", "--example", name]).status();
        assert!(built.expect("cargo runs").success());
    }
    example
}

/// What an example printed, once it has ended well.
async fn output(example: &str, command: Command) -> String {
    outputs(example, command).await.0
}

/// The same, and its remarks beside it.
async fn outputs(example: &str, mut command: Command) -> (String, String) {
    // A proxy from the environment has no business between an example and its server.
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1").kill_on_drop(true);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let output =
        ended.unwrap_or_else(|_| panic!("{example} does not end")).unwrap_or_else(|error| panic!("{example}: {error}; run tests/setup"));
    let printed = String::from_utf8(output.stdout).expect("examples print UTF-8");
    let remarks = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{example}: {}\n{remarks}\n{printed}", output.status);
    (printed, remarks)
}

/// Runs an example on every prompt, with an address as people copy it.
async fn answers(example: &str) {
    let demo = demo().await;
    for (prompt, answer) in [QUICK, ASKING, FORM] {
        let mut command = command(example);
        command.arg(format!("{}/", demo.base())).arg(prompt);
        let printed = output(example, command).await;
        assert!(printed.contains(answer), "{example}: {printed}");
        // A form is one question, or one for each of its fields.
        let asked = printed.matches("[asked]").count();
        assert!(if prompt == FORM.0 { asked > 0 } else { asked == if prompt == ASKING.0 { 2 } else { 0 } }, "{example}: {printed}");
        for twice in ["[tool] Permission", "[tool] AskUserQuestion\n[asked]"] {
            assert!(!printed.contains(twice), "{example}: {printed}");
        }
    }
}

/// Runs an example through a line that breaks twice while it reads: it prints everything, and nothing twice.
async fn survives(example: &str) {
    let demo = demo().await;
    let base = breaking(demo.base(), 2).await;
    let mut direct = command(example);
    direct.arg(demo.base()).arg(ASKING.0);
    let mut broken = command(example);
    broken.arg(base).arg(ASKING.0);
    let (printed, remarks) = outputs(example, broken).await;
    assert_eq!(remarks.matches("connection lost").count(), 2, "{example}: {remarks}");
    assert_eq!(printed, output(example, direct).await, "{example}: {remarks}");
}

/// A way to the demo on which the first `breaks` streams are cut in the middle.
async fn breaking(base: &str, breaks: u32) -> String {
    let server = base.trim_start_matches("http://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let left = Arc::new(AtomicU32::new(breaks));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&server).await.expect("the demo listens");
            tokio::spawn(pass(client, server, left.clone()));
        }
    });
    format!("http://{address}")
}

/// Passes bytes on both ways, until an end is reached or a stream that was asked for has lasted a while.
async fn pass(mut client: TcpStream, mut server: TcpStream, left: Arc<AtomicU32>) {
    let (mut asked, mut said) = ([0; 8192], [0; 8192]);
    let mut end = None;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                let request = String::from_utf8_lossy(&asked[..length]);
                let line = request.lines().next().unwrap_or_default();
                let streams = ["POST /cells/my-cell/run ", "/events?", "/stream?", "transport=websocket"].iter().any(|path| line.contains(path));
                if streams && left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                    // Long enough for some events, and shorter than the agent's reasoning, text and tools.
                    end = Some(Instant::now() + Duration::from_millis(700));
                }
                if server.write_all(&asked[..length]).await.is_err() { return }
            }
            read = server.read(&mut said) => {
                let Ok(length @ 1..) = read else { return };
                if client.write_all(&said[..length]).await.is_err() { return }
            }
            () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => return,
        }
    }
}

#[tokio::test]
async fn sse_in_node() {
    answers("sse.mjs").await;
}

#[tokio::test]
async fn sse_in_node_after_lost_connections() {
    survives("sse.mjs").await;
}

#[tokio::test]
async fn sse_in_python() {
    answers("sse.py").await;
}

#[tokio::test]
async fn sse_in_python_after_lost_connections() {
    survives("sse.py").await;
}

#[tokio::test]
async fn sse_in_rust() {
    answers("sse.rs").await;
}

#[tokio::test]
async fn sse_in_rust_after_lost_connections() {
    survives("sse.rs").await;
}

#[tokio::test]
async fn native_on_the_cloud_surface() {
    answers("native.mjs").await;
}

#[tokio::test]
async fn native_on_the_cloud_surface_after_lost_connections() {
    survives("native.mjs").await;
}

#[tokio::test]
async fn native_on_the_bridge_surface() {
    answers("bridge.py").await;
}

#[tokio::test]
async fn socket_io_in_node() {
    answers("socketio.mjs").await;
}

#[tokio::test]
async fn socket_io_in_python() {
    answers("socketio_chat.py").await;
}

/// What was missed comes as whole turns, so the answer is there once and whole, though not every event is.
async fn reconnects(example: &str) {
    let demo = demo().await;
    let mut command = command(example);
    command.arg(breaking(demo.base(), 2).await).arg(ASKING.0);
    let (printed, remarks) = outputs(example, command).await;
    assert_eq!(remarks.matches("connection lost").count(), 2, "{example}: {remarks}");
    assert!(printed.contains(ASKING.1), "{example}: {printed}");
    for words in ["I'll look at the file first.", "Now I'll run the tests.", "One thing I need to know.", "That is all there is to do"] {
        assert_eq!(printed.matches(words).count(), 1, "{example}: {printed}");
    }
}

#[tokio::test]
async fn socket_io_in_node_after_lost_connections() {
    reconnects("socketio.mjs").await;
}

#[tokio::test]
async fn socket_io_in_python_after_lost_connections() {
    reconnects("socketio_chat.py").await;
}

#[tokio::test]
async fn sse_with_curl() {
    let demo = demo().await;
    for (prompt, answer) in [QUICK, (ASKING.0, "That is all there is to do for “What does median do?”.")] {
        let mut command = command("curl.sh");
        command.arg(demo.base()).arg(prompt);
        let printed = output("curl.sh", command).await;
        let (first, rest) = printed.split_once("== the same run from event ").expect("a replay");
        let (replay, stopped) = rest.split_once("== a run that is stopped").expect("a stop");
        let (first, replay, stopped) = (events(first), events(replay), events(stopped));
        assert!(text(&first).contains(answer), "{printed}");
        assert_eq!(end(&first), "done", "{printed}");
        assert_eq!(replay, first[first.len() - 3..], "{printed}");
        assert_eq!(end(&stopped), "interrupted", "{printed}");
    }
}

/// A person at the page, whose server is another than the one it talks to. The last line printed is what the page shows in the end.
const PERSON: &str = r##"
import { execFileSync } from "node:child_process";
import { chromium } from "playwright-core";
const [page_url, base, ...prompts] = process.argv.slice(1);
const browser = await chromium.launch({
  executablePath: execFileSync("sh", ["-c", "command -v chromium"], { encoding: "utf8" }).trim(),
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-proxy-server"],
});
const page = await browser.newPage();
page.on("pageerror", (error) => { console.error(error); process.exit(1); });
await page.goto(page_url);
await page.fill("#base", base);
for (const prompt of prompts) {
  await page.fill("#prompt", prompt);
  await page.click("#send");
  if (prompt.includes("long")) {
    await page.waitForFunction(() => document.getElementById("answer").textContent !== "");
    await page.click("#stop");
  }
  await page.waitForSelector("body[data-end]", { timeout: 30000 });
  console.log(JSON.stringify(await page.evaluate(() => ({
    end: document.body.dataset.end,
    answer: document.getElementById("answer").textContent,
    log: document.getElementById("log").textContent,
  }))));
}
await browser.close();
"##;

/// What the page shows after each prompt.
async fn page(base: &str, prompts: &[&str]) -> Vec<serde_json::Value> {
    let html = std::fs::read_to_string(in_repository("examples/sse.html")).expect("the page is there");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let served = axum::Router::new().route("/", axum::routing::get(async || Html(html)));
    tokio::spawn(async { axum::serve(listener, served).await });
    let mut person = Command::new("node");
    person.args(["--input-type=module", "--eval", PERSON, "--", &url, base]).args(prompts);
    person.current_dir(in_repository("tests/clients")).stdin(Stdio::null());
    let printed = output("sse.html", person).await;
    printed.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[tokio::test]
async fn sse_in_a_page() {
    let demo = demo().await;
    let seen = page(demo.base(), &[QUICK.0, ASKING.0, "a long answer", FORM.0]).await;
    for (seen, (_, answer)) in seen.iter().zip([QUICK, ASKING]) {
        assert_eq!(seen["end"], "done", "{seen}");
        assert!(seen["answer"].as_str().is_some_and(|text| text.trim_end().ends_with(answer)), "{seen}");
    }
    assert_eq!(seen[1]["log"].as_str().map(|log| log.matches("answered: ").count()), Some(2), "{}", seen[1]);
    assert_eq!(seen[2]["end"], "interrupted", "{}", seen[2]);
    assert!(seen[3]["answer"].as_str().is_some_and(|text| text.contains(FORM.1)), "{}", seen[3]);
}

#[tokio::test]
async fn sse_in_a_page_after_lost_connections() {
    let demo = demo().await;
    let base = breaking(demo.base(), 2).await;
    let seen = page(&base, &[ASKING.0]).await;
    let (answer, log) = (seen[0]["answer"].as_str().unwrap_or_default(), seen[0]["log"].as_str().unwrap_or_default());
    assert!(answer.trim_end().ends_with(ASKING.1) && answer.matches("That is all").count() == 1, "{}", seen[0]);
    assert_eq!(log.matches("connection lost").count(), 2, "{}", seen[0]);
}
