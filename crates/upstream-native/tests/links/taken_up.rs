//! Runs that another process left unfinished, in the middle of everything: each frame once, in order, as in a run that nothing happened to.

use interline_hub::{RunStatus, StartRun};
use interline_model::{AskOutcome, FailureKind, RunId};
use interline_sim::{Plane, Voice, counted_text};
use interline_upstream_native::{Kind, LinkConfig, Mode};

use crate::lives::{ALL, Life, Site, alike};
use crate::world::{Line, Watched, end_of, fast, is_completed, is_interrupted, request, sim, text_of, until};

/// Frames before the cut, and after it, of `fault drop`.
const BEFORE: usize = 9;
const AFTER: usize = 10;

/// Both kinds of server in both voices.
const SERVERS: [(Kind, Mode, Voice); 5] = [
    (Kind::Cloud, Mode::Chat, Voice::Documented),
    (Kind::Cloud, Mode::Chat, Voice::Observed),
    (Kind::Cloud, Mode::Agent, Voice::Observed),
    (Kind::Bridge, Mode::Chat, Voice::Documented),
    (Kind::Bridge, Mode::Chat, Voice::Observed),
];

/// A link that does not come back by itself.
fn patient() -> LinkConfig {
    LinkConfig { backoff_first_ms: 60_000, backoff_max_ms: 60_000, ..fast() }
}

fn counted(range: std::ops::Range<usize>) -> String {
    range.map(|n| counted_text(n as u64)).collect()
}

/// Where a run is that is taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    First,
    /// Behind another turn, of which nothing may be taken for its own.
    Behind,
}

impl Place {
    /// The frames of the turn before it.
    fn before(self, site: &Site) -> Vec<String> {
        if self == Self::Behind { whole(site, "quick") } else { Vec::new() }
    }

    /// Begins the run, behind the other turn where there is to be one.
    async fn start(self, life: &Life, prompt: &str) -> Watched {
        let session = match self {
            Self::First => None,
            Self::Behind => {
                let run = Watched::start(&life.hub, &life.access, request("quick"));
                run.lines().await;
                Some(run.session.id().clone())
            }
        };
        Watched::start(&life.hub, &life.access, StartRun { session, ..request(prompt) })
    }
}

/// Each server with both places; a cloud's session is one run.
fn places() -> impl Iterator<Item = (Kind, Mode, Voice, Place)> {
    let of = |place| SERVERS.into_iter().map(move |(kind, mode, voice)| (kind, mode, voice, place));
    of(Place::First).chain(of(Place::Behind).filter(|(kind, ..)| *kind == Kind::Bridge))
}

/// What the frames of a whole run are.
fn whole(site: &Site, prompt: &str) -> Vec<String> {
    site.live(fast(), ALL, async |life: Life| {
        let run = Watched::start(&life.hub, &life.access, request(prompt));
        run.lines().await;
        let frames = run.frames();
        life.hub.shutdown(std::time::Duration::ZERO).await;
        alike(&frames)
    })
}

async fn frames_came(run: &Watched, count: usize) {
    until("the frames came", || run.frames().len() >= count).await;
}

/// The process has frames of which only the first `kept` are in the log, and is killed; the server goes on when somebody is back.
#[test]
fn a_run_is_taken_up_at_every_frame() {
    for (kind, mode, voice, place) in places() {
        let site = Site::new(sim(voice), kind, mode);
        let prompt = format!("fault drop {BEFORE}");
        let before = place.before(&site);
        let expected = [before.clone(), whole(&site, &prompt)].concat();
        for kept in 0..=BEFORE {
            let what = format!("{kind:?} {mode:?} {voice} {place:?} with {kept} frames");
            let run = site.live(patient(), before.len() + kept, async |life: Life| {
                let run = place.start(&life, &prompt).await;
                frames_came(&run, before.len() + BEFORE).await;
                run.run
            });
            site.live(fast(), ALL, async |life: Life| {
                let run = life.run(run);
                let lines = run.lines().await;
                assert!(is_completed(&end_of(&lines)), "{what} {lines:?}");
                // Without a frame in the log there is nothing to be asked for, where a server streams live only or cannot count from nothing.
                let lossless = kept > 0
                    || place == Place::Behind
                    || (kind, voice) == (Kind::Cloud, Voice::Observed)
                    || (kind, voice) == (Kind::Bridge, Voice::Documented);
                if lossless {
                    let frames = alike(&run.frames());
                    assert_eq!(frames[before.len()..], expected[before.len()..], "{what}");
                } else {
                    // A cloud is asked from its first number on: all but the frame that has it.
                    let from = if kind == Kind::Cloud { 1 } else { BEFORE };
                    assert_eq!(text_of(&lines), counted(from..BEFORE + AFTER), "{what}");
                }
                assert!(lossless || lines.contains(&Line::Missed), "{what}: {lines:?}");
                assert!(place == Place::First || !lines.contains(&Line::Missed), "{what}: {lines:?}");
                assert!(lines.contains(&Line::Lost) && lines.contains(&Line::Back), "{what}: {lines:?}");
            });
        }
    }
}

