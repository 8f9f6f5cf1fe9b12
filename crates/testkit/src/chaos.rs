//! The seeded suite: many runs on all surfaces at once, faults on both sides of the program, and the checker's verdict on what every client has
//! in the end.
//!
//! Everything that is chance comes from the seed and the number of the run, so a run that failed is drawn again alike. What a real machine
//! adds is timing; a fault that depends on it shows again after some repetitions.

mod report;
mod script;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::checker::{Findings, judge};
use crate::faults::{Fault, FaultProxy, Plan, Plane, UpstreamProxy, locked};
use crate::marks;
use crate::seed::Seed;
use crate::watch::{self, Habits, Kind, Run, Watched, watch};

pub use report::{Report, percentile};
pub use script::{Cell, Script};

/// How a suite is to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where all chance comes from.
    pub seed: u64,
    /// How many runs.
    pub runs: u64,
    /// The number of the first one.
    pub first: u64,
    /// How many of them at a time.
    pub at_once: usize,
    /// How clients are.
    pub habits: Habits,
    /// How many faults a run suffers upstream, at most.
    pub most_faults: u64,
    /// Whether some runs suffer what no server could make good.
    pub with_gaps: bool,
    /// Of a hundred runs so many stop before their last piece.
    pub holding: u64,
    /// For so long.
    pub hold: Duration,
    /// Everything that is about time takes so many times as long: 1 where programs are fast and alone on the machine.
    pub scale: u32,
}

impl Options {
    /// As the long form is: each run suffers up to four faults upstream, and half of all clients' connections break.
    #[must_use]
    pub const fn new(seed: u64, runs: u64) -> Self {
        let habits = Habits { breaking: 50, idle: Duration::from_millis(1_500), patience: Duration::from_secs(60) };
        Self {
            seed,
            runs,
            first: 0,
            at_once: 48,
            habits,
            most_faults: 4,
            with_gaps: true,
            holding: 85,
            hold: Duration::from_millis(3_000),
            scale: 1,
        }
    }

    /// The same for a machine that is so many times as slow.
    #[must_use]
    pub fn slower(mut self, scale: u32) -> Self {
        self.scale = scale;
        for time in [&mut self.habits.idle, &mut self.habits.patience, &mut self.hold] {
            *time *= scale;
        }
        self
    }
}

/// The suite: a proxy before each agent server and, once there is a program, one before that.
pub struct Suite {
    options: Options,
    seed: Seed,
    upstreams: Vec<(Cell, Arc<UpstreamProxy>)>,
    done: AtomicU64,
    so_far: Mutex<Findings>,
}

impl Suite {
    /// Stands before a server of each voice: the documented one and the observed one.
    pub async fn new(options: Options, documented: &str, observed: &str) -> Arc<Self> {
        let seed = Seed::new(options.seed);
        let mut upstreams = Vec::new();
        for (documented, url) in [(true, documented), (false, observed)] {
            let of_runs = seed.clone();
            let planner = move |run: &str, plane: Plane| {
                let number = run.strip_prefix('r').and_then(|number| number.parse().ok());
                let script = number.map(|number| Script::draw(&of_runs, number, &options));
                script.filter(|script| script.cell == Cell { documented, plane }).map(|script| script.planned).unwrap_or_default()
            };
            let proxy = Arc::new(UpstreamProxy::before(url, seed.clone(), planner).await);
            for plane in [Plane::Cloud, Plane::Bridge] {
                upstreams.push((Cell { documented, plane }, proxy.clone()));
            }
        }
        Arc::new(Self { options, seed, upstreams, done: AtomicU64::new(0), so_far: Mutex::default() })
    }

