//! A session as text: one step per line, so that a recorded transcript is a script and a finding can be read.
//!
//! A line is the text of a frame, whatever it holds, unless it begins with `#`: then it is something that we know and the upstream
//! did not say.

use interline_model::{Actor, Answer, AskId, Fact, FailureKind, ForcedEnd, FormAction, Json, Millis, Principal, Text};

/// The longest script that is played: beyond, only time is lost.
const MAX_STEPS: usize = 400;

/// The steps of a session.
pub struct Script {
    /// Bits that choose the options of whatever is fuzzed.
    pub options: u32,
    /// In order.
    pub steps: Vec<Step>,
}

/// One step.
pub enum Step {
    /// The text of a frame.
    Frame(Text),
    /// A local fact.
    Fact(Fact),
    /// Time passes, in milliseconds.
    Wait(Millis),
    /// A new run; the one before ends if it has not.
    Run,
}

impl Script {
    /// Reads a script: all bytes are one.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut script = Self { options: 0, steps: Vec::new() };
        for line in text.split('\n').take(MAX_STEPS) {
            let Some(command) = line.strip_prefix('#') else {
                script.steps.push(Step::Frame(Text::from(line)));
                continue;
            };
            let (word, rest) = command.split_once(' ').unwrap_or((command, ""));
            let step = match word {
                "options" => {
                    script.options = rest.parse().unwrap_or_default();
                    continue;
                }
                "run" => Step::Run,
                "wait" => Step::Wait(rest.parse::<u32>().unwrap_or(50).into()),
                _ => match fact(word, rest) {
                    Some(fact) => Step::Fact(fact),
                    None => Step::Frame(Text::from(line)),
                },
            };
            script.steps.push(step);
        }
        script
    }

    /// Option number `bit`.
    #[must_use]
    pub fn option(&self, bit: u32) -> bool {
        self.options >> bit & 1 == 1
    }

    /// Option number `bit` and the one above it, as a number below 4.
    #[must_use]
    pub fn choice(&self, bit: u32) -> u32 {
        self.options >> bit & 3
    }
}

/// Whoever does something in a script.
#[must_use]
pub fn actor() -> Actor {
    Actor { principal: Principal::from("anonymous"), surface: Text::from_static("sse") }
}

fn fact(word: &str, rest: &str) -> Option<Fact> {
    let (id, how) = rest.split_once(' ').unwrap_or((rest, ""));
    let ask = AskId::from(id.to_owned());
    Some(match word {
        "stop" => Fact::StopRequested { by: actor() },
        "lost" => Fact::LinkLost,
        "back" => Fact::LinkBack,
        "title" => Fact::Titled { title: Text::from(rest) },
        "expire" => Fact::AskExpired { ask },
        "answer" => Fact::AskAnswered { ask, answer: answer(how), by: actor() },
        "end" => Fact::EndForced(match rest {
            "grace" => ForcedEnd::StopGraceOver,
            "idle" => ForcedEnd::Idle,
            "stayed" => ForcedEnd::ErrorStayed,
            "shutdown" => ForcedEnd::Shutdown,
            "refused" => ForcedEnd::Refused { kind: FailureKind::EngineNotReady, message: Text::from_static("nobody there") },
            _ => ForcedEnd::UpstreamGone,
        }),
        _ => return None,
    })
}

fn answer(how: &str) -> Answer {
    match how {
        "allow" => Answer::Allow { input: None, always: false },
        "always" => Answer::Allow { input: Some(Json::empty_object()), always: true },
        "choose" => Answer::Choose(vec![(Text::from_static("Which?"), Text::from_static("this, that"))]),
        "accept" => Answer::Form { action: FormAction::Accept, content: Some(Json::empty_object()) },
        "decline" => Answer::Form { action: FormAction::Decline, content: None },
        "cancel" => Answer::Form { action: FormAction::Cancel, content: None },
        "native" => Answer::Native(Json::empty_object()),
        message => Answer::Deny { message: Text::from(message) },
    }
}
