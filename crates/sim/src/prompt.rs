//! What a prompt asks the simulated agent to do.

use std::time::Duration;

/// What a run will be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Plan {
    /// `play NAME …`: a transcript.
    Play(Play),
    /// `fault …`: a server that misbehaves.
    Fault(Fault),
    /// `flood N`: N short text frames at full speed.
    Flood(u64),
    /// Anything else: the scripted agent.
    Script(Scenes),
    /// A run that fails at once with this message.
    Refuse(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Play {
    pub(crate) name: String,
    /// Wait for nobody.
    pub(crate) auto: bool,
    /// This run of the file (1 is the first) instead of the session's next.
    pub(crate) run: Option<u64>,
    /// The pause before each frame, instead of the usual.
    pub(crate) gap: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Cut the connection after so many frames; the run waits for the client to come back.
    Drop(u64),
    /// The same, but a few frames are lost on the way before the run waits.
    Gap(u64),
    /// Accept everything, say nothing.
    Silent,
    /// End the stream without a `result`.
    NoResult,
    /// Everything a parser can choke on, then a success.
    BadFrames,
    /// A recoverable error in the middle.
    Recoverable,
    /// An error at the end.
    Error,
    /// So many frames, then nothing.
    HangAfter(u64),
    /// A command that runs so many milliseconds and cannot be interrupted.
    Busy(u64),
    /// A form, and the executor goes away while it is open.
    Pause,
    /// A second, failed `result` after the end.
    LateResult,
    /// Refuse the request itself with this status.
    Http(u16),
}

/// The scenes of the scripted agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scenes {
    pub(crate) permission: bool,
    pub(crate) question: bool,
    pub(crate) form: bool,
    pub(crate) long: bool,
    /// Nobody chose: these are the usual scenes.
    pub(crate) usual: bool,
}

/// The faults, as the refusal of an unknown one lists them.
const FAULTS: &str = "drop N, gap N, silent, no-result, bad-frames, recoverable, error, hang-after N, busy MS, pause, \
                      late-result, http STATUS";

impl Plan {
    /// Reads a prompt. The command words count at the start of the first or of the last line, so that a proxy may put a
    /// preamble before what the user wrote.
    pub(crate) fn of(prompt: &str) -> Self {
        let prompt = prompt.trim();
        let lines = [prompt.lines().next(), prompt.lines().next_back()];
        lines.into_iter().flatten().find_map(command).unwrap_or_else(|| Self::Script(Scenes::of(prompt)))
    }
}

fn command(line: &str) -> Option<Plan> {
    let mut words = line.split_whitespace();
    match words.next()? {
        "play" => Some(play(words)),
        "fault" => Some(fault(words)),
        "flood" => Some(Plan::Flood(words.next()?.parse().ok()?)),
        _ => None,
    }
}

fn play<'a>(mut words: impl Iterator<Item = &'a str>) -> Plan {
    let mut play = Play { name: words.next().unwrap_or_default().to_owned(), ..Play::default() };
    for word in words {
        match word.split_once('=') {
            None if word == "auto" => play.auto = true,
            Some(("run", n)) => play.run = n.parse().ok(),
            Some(("gap", ms)) => play.gap = ms.parse().ok().map(Duration::from_millis),
            _ => {
                return Plan::Refuse(format!("unknown play option {word:?}: there are auto, run=N, gap=MS"));
            }
        }
    }
    Plan::Play(play)
}

fn fault<'a>(mut words: impl Iterator<Item = &'a str>) -> Plan {
    let name = words.next().unwrap_or_default();
    let number = words.next().and_then(|n| n.parse::<u64>().ok());
    let fault = match (name, number) {
        ("silent", _) => Some(Fault::Silent),
        ("no-result", _) => Some(Fault::NoResult),
        ("bad-frames", _) => Some(Fault::BadFrames),
        ("recoverable", _) => Some(Fault::Recoverable),
        ("error", _) => Some(Fault::Error),
        ("pause", _) => Some(Fault::Pause),
        ("late-result", _) => Some(Fault::LateResult),
        ("drop", Some(n)) => Some(Fault::Drop(n)),
        ("gap", Some(n)) => Some(Fault::Gap(n)),
        ("hang-after", Some(n)) => Some(Fault::HangAfter(n)),
        ("busy", Some(ms)) => Some(Fault::Busy(ms)),
        ("http", Some(status)) => u16::try_from(status).ok().filter(|s| (400..600).contains(s)).map(Fault::Http),
        _ => None,
    };
    fault.map_or_else(|| Plan::Refuse(format!("unknown fault {name:?}: there are {FAULTS}")), Plan::Fault)
}

impl Scenes {
    const USUAL: Self = Self { permission: true, question: true, form: false, long: false, usual: true };

    fn of(prompt: &str) -> Self {
        let has = |wanted: &str| prompt.split(|c: char| !c.is_alphanumeric()).any(|word| word.eq_ignore_ascii_case(wanted));
        if has("quick") {
            return Self::default();
        }
        let asked = Self { permission: has("ask"), question: has("question"), form: has("form"), long: has("long"), usual: false };
        if asked == Self::default() { Self::USUAL } else { asked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_from_the_first_or_the_last_line() {
        let play = |name: &str| Plan::Play(Play { name: name.into(), ..Play::default() });
        assert_eq!(Plan::of("play chat-text-only"), play("chat-text-only"));
        assert_eq!(Plan::of("Earlier:\nuser: hello\n\nplay multi\n"), play("multi"));
        assert_eq!(Plan::of("flood 12"), Plan::Flood(12));
        assert_eq!(
            Plan::of("play a auto run=2 gap=5"),
            Plan::Play(Play { name: "a".into(), auto: true, run: Some(2), gap: Some(Duration::from_millis(5)) })
        );
        assert!(matches!(Plan::of("play a loudly"), Plan::Refuse(_)));
    }

    #[test]
    fn faults_with_their_numbers() {
        assert_eq!(Plan::of("fault drop 3"), Plan::Fault(Fault::Drop(3)));
        assert_eq!(Plan::of("fault silent"), Plan::Fault(Fault::Silent));
        assert_eq!(Plan::of("fault http 503"), Plan::Fault(Fault::Http(503)));
        for wrong in ["fault", "fault drop", "fault drop x", "fault http 200", "fault nothing"] {
            assert!(matches!(Plan::of(wrong), Plan::Refuse(_)), "{wrong}");
        }
    }

    #[test]
    fn words_choose_the_scenes() {
        let scenes = |prompt: &str| match Plan::of(prompt) {
            Plan::Script(scenes) => scenes,
            other => panic!("{other:?}"),
        };
        assert_eq!(scenes("a quick ask"), Scenes::default());
        assert_eq!(scenes("Ask!"), Scenes { permission: true, ..Scenes::default() });
        assert_eq!(scenes("one question"), Scenes { question: true, ..Scenes::default() });
        assert_eq!(scenes("long form"), Scenes { form: true, long: true, ..Scenes::default() });
        assert_eq!(scenes("task quickly formed"), Scenes::USUAL);
        assert_eq!(scenes(""), Scenes::USUAL);
        assert_eq!(scenes("flood the valley"), Scenes::USUAL);
    }
}
