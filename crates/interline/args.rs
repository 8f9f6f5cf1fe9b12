//! The command line: what can be typed, and the help that teaches it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};

/// A proxy between AI-agent servers and the frontends people already have.
///
/// Upstream it speaks the native agent WebSocket protocol. Downstream it offers every session as SSE run events, as Socket.IO turns
/// and as the native protocol, live and replayable, on all of them at once.
#[derive(Debug, Parser)]
#[command(name = "interline", version, disable_help_subcommand = false, arg_required_else_help = true)]
#[command(after_help = "\
Begin with:
  interline demo                               a simulated agent server and the proxy, nothing to configure
  interline check interline.toml               is this config right?
  interline serve --config interline.toml      the proxy
  interline help COMMAND                       what a command does, with examples")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(Serve),
    Demo(Demo),
    Sim(Sim),
    Check(Check),
    Map(Map),
    Chat(Chat),
}

/// Run the proxy.
///
/// The config is read and checked first; what is wrong is said with file, line and key, and nothing starts. Every key of a section can
/// also be set by an environment variable INTERLINE__SECTION__KEY, which wins over the file; a list is written as in the file. The tables
/// of tokens, upstreams, routes and policies stand in the file only.
///
/// SIGTERM or SIGINT ends it: /readyz turns to 503; after server.ready_off_ms no run is accepted any more, and those that go on have
/// server.drain_ms to finish; then connections are closed, each at its own moment within server.close_spread_ms. A second signal ends it
/// at once.
///
/// SIGHUP reads the config again and takes over what may change while it runs: tokens, routes, policies, upstreams, origins, the log's filter and
/// most of the section "server". What may not is named in the log. A config that is not right changes nothing.
#[derive(Debug, Arguments)]
#[command(after_help = "\
Examples:
  interline serve --config interline.toml
  interline serve --config interline.toml --listen 127.0.0.1:8080
  INTERLINE__LOG__FILTER=debug interline serve --config interline.toml

Every option stands in config/interline.toml at its default, with a sentence each.")]
pub(crate) struct Serve {
    /// The config file.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Listen here instead of server.listen; port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<String>,
}

/// Run a simulated agent server and the proxy in one process, with a page to try it on.
///
/// Needs no configuration. Prints addresses and commands to copy for each surface. The cells are my-cell (cloud agent plane) and
/// bridge-cell (local bridge); any other name is served like my-cell.
#[derive(Debug, Arguments)]
#[command(after_help = "\
Examples:
  interline demo
  interline demo --listen 127.0.0.1:8080

What to send: any sentence is played by a small scripted agent. `quick` in it leaves out questions, `ask`, `question`, `form` and
`long` choose scenes; `play chat-with-tools` plays a recorded run; `scene permission` and `fault drop 3` are two of many that
`interline sim --help` lists.")]
pub(crate) struct Demo {
    /// Listen here; only loopback addresses, since everybody is let in.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9091")]
    pub(crate) listen: String,
}

/// Run the simulated agent server alone: the cloud agent plane and the local bridge.
///
/// For trying and testing a proxy or a client of the native protocol without a model.
#[derive(Debug, Arguments)]
#[command(after_help = "\
Examples:
  interline sim
  interline sim --listen 127.0.0.1:7003 --transcripts recordings
  interline sim --voice observed --pace 0

Prompts:
  play NAME    plays NAME.jsonl, waiting for the client at each ask
  flood N      N text frames at full speed
  tally NAME N N numbered pieces; gap=MS, hold=MS, tools=K, size=B, forget=M, vanish=M
  scene NAME   permission, questions, form, link, asks N, subagent, overtake, replayed [MS], settings [MS], task MS, compaction
  fault NAME   drop N, gap N, silent, hang-after N, no-result, bad-frames, recoverable, compact-failed, redelivered, error, late-result,
               busy MS, cli MS, cancel clean|silent|no-result|error|late MS|success, deaf MS [form], pause, http STATUS
