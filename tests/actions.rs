//! What a user can do, on which surface, before which agent server: each action is done through the real program before both simulated
//! servers in both voices, and what came of it is the table of `docs/actions.md`. `UPDATE_DOCS=1 cargo test --test actions` writes it.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

#[path = "actions/native.rs"]
mod native;
#[path = "actions/socketio.rs"]
mod socketio;
#[path = "actions/sse.rs"]
mod sse;
mod support;

use std::fmt::Write as _;

use interline_sim::{Options, Voice};
use interline_testkit::{Answer, in_repository};
use support::Stand;

/// An action, and what it is called in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Start,
    Continue,
    Stop,
    Allow,
    Deny,
    Question,
    Form,
    Image,
    File,
    Model,
    Mode,
    Thinking,
    Environment,
    Whatif,
    ModelMeanwhile,
    ModeMeanwhile,
    Context,
    StopTask,
    Rewind,
    Compact,
    Cost,
    Resume,
    Coding,
}

const ACTIONS: [(Action, &str); 23] = [
    (Action::Start, "start a run"),
    (Action::Continue, "go on in the same session"),
    (Action::Stop, "stop a run"),
    (Action::Allow, "allow a tool"),
    (Action::Deny, "refuse a tool"),
    (Action::Question, "answer a question"),
    (Action::Form, "fill in a form"),
    (Action::Image, "send an image"),
    (Action::File, "send a file"),
    (Action::Model, "choose the model of a run"),
    (Action::Mode, "start in planning mode"),
    (Action::Thinking, "choose how much is thought"),
    (Action::Environment, "set environment variables"),
    (Action::Whatif, "run a part again (`whatif`)"),
    (Action::ModelMeanwhile, "change the model meanwhile"),
    (Action::ModeMeanwhile, "change the mode meanwhile"),
    (Action::Context, "ask how full the context is"),
    (Action::StopTask, "stop a background task"),
    (Action::Rewind, "rewind"),
    (Action::Compact, "compact"),
    (Action::Cost, "ask what it cost"),
    (Action::Resume, "resume"),
    (Action::Coding, "open the coding channel"),
];

/// The four servers, in the order of the columns: voice and cell.
const SERVERS: [(Voice, &str); 4] =
    [(Voice::Documented, "cloud"), (Voice::Observed, "cloud"), (Voice::Documented, "bridge"), (Voice::Observed, "bridge")];

const SURFACES: [&str; 3] = ["SSE", "Socket.IO", "native"];

/// It was done, and the agent server did its part.
const WORKS: &str = "works";
/// The client's request was taken, and the agent server does nothing with it.
const WITHOUT_EFFECT: &str = "taken, and without effect: the agent server ignores it";
/// The agent server has no such thing to ask.
const NOT_ASKED: &str = "the agent server does not ask";
/// The agent server runs nothing in the background.
const NO_TASKS: &str = "the agent server has no background tasks";
/// The surface's protocol has no place for it.
const NO_PLACE: &str = "–";

/// What an HTTP answer says: that it works, or the exact refusal.
fn said(answer: &Answer) -> String {
    if (200..300).contains(&answer.status) {
        return WORKS.to_owned();
    }
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let sentence = [&body["error"], &body["error"]["message"], &body["detail"]].into_iter().find_map(|text| text.as_str());
    format!("{} {}", answer.status, sentence.unwrap_or(&answer.body))
}

async fn column(voice: Voice, cell: &'static str) -> Vec<[String; 3]> {
    let stand = Stand::with(Options { voice, ..Options::default() }, "[run]\ncontrol_ms = 1000\n\n[native]\ncoding_channel = true\n").await;
    let mut rows = Vec::new();
    for (action, _) in ACTIONS {
        // At the same time: none of them knows of the others' sessions.
        let (sse, socketio, native) = tokio::join!(
            sse::outcome(&stand, cell, action),
            socketio::outcome(&stand, cell, action),
            native::outcome(&stand, cell, action)
        );
        rows.push([sse, socketio, native]);
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_of_actions_is_what_happens() {
    let outcomes = futures_util::future::join_all(SERVERS.map(|(voice, cell)| column(voice, cell))).await;
    let mut page = String::from(HEAD);
    for (row, (_, name)) in ACTIONS.iter().enumerate() {
        for (at, surface) in SURFACES.iter().enumerate() {
            let _ = write!(page, "| {} | {surface} |", if at == 0 { name } else { "" });
            for column in &outcomes {
                let _ = write!(page, " {} |", column[row][at].replace('|', "\\|").replace('\n', " "));
            }
            page.push('\n');
        }
    }
    let path = in_repository("docs/actions.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    for (line, (was, is)) in (1..).zip(kept.lines().zip(page.lines())) {
        assert_eq!(is, was, "docs/actions.md, line {line}; UPDATE_DOCS=1 writes it anew");
    }
    assert_eq!(kept.lines().count(), page.lines().count(), "docs/actions.md; UPDATE_DOCS=1 writes it anew");
}

const HEAD: &str = "# What a user can do, and where

Each line was done by a test, through the program, before a simulated agent server: *documented* does what the vendor's page says, *observed*
what today's servers do. The cloud plane runs in `agent` mode. **works** means that the agent server did its part; anything else is the exact
refusal, with its HTTP status or code, or what became of it. `–` is where the protocol of the surface has no place for it.

| action | surface | cloud, documented | cloud, observed | bridge, documented | bridge, observed |
|---|---|---|---|---|---|
";
