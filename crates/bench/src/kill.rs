//! `kill`: the program is killed while it works, again and again, and started again on the same file. What clients were shown before has to be
//! there afterwards, as far as the durability promises, and every run ends once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Args;
use interline_sim::Voice;
use interline_testkit::chaos::{Cell, Options, Suite, percentile};
use interline_testkit::checker::{Findings, Sent, View, judge};
use interline_testkit::faults::{FaultProxy, Plane};
use interline_testkit::watch::{Run, Shown, is_incomplete, read_sse, start_sse};
use interline_testkit::{Program, Seed};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::Common;
use crate::stand::simulator;

/// How often it is killed in each durability.
const KILLS: u64 = 100;

/// Runs that begin before each kill.
const RUNS: u64 = 12;

/// Behind one of so many of them another one waits.
const BEHIND: u64 = 3;

/// In a buffered cell, what is older than this is on the disk; the same as in the config below.
const FLUSH: Duration = Duration::from_millis(50);

/// So much later than promised is taken for a slow machine.
const SLACK: Duration = Duration::from_millis(250);

const IDLE: Duration = Duration::from_secs(10);

#[derive(Args, Clone, Debug)]
pub(crate) struct Wishes {
    #[command(flatten)]
    common: Common,
    /// In this durability only.
    #[arg(long, value_parser = ["memory", "buffered", "fsync"])]
    durability: Option<String>,
    /// So many kills in each.
    #[arg(long)]
    kills: Option<u64>,
}

/// What was found in one durability.
#[derive(Default)]
struct Found {
    runs: u64,
    waiting: u64,
    over_before: u64,
    completed_after: u64,
    ended_after: u64,
    gone: u64,
    shown: u64,
    shown_lost: u64,
    shown_changed: u64,
    ends_missing: u64,
    ends_doubled: u64,
    others: Findings,
    restarts: Vec<Duration>,
    problems: Vec<String>,
}

/// A run and what its client was shown before the kill.
struct Followed {
    run: Run,
    token: String,
    sent: Sent,
    shown: Arc<Mutex<Vec<Shown>>>,
    /// When its client heard that it was taken.
    taken: Instant,
    /// It was to wait for its turn.
    waits: bool,
}

pub(crate) async fn run(wishes: Wishes) -> bool {
    let binary = wishes.common.program();
    let kills = wishes.kills.unwrap_or(KILLS / if wishes.common.short { 10 } else { 1 });
    let seed = Seed::new(wishes.common.seed());
    eprintln!("seed {}", wishes.common.seed());
    println!(
        "| durability | kills | runs | waiting | over before | completed after | ended otherwise | gone | events shown | of them lost | changed | ends missing | ends doubled | duplicated | reordered | lost | gaps said | gaps not said | restart p50 / p99 |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut is_clean = true;
    for durability in ["memory", "buffered", "fsync"] {
        if wishes.durability.as_deref().is_none_or(|wanted| wanted == durability) {
            let found = Killing::new(&binary, durability).await.kill(kills, &seed).await;
            found.print(durability, kills);
            is_clean &= found.is_clean();
        }
    }
    is_clean
}

impl Found {
    fn print(&self, durability: &str, kills: u64) {
        let Self {
            runs,
            waiting,
            over_before,
            completed_after,
            ended_after,
            gone,
            shown,
            shown_lost,
            shown_changed,
            ends_missing,
            ends_doubled,
            ..
        } = self;
        let Findings { duplicated, reordered, gaps_silent, gaps_said, lost, .. } = self.others;
        let (p50, p99) = (percentile(&self.restarts, 50).as_millis(), percentile(&self.restarts, 99).as_millis());
        println!(
            "| {durability} | {kills} | {runs} | {waiting} | {over_before} | {completed_after} | {ended_after} | {gone} | {shown} | {shown_lost} | {shown_changed} | \
             {ends_missing} | {ends_doubled} | {duplicated} | {reordered} | {lost} | {gaps_said} | {gaps_silent} | {p50} ms / {p99} ms |"
        );
        for problem in self.problems.iter().take(40) {
            println!("\n{problem}");
        }
    }

    const fn is_clean(&self) -> bool {
        self.shown_lost + self.shown_changed + self.ends_missing + self.ends_doubled == 0 && self.others.is_clean()
    }
}

/// A program that is killed and comes back at the same address.
struct Killing<'a> {
    binary: &'a str,
    durability: &'a str,
    suite: Arc<Suite>,
    front: Arc<FaultProxy>,
    config: String,
    listen: String,
    folder: PathBuf,
    _servers: [tokio_util::sync::DropGuard; 2],
}

