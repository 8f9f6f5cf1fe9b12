//! What a session costs grows with what happens in it, and not with its square: many asks, calls and sub-agents at a time (cases.md D).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by panicking")]
#![allow(clippy::disallowed_methods, reason = "it measures real time where a system does not tell a thread's own")]

mod scene;

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use interline_model::{Answer, AskKind, AskOutcome, Text, What};
use interline_surface_socketio::{Options, PatchFormat, SocketEvent};
use scene::{Scene, completed, raised, root, settled, sub, text, thinking, tool, tool_ended};

/// One measurement at a time: the tests of a program run beside one another.
static MEASURING: Mutex<()> = Mutex::new(());

/// The processor time of this thread, so that what else the machine does is not measured; where that cannot be had, the time that passes.
fn spent() -> Duration {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Linux brings the number up to date when a thread gives way.
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).filter(|nanos| *nanos > 0);
    nanos.map_or_else(|| BEGUN.elapsed(), Duration::from_nanos)
}

/// The time that `story` takes with so many of everything, the best of three.
fn time_of(story: fn(&mut Scene, usize), count: usize) -> Duration {
    let once = || {
        let mut scene = Scene::started(Options::default(), "go");
        let begun = spent();
        story(&mut scene, count);
        spent().saturating_sub(begun)
    };
    (0..3).map(|_| once()).min().unwrap()
}

/// Twice as much may take two and a half times as long, and `count` at most `limit`.
fn grows_linearly(what: &str, story: fn(&mut Scene, usize), count: usize, limit: Duration) {
    let _alone = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    // A machine that does other things besides may spoil one measurement, not all.
    let mut measured = Vec::new();
    for _ in 0..4 {
        let (half, whole) = (time_of(story, count / 2), time_of(story, count));
        eprintln!("{what}: {half:?} for half, {whole:?} for {count}");
        if whole <= limit && whole.as_secs_f64() <= half.as_secs_f64() * 2.5 + 0.005 {
            return;
        }
        measured.push((half, whole));
    }
    panic!("{what}: half of {count}, and {count}: {measured:?}");
}

const SECOND: Duration = Duration::from_secs(1);

fn id(of: &str, at: usize) -> String {
    format!("{of}{at}")
}

fn permission(at: usize) -> What {
    raised(&id("a", at), AskKind::Permission, None)
}

/// All are asked, and then all are answered, in the order in which they were asked.
fn asks_in_a_row(scene: &mut Scene, count: usize) {
    for at in 0..count {
        scene.frame(1, vec![root(permission(at))]);
    }
    assert_eq!(scene.writer.pending_questions().len(), count);
    for at in 0..count {
        assert!(scene.writer.question_in(&id("ask_a", at)).is_some());
        scene.answered(1, &id("a", at), Answer::Allow { input: None, always: false });
        assert!(scene.writer.settled_ask(&id("ask_a", at)).is_some());
    }
    scene.frame(1, vec![root(completed())]);
}

#[test]
fn asks_of_one_agent() {
    // Twice what it takes on the machine where it was measured last, unoptimised: what counts is that it does not grow with the square.
    grows_linearly("asks", asks_in_a_row, 2_000, 2 * SECOND);
}

/// The same in the other order, with text between that moves the run on.
fn asks_backwards(scene: &mut Scene, count: usize) {
    for at in 0..count {
        scene.frame(1, vec![root(permission(at))]);
        scene.frame(1, vec![root(text("x"))]);
    }
    for at in (0..count).rev() {
        scene.frame(1, vec![root(settled(&id("a", at), AskOutcome::Denied))]);
        scene.frame(1, vec![root(text("x"))]);
    }
    scene.frame(1, vec![root(completed())]);
}

#[test]
fn asks_that_the_run_does_not_wait_for() {
    grows_linearly("asks and text", asks_backwards, 1_000, SECOND);
}

/// Each call asks before it is made, as models do that make many at once.
fn asks_of_calls(scene: &mut Scene, count: usize) {
    scene.frame(1, (0..count).map(|at| root(tool(&id("c", at), "Bash", "{}"))).collect());
    for at in 0..count {
        scene.frame(1, vec![root(raised(&id("a", at), AskKind::Permission, Some(&id("c", at))))]);
    }
    for at in 0..count {
        scene.answered(1, &id("a", at), Answer::Allow { input: None, always: false });
        scene.frame(1, vec![root(tool_ended(&id("c", at), "ok", false))]);
    }
    scene.frame(1, vec![root(completed())]);
}

#[test]
fn asks_of_the_calls_of_one_turn() {
    grows_linearly("asks of calls", asks_of_calls, 1_000, SECOND);
}