/// The server went on to the end of the run while nobody was there.
#[test]
fn a_run_that_ended_meanwhile_is_fetched_whole_wherever_the_server_keeps_it() {
    for (kind, mode, voice, place) in places() {
        let site = Site::new(sim(voice), kind, mode);
        let prompt = format!("fault drop {BEFORE}");
        let before = place.before(&site);
        let expected = [before.clone(), whole(&site, &prompt)].concat();
        let least = if place == Place::Behind { 0 } else { 1 };
        for kept in [least, 1, 2, BEFORE - 1, BEFORE, BEFORE + 1, BEFORE + AFTER] {
            let what = format!("{kind:?} {mode:?} {voice} {place:?} with {kept} frames");
            let run = site.live(fast(), before.len() + kept, async |life: Life| {
                let run = place.start(&life, &prompt).await;
                run.lines().await;
                run.run
            });
            site.live(fast(), ALL, async |life: Life| {
                let run = life.run(run);
                let lines = run.lines().await;
                match (kind, mode, voice) {
                    // Finalised: no stream any more, and today's servers have no result to fetch.
                    (Kind::Cloud, Mode::Chat, Voice::Observed) => {
                        assert_eq!(run.failure().await.0, FailureKind::MissingTerminalEvent, "{what}");
                        assert_eq!(alike(&run.frames()), expected[..kept], "{what}");
                    }
                    (Kind::Cloud, Mode::Chat, Voice::Documented) => {
                        assert!(is_completed(&end_of(&lines)) && lines.contains(&Line::Missed), "{what} {lines:?}");
                        let frames = alike(&run.frames());
                        assert_eq!(frames[..kept], expected[..kept], "{what}");
                        assert_eq!(frames[kept..], expected[expected.len() - 1..], "{what}");
                    }
                    _ => {
                        assert!(is_completed(&end_of(&lines)), "{what} {lines:?}");
                        assert_eq!(alike(&run.frames()), expected, "{what}");
                    }
                }
            });
        }
    }
}

/// The agent has said nothing of it yet: what it said of the turn before is no word of this one, and its end no end.
#[test]
fn a_turn_that_has_said_nothing_yet_goes_on_behind_another_one() {
    for voice in [Voice::Documented, Voice::Observed] {
        let site = Site::new(sim(voice), Kind::Bridge, Mode::Chat);
        let run = site.live(patient(), ALL, async |life: Life| {
            let run = Place::Behind.start(&life, "fault hang-after 0").await;
            until("it is said", || site.sim.stats().prompts.len() == 2).await;
            run.run
        });
        site.live(fast(), ALL, async |life: Life| {
            let run = life.run(run);
            until("the link is back", || run.so_far().contains(&Line::Back)).await;
            tokio::time::sleep(std::time::Duration::from_millis(400)).await;
            assert!(run.session.active_run() == Some(run.run), "{voice}: it has ended");
            run.stop();
            let lines = run.lines().await;
            assert!(is_interrupted(&end_of(&lines)) && text_of(&lines).is_empty(), "{voice} {lines:?}");
        });
    }
}

#[test]
fn a_server_that_is_gone_ends_the_run_once() {
    for (kind, mode, voice) in SERVERS {
        let site = Site::new(sim(voice), kind, mode);
        let run = site.live(patient(), ALL, async |life: Life| {
            let run = Watched::start(&life.hub, &life.access, request("fault hang-after 4"));
            frames_came(&run, 4).await;
            run.run
        });
        site.stop.cancel();
        for _ in 0..2 {
            site.live(fast(), ALL, async |life: Life| {
                let run = life.run(run);
                let lines = run.lines().await;
                assert_eq!(text_of(&lines), counted(0..4));
                assert_eq!(run.failure().await.0, FailureKind::MissingTerminalEvent, "{lines:?}");
                life.hub.shutdown(std::time::Duration::ZERO).await;
            });
        }
    }
}

