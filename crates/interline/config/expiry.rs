//! Until when something is good: a date and time of a config, with the offset that says which moment it is.

use interline_model::Millis;
use serde::Deserialize;
use toml::value::{Datetime, Offset};

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Datetime")]
pub(crate) struct Expiry(Millis);

impl Expiry {
    /// Milliseconds since 1970.
    pub(crate) fn millis(self) -> Millis {
        self.0
    }
}

impl TryFrom<Datetime> for Expiry {
    type Error = &'static str;

    fn try_from(written: Datetime) -> Result<Self, Self::Error> {
        const FORM: &str = "is written with its offset, such as 2027-01-31T18:00:00Z or 2027-01-31T18:00:00+01:00";
        let (Some(date), Some(time), Some(offset)) = (written.date, written.time, written.offset) else { return Err(FORM) };
        let behind_utc = match offset {
            Offset::Z => 0,
            Offset::Custom { minutes } => i64::from(minutes) * 60,
        };
        let seconds = i64::from(time.hour) * 3_600 + i64::from(time.minute) * 60 + i64::from(time.second.unwrap_or(0));
        let days = days_since_1970(i64::from(date.year), i64::from(date.month), i64::from(date.day));
        let millis = (days * 86_400 + seconds - behind_utc) * 1_000 + i64::from(time.nanosecond.unwrap_or(0) / 1_000_000);
        // What was over before 1970 is over.
        Ok(Self(Millis::try_from(millis).unwrap_or(0)))
    }
}

/// Days of the Gregorian calendar. Years are counted from March, so that the leap day is the last one; the years of a file have four digits.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Millis, &'static str> {
        Expiry::try_from(text.parse::<Datetime>().unwrap()).map(Expiry::millis)
    }

    #[test]
    fn a_moment_is_the_same_wherever_it_is_written() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2027-01-31T18:00:00Z", 1_801_418_400),
            ("2027-01-31T19:00:00+01:00", 1_801_418_400),
            ("2027-01-31T12:30:00-05:30", 1_801_418_400),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("1969-12-31T00:00:00Z", 0),
        ] {
            assert_eq!(read(text), Ok(seconds * 1_000), "{text}");
        }
        assert_eq!(read("2027-01-31 18:00:00.25Z"), Ok(1_801_418_400_250));
    }

    #[test]
    fn without_an_offset_it_is_no_moment() {
        for text in ["2027-01-31T18:00:00", "2027-01-31", "18:00:00"] {
            assert!(read(text).is_err_and(|why| why.contains("offset")), "{text}");
        }
    }
}