Anything else is played by a small scripted agent; the words quick, ask, question, form and long choose what it does.")]
pub(crate) struct Sim {
    /// Listen here; port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7003")]
    pub(crate) listen: SocketAddr,
    /// Where `play NAME` finds NAME.jsonl; a bundled set otherwise.
    #[arg(long, value_name = "DIR")]
    pub(crate) transcripts: Option<PathBuf>,
    /// As the vendor documents its servers, or as they were observed to behave.
    #[arg(long, value_enum, default_value = "documented")]
    pub(crate) voice: Voice,
    /// A factor on every pause of the agent: 1 is the real rhythm, 0 waits never.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) pace: f64,
    /// A factor on how long asks and unfetched control messages last: at 1 permissions 30 s, forms 5 min, control messages 30 s.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) limits: f64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Voice {
    Documented,
    Observed,
}

/// Check a config without starting anything.
///
/// Exits with 0 if `serve` would take it, else with 2, naming file, line and key of what is wrong. Where a value cannot be read, what the
/// values mean is checked once all can be. What holds, though it may be a mistake, is a warning; so is a place for the journal that is none on
/// this machine, where `serve` would not start: it may be checked on another one. Environment variables
/// INTERLINE__SECTION__KEY count, as they do for `serve`; secrets are fetched, never shown.
#[derive(Debug, Arguments)]
#[command(after_help = "\
Example:
  interline check interline.toml && systemctl restart interline")]
pub(crate) struct Check {
    /// The config file.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Translate a recorded native transcript, without any network.
///
/// In: JSON lines of frames, or of {"dir": "in"|"out", "frame": …}. Runs come one after another: an `in` user frame starts one, `in`
/// control frames are the client's answers and stops. Without any user frame the whole file is one run, and there is no user turn on Socket.IO.
///
/// Out: JSON lines; for Socket.IO of {"event", "data"}. The same file always gives the same bytes: ids count from 1, and the
/// clock starts at 2026-01-01T00:00:00Z and moves by one millisecond a line.
///
/// Lines that are no frames are counted on standard error. Exits with 1 if all are, else with 0.
#[derive(Debug, Arguments)]
#[command(after_help = "\
Examples:
  interline map --to sse transcript.jsonl
  interline map --to socketio < transcript.jsonl | jq .event
  interline map --to sse --explain transcript.jsonl
  interline map --to sse --explain=json transcript.jsonl | jq -c 'select(.event.type == \"tool_start\") | .causes'

With --explain each event is followed by the lines of the transcript that caused it and by the rules that made it what it is: first how
the frame was read, then how the surface tells that. A line which waited came earlier and came out only with a later one, as the pieces
of a tool's input do. docs/mapping-sse.md and docs/mapping-socketio.md list all frames and all rules.")]
pub(crate) struct Map {
    /// The surface to translate to.
    #[arg(long, value_enum)]
    pub(crate) to: MapTo,
    /// The kind of session: on chat sessions any error ends the run.
    #[arg(long, value_enum, default_value = "agent")]
    pub(crate) mode: Mode,
    /// Say of each event which lines caused it, and by which rules: for people, or as JSON lines of {"event", "causes", "rules"}.
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "text")]
    pub(crate) explain: Option<ExplainForm>,
    /// The transcript; standard input without it.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplainForm {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MapTo {
    Sse,
    Socketio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Chat,
    Agent,
}

/// Talk to a server of any of the three families from a terminal.
///
/// Streams the answer, shows reasoning and tools, asks you what the agent asks. Ctrl-C stops the run; a second one leaves. Ctrl-D stops
/// a run that asks something, and leaves. Without a
/// terminal each line of standard input is a prompt; the answer goes to standard output, everything else to standard error.
#[derive(Debug, Arguments)]
#[command(after_help = "\
Examples:
  interline chat http://127.0.0.1:9091
  interline chat http://127.0.0.1:9091 --surface socketio
  interline chat https://agents.example.com --surface native --token-env AGENT_TOKEN
  interline chat http://127.0.0.1:9091 --prompt 'what does median do? quick' > answer.txt

