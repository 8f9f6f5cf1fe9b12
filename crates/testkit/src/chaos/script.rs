//! What is to happen in one run: drawn from the seed and the run's number alone.

use std::collections::BTreeSet;

use super::Options;
use crate::checker::Sent;
use crate::faults::{Dial, Fault, Plane, Planned, UpstreamFault};
use crate::seed::Seed;

/// One of the four servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Whether it does what is documented; else, what was observed.
    pub documented: bool,
    /// Which of the two it is.
    pub plane: Plane,
}

impl Cell {
    /// Its name, which is also its route's and its token's.
    #[must_use]
    pub fn name(self) -> String {
        let voice = if self.documented { "documented" } else { "observed" };
        let plane = if self.plane == Plane::Cloud { "cloud" } else { "bridge" };
        format!("{voice}-{plane}")
    }

    /// The token that opens it, and nothing else.
    #[must_use]
    pub fn token(self) -> String {
        format!("{}-secret", self.name())
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Script {
    /// Where it runs.
    pub cell: Cell,
    /// What the user says.
    pub prompt: String,
    /// What the agent then says.
    pub sent: Sent,
    /// What happens to its connections upstream.
    pub planned: Vec<Planned>,
}

/// Of a hundred runs so many suffer what no server could make good.
const WITH_GAPS: u64 = 25;

const BOTH: [UpstreamFault; 13] = [
    UpstreamFault::Wire(Fault::Fin),
    UpstreamFault::Wire(Fault::Reset),
    UpstreamFault::Wire(Fault::HalfOpen),
    UpstreamFault::Wire(Fault::Stall),
    UpstreamFault::Wire(Fault::Cut),
    UpstreamFault::Close(1009),
    UpstreamFault::Close(1011),
    UpstreamFault::Dial(Dial::Refused, 2),
    UpstreamFault::Dial(Dial::Silent, 1),
    UpstreamFault::Dial(Dial::Unavailable, 1),
    UpstreamFault::Dial(Dial::Duplicated, 1),
    UpstreamFault::Dial(Dial::Reordered, 1),
    UpstreamFault::Dial(Dial::Partial, 1),
];

/// What has a meaning on the cloud only: the bridge knows no tokens of sessions.
const CLOUD: UpstreamFault = UpstreamFault::Dial(Dial::Unauthorized, 2);

impl Script {
    /// The run of this number.
    #[must_use]
    pub fn draw(seed: &Seed, number: u64, options: &Options) -> Self {
        let mut seed = seed.of("run", number);
        let name = format!("r{number}");
        let cell = Cell { documented: seed.chance(50), plane: seed.pick(&[Plane::Cloud, Plane::Bridge]) };
        let pieces = seed.between(20, 60);
        // Most runs last longer than any recovery: of one that is over meanwhile servers give no stream any more.
        let hold = if seed.chance(options.holding) { options.hold.as_millis() } else { 0 };
        let (gap, tools) = (seed.between(0, 8), seed.pick(&[0, 5, 7, 9]));
        let prompt = format!("tally {name} {pieces} gap={gap} hold={hold} tools={tools}");
        let sent = Sent {
            run: name.clone(),
            pieces: (0..pieces).map(|n| format!("«{name}:{n}» é漢🎉 ")).collect(),
            may_have_gaps: false,
            had: BTreeSet::new(),
        };
        if options.with_gaps && seed.chance(WITH_GAPS) {
            return Self::with_gap(seed, prompt, sent);
        }
        let mut faults: Vec<UpstreamFault> = BOTH.to_vec();
        if cell.plane == Plane::Cloud {
            // Twice, since half of the runs cannot have it.
            faults.extend([CLOUD, CLOUD]);
        }
        let count = if options.most_faults == 0 { 0 } else { seed.between(1, options.most_faults + 1) };
        let mut planned: Vec<Planned> =
            (0..count).map(|_| Planned { at: seed.between(3, pieces - 3), after: seed.chance(50), fault: seed.pick(&faults) }).collect();
        planned.sort_by_key(|planned| planned.at);
        // Between two faults something new comes: a run whose connections fail again and again without that is given up (`link.attempts`).
        planned.dedup_by(|later, earlier| later.at < earlier.at + 2);
        Self { cell, prompt, sent, planned }
    }

    fn with_gap(mut seed: Seed, mut prompt: String, mut sent: Sent) -> Self {
        sent.may_have_gaps = true;
        let at = seed.between(3, sent.pieces.len() as u64 - 6);
        let mut cell = Cell { documented: true, plane: Plane::Cloud };
        let mut planned = Vec::new();
        match seed.between(0, 20) {
            0..7 => planned.push(Planned { at, after: true, fault: UpstreamFault::Dial(Dial::Desynced, 2) }),
            7..9 => prompt.push_str(&format!(" vanish={at}")),
            9..11 => prompt.push_str(&format!(" forget={at}")),
            _ => {
                cell = Cell { documented: seed.chance(50), plane: seed.pick(&[Plane::Cloud, Plane::Bridge]) };
                planned.push(Planned { at, after: true, fault: UpstreamFault::Dial(Dial::Unreplayed, 1) });
            }
        }
        Self { cell, prompt, sent, planned }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_kind_comes_and_comes_again() {
        let (seed, options) = (Seed::new(5), Options::new(5, 0));
        let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
        let mut gaps = 0;
        for number in 0..10_000 {
            let script = Script::draw(&seed, number, &options);
            assert_eq!(format!("{script:?}"), format!("{:?}", Script::draw(&seed, number, &options)));
            assert!(script.planned.is_sorted_by_key(|planned| planned.at));
            assert!(script.planned.iter().all(|planned| planned.at + 2 < script.sent.pieces.len() as u64));
            for planned in &script.planned {
                let times = if let UpstreamFault::Dial(_, times) = planned.fault { u64::from(times) } else { 1 };
                *kinds.entry(planned.fault.name()).or_default() += times;
            }
            gaps += u64::from(script.sent.may_have_gaps);
        }
        assert_eq!(kinds.len(), 16, "{kinds:?}");
        assert!(kinds.values().all(|count| *count > 1_000), "{kinds:?}");
        assert!((2_300..2_700).contains(&gaps), "{gaps}");
    }
}
