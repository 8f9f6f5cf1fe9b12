//! `interline chat`: a person, or a script, talks to a server of any of the three families.

mod asking;
mod guard;
mod http;
mod native;
mod screen;
mod socketio;
mod sse;
mod wire;

use std::collections::VecDeque;
use std::error::Error;
use std::io::{self, BufRead as _, IsTerminal as _};
use std::process::ExitCode;

use interline_hub::Secret;
use interline_model::{AskId, Outcome, What};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::args::{AutoAnswer, Chat, ChatSurface, Mode};
use asking::{Asking, Taken};
use http::Server;
use screen::Screen;
use wire::{ChatError, Ends, Say, Wire};

/// The exit status of a stopped run, as a shell shows SIGINT.
const STOPPED: u8 = 130;

/// Why a chat could not begin.
#[derive(Debug, thiserror::Error)]
#[error("--token-env {0}: the environment variable is not set")]
struct NoToken(String);

/// Talks until there is nothing more to say.
pub(crate) async fn run(args: Chat) -> Result<ExitCode, Box<dyn Error>> {
    let bearer = match (&args.token, &args.token_env) {
        (Some(token), _) => Some(Secret::new(token.as_str())),
        (None, Some(name)) => Some(Secret::new(std::env::var(name).map_err(|_| NoToken(name.clone()))?)),
        (None, None) => None,
    };
    let server = Server::new(&args.url, bearer)?;
    let interactive = io::stdin().is_terminal() && args.prompt.is_none();
    let (wire, ends) = Wire::new();
    let talk = begin(server, &args, wire);
    let lines = if args.prompt.is_some() { closed() } else { lines() };
    let talker = Talker {
        screen: Screen::new(),
        ends,
        talk,
        lines,
        lines_over: false,
        stopping: false,
        leaving: false,
        interrupts: signal(SignalKind::interrupt())?,
        asks: VecDeque::new(),
        automatic: args.answer.or((!interactive).then_some(AutoAnswer::Deny)),
        interactive,
        last: None,
    };
    talker.run(args.prompt).await
}

/// Starts the protocol's side.
fn begin(server: Server, args: &Chat, wire: Wire) -> JoinHandle<Result<(), ChatError>> {
    let (session, model) = (args.session.clone(), args.model.clone());
    let native = |plane| native::Options { plane, chat: args.mode == Mode::Chat, session: session.clone(), model: model.clone() };
    match args.surface {
        ChatSurface::Sse => tokio::spawn(sse::talk(server, sse::Options { cell: args.cell.clone(), session, model }, wire)),
        ChatSurface::Socketio => tokio::spawn(socketio::talk(server, socketio::Options { session, model }, wire)),
        ChatSurface::Native => tokio::spawn(native::talk(server, native(native::Plane::Cloud), wire)),
        ChatSurface::Bridge => tokio::spawn(native::talk(server, native(native::Plane::Bridge), wire)),
    }
}

/// The lines of standard input, read by a thread of their own: a read cannot be cancelled.
fn lines() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn closed() -> mpsc::UnboundedReceiver<String> {
    mpsc::unbounded_channel().1
}

struct Talker {
    screen: Screen,
    ends: Ends,
    talk: JoinHandle<Result<(), ChatError>>,
    lines: mpsc::UnboundedReceiver<String>,
    lines_over: bool,
    /// The person wants this run to end.
    stopping: bool,
    /// And to leave when it has.
    leaving: bool,
    interrupts: Signal,
    asks: VecDeque<Asking>,
    automatic: Option<AutoAnswer>,
    interactive: bool,
    last: Option<Outcome>,
}

/// What became of waiting.
enum Ended {
    /// The run is over.
    Run,
    /// The conversation is.
    Conversation(ExitCode),
}

impl Talker {
    async fn run(mut self, prompt: Option<String>) -> Result<ExitCode, Box<dyn Error>> {
        if self.interactive {
            self.screen.line("Type a message. Ctrl-C stops a run, a second one or Ctrl-D leaves.");
        }
        let mut only = prompt.clone();
        loop {
            let next = match only.take() {
                Some(prompt) => Some(prompt),
                None if prompt.is_some() => None,
                None => self.next_line().await,
            };
            let Some(prompt) = next else { return Ok(self.status()) };
            if prompt.trim().is_empty() {
                continue;
            }
            let _ = self.ends.says.send(Say::Prompt(prompt));
            match self.follow().await? {
                Ended::Run => {}
                Ended::Conversation(code) => return Ok(code),
            }
        }
    }

