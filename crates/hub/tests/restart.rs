//! What outlives the process. A second hub over the same file, in a second runtime, is what a second process is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod scripted;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use interline_hub::{
    Access, AskConfig, Conduct, Durability, Environment, Filter, Hub, InTurn, NotBegun, Numbering, OnBusy, Restored, RunConfig, RunStatus,
    Session, Settings as RunSettings, StartError, StartRun, Started,
};
use interline_journal::{Birth, Durable, Journal, JournalConfig};
use interline_model::{Answer, Body, Event, Json, Record, RunId, Text};
use scripted::{Lines, hub_on, lines, me, request};

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("interline-restart-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One process: a runtime that is gone afterwards, with all its tasks, as after a kill.
fn process<R>(folder: &Folder, config: &Settings, life: impl AsyncFnOnce(Arc<Hub>, Access, Restored) -> R) -> R {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let lived = runtime.block_on(async {
        let (hub, access) = hub_in(&folder.0, config);
        hub.number_by(Frames::begin);
        let restored = hub.restore().unwrap();
        life(hub, access, restored).await
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    lived
}

/// Counts frames.
struct Frames(u64);

impl Frames {
    fn begin(base: Option<&Json>) -> Box<dyn Numbering> {
        Box::new(Self(base.map_or(0, |base| base.as_str().parse().unwrap())))
    }
}

impl Numbering for Frames {
    fn count(&mut self, record: &Record, _: &[Event]) {
        self.0 += u64::from(matches!(record.body, Body::Frame(_)));
    }

    fn numbers(&self) -> Json {
        Json::from_value(&serde_json::json!(self.0))
    }
}

struct Settings {
    durability: Durability,
    run: RunConfig,
    memory_bytes: u64,
    max_bytes: u64,
    permission_ms: u64,
    on_busy: OnBusy,
}

impl Default for Settings {
    fn default() -> Self {
        let run = RunConfig { max_active: 100, ..RunConfig::default() };
        Self {
            durability: Durability::Buffered,
            run,
            memory_bytes: 1 << 20,
            max_bytes: 1 << 30,
            permission_ms: 10_000,
            on_busy: OnBusy::Reject,
        }
    }
}

fn hub_in(folder: &Path, settings: &Settings) -> (Arc<Hub>, Access) {
    let keeping = JournalConfig {
        path: folder.join("journal").to_str().unwrap().to_owned(),
        memory_bytes: settings.memory_bytes,
        max_bytes: settings.max_bytes,
        ..JournalConfig::default()
    };
    let journal: Arc<dyn Journal> = Arc::new(Durable::start(&keeping).unwrap());
    let ask = AskConfig { permission_ms: settings.permission_ms, ..AskConfig::default() };
    hub_on(journal, keeping, settings.durability, settings.run.clone(), ask, Conduct { on_busy: settings.on_busy, ..Conduct::default() })
}

async fn whole(hub: &Hub, access: &Access, run: RunId) -> Vec<String> {
    lines(&hub.run(access, run).unwrap(), run).await
}

async fn said(session: &Arc<Session>, run: RunId, count: u64) {
    let projection = session.projection("", || Lines);
    while projection.run_len(run).unwrap().0 < count {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn what_was_finished_is_the_same_in_the_next_process() {
    for durability in [Durability::Buffered, Durability::Fsync] {
        let folder = Folder::new(&format!("finished-{durability:?}"));
        let settings = Settings { durability, ..Settings::default() };
        let keyed =
            || StartRun { idempotency_key: Some(Text::from_static("k")), actor: Some(Text::from_static("ann")), ..request("a b end") };
        let (run, session, shown, deleted) = process(&folder, &settings, async |hub, access, restored| {
            assert_eq!(restored, Restored::default());
            let (session, run) = hub.start(&access, keyed()).unwrap();
            let shown = lines(&session, run).await;
            session.set_title(Text::from_static("A title"));
            let (gone, deleted) = hub.start(&access, request("x end")).unwrap();
            lines(&gone, deleted).await;
            assert!(hub.delete_session(&access, gone.id()));
            hub.shutdown(Duration::ZERO).await;
            (run, session.id().clone(), shown, deleted)
        });
        process(&folder, &settings, async |hub, access, restored| {
            assert_eq!((restored.sessions, restored.runs, restored.unfinished), (1, 1, 0), "{durability:?}");
            assert!(hub.run(&access, deleted).is_none());
            assert_eq!(whole(&hub, &access, run).await, shown);
            let back = hub.session(&access, &session).unwrap();
            let info = back.run_info(run).unwrap();
            assert_eq!((info.status, info.actor.as_deref()), (RunStatus::Completed, Some("ann")));
            assert_eq!(&*back.info().title, "A title");
            assert_eq!(hub.sessions(&access, &Filter::default()).len(), 1);
            let (_, again) = hub.start(&access, keyed()).unwrap();
            assert_eq!(again, run, "the key is known");
            let next = StartRun { session: Some(session.clone()), ..request("c end") };
            let (_, next) = hub.start(&access, next).unwrap();
            assert_eq!(whole(&hub, &access, next).await, ["start", "c", "over"]);
        });
    }
}

#[test]
fn a_run_that_went_on_is_taken_up_where_the_upstream_can_and_else_ends_once() {
    let folder = Folder::new("unfinished");
    let settings = Settings::default();
    let (taken, lost) = process(&folder, &settings, async |hub, access, _| {
        let (one, taken) = hub.start(&access, request("attach")).unwrap();
        let (_, lost) = hub.start(&access, request("silent")).unwrap();
        said(&one, taken, 3).await;
        // No shutdown: as after a kill, but for what the writer had not written yet.
        (taken, lost)
    });
    let expected = ["start", "one", "two", "again-after-2-frames", "over"];
    for life in 0..2 {
        process(&folder, &settings, async |hub, access, restored| {
            assert_eq!(restored.unfinished, if life == 0 { 2 } else { 0 });
            assert_eq!(whole(&hub, &access, taken).await, expected, "life {life}");
            let ended = whole(&hub, &access, lost).await;
            assert_eq!(ended, ["start", "over"], "life {life}");
            assert_eq!(hub.run(&access, lost).unwrap().run_info(lost).unwrap().status, RunStatus::Failed);
            hub.shutdown(Duration::ZERO).await;
        });
    }
}

#[test]
fn at_a_shutdown_runs_that_can_be_taken_up_are_left_and_the_others_end() {
    let folder = Folder::new("handed");
    let settings = Settings::default();
    let (taken, ended) = process(&folder, &settings, async |hub, access, _| {
        let (one, taken) = hub.start(&access, request("attach")).unwrap();
        let (two, ended) = hub.start(&access, request("silent")).unwrap();
        said(&one, taken, 3).await;
        let begun = tokio::time::Instant::now();
        hub.shutdown(Duration::from_millis(50)).await;
        assert!(begun.elapsed() < Duration::from_secs(1), "nobody is waited for");
        assert_eq!(one.run_info(taken).unwrap().status, RunStatus::Running);
        assert_eq!(two.run_info(ended).unwrap().status, RunStatus::Failed);
        (taken, ended)
    });
    process(&folder, &settings, async |hub, access, restored| {
        assert_eq!(restored.unfinished, 1);
        assert_eq!(whole(&hub, &access, taken).await, ["start", "one", "two", "again-after-2-frames", "over"]);
        assert_eq!(whole(&hub, &access, ended).await, ["start", "over"]);
    });
}

/// The ways in which a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kill,
    /// What goes on is left.
    Shutdown,
    /// What goes on ends in time, and what waits does not begin any more.
    Rest,
}

fn behind(session: &Session, prompt: &str) -> StartRun {
    StartRun { session: Some(session.id().clone()), is_acknowledged: true, ..request(prompt) }
}

fn in_turn(hub: &Arc<Hub>, access: &Access, request: StartRun) -> Arc<InTurn> {
    match hub.start_in_turn(access, request).unwrap() {
        Started::InTurn(waiting) => waiting,
        Started::Begun(..) => panic!("it does not wait"),
    }
}

/// Several lives of runs that wait: whatever ends the first process, each begins once, in order, with all that it was started with.
#[test]
fn runs_that_wait_begin_once_and_in_order_also_in_the_next_process() {
    for (end, durability) in [
        (End::Kill, Durability::Fsync),
        (End::Kill, Durability::Buffered),
        (End::Shutdown, Durability::Fsync),
        (End::Shutdown, Durability::Buffered),
        (End::Rest, Durability::Fsync),
    ] {
        let folder = Folder::new(&format!("waiting-{end:?}-{durability:?}"));
        let settings = Settings { on_busy: OnBusy::Queue, durability, ..Settings::default() };
        let (session, first, waiting) = process(&folder, &settings, async |hub, access, _| {
            let (session, first) = hub.start(&access, request("attach")).unwrap();
            said(&session, first, 3).await;
            let mut waiting = Vec::new();
            for n in 0..4 {
                let key = (n == 2).then(|| Text::from_static("key"));
                let next = StartRun { idempotency_key: key, actor: Some("ada".into()), ..behind(&session, &format!("word{n} end")) };
                waiting.push(in_turn(&hub, &access, next));
            }
            // One that ends while the others wait.
            session.stop(Some(waiting[1].run), me(&access));
            assert_eq!(waiting[1].begun().await.err(), Some(NotBegun::Stopped));
            match end {
                End::Kill if durability == Durability::Buffered => tokio::time::sleep(Duration::from_millis(150)).await,
                End::Kill => {}
                End::Shutdown => hub.shutdown(Duration::from_millis(50)).await,
                End::Rest => {
                    tokio::join!(hub.shutdown(Duration::from_secs(5)), async {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        session.stop(Some(first), me(&access));
                    });
                }
            }
            if end != End::Kill {
                assert_eq!(waiting[0].begun().await.err(), Some(NotBegun::Left));
            }
            (session.id().clone(), first, waiting.iter().map(|waiting| waiting.run).collect::<Vec<_>>())
        });
        process(&folder, &settings, async |hub, access, restored| {
            assert_eq!(restored.waiting, 3, "{end:?} {durability:?}");
            let session = hub.session(&access, &session).unwrap();
            let keyed = StartRun { idempotency_key: Some("key".into()), actor: Some("ada".into()), ..behind(&session, "word2 end") };
            let again = match hub.start_in_turn(&access, keyed).unwrap() {
                Started::InTurn(waiting) => waiting.run,
                Started::Begun(_, run) => run,
            };
            assert_eq!(again, waiting[2], "the same request is the same run");
            assert!(lines(&session, first).await.len() >= 3);
            for n in [0, 2, 3] {
                if let Some(waiting) = hub.in_turn(&access, session.cell(), waiting[n]) {
                    waiting.begun().await.unwrap();
                }
                assert_eq!(lines(&session, waiting[n]).await, ["start".to_owned(), format!("word{n}"), "over".to_owned()], "{end:?}");
            }
            let begun: Vec<RunId> = session.runs().iter().map(|run| run.run).collect();
            assert_eq!(begun, [first, waiting[0], waiting[2], waiting[3]], "each once, in the order in which they came");
            assert_eq!(session.run_info(waiting[3]).unwrap().actor.as_deref(), Some("ada"));
            hub.shutdown(Duration::ZERO).await;
        });
        process(&folder, &settings, async |hub, access, restored| {
            assert_eq!((restored.waiting, restored.unfinished), (0, 0), "nothing is left of them");
            assert_eq!(hub.session(&access, &session).unwrap().runs().len(), 4);
        });
    }
}

#[test]
fn whoever_waits_without_having_been_told_so_is_told_that_there_is_no_turn() {
    for is_acknowledged in [false, true] {
        let folder = Folder::new(&format!("waited-{is_acknowledged}"));
        let durability = if is_acknowledged { Durability::Memory } else { Durability::Fsync };
        let settings = Settings { on_busy: OnBusy::Queue, durability, ..Settings::default() };
        process(&folder, &settings, async |hub, access, _| {
            let (session, run) = hub.start(&access, request("attach")).unwrap();
            said(&session, run, 3).await;
            let turn = in_turn(&hub, &access, StartRun { is_acknowledged, ..behind(&session, "end") });
            hub.shutdown(Duration::from_millis(50)).await;
            assert_eq!(turn.begun().await.err(), Some(NotBegun::Refused(StartError::Draining)));
        });
        process(&folder, &settings, async |_, _, restored| assert_eq!(restored.waiting, 0));
    }
}

/// What a client brought for one run and nobody keeps: the run ends, and says why. A stop holds, too, and a session that is gone takes its
/// runs along.
#[test]
fn what_waits_and_cannot_begin_in_the_next_process_ends_there() {
    let folder = Folder::new("unkept");
    let settings = Settings { on_busy: OnBusy::Queue, durability: Durability::Fsync, ..Settings::default() };
    let canary = "canary-of-a-variable";
    let (session, secret, set, stopped, deleted) = process(&folder, &settings, async |hub, access, _| {
        let (session, run) = hub.start(&access, request("attach")).unwrap();
        said(&session, run, 3).await;
        let environment = Environment::checked([("DEPLOY_KEY", canary)]).unwrap();
        let with = RunSettings { environment, ..RunSettings::default() };
        let secret = in_turn(&hub, &access, StartRun { settings: with, ..behind(&session, "never end") });
        let stopped = in_turn(&hub, &access, StartRun { model: Some("m".into()), ..behind(&session, "never end") });
        let settings = RunSettings { thinking_tokens: Some(5), permission_mode: Some("plan".into()), ..RunSettings::default() };
        let set = in_turn(&hub, &access, StartRun { settings, ..behind(&session, "obey") });
        let (gone, _) = hub.start(&access, request("silent")).unwrap();
        let deleted = in_turn(&hub, &access, behind(&gone, "never end"));
        session.stop(Some(stopped.run), me(&access));
        hub.delete_session(&access, gone.id());
        assert!(deleted.begun().await.is_err());
        assert_eq!(&*stopped.model, "m");
        (session.id().clone(), secret.run, set.run, stopped.run, deleted.run)
    });
    assert!(!std::fs::read(folder.0.join("journal")).unwrap().windows(canary.len()).any(|part| part == canary.as_bytes()));
    process(&folder, &settings, async |hub, access, restored| {
        assert_eq!(restored.waiting, 2);
        let session = hub.session(&access, &session).unwrap();
        hub.in_turn(&access, session.cell(), secret).unwrap().begun().await.unwrap();
        assert_eq!(lines(&session, secret).await, ["start", "over"]);
        assert_eq!(session.run_info(secret).unwrap().status, RunStatus::Failed);
        hub.in_turn(&access, session.cell(), set).unwrap().begun().await.unwrap();
        // Its settings were kept: the agent server is asked for both, and refuses one of them or cannot do it.
        said(&session, set, 4).await;
        session.stop(Some(set), me(&access));
        let told = lines(&session, set).await;
        assert_eq!(told.iter().filter(|line| *line == "setting_not_made").count(), 2, "{told:?}");
        for run in [stopped, deleted] {
            assert!(hub.run(&access, run).is_none_or(|session| session.run_info(run).is_none()), "it never begins");
        }
        assert!(hub.in_turn(&access, session.cell(), deleted).is_none());
    });
    // Whoever comes back for one that was stopped is told, as long as its session is there.
    process(&folder, &settings, async |hub, access, restored| {
        assert_eq!(restored.waiting, 0);
        let cell = hub.session(&access, &session).unwrap().cell().clone();
        let stopped_before = hub.in_turn(&access, &cell, stopped).unwrap();
        assert_eq!((stopped_before.begun().await.err(), &*stopped_before.model), (Some(NotBegun::Stopped), "m"));
        hub.delete_session(&access, &session);
        assert!(hub.in_turn(&access, &cell, stopped).is_none());
        hub.shutdown(Duration::ZERO).await;
    });
    process(&folder, &settings, async |_, _, restored| assert_eq!(restored, Restored::default()));
}

/// What a file is too large by goes, and no more: pages, an index and prompts are among what it holds.
#[test]
fn no_more_is_forgotten_than_a_file_is_too_large_by() {
    for prompt in [1, 20_000] {
        let folder = Folder::new(&format!("excess-{prompt}"));
        let settings = Settings { durability: Durability::Fsync, ..Settings::default() };
        let (runs, bytes) = process(&folder, &settings, async |hub, access, _| {
            let mut runs = Vec::new();
            for _ in 0..40 {
                let (session, run) = hub.start(&access, request(&format!("{} end", "w".repeat(prompt)))).unwrap();
                lines(&session, run).await;
                runs.push(run);
            }
            let bytes = hub.journal_bytes();
            hub.shutdown(Duration::ZERO).await;
            (runs, bytes)
        });
        let half = Settings { max_bytes: bytes / 2, ..settings };
        process(&folder, &half, async |hub, access, _| {
            // More than once: what is free is known a moment later.
            for _ in 0..20 {
                hub.tidy();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let left = runs.iter().filter(|run| hub.run(&access, **run).is_some_and(|session| session.run_info(**run).is_some())).count();
            assert!(
                (10..=25).contains(&left),
                "prompts of {prompt}: {left} of {} are left, {} of {bytes} bytes",
                runs.len(),
                hub.journal_bytes()
            );
            hub.shutdown(Duration::ZERO).await;
        });
    }
}

#[test]
fn a_question_waits_through_a_restart_and_is_denied_at_its_own_time() {
    for answered in [true, false] {
        let folder = Folder::new(&format!("ask-{answered}"));
        let settings = Settings { permission_ms: if answered { 10_000 } else { 300 }, ..Settings::default() };
        let run = process(&folder, &settings, async |hub, access, _| {
            let (session, run) = hub.start(&access, request("attach-and-ask")).unwrap();
            said(&session, run, 2).await;
            run
        });
        process(&folder, &settings, async |hub, access, _| {
            let session = hub.run(&access, run).unwrap();
            if answered {
                let pending = session.pending_asks();
                assert_eq!(pending.len(), 1);
                session.answer(&pending[0].ask.id, Answer::Allow { input: None, always: false }, me(&access)).unwrap();
            }
            let whole = lines(&session, run).await.join(" ");
            let expected = if answered { "Allow" } else { "Deny" };
            assert!(whole.contains(expected), "{whole}");
            assert_eq!(session.verdicts().len(), 1);
        });
    }
}

#[test]
fn sessions_at_rest_hold_nothing_in_memory_and_show_the_same() {
    let folder = Folder::new("cold");
    let settings = Settings { memory_bytes: 0, ..Settings::default() };
    process(&folder, &settings, async |hub, access, _| {
        let words = "w ".repeat(200) + "end";
        let mut all = Vec::new();
        for _ in 0..5 {
            let (session, run) = hub.start(&access, request(&words)).unwrap();
            let shown = lines(&session, run).await;
            all.push((session, run, shown));
        }
        // Somebody stands in the middle of each while the others are read, and reads on.
        let mut readers: Vec<_> =
            all.iter().map(|(session, run, _)| session.projection("", || Lines).run_tail(*run, 100).unwrap()).collect();
        for round in 0..3_usize {
            for (reader, (_, _, shown)) in readers.iter_mut().zip(&all) {
                let batch = reader.next(7).await.unwrap();
                let from = usize::try_from(batch.first).unwrap() - 1;
                assert_eq!(batch.items, shown[from..from + 7], "round {round}");
            }
        }
        let (session, run, shown) = &all[0];
        let mut follower = session.projection("", || Lines).tail(0);
        let next = StartRun { session: Some(session.id().clone()), ..request("x end") };
        let (_, second) = hub.start(&access, next).unwrap();
        assert_eq!(lines(session, second).await, ["start", "x", "over"]);
        let mut seen = Vec::new();
        while seen.len() < shown.len() + 3 {
            seen.extend(follower.next(50).await);
        }
        assert_eq!(seen[..shown.len()], shown[..]);
        assert_eq!(seen[shown.len()..], ["start", "x", "over"]);
        assert_eq!(lines(session, *run).await, *shown);
    });
}

#[test]
fn whole_runs_are_forgotten_by_number_age_and_size_the_oldest_first() {
    let by_number = Settings { run: RunConfig { max_runs: 2, max_active: 100, ..RunConfig::default() }, ..Settings::default() };
    let by_size = Settings { max_bytes: 0, ..Settings::default() };
    let old = Duration::from_secs(2);
    let run = RunConfig { forget_ms: 2_000, max_active: 100, ..RunConfig::default() };
    let by_age = Settings { run, ..Settings::default() };
    for (name, settings, left) in [("number", by_number, 2), ("size", by_size, 0), ("age", by_age, 2)] {
        let folder = Folder::new(&format!("forgotten-{name}"));
        let (session, runs) = process(&folder, &settings, async |hub, access, _| {
            let mut runs = Vec::new();
            let (mut session, mut watching) = (None, None);
            for n in 0..4 {
                let next = StartRun { session: session.clone(), ..request(&format!("n{n} end")) };
                let (begun, run) = hub.start(&access, next).unwrap();
                lines(&begun, run).await;
                watching.get_or_insert_with(|| begun.projection("", || Lines).tail(0));
                if name == "age" && n == 1 {
                    // Two are old from now on, and two are not for as long.
                    tokio::time::sleep(old).await;
                }
                session = Some(begun.id().clone());
                runs.push(run);
            }
            let id = session.unwrap();
            let session = hub.session(&access, &id).unwrap();
            hub.tidy();
            assert_eq!(session.runs().len(), 4, "not while somebody watches");
            drop(watching);
            // What is on the disk is known a moment later.
            for _ in 0..400 {
                hub.tidy();
                if session.runs().len() == left {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(session.runs().len(), left, "{name}");
            assert!(session.has_forgotten(runs[0]) && session.is_shortened());
            // Two frames a run.
            assert_eq!(session.numbers().unwrap().as_str(), (2 * (4 - left)).to_string());
            for (n, run) in runs.iter().enumerate().skip(4 - left) {
                assert_eq!(lines(&session, *run).await, ["start".to_owned(), format!("n{n}"), "over".to_owned()]);
            }
            hub.shutdown(Duration::ZERO).await;
            (id, runs)
        });
        // With time enough to look at them: what is gone is gone.
        let later = Settings { run: RunConfig { forget_ms: 86_400_000, ..settings.run.clone() }, ..settings };
        process(&folder, &later, async |hub, access, restored| {
            assert_eq!(restored.runs, left, "{name}");
            assert!(hub.run(&access, runs[0]).is_none());
            let back = hub.session(&access, &session).unwrap();
            assert_eq!(back.runs().len(), left);
            let numbers = back.numbers().map(|numbers| numbers.as_str().to_owned());
            assert_eq!(numbers, Some((2 * (4 - left)).to_string()), "{name}");
            if left > 0 {
                assert_eq!(whole(&hub, &access, runs[3]).await, ["start", "n3", "over"]);
            }
        });
    }
}

/// A session that is deleted takes along what waits in it, also where another one is made under its name at once.
#[test]
fn what_waits_in_a_deleted_session_never_begins() {
    for durability in [Durability::Fsync, Durability::Buffered] {
        let folder = Folder::new(&format!("deleted-{durability:?}"));
        let settings = Settings { on_busy: OnBusy::Queue, durability, ..Settings::default() };
        let sessions = process(&folder, &settings, async |hub, access, _| {
            let mut sessions = Vec::new();
            for _ in 0..10 {
                let (session, _) = hub.start(&access, request("silent")).unwrap();
                let waiting: Vec<_> = (0..5).map(|_| in_turn(&hub, &access, behind(&session, "never end"))).collect();
                let id = session.id().clone();
                assert!(hub.delete_session(&access, &id));
                let (again, run) = hub.start(&access, StartRun { session: Some(id), ..request("end") }).unwrap();
                assert!(!Arc::ptr_eq(&again, &session));
                for waiting in waiting {
                    assert!(matches!(waiting.begun().await, Err(NotBegun::Refused(StartError::SessionNotFound(_)))));
                }
                lines(&again, run).await;
                assert_eq!((session.runs().len(), again.runs().len()), (1, 1));
                sessions.push(again.id().clone());
            }
            // Nothing of them counts any more.
            let (_, one) = hub.start(&access, request("silent")).unwrap();
            let (_, two) = hub.start(&access, request("silent")).unwrap();
            assert!(one != two);
            sessions
        });
        process(&folder, &settings, async |hub, access, restored| {
            assert_eq!(restored.waiting, 0, "{durability:?}");
            for id in sessions {
                assert_eq!(hub.session(&access, &id).unwrap().runs().len(), 1);
            }
        });
    }
}

/// Killed in the moment of the deletion, what was kept of a waiting run may be there still. It belongs to no other session of that name.
#[test]
fn what_was_kept_of_a_waiting_run_belongs_to_the_session_that_was() {
    let folder = Folder::new("born");
    let settings = Settings { on_busy: OnBusy::Queue, durability: Durability::Fsync, ..Settings::default() };
    let (session, run) = process(&folder, &settings, async |hub, access, _| {
        let (session, _) = hub.start(&access, request("attach")).unwrap();
        said(&session, session.active_run().unwrap(), 3).await;
        let waiting = in_turn(&hub, &access, behind(&session, "never end"));
        (session.id().clone(), waiting.run)
    });
    // Its session alone is exchanged, in the file.
    {
        let keeping = JournalConfig { path: folder.0.join("journal").to_str().unwrap().to_owned(), ..JournalConfig::default() };
        let journal = Durable::start(&keeping).unwrap();
        let stored = journal.stored().unwrap().into_iter().find(|stored| stored.key.waiting.is_none()).unwrap();
        journal.remove(&stored.key);
        let birth = Birth { created_at: stored.birth.created_at + 1, ..stored.birth };
        journal.open(&stored.key, &birth, Durability::Fsync);
        journal.flush().unwrap();
    }
    process(&folder, &settings, async |hub, access, restored| {
        assert_eq!((restored.sessions, restored.waiting), (1, 0));
        assert!(hub.session(&access, &session).unwrap().runs().is_empty() && hub.run(&access, run).is_none());
    });
}