impl Drop for Killing<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl<'a> Killing<'a> {
    async fn new(binary: &'a str, durability: &'a str) -> Self {
        let (documented, one) = simulator(Voice::Documented).await;
        let (observed, other) = simulator(Voice::Observed).await;
        let options = Options { most_faults: 0, with_gaps: false, ..Options::new(0, 0) };
        let suite = Suite::new(options, &documented, &observed).await;
        let folder = std::env::temp_dir().join(format!("interline-kill-{}-{durability}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let listen = free_address();
        let more = format!("[journal]\npath = {:?}\nflush_ms = {}\n", journal(&folder), FLUSH.as_millis());
        let config = suite.config(&format!("durability = \"{durability}\"\non_busy = \"queue\""), &more);
        let front = Arc::new(FaultProxy::before(&format!("http://{listen}")).await);
        Self { binary, durability, suite, front, config, listen, folder, _servers: [one, other] }
    }

    async fn kill(&self, kills: u64, seed: &Seed) -> Found {
        let mut found = Found::default();
        let mut program = Program::serve_at(self.binary, &self.config, &self.listen).await;
        for number in 0..kills {
            let mut chance = seed.of(self.durability, number);
            let (followed, mut reading) = self.start(number, &mut chance).await;
            tokio::time::sleep(Duration::from_millis(chance.between(20, 900))).await;
            let killed = Instant::now();
            program.signal("KILL");
            program.ended(IDLE).await;
            while reading.join_next().await.is_some() {}
            program = Program::serve_at(self.binary, &self.config, &self.listen).await;
            found.restarts.push(killed.elapsed());
            let judging = followed.iter().map(|one| self.judge(one, killed));
            for verdict in futures_util::future::join_all(judging).await {
                found.add(verdict);
            }
            eprintln!(
                "{}: killed {} of {kills} times; {} runs, shown {}, lost {}",
                self.durability,
                number + 1,
                found.runs,
                found.shown,
                found.shown_lost
            );
        }
        found
    }

    async fn start(&self, number: u64, chance: &mut Seed) -> (Vec<Followed>, JoinSet<()>) {
        let (mut followed, mut reading) = (Vec::new(), JoinSet::new());
        let cells = self.suite.cells();
        for at in 0..RUNS {
            let (cell, name) = (chance.pick(&cells), format!("k{number}x{at}"));
            let Some(one) = self.begin(cell, name.clone(), None, chance, &mut reading).await else { continue };
            let session = one.run.session.clone();
            followed.push(one);
            if at % BEHIND == 0 {
                followed.extend(self.begin(cell, format!("{name}w"), Some(&session), chance, &mut reading).await);
            }
        }
        (followed, reading)
    }

    /// Begins a run and reads it; in a session where another one goes on it waits.
    async fn begin(
        &self,
        cell: Cell,
        name: String,
        session: Option<&str>,
        chance: &mut Seed,
        reading: &mut JoinSet<()>,
    ) -> Option<Followed> {
        let pieces = chance.between(20, 120);
        let prompt = format!("tally {name} {pieces} gap={} tools={}", chance.between(1, 12), chance.pick(&[0, 7]));
        // A cloud as documented has no stream of a run that was over meanwhile. And what waits begins at any moment: killed before the agent server
        // said that it has it, a run ends, since it must not be told twice.
        let may_have_gaps = session.is_some() || cell.documented && cell.plane == Plane::Cloud;
        let pieces = (0..pieces).map(|n| format!("«{name}:{n}» é漢🎉 ")).collect();
        let sent = Sent { run: name.clone(), pieces, may_have_gaps, had: BTreeSet::new() };
        let token = cell.token();
        let run = start_sse(&self.front, &[], (&cell.name(), session), &token, &name, &prompt).await;
        let run = run.inspect_err(|why| eprintln!("{name} was not started: {why}")).ok()?;
        let taken = Instant::now();
        let shown: Arc<Mutex<Vec<Shown>>> = Arc::default();
        let (front, into, of, with) = (self.front.clone(), shown.clone(), run.clone(), token.clone());
        reading.spawn(async move {
            let _ = read_sse(&front, &of, &with, IDLE, &into).await;
        });
        Some(Followed { run, token, sent, shown, taken, waits: session.is_some() })
    }

    /// Reads a run again after the program has come back, to its end.
    async fn judge(&self, followed: &Followed, killed: Instant) -> Verdict {
        let again: Mutex<Vec<Shown>> = Mutex::default();
        let mut status = None;
        for _ in 0..5 {
            locked(&again).clear();
            status = read_sse(&self.front, &followed.run, &followed.token, IDLE, &again).await;
            if status.is_some_and(|status| status != 200) || locked(&again).last().is_some_and(Shown::is_end) {
                break;
            }
        }
        let told = status == Some(200) && is_incomplete(&self.front, &followed.run, &followed.token, IDLE).await;
        let before = locked(&followed.shown).clone();
        let again = again.into_inner().unwrap_or_else(PoisonError::into_inner);
        Verdict::of(self.durability, followed, &before, &again, Answered { status, told, killed })
    }
}

/// How the program answered for a run.
struct Answered {
    status: Option<u16>,
    /// It says that something of it may be missing.
    told: bool,
    killed: Instant,
}

/// What became of one run.
#[derive(Default)]
struct Verdict {
    /// It had not begun.
    waited: bool,
    over_before: bool,
    completed: bool,
    gone: bool,
    shown: u64,
    lost: u64,
    changed: u64,
    ends: u64,
    others: Findings,
    problem: Option<String>,
}

impl Verdict {
    fn of(durability: &str, followed: &Followed, before: &[Shown], again: &[Shown], answered: Answered) -> Self {
        let Answered { status, told, killed } = answered;
        let is_promised = |at: Instant| match durability {
            "fsync" => true,
            "buffered" => killed.saturating_duration_since(at) > FLUSH + SLACK,
            _ => false,
        };
        let promised = |shown: &&Shown| is_promised(shown.at);
        let by_number: BTreeMap<u64, &Shown> = again.iter().map(|shown| (shown.seq, shown)).collect();
        let kept: Vec<&Shown> = before.iter().filter(promised).collect();
        let (waited, over_before) = (followed.waits && before.is_empty(), before.last().is_some_and(Shown::is_end));
        let mut verdict = Self { waited, over_before, shown: kept.len() as u64, ..Self::default() };
        for shown in &kept {
            match by_number.get(&shown.seq) {
                None => verdict.lost += 1,
                Some(same) => verdict.changed += u64::from(same.event != shown.event),
            }
        }
        verdict.ends = again.iter().filter(|shown| shown.is_end()).count() as u64;
        verdict.completed = again.last().is_some_and(|last| last.event["type"] == "done");
        // Nobody promised that it would outlive the program, and it did not.
        verdict.gone = again.is_empty() && status == Some(404) && kept.is_empty() && !is_promised(followed.taken);
        if !verdict.gone {
            let text = again.iter().filter_map(|shown| {
                shown.event["content"].as_str().filter(|_| shown.event["type"] == "stream_delta").or(shown.event["result"].as_str())
            });
            let view = View {
                text: text.collect(),
                numbers: BTreeMap::from([("seq".to_owned(), again.iter().map(|shown| shown.seq).collect())]),
                ends: verdict.ends,
                ended_well: verdict.completed,
                said_incomplete: told,
                ..View::default()
            };
            verdict.others = Findings { ends_missing: 0, ends_doubled: 0, ends_wrong: 0, ..judge(&followed.sent, &view) };
        }
        let is_wrong = verdict.lost + verdict.changed > 0 || !verdict.gone && verdict.ends != 1 || !verdict.others.is_clean();
        verdict.problem = is_wrong.then(|| {
            format!(
                "{} in {}: of {} promised events {} lost, {} changed; {} ends; {}; status {status:?}; before {:?}; afterwards {:?} … {:?}",
                followed.sent.run,
                followed.run.cell,
                verdict.shown,
                verdict.lost,
                verdict.changed,
                verdict.ends,
                verdict.others,
                before.last().map(|shown| (shown.seq, shown.event.to_string())),
                again.len(),
                again.last().map(|shown| shown.event.to_string()),
            )
        });
        verdict
    }
}

impl Found {
    fn add(&mut self, verdict: Verdict) {
        self.runs += 1;
        self.waiting += u64::from(verdict.waited);
        self.shown += verdict.shown;
        self.shown_lost += verdict.lost;
        self.shown_changed += verdict.changed;
        if verdict.gone {
            self.gone += 1;
        } else {
            self.over_before += u64::from(verdict.over_before);
            self.completed_after += u64::from(!verdict.over_before && verdict.completed);
            self.ended_after += u64::from(!verdict.over_before && !verdict.completed && verdict.ends > 0);
            self.ends_missing += u64::from(verdict.ends == 0);
            self.ends_doubled += verdict.ends.saturating_sub(1);
        }
        self.others += verdict.others;
        self.problems.extend(verdict.problem);
    }
}

fn journal(folder: &Path) -> String {
    folder.join("journal").to_string_lossy().into_owned()
}

/// An address that was free a moment ago: the program has to come back to it.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