Exit status: 0 if the last run finished, 1 if it failed or could not be started, 130 if it was stopped.")]
pub(crate) struct Chat {
    /// The server's base URL.
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// The protocol to speak.
    #[arg(long, value_enum, default_value = "sse")]
    pub(crate) surface: ChatSurface,
    /// The bearer token. Other users of this machine can see it; rather use --token-env.
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_env")]
    pub(crate) token: Option<String>,
    /// The environment variable that holds the bearer token.
    #[arg(long, value_name = "NAME")]
    pub(crate) token_env: Option<String>,
    /// The cell (SSE only).
    #[arg(long, value_name = "CELL", default_value = "my-cell")]
    pub(crate) cell: String,
    /// Continue this session. Where there is none of this id yet, SSE and native servers begin one; over SSE you are told.
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// The model to ask for.
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// The kind of session (native surface only).
    #[arg(long, value_enum, default_value = "chat")]
    pub(crate) mode: Mode,
    /// Send this, print the answer and leave.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Answer every permission and question this way instead of asking you. Without a terminal the default is deny. Over Socket.IO a question
    /// cannot be declined: its answer then says that nobody wants to decide it.
    #[arg(long, value_enum)]
    pub(crate) answer: Option<AutoAnswer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChatSurface {
    /// SSE run events.
    Sse,
    /// Socket.IO turns.
    Socketio,
    /// The native protocol's cloud agent plane.
    Native,
    /// The native protocol's local bridge.
    Bridge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AutoAnswer {
    /// Allow; questions get their first option.
    Allow,
    /// Deny.
    Deny,
}

/// How this very program is called from a shell that stands where this process does: what is printed to be copied has to work, on the
/// PATH or not.
pub(crate) fn program() -> String {
    let here = std::env::current_dir().ok();
    match std::env::current_exe() {
        Ok(path) => called(&path, here.as_deref()),
        Err(_) => env!("CARGO_PKG_NAME").to_owned(),
    }
}

fn called(program: &Path, here: Option<&Path>) -> String {
    let below = here.and_then(|here| program.strip_prefix(here).ok());
    let path = below.unwrap_or(program).display().to_string();
    // Without a slash a shell looks on the PATH alone.
    let path = if path.contains('/') { path } else { format!("./{path}") };
    if path.chars().all(|c| c.is_alphanumeric() || "/._-+".contains(c)) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }

    #[test]
    fn the_program_is_called_by_a_path_that_a_shell_finds() {
        let called = |path: &str| called(Path::new(path), Some(Path::new("/home/me")));
        assert_eq!(called("/home/me/target/release/interline"), "target/release/interline");
        assert_eq!(called("/home/me/interline"), "./interline");
        assert_eq!(called("/usr/bin/interline"), "/usr/bin/interline");
        assert_eq!(called("/opt/it's here/interline"), r"'/opt/it'\''s here/interline'");
    }

    #[test]
    fn the_help_of_sim_names_everything_that_can_be_played() {
        use clap::CommandFactory as _;
        let help = Args::command().find_subcommand_mut("sim").unwrap().render_long_help().to_string();
        let words = |list: &str| list.split(',').map(|each| each.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
        let told = help.split("Prompts:").nth(1).unwrap();
        let told = words(&told.replace("scene NAME", ",").replace("fault NAME", ",").replace("Anything else", ","));
        for name in words(interline_sim::FAULTS).into_iter().chain(words(interline_sim::SCENES)) {
            assert!(told.contains(&name), "{name}: {told:?}");
        }
    }

    #[test]
    fn help_shows_no_escapes() {
        use clap::CommandFactory as _;
        for command in Args::command().get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(!help.contains('\\'), "{help}");
        }
    }

    #[test]
    fn no_token_is_shown_with_the_arguments() {
        let args = Args::try_parse_from(["interline", "chat", "http://127.0.0.1:1", "--surface", "native"]).unwrap();
        assert!(matches!(args.command, Command::Chat(Chat { surface: ChatSurface::Native, token: None, .. })));
    }
}
