//! What a suite has shown, as a table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::Judged;
use crate::checker::Findings;

/// So many problems are told in words.
const TOLD: usize = 400;

/// What a suite has shown.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The number that it can be had again with.
    pub seed: u64,
    /// Runs that were started and judged.
    pub runs: u64,
    /// Runs that suffered what no server could make good.
    pub with_gaps: u64,
    /// Clients that watched them.
    pub views: u64,
    /// Pieces that upstreams sent, each once.
    pub sent: u64,
    /// All that is wrong.
    pub findings: Findings,
    /// Faults towards the upstreams, by kind.
    pub upstream: BTreeMap<&'static str, u64>,
    /// Faults towards clients, by kind.
    pub downstream: BTreeMap<&'static str, u64>,
    /// From each fault upstream to the first new frame.
    pub upstream_recoveries: Vec<Duration>,
    /// From each break that a client noticed to the first thing that came after it.
    pub downstream_recoveries: Vec<Duration>,
    /// The first problems, in words.
    pub problems: Vec<String>,
    /// How long all of it took.
    pub took: Duration,
}

impl Report {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    pub(super) fn add(&mut self, one: Judged) {
        self.runs += 1;
        self.with_gaps += u64::from(one.may_have_gaps);
        self.views += one.views;
        self.sent += one.sent;
        self.findings += one.findings;
        self.downstream_recoveries.extend(one.recoveries);
        *self.downstream.entry("left by itself").or_default() += one.left;
        let room = TOLD.saturating_sub(self.problems.len());
        self.problems.extend(one.problems.into_iter().take(room));
    }

    pub(super) fn upstream(&mut self, injected: &BTreeMap<&'static str, u64>, recoveries: Vec<Duration>) {
        for (name, count) in injected {
            *self.upstream.entry(name).or_default() += count;
        }
        self.upstream_recoveries.extend(recoveries);
    }

    pub(super) fn downstream(&mut self, injected: &BTreeMap<&'static str, u64>) {
        for (name, count) in injected {
            *self.downstream.entry(name).or_default() += count;
        }
    }

    /// The faults of this kind that took effect on one side.
    #[must_use]
    pub fn injected(&self, upstream: bool, name: &str) -> u64 {
        let faults = if upstream { &self.upstream } else { &self.downstream };
        faults.get(name).copied().unwrap_or_default()
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.findings.is_clean()
    }
}

/// The value below which so many of a hundred are.
#[must_use]
pub fn percentile(of: &[Duration], percent: usize) -> Duration {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Findings {
            lost,
            duplicated,
            reordered,
            foreign,
            garbled,
            ends_missing,
            ends_doubled,
            ends_wrong,
            gaps_said,
            gaps_silent,
            delivered,
        } = self.findings;
        writeln!(f, "| fault | injected |\n|---|---:|")?;
        for (side, faults) in [("upstream", &self.upstream), ("clients", &self.downstream)] {
            for (name, count) in faults {
                writeln!(f, "| {side}: {name} | {count} |")?;
            }
        }
        writeln!(f, "\n| | |\n|---|---:|")?;
        let rows: [(&str, String); 18] = [
            ("seed", self.seed.to_string()),
            ("runs", self.runs.to_string()),
            ("of them where text could not be had back", self.with_gaps.to_string()),
            ("clients", self.views.to_string()),
            ("pieces sent by upstreams", self.sent.to_string()),
            ("pieces delivered to clients", delivered.to_string()),
            ("**lost**", lost.to_string()),
            ("**duplicated**", duplicated.to_string()),
            ("**reordered**", reordered.to_string()),
            ("of other runs, garbled", format!("{foreign}, {garbled}")),
            ("**ends missing**", ends_missing.to_string()),
            ("**ends doubled**", ends_doubled.to_string()),
            ("**ends wrong**", ends_wrong.to_string()),
            ("gaps said (pieces)", gaps_said.to_string()),
            ("**gaps not said** (pieces)", gaps_silent.to_string()),
            ("recovery upstream, p50 / p99", times(&self.upstream_recoveries)),
            ("recovery of clients, p50 / p99", times(&self.downstream_recoveries)),
            ("took", format!("{:.1} s", self.took.as_secs_f64())),
        ];
        for (name, value) in rows {
            writeln!(f, "| {name} | {value} |")?;
        }
        for problem in &self.problems {
            writeln!(f, "\n{problem}")?;
        }
        Ok(())
    }
}

fn times(of: &[Duration]) -> String {
    format!("{} ms / {} ms", percentile(of, 50).as_millis(), percentile(of, 99).as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&times, percent).as_millis()), [50, 99, 100]);
        assert_eq!(percentile(&times[..1], 50), Duration::from_millis(100));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
