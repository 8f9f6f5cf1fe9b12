//! What a prompt asks the simulated agent to do.

use std::time::Duration;

/// What a run will be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Plan {
    /// `play NAME …`: a transcript.
    Play(Play),
    /// `fault …`: a server that misbehaves.
    Fault(Fault),
    /// `scene NAME …`: one thing that can be done with an agent, on its own.
    Scene(Scene),
    /// `flood N`: N short text frames at full speed.
    Flood(u64),
    /// `tally NAME N …`: N numbered pieces.
    Tally(Tally),
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

/// A run whose pieces are numbered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// What its pieces call it.
    pub(crate) name: String,
    pub(crate) pieces: u64,
    /// The time between two pieces, whatever the pace.
    pub(crate) gap: Duration,
    /// The time before the last piece.
    pub(crate) hold: Duration,
    /// Every so many-th piece is the result of a tool; 0 is none.
    pub(crate) tools: u64,
    /// More bytes in each piece.
    pub(crate) size: usize,
    /// Before this piece the connection is cut, and soon everything said is forgotten.
    pub(crate) forget: Option<u64>,
    /// From this piece on there is no stream of it any more.
    pub(crate) vanish: Option<u64>,
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
    /// Work until cancelled, and then end in this way.
    Cancel(Cancelled),
    /// An external command-line agent that works so many milliseconds and cannot be interrupted.
    Cli(u64),
    /// An ask, and a reader that fetches no control message for so many milliseconds after it.
    Deaf { millis: u64, form: bool },
    /// A compaction that fails: begun, never finished, and a recoverable error.
    CompactFailed,
    /// An error, and the whole work over again, since it was delivered a second time.
    Redelivered,
}

/// How a cancelled run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// As the document says, in either voice.
    Clean,
    /// Not at all.
    Silent,
    /// Without a result; the bridge still ends the turn.
    NoResult,
    /// With an error that tells of a context.
    Error,
    /// As a clean one, so many milliseconds later.
    Late(u64),
    /// With a success, as if nobody had cancelled.
    Success,
}

/// What `scene NAME` plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    /// A permission with everything the schema has, twice: what was allowed for good is not asked again.
    Permission,
    /// Two questions in one ask, the second of several choices.
    Questions,
    /// A form and its settlement.
    Form,
    /// A link to open, and its settlement.
    Link,
    /// So many permissions at once.
    Asks(u64),
    /// A sub-agent that needs a permission.
    Subagent,
    /// A permission that overtakes the text and the announcements before it.
    Overtake,
    /// A permission that is sent again after its answer; the run goes on for so many milliseconds.
    Replayed(u64),
    /// For so many milliseconds whatever is set is listened to; then the agent says it.
    Settings(u64),
    /// A background task of so many milliseconds, `bg-1`, that can be stopped.
    Task(u64),
    /// A compaction in the middle.
    Compaction,
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
pub const FAULTS: &str = "drop N, gap N, silent, no-result, bad-frames, recoverable, error, hang-after N, busy MS, pause, \
                      late-result, http STATUS, cancel clean|silent|no-result|error|late MS|success, cli MS, deaf MS [form], compact-failed, \
                      redelivered";

/// The scenes, likewise.
pub const SCENES: &str = "permission, questions, form, link, asks N, subagent, overtake, replayed [MS], settings [MS], task MS, compaction";

/// How long `scene settings` listens, if it is not said.
const LISTENS_MS: u64 = 500;

/// The most that is added to a piece of a tally.
const LARGEST_PIECE: usize = 1024 * 1024;

/// The most asks at once.
const MOST_ASKS: u64 = 50;

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
        "scene" => Some(scene(words)),
        "flood" => Some(Plan::Flood(words.next()?.parse().ok()?)),
        "tally" => {
            let (name, pieces) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
            Some(tally(Tally { name, pieces, ..Tally::default() }, words))
        }
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