/// All pending when the run ends, which voids them in its last record.
fn asks_that_are_void(scene: &mut Scene, count: usize) {
    for at in 0..count {
        scene.frame(1, vec![root(permission(at))]);
    }
    let mut end: Vec<_> = (0..count).map(|at| root(settled(&id("a", at), AskOutcome::Void))).collect();
    end.push(root(completed()));
    scene.frame(1, end);
}

#[test]
fn asks_that_nobody_answers() {
    grows_linearly("void asks", asks_that_are_void, 2_000, SECOND);
}

/// One model call makes them all; each ends by itself.
fn calls_of_one_turn(scene: &mut Scene, count: usize) {
    scene.frame(1, (0..count).map(|at| root(tool(&id("c", at), "Read", r#"{"file_path":"a.rs"}"#))).collect());
    for at in 0..count {
        scene.frame(1, vec![root(tool_ended(&id("c", at), "ok", false))]);
    }
    scene.frame(1, vec![root(completed())]);
}

/// A model call for each.
fn calls_in_a_row(scene: &mut Scene, count: usize) {
    for at in 0..count {
        scene.frame(1, vec![root(What::TurnStarted), root(tool(&id("c", at), "Read", r#"{"file_path":"a.rs"}"#))]);
        scene.frame(1, vec![root(What::TurnEnded { usage: None })]);
        scene.frame(1, vec![root(tool_ended(&id("c", at), "ok", false))]);
    }
    scene.frame(1, vec![root(completed())]);
}

#[test]
fn calls() {
    grows_linearly("calls in a row", calls_in_a_row, 10_000, 2 * SECOND);
}

#[test]
fn calls_at_once() {
    grows_linearly("calls at once", calls_of_one_turn, 10_000, 2 * SECOND);
}

/// All at work at once, each asks, and each ends.
fn agents_that_ask(scene: &mut Scene, count: usize) {
    let long = "x".repeat(1_000);
    let input = format!(r#"{{"prompt":"{long}","description":"d"}}"#);
    scene.frame(1, (0..count).map(|at| root(tool(&id("c", at), "Agent", &input))).collect());
    for at in 0..count {
        let mine = id("c", at);
        scene.frame(1, vec![sub(&mine, text("working"))]);
        scene.frame(1, vec![sub(&mine, tool(&id("t", at), "Bash", "{}"))]);
    }
    for at in 0..count {
        scene.frame(1, vec![sub(&id("c", at), permission(at))]);
    }
    for at in 0..count {
        scene.answered(1, &id("a", at), Answer::Allow { input: None, always: false });
    }
    for at in 0..count {
        scene.frame(1, vec![sub(&id("c", at), tool_ended(&id("t", at), "ok", false))]);
        scene.frame(1, vec![root(tool_ended(&id("c", at), "done", false))]);
    }
    scene.frame(1, vec![root(completed())]);
}

#[test]
fn sub_agents() {
    grows_linearly("sub-agents", agents_that_ask, 1_000, 2 * SECOND);
}

/// One sub-agent with a long task asks again and again.
fn one_agent_asks(scene: &mut Scene, count: usize) {
    let input = format!(r#"{{"prompt":"{}","description":"d"}}"#, "x".repeat(20_000));
    scene.frame(1, vec![root(tool("c", "Agent", &input))]);
    for at in 0..count {
        scene.frame(1, vec![sub("c", permission(at))]);
        assert_eq!(scene.writer.pending_question().unwrap().tool_call_id, Text::from_static("ask_a0"));
    }
    scene.frame(1, vec![root(completed())]);
}

#[test]
fn asks_of_a_sub_agent() {
    grows_linearly("asks of a sub-agent", one_agent_asks, 1_000, SECOND);
}

/// What is kept of a long answer, for those who read late, is a few times its text: not each of the snapshots that went out while it grew.
#[test]
fn snapshots_that_later_ones_say_again() {
    for patch_format in [PatchFormat::Hybrid, PatchFormat::Delta] {
        let mut scene = Scene::new(Options { patch_format, ..Options::default() });
        scene.kept = Some(Vec::new());
        scene.start(1, Vec::new(), false);
        let piece = "x".repeat(1024);
        for at in 0..2_000 {
            scene.frame(100, vec![root(if at % 1_000 < 500 { text(&piece) } else { thinking(&piece) })]);
        }
        scene.frame(1, vec![root(completed())]);
        let bytes = |events: &[SocketEvent]| events.iter().map(|event| event.data.as_str().len()).sum::<usize>();
        let (sent, kept) = (bytes(&scene.events), bytes(scene.kept.as_deref().unwrap()));
        assert!(sent > 15 * 1024 * 1024, "{patch_format:?}: {sent}");
        // The deltas, the last snapshot with its contents, and the turn's end.
        assert!(kept < 9 * 1024 * 1024, "{patch_format:?}: {kept} of {sent}");
    }
}
