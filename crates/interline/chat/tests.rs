//! Whole chats over real sockets: the simulator, the proxy, and each protocol's client in one process.

use std::time::Duration;

use interline_model::AskOutcome;
use interline_sim::{Options, Pace, Simulator};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::*;
use crate::app::App;
use crate::args::Command;
use crate::config::{self, Layer};

const SURFACES: [&str; 4] = ["sse", "socketio", "native", "bridge"];

struct Stand {
    base: String,
    _app: App,
    _stop: DropGuard,
}

async fn stand() -> Stand {
    let agents = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = crate::demo::settings(&format!("http://{}", agents.local_addr().unwrap()));
    let stop = CancellationToken::new();
    let simulator = Simulator::new(Options { pace: Pace::none(), ..Options::default() }).unwrap();
    tokio::spawn(simulator.serve(agents, stop.clone()));
    let checked = config::from_layers(&[Layer::file("demo", settings)]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = App::start(checked, listener, axum::Router::new(), None).unwrap();
    Stand { base: format!("http://{}", app.address()), _app: app, _stop: stop.drop_guard() }
}

/// What a conversation came to.
#[derive(Default)]
struct Heard {
    text: String,
    thinking: String,
    tools: usize,
    asks: usize,
    denied: usize,
    outcome: Option<Outcome>,
}

struct Talking {
    ends: Ends,
    task: JoinHandle<Result<(), ChatError>>,
}

fn talking(base: &str, surface: &str, more: &[&str]) -> Talking {
    use clap::Parser as _;
    let words = [&["interline", "chat", base, "--surface", surface, "--token", "any", "--mode", "agent"], more].concat();
    let Command::Chat(args) = crate::args::Args::try_parse_from(words).unwrap().command else { panic!() };
    let (wire, ends) = Wire::new();
    let server = Server::new(&args.url, args.token.as_deref().map(Secret::new)).unwrap();
    Talking { ends, task: begin(server, &args, wire) }
}

impl Talking {
    /// Says something and follows the run, answering everything with `answer`; stops it at the first text if `stop`.
    async fn say(&mut self, prompt: &str, answer: AutoAnswer, mut stop: bool) -> Heard {
        self.ends.says.send(Say::Prompt(prompt.to_owned())).unwrap();
        let mut heard = Heard::default();
        while heard.outcome.is_none() {
            let what =
                timeout(Duration::from_secs(20), self.ends.tells.recv()).await.expect("something happens").expect("the talk goes on");
            match what {
                What::Text { delta } => {
                    heard.text.push_str(&delta);
                    if std::mem::take(&mut stop) {
                        self.ends.says.send(Say::Stop).unwrap();
                    }
                }
                What::Thinking { delta } => heard.thinking.push_str(&delta),
                What::ToolEnded { is_error, .. } => {
                    heard.tools += 1;
                    heard.denied += usize::from(is_error);
                }
                What::AskRaised(ask) => {
                    heard.asks += 1;
                    let answer = asking::automatic(&ask, answer);
                    self.ends.says.send(Say::Answer(ask, answer)).unwrap();
                }
                What::AskSettled { outcome, .. } => assert_ne!(outcome, AskOutcome::Expired),
                What::RunEnded(end) => heard.outcome = Some(end.outcome),
                _ => {}
            }
        }
        heard
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_run_is_the_same_over_every_surface() {
    let stand = stand().await;
    for surface in SURFACES {
        let mut talk = talking(&stand.base, surface, &[]);
        for prompt in ["What does median do?", "And once more."] {
            let heard = talk.say(prompt, AutoAnswer::Allow, false).await;
            assert!(matches!(heard.outcome, Some(Outcome::Completed(_))), "{surface}: {:?}", heard.outcome);
            assert!(heard.text.starts_with("I'll look at the file first."), "{surface}: {}", heard.text);
            assert!(heard.text.ends_with(&format!("That is all there is to do for “{prompt}”.")), "{surface}: {}", heard.text);
            assert!(heard.thinking.starts_with("The request is clear."), "{surface}: {}", heard.thinking);
            assert_eq!(heard.asks, 2, "{surface}: a permission and a question");
            assert_eq!(heard.denied, 0, "{surface}");
        }
        drop(talk.ends);
        assert!(talk.task.await.unwrap().is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_is_a_no_and_forms_are_filled_in() {
    let stand = stand().await;
    for surface in SURFACES {
        let mut talk = talking(&stand.base, surface, &[]);
        let denied = talk.say("ask me", AutoAnswer::Deny, false).await;
        assert_eq!((denied.asks, denied.denied), (1, 1), "{surface}");
        assert!(matches!(denied.outcome, Some(Outcome::Completed(_))), "{surface}");
        let filled = talk.say("form", AutoAnswer::Allow, false).await;
        assert_eq!((filled.asks, filled.denied), (1, 0), "{surface}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_stops_and_the_next_run_begins() {
    let stand = stand().await;
    for surface in SURFACES {
        let mut talk = talking(&stand.base, surface, &[]);
        let stopped = talk.say("fault hang-after 3", AutoAnswer::Allow, true).await;
        assert!(matches!(stopped.outcome, Some(Outcome::Interrupted { .. })), "{surface}: {:?}", stopped.outcome);
        let next = talk.say("quick", AutoAnswer::Allow, false).await;
        assert!(matches!(next.outcome, Some(Outcome::Completed(_))), "{surface}: {:?}", next.outcome);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_told_in_the_servers_words() {
    let stand = stand().await;
    for surface in SURFACES {
        let failed = talking(&stand.base, surface, &[]).say("play nothing-like-this", AutoAnswer::Allow, false).await;
        let Some(Outcome::Failed { message, .. }) = failed.outcome else { panic!("{surface}: {:?}", failed.outcome) };
        assert!(message.contains("no transcript"), "{surface}: {message}");
    }
}
