//! Names and times that are computed and never drawn, so that a replay gives the same bytes (decision 22).

use interline_model::{CallId, Lane, Millis, RunId, Text};

/// An ISO-8601 time in UTC, to the second: `2026-01-01T00:00:00Z` (socketio.md §3.3).
#[must_use]
pub fn timestamp(at: Millis) -> String {
    let seconds = at / 1000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// The Gregorian date of the day that is `days` after 1970-01-01: years are counted from 1 March 0000, so that a leap day is a year's last.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_EPOCH: u64 = 719_468;
    const DAYS_IN_ERA: u64 = 146_097;
    let days = days + DAYS_TO_EPOCH;
    let (era, of_era) = (days / DAYS_IN_ERA, days % DAYS_IN_ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// The ids of the turn that is number `sequence` in its session: `turn_…`, `entry_…` and, for a compaction, `comp_…`.
pub(crate) fn turn_id(prefix: &str, run: RunId, sequence: usize) -> Text {
    // The ordinal makes it unique in the session, the run's first digits across sessions.
    Text::from(format!("{prefix}_{:012x}_{sequence}", run.as_u128() >> 80))
}

/// `root`, or `agent:` and eight hex digits for a sub-agent (socketio.md §3.3).
pub(crate) fn loop_id(lane: &Lane) -> Text {
    match lane {
        Lane::Root => Text::from_static("root"),
        Lane::Agent(call) => Text::from(format!("agent:{:08x}", fnv1a(call))),
    }
}

/// FNV-1a: the same on every platform and in every version, which the standard hasher does not promise.
fn fnv1a(call: &CallId) -> u32 {
    call.as_str().bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_civil_dates() {
        for (at, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399_999, "2000-02-28T23:59:59Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (1_767_225_601_000, "2026-01-01T00:00:01Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(at), text);
        }
        assert!(timestamp(u64::MAX).ends_with('Z'));
    }

    #[test]
    fn a_lane_names_its_loop() {
        assert_eq!(&*loop_id(&Lane::Root), "root");
        assert_eq!(&*loop_id(&Lane::Agent(CallId::from("a"))), "agent:e40c292c");
    }
}