    /// The config of the program: a cell and a token for each server, and times scaled down so that breaks are found in a fraction of a second. `route` are more
    /// keys of each route, `more` further sections.
    #[must_use]
    pub fn config(&self, route: &str, more: &str) -> String {
        let limit = 800 * self.options.scale;
        let pong = 1_500 * self.options.scale;
        let mut config = format!(
            "[auth]\nmode = \"tokens\"\n\n\
             [link]\nbackoff_first_ms = 100\nbackoff_max_ms = 300\nliveness_ms = {limit}\nconnect_timeout_ms = {limit}\nlinger_ms = 20\nreplay_wait_ms = 100\n\n\
             [sse]\nheartbeat_ms = 300\n\n\
             [socketio]\nping_interval_ms = 300\nping_timeout_ms = {pong}\n\n\
             [native]\nping_interval_ms = 300\npong_timeout_ms = {pong}\n\n"
        );
        for (cell, proxy) in &self.upstreams {
            let (name, url) = (cell.name(), proxy.url());
            let kind = match cell.plane {
                Plane::Cloud => {
                    "kind = \"cloud\"\nmode = \"agent\"\nenvironment_id = \"7d9f5f7e-3c1b-4a52-9d55-0a2b6f5d1c11\"\ncredential = { value = \"upstream-secret\" }"
                }
                Plane::Bridge => "kind = \"bridge\"",
            };
            config.push_str(&format!(
                "[[token]]\nname = \"{name}\"\nsecret = {{ value = \"{}\" }}\ncells = [\"{name}\"]\n\n\
                 [[upstream]]\nname = \"{name}\"\n{kind}\nurl = \"{url}\"\n\n\
                 [[route]]\ncell = \"{name}\"\nupstream = \"{name}\"\n{route}\n",
                cell.token(),
            ));
        }
        let filter = std::env::var("CHAOS_LOG").unwrap_or_else(|_| "warn".to_owned());
        format!("{config}[log]\nfilter = \"{filter}\"\n\n{more}")
    }

    /// The four servers.
    #[must_use]
    pub fn cells(&self) -> Vec<Cell> {
        self.upstreams.iter().map(|(cell, _)| *cell).collect()
    }

    /// Runs that are over.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// What was found so far.
    #[must_use]
    pub fn so_far(&self) -> Findings {
        *locked(&self.so_far)
    }

    /// All runs, before the program at this URL.
    ///
    /// # Panics
    /// When a run's task panics.
    pub async fn run(self: &Arc<Self>, program: &str) -> Report {
        let begun = Instant::now();
        let front = Arc::new(FaultProxy::before(program).await);
        let permits = Arc::new(Semaphore::new(self.options.at_once));
        let mut tasks = JoinSet::new();
        let mut report = Report::new(self.options.seed);
        for number in self.options.first..self.options.first + self.options.runs {
            let permit = permits.clone().acquire_owned().await.expect("it is never closed");
            let (suite, front) = (self.clone(), front.clone());
            tasks.spawn(async move {
                let one = suite.one(number, &front).await;
                drop(permit);
                one
            });
            while let Some(one) = tasks.try_join_next() {
                report.add(one.expect("a run does not panic"));
            }
        }
        while let Some(one) = tasks.join_next().await {
            report.add(one.expect("a run does not panic"));
        }
        for (_, proxy) in self.upstreams.iter().filter(|(cell, _)| cell.plane == Plane::Cloud) {
            report.upstream(&proxy.injected(), proxy.recoveries());
        }
        report.downstream(&front.injected());
        report.took = begun.elapsed();
        report
    }

    /// One run, from its start to the verdict.
    async fn one(&self, number: u64, front: &FaultProxy) -> Judged {
        let mut script = Script::draw(&self.seed, number, &self.options);
        let seed = self.seed.of("clients", number);
        let (_, proxy) = self.upstreams.iter().find(|(cell, _)| *cell == script.cell).expect("every cell has its server");
        let mut judged = match self.start(&script, front, seed.clone()).await {
            Ok(run) => {
                let watched = self.watch(&script, &run, front, seed).await;
                let Cell { documented, plane } = script.cell;
                // Clouds as documented stream live only without a number, and 0 is none; bridges as observed know no 0.
                let has_no_first = matches!((documented, plane), (true, Plane::Cloud) | (false, Plane::Bridge));
                let from_nothing = has_no_first && proxy.was_asked_from_nothing(&run.name);
                script.sent.may_have_gaps |= proxy.was_over(&run.name) || from_nothing;
                // What comes with a later replay, and is older than what was shown first, was had and has no place.
                if script.sent.may_have_gaps && !from_nothing {
                    script.sent.had = proxy.had(&run.name);
                }
                let told =
                    script.sent.may_have_gaps && watch::is_incomplete(front, &run, &script.cell.token(), self.options.habits.idle).await;
                Judged::of(&script, watched, told)
            }
            Err(why) => Judged::not_started(&script, &why),
        };
        judged.sent = proxy.sent(&script.sent.run);
        self.done.fetch_add(1, Ordering::Relaxed);
        *locked(&self.so_far) += judged.findings;
        judged
    }