/// Whether the server heard it before the kill or not, it hears it now, and the run ends once.
#[test]
fn a_stop_that_the_process_did_not_live_to_see_obeyed_is_said_again() {
    for (kind, mode, voice) in SERVERS {
        let site = Site::new(sim(voice), kind, mode);
        // Three seconds of work after the stop: the grace of the proxy is shorter.
        let run = site.live(fast(), ALL, async |life: Life| {
            let run = Watched::start(&life.hub, &life.access, request("fault cancel late 3000"));
            run.says("Working").await;
            run.stop();
            run.run
        });
        let told = site.sim.stats().control.len();
        site.live(fast(), ALL, async |life: Life| {
            let run = life.run(run);
            let lines = run.lines().await;
            assert!(is_interrupted(&end_of(&lines)), "{kind:?} {voice} {lines:?}");
            assert_eq!(run.status().await, RunStatus::Interrupted);
            until("the server is told", || site.sim.stats().control.len() > told).await;
            assert_eq!(text_of(&lines), "Working until somebody says stop. ");
        });
    }
}

const ASKING: [(Kind, Mode, Voice); 4] = [
    (Kind::Cloud, Mode::Agent, Voice::Documented),
    (Kind::Cloud, Mode::Agent, Voice::Observed),
    (Kind::Bridge, Mode::Chat, Voice::Documented),
    (Kind::Bridge, Mode::Chat, Voice::Observed),
];

fn asks_in(lines: &[Line]) -> (usize, Vec<AskOutcome>) {
    let settled = lines.iter().filter_map(|line| if let Line::Settled(outcome) = line { Some(*outcome) } else { None });
    (lines.iter().filter(|line| **line == Line::Ask).count(), settled.collect())
}

/// Two asks: the first is answered and heard before the kill, the second waits for an answer through it.
#[test]
fn an_ask_waits_through_a_restart_and_one_that_was_answered_does_not_come_back() {
    for (kind, mode, voice) in ASKING {
        let site = Site::new(sim(voice), kind, mode);
        let run: RunId = site.live(fast(), ALL, async |life: Life| {
            let run = Watched::start(&life.hub, &life.access, request("scene permission"));
            let first = run.asked().await;
            run.allow(&first);
            until("the second ask", || run.session.pending_asks().iter().any(|pending| pending.ask.id != first.id)).await;
            run.run
        });
        site.live(fast(), ALL, async |life: Life| {
            let run = life.run(run);
            let pending = run.session.pending_asks();
            // Documented bridges deny what is pending when their client goes away: then it may be settled already.
            let denies = (kind, voice) == (Kind::Bridge, Voice::Documented);
            assert!(pending.len() == 1 || denies, "{kind:?} {voice} {pending:?}");
            if let Some(pending) = pending.first() {
                run.allow(&pending.ask);
            }
            let lines = run.lines().await;
            let (asked, settled) = asks_in(&lines);
            assert_eq!((asked, settled.len()), (2, 2), "{kind:?} {voice} {lines:?}");
            assert!(is_completed(&end_of(&lines)), "{kind:?} {voice} {lines:?}");
            assert!(denies || settled == [AskOutcome::Allowed; 2], "{kind:?} {voice} {settled:?}");
            assert!(denies || !lines.iter().any(|line| matches!(line, Line::ToolEnd { is_error: true, .. })), "{kind:?} {voice} {lines:?}");
        });
    }
}