fn tally<'a>(mut tally: Tally, words: impl Iterator<Item = &'a str>) -> Plan {
    for word in words {
        let number = |value: &str| value.parse::<u64>().ok();
        match word.split_once('=').and_then(|(name, value)| Some((name, number(value)?))) {
            Some(("gap", ms)) => tally.gap = Duration::from_millis(ms),
            Some(("hold", ms)) => tally.hold = Duration::from_millis(ms),
            Some(("tools", every)) => tally.tools = every,
            Some(("size", bytes)) => tally.size = usize::try_from(bytes).unwrap_or(LARGEST_PIECE).min(LARGEST_PIECE),
            Some(("forget", piece)) => tally.forget = Some(piece),
            Some(("vanish", piece)) => tally.vanish = Some(piece),
            _ => {
                return Plan::Refuse(format!(
                    "unknown tally option {word:?}: there are gap=MS, hold=MS, tools=K, size=B, forget=M, vanish=M"
                ));
            }
        }
    }
    Plan::Tally(tally)
}

fn fault<'a>(mut words: impl Iterator<Item = &'a str>) -> Plan {
    let name = words.next().unwrap_or_default();
    let (second, third) = (words.next(), words.next());
    let number = second.and_then(|n| n.parse::<u64>().ok());
    let fault = match (name, number) {
        ("cancel", _) => cancelled(second, third).map(Fault::Cancel),
        ("cli", Some(ms)) => Some(Fault::Cli(ms)),
        ("deaf", Some(millis)) if third.is_none_or(|kind| kind == "form") => Some(Fault::Deaf { millis, form: third.is_some() }),
        ("compact-failed", _) => Some(Fault::CompactFailed),
        ("redelivered", _) => Some(Fault::Redelivered),
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

fn cancelled(how: Option<&str>, millis: Option<&str>) -> Option<Cancelled> {
    Some(match how? {
        "clean" => Cancelled::Clean,
        "silent" => Cancelled::Silent,
        "no-result" => Cancelled::NoResult,
        "error" => Cancelled::Error,
        "late" => Cancelled::Late(millis?.parse().ok()?),
        "success" => Cancelled::Success,
        _ => return None,
    })
}

fn scene<'a>(mut words: impl Iterator<Item = &'a str>) -> Plan {
    let name = words.next().unwrap_or_default();
    let number = words.next().and_then(|n| n.parse::<u64>().ok());
    let scene = match (name, number) {
        ("permission", _) => Scene::Permission,
        ("questions", _) => Scene::Questions,
        ("form", _) => Scene::Form,
        ("link", _) => Scene::Link,
        ("asks", Some(n)) => Scene::Asks(n.clamp(1, MOST_ASKS)),
        ("subagent", _) => Scene::Subagent,
        ("overtake", _) => Scene::Overtake,
        ("replayed", ms) => Scene::Replayed(ms.unwrap_or(0)),
        ("settings", ms) => Scene::Settings(ms.unwrap_or(LISTENS_MS)),
        ("task", Some(ms)) => Scene::Task(ms),
        ("compaction", _) => Scene::Compaction,
        _ => return Plan::Refuse(format!("unknown scene {name:?}: there are {SCENES}")),
    };
    Plan::Scene(scene)
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
    fn tallies_with_their_options() {
        let tally = Tally { name: "r7".into(), pieces: 30, ..Tally::default() };
        assert_eq!(Plan::of("tally r7 30"), Plan::Tally(tally.clone()));
        let gap = Duration::from_millis(4);
        assert_eq!(Plan::of("tally r7 30 gap=4 tools=5 forget=9"), Plan::Tally(Tally { gap, tools: 5, forget: Some(9), ..tally }));
        assert!(matches!(Plan::of("tally r7 30 loudly=3"), Plan::Refuse(_)));
        assert!(matches!(Plan::of("tally the votes"), Plan::Script(_)));
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
    fn scenes_and_cancels_by_name() {
        assert_eq!(Plan::of("Earlier:\n\nscene asks 3"), Plan::Scene(Scene::Asks(3)));
        assert_eq!(Plan::of("scene settings"), Plan::Scene(Scene::Settings(LISTENS_MS)));
        assert_eq!(Plan::of("scene replayed 20"), Plan::Scene(Scene::Replayed(20)));
        assert_eq!(Plan::of("fault cancel silent"), Plan::Fault(Fault::Cancel(Cancelled::Silent)));
        assert_eq!(Plan::of("fault cancel late 40"), Plan::Fault(Fault::Cancel(Cancelled::Late(40))));
        assert_eq!(Plan::of("fault deaf 9 form"), Plan::Fault(Fault::Deaf { millis: 9, form: true }));
        for wrong in ["scene", "scene asks", "scene nothing", "fault cancel", "fault cancel late", "fault deaf 9 x"] {
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