    /// The next line of the person; `None` if they leave.
    async fn next_line(&mut self) -> Option<String> {
        if self.interactive {
            self.screen.prompt("\n> ");
        }
        tokio::select! {
            line = self.lines.recv() => line,
            _ = self.interrupts.recv() => None,
        }
    }

    /// Shows a run until it has ended, asking and stopping on the way.
    async fn follow(&mut self) -> Result<Ended, Box<dyn Error>> {
        (self.stopping, self.leaving) = (false, false);
        loop {
            tokio::select! {
                what = self.ends.tells.recv() => match what {
                    Some(What::RunEnded(end)) => {
                        self.asks.clear();
                        self.screen.show(&What::RunEnded(end.clone()));
                        self.last = Some(end.outcome);
                        return Ok(if self.leaving { Ended::Conversation(self.status()) } else { Ended::Run });
                    }
                    Some(what) => self.see(what),
                    None => {
                        self.screen.fresh_line();
                        (&mut self.talk).await??;
                        return Ok(Ended::Conversation(self.status()));
                    }
                },
                line = self.lines.recv(), if self.interactive && !self.asks.is_empty() && !self.lines_over => self.take(line),
                _ = self.interrupts.recv() => {
                    if self.stopping {
                        self.screen.fresh_line();
                        return Ok(Ended::Conversation(ExitCode::from(STOPPED)));
                    }
                    self.stop("stopping; Ctrl-C again leaves");
                }
            }
        }
    }

    /// Stops the run; what it asked, or still asks, is of no interest any more.
    fn stop(&mut self, said: &str) {
        self.stopping = true;
        self.asks.clear();
        self.screen.line(said);
        let _ = self.ends.says.send(Say::Stop);
    }

    fn see(&mut self, what: What) {
        match what {
            What::AskRaised(_) if self.stopping => {}
            What::AskRaised(ask) => match self.automatic {
                Some(answer) => {
                    let verdict = if answer == AutoAnswer::Allow { "allowed" } else { "denied" };
                    self.screen.line(&format!("{} — {verdict}", screen::harmless(&Asking::new(ask.clone()).title())));
                    let answer = asking::automatic(&ask, answer);
                    let _ = self.ends.says.send(Say::Answer(ask, answer));
                }
                None => {
                    self.asks.push_back(Asking::new(ask));
                    if self.asks.len() == 1 {
                        self.ask();
                    }
                }
            },
            What::AskSettled { ask, .. } => self.settled(&ask),
            what => self.screen.show(&what),
        }
    }

    /// Puts the first open question.
    fn ask(&mut self) {
        if let Some(asking) = self.asks.front() {
            let text = format!("{}\n{}", screen::harmless(&asking.title()), screen::harmless(&asking.prompt()));
            self.screen.prompt(&text);
        }
    }

    /// Somebody else answered, or time is up.
    fn settled(&mut self, id: &AskId) {
        let was_first = self.asks.front().is_some_and(|asking| asking.ask.id == *id);
        self.asks.retain(|asking| asking.ask.id != *id);
        if was_first {
            self.screen.line("(settled elsewhere, or too late)");
            self.ask();
        }
    }

    /// Takes a line as an answer. Who ends the input wants to leave, and no run goes on that asks and finds nobody.
    fn take(&mut self, line: Option<String>) {
        let Some(line) = line else {
            (self.lines_over, self.leaving) = (true, true);
            // Behind the prompt.
            self.screen.line("");
            return self.stop("stopping, then leaving; Ctrl-C leaves at once");
        };
        let Some(asking) = self.asks.front_mut() else { return };
        match asking.take(&line) {
            Taken::Again(hint) => {
                let prompt = screen::harmless(&asking.prompt());
                self.screen.line(&screen::harmless(&hint));
                self.screen.prompt(&prompt);
            }
            Taken::Next => {
                let prompt = screen::harmless(&asking.prompt());
                self.screen.prompt(&prompt);
            }
            Taken::Whole(answer) => {
                if let Some(asking) = self.asks.pop_front() {
                    let _ = self.ends.says.send(Say::Answer(asking.ask, answer));
                }
                self.ask();
            }
        }
    }

    /// The exit status that the last run's end stands for.
    fn status(&self) -> ExitCode {
        match self.last {
            None | Some(Outcome::Completed(_)) => ExitCode::SUCCESS,
            Some(Outcome::Interrupted { .. }) => ExitCode::from(STOPPED),
            Some(Outcome::Failed { .. }) => ExitCode::FAILURE,
        }
    }
}

#[cfg(test)]
mod tests;