/// Answered at the moment of the kill: the log has the answer and nothing that shows whether it was heard. It is given again. On a
/// bridge a second ask that was on its way is never repeated (native-ws.md §4.3): there is nothing to wait for.
#[test]
fn an_answer_that_may_not_have_been_heard_is_given_by_the_next_process() {
    for (kind, mode, voice) in ASKING.into_iter().filter(|(kind, ..)| *kind == Kind::Cloud) {
        let site = Site::new(sim(voice), kind, mode);
        let (session, kept) = site.live(fast(), ALL, async |life: Life| {
            let run = Watched::start(&life.hub, &life.access, request("scene permission"));
            run.asked().await;
            let frames = run.frames().len();
            run.stop();
            run.lines().await;
            (run.session.id().clone(), frames)
        });
        let run: RunId = site.live(fast(), kept, async |life: Life| {
            let run = Watched::start(&life.hub, &life.access, request("scene permission"));
            let ask = run.asked().await;
            run.allow(&ask);
            run.run
        });
        site.live(fast(), ALL, async |life: Life| {
            assert!(life.hub.session(&life.access, &session).is_some());
            let run = life.run(run);
            let second = run.asked().await;
            run.allow(&second);
            let lines = run.lines().await;
            let (asked, settled) = asks_in(&lines);
            assert_eq!(asked, settled.len(), "{kind:?} {voice} {lines:?}");
            assert!(is_completed(&end_of(&lines)), "{kind:?} {voice} {lines:?}");
            assert!(settled == [AskOutcome::Allowed; 2], "{kind:?} {voice} {settled:?}");
            assert!(!lines.iter().any(|line| matches!(line, Line::ToolEnd { is_error: true, .. })), "{kind:?} {voice} {lines:?}");
        });
    }
}

/// The next run of a bridge's session goes on with the same conversation, and its frames are counted on.
#[test]
fn a_bridges_conversation_outlives_the_process() {
    for voice in [Voice::Documented, Voice::Observed] {
        // The frames that are in the log of the run before: all, or some.
        for kept in [ALL, 3] {
            let site = Site::new(sim(voice), Kind::Bridge, Mode::Chat);
            let drop = format!("fault drop {BEFORE}");
            let expected = whole(&site, &drop);
            let session = site.live(fast(), kept, async |life: Life| {
                let run = Watched::start(&life.hub, &life.access, request(&drop));
                run.lines().await;
                run.session.id().clone()
            });
            let before = site.sim.stats().bridge_sessions;
            for round in 0..2 {
                site.live(fast(), ALL, async |life: Life| {
                    let Life { hub, access } = life;
                    // What the log has of the run before may be unfinished.
                    let known = hub.session(&access, &session).unwrap();
                    until("the run before is over", || known.active_run().is_none()).await;
                    let run = Watched::start(&hub, &access, StartRun { session: Some(session.clone()), ..request(&drop) });
                    let lines = run.lines().await;
                    assert!(is_completed(&end_of(&lines)), "{voice} {kept} {round} {lines:?}");
                    let all = alike(&run.frames());
                    assert_eq!(all[all.len() - expected.len()..], expected, "{voice} {kept} {round}");
                    hub.shutdown(std::time::Duration::ZERO).await;
                });
            }
            assert_eq!(site.sim.stats().bridge_sessions, before, "{voice}: no new one");
        }
    }
}

#[test]
fn a_turn_that_nobody_follows_any_more_is_over_before_the_next_one_is_said() {
    let site = Site::new(sim(Voice::Observed), Kind::Bridge, Mode::Chat);
    let session = site.live(patient(), ALL, async |life: Life| {
        let first = Watched::start(&life.hub, &life.access, request("quick"));
        first.lines().await;
        let next = StartRun { session: Some(first.session.id().clone()), ..request("fault drop 20") };
        let run = Watched::start(&life.hub, &life.access, next);
        run.says("frame 19").await;
        // Ended here, and not there.
        run.stop();
        run.lines().await;
        run.session.id().clone()
    });
    site.live(fast(), ALL, async |life: Life| {
        let again = Watched::start(&life.hub, &life.access, StartRun { session: Some(session), ..request("quick") });
        let lines = again.lines().await;
        assert!(is_completed(&end_of(&lines)), "{lines:?}");
        assert!(!text_of(&lines).contains("frame"), "{lines:?}");
        assert_eq!(site.sim.stats().bridge_sessions, 1);
    });
}

#[test]
fn a_bridge_that_has_forgotten_the_session_gets_a_new_one() {
    let site = Site::new(sim(Voice::Documented), Kind::Bridge, Mode::Chat);
    let session = site.live(fast(), ALL, async |life: Life| {
        let run = Watched::start(&life.hub, &life.access, request("quick"));
        run.lines().await;
        run.session.id().clone()
    });
    let native = site.sim.stats().prompts.iter().find(|prompt| prompt.plane == Plane::Bridge).unwrap().session.clone();
    site.live(fast(), ALL, async |life: Life| {
        site.delete(&format!("/v1/code/sessions/{native}")).await;
        let again = Watched::start(&life.hub, &life.access, StartRun { session: Some(session), ..request("quick") });
        assert!(is_completed(&again.outcome().await));
        assert_eq!(site.sim.stats().bridge_sessions, 2);
    });
}