    async fn start(&self, script: &Script, front: &FaultProxy, mut seed: Seed) -> Result<Run, String> {
        let (cell, token, name) = (script.cell.name(), script.cell.token(), &script.sent.run);
        match seed.between(0, 3) {
            0 => {
                let faults = [Fault::Fin, Fault::Reset, Fault::Refuse, Fault::Stall];
                let breaks = seed.chance(self.options.habits.breaking);
                let plan = Plan { fault: seed.pick(&faults), after: seed.between(0, 60) };
                watch::start_sse(front, &[breaks.then_some(plan)], (&cell, None), &token, name, &script.prompt).await
            }
            1 => watch::start_socketio(front, &cell, &token, name, &script.prompt).await,
            _ => watch::start_native(front, &cell, &token, name, &script.prompt).await,
        }
    }

    async fn watch(&self, script: &Script, run: &Run, front: &FaultProxy, mut seed: Seed) -> Vec<Watched> {
        let mut kinds =
            vec![seed.pick(&[Kind::SseById, Kind::SseByNumber]), seed.pick(&[Kind::SocketIoDeltas, Kind::SocketIoSnapshots]), Kind::Native];
        if seed.chance(25) {
            kinds.push(seed.pick(&Kind::ALL));
        }
        let token = script.cell.token();
        let watching = (0..).zip(kinds).map(|(at, kind)| watch(kind, run, &token, front, self.options.habits, seed.of("client", at)));
        futures_util::future::join_all(watching).await
    }
}

/// One run's outcome.
#[derive(Debug)]
pub struct Judged {
    /// All views together.
    pub findings: Findings,
    /// What is wrong, in words.
    pub problems: Vec<String>,
    /// Pieces that the upstream has sent.
    pub sent: u64,
    /// How many clients watched.
    pub views: u64,
    /// Whether it suffered what no server could make good.
    pub may_have_gaps: bool,
    /// How long clients took to come back.
    pub recoveries: Vec<Duration>,
    /// How often clients left by themselves.
    pub left: u64,
}

impl Judged {
    /// `told`: the program says of the run that something may be missing.
    fn of(script: &Script, watched: Vec<Watched>, told: bool) -> Self {
        let mut judged = Self::empty(script);
        let pieces = |one: &Watched| marks::all(&one.view.text).map(|(_, number)| number).collect::<Vec<_>>();
        let first = watched.first().map(pieces).unwrap_or_default();
        for mut one in watched {
            // Not every surface has words for it, and some say it once, while the client may be away.
            one.view.said_incomplete |= told;
            let is_as_others = pieces(&one) == first;
            let Watched { view, recoveries, left, trail } = one;
            let mut findings = judge(&script.sent, &view);
            if findings.is_clean() && !is_as_others {
                // Where a gap is excused, all have the same one.
                findings.garbled += 1;
            }
            if !findings.is_clean() {
                let Script { sent, cell, planned, prompt } = script;
                let (run, cell, who, outcome, trail) = (&sent.run, cell.name(), &view.client, &view.outcome, trail.join(", "));
                let missing: Vec<u64> = (0..sent.pieces.len() as u64).filter(|n| !view.text.contains(&format!("«{run}:{n}»"))).collect();
                judged.problems.push(format!(
                    "{run} in {cell}, {who}: {findings}; ended {outcome:?}, told {} times, found ended: {}; missing {missing:?}; ends with \
                     {:?}; its way: {trail}; {planned:?}; {prompt:?}",
                    view.ends,
                    view.found_ended,
                    view.text.chars().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect::<String>(),
                ));
            }
            judged.findings += findings;
            judged.recoveries.extend(recoveries);
            judged.left += left;
            judged.views += 1;
        }
        judged
    }

    fn not_started(script: &Script, why: &str) -> Self {
        let mut judged = Self::empty(script);
        judged.findings.ends_missing = 1;
        judged.problems.push(format!("{} in {} was not started: {why}", script.sent.run, script.cell.name()));
        judged
    }

    fn empty(script: &Script) -> Self {
        Self {
            findings: Findings::default(),
            problems: Vec::new(),
            sent: 0,
            views: 0,
            may_have_gaps: script.sent.may_have_gaps,
            recoveries: Vec::new(),
            left: 0,
        }
    }
}
