//! Where a reader wants to begin: `from_seq`, `Last-Event-ID`, and the framing that it can read (sse.md §1.4, §5.2, §5.6).

use axum::http::{HeaderMap, header};
use interline_model::RunId;

use crate::error::Refusal;
use crate::{Extras, Profile};

/// Reads `from_seq`: absent, empty, 0 and 1 are the beginning; a number beyond every event is beyond every event.
pub(crate) fn from_seq(text: Option<&str>) -> Result<u64, Refusal> {
    let text = text.map(str::trim).filter(|text| !text.is_empty());
    let Some(text) = text else { return Ok(1) };
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::InvalidFromSeq);
    }
    // All digits: what does not fit is only too large.
    Ok(text.parse().unwrap_or(u64::MAX).max(1))
}

/// The number of the last event that the reader says it has, if that is one of this run: `<run>:<seq>` or `<seq>`.
pub(crate) fn last_event_id(headers: &HeaderMap, run: RunId) -> Option<u64> {
    let text = headers.get("last-event-id")?.to_str().ok()?.trim();
    let seq = match text.rsplit_once(':') {
        Some((of, seq)) if of.parse() == Ok(run) => seq,
        Some(_) => return None,
        None => text,
    };
    seq.bytes().all(|byte| byte.is_ascii_digit()).then(|| seq.parse().ok())?
}

/// The run that a POST goes on with instead of starting one, and the number of the last event that its sender has: `<run>:<seq>` only, since
/// a number alone names no run.
pub(crate) fn resumption(headers: &HeaderMap) -> Option<(RunId, u64)> {
    let (run, _) = headers.get("last-event-id")?.to_str().ok()?.trim().rsplit_once(':')?;
    let run = run.parse().ok()?;
    Some((run, last_event_id(headers, run)?))
}

/// The framing of an answer to GET.
pub(crate) fn get_profile(asked: Option<&str>, configured: Profile, headers: &HeaderMap) -> Profile {
    match (override_of(asked), configured) {
        (Some(profile), _) => profile,
        (None, Profile::Auto) if names_event_stream(headers) => Profile::Full,
        (None, Profile::Auto) => Profile::Plain,
        (None, profile) => profile,
    }
}

/// The framing of an answer to POST: the documented wire, whatever the request accepts, unless `ids` are for those that accept them.
pub(crate) fn post_profile(asked: Option<&str>, configured: Profile, ids: bool, headers: &HeaderMap) -> Profile {
    match (override_of(asked), configured) {
        (Some(profile), _) => profile,
        (None, Profile::Full) => Profile::Full,
        (None, Profile::Auto) if ids && names_event_stream(headers) => Profile::Full,
        (None, Profile::Auto | Profile::Plain) => Profile::Plain,
    }
}

/// What goes beyond the documented vocabulary in this answer.
pub(crate) fn extras(asked: Option<&str>, configured: Extras) -> Extras {
    asked.and_then(Extras::from_word).unwrap_or(configured)
}

fn override_of(asked: Option<&str>) -> Option<Profile> {
    match asked? {
        "plain" => Some(Profile::Plain),
        "full" => Some(Profile::Full),
        _ => None,
    }
}

fn names_event_stream(headers: &HeaderMap) -> bool {
    let mut accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.any(|accept| accept.to_ascii_lowercase().contains("text/event-stream"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_seq_is_lenient_where_nothing_is_lost() {
        for (text, seq) in [
            (None, 1),
            (Some(""), 1),
            (Some("0"), 1),
            (Some("1"), 1),
            (Some("42"), 42),
            (Some("18446744073709551616"), u64::MAX),
            (Some("00000000000000000000000007"), 7),
        ] {
            assert_eq!(from_seq(text).unwrap(), seq, "{text:?}");
        }
        for text in ["-1", "abc", "1.5", "1e3", "０", "+1"] {
            assert!(from_seq(Some(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn an_id_counts_only_for_its_own_run() {
        let run = RunId::from_u128(7);
        let read = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("last-event-id", id.parse().unwrap());
            last_event_id(&headers, run)
        };
        assert_eq!(read(&format!("{run}:5")), Some(5));
        assert_eq!(read(&format!("{}:5", run.dashed())), Some(5));
        assert_eq!(read("5"), Some(5));
        let other = format!("{}:5", RunId::from_u128(8));
        for id in [&*other, "", "x", "-5", "x:5", ":", "run-:1", "5:", "99999999999999999999999"] {
            assert_eq!(read(id), None, "{id:?}");
        }
    }

    #[test]
    fn browsers_get_ids_and_the_documented_clients_do_not() {
        let accepting = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            headers
        };
        let browser = accepting("text/event-stream");
        for (asked, configured, headers, expected) in [
            (None, Profile::Auto, &browser, Profile::Full),
            (None, Profile::Auto, &accepting("*/*"), Profile::Plain),
            (None, Profile::Auto, &accepting("application/json, Text/Event-Stream;q=0.9"), Profile::Full),
            (None, Profile::Plain, &browser, Profile::Plain),
            (Some("plain"), Profile::Full, &browser, Profile::Plain),
            (Some("full"), Profile::Auto, &HeaderMap::new(), Profile::Full),
            (Some("odd"), Profile::Auto, &HeaderMap::new(), Profile::Plain),
        ] {
            assert_eq!(get_profile(asked, configured, headers), expected, "{asked:?} {configured:?}");
        }
        for (asked, configured, expected) in [
            (None, Extras::Fields, Extras::Fields),
            (Some("off"), Extras::Events, Extras::Off),
            (Some("events"), Extras::Off, Extras::Events),
            (Some("odd"), Extras::Fields, Extras::Fields),
        ] {
            assert_eq!(extras(asked, configured), expected, "{asked:?} {configured:?}");
        }
        for (asked, configured, ids, headers, expected) in [
            (None, Profile::Auto, false, &browser, Profile::Plain),
            (None, Profile::Auto, true, &browser, Profile::Full),
            (None, Profile::Auto, true, &accepting("*/*"), Profile::Plain),
            (None, Profile::Plain, true, &browser, Profile::Plain),
            (Some("plain"), Profile::Auto, true, &browser, Profile::Plain),
            (Some("full"), Profile::Auto, false, &HeaderMap::new(), Profile::Full),
        ] {
            assert_eq!(post_profile(asked, configured, ids, headers), expected, "{asked:?} {configured:?} {ids}");
        }
    }

    #[test]
    fn only_an_id_that_names_its_run_resumes_one() {
        let resumed = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("last-event-id", id.parse().unwrap());
            resumption(&headers)
        };
        let run = RunId::from_u128(7);
        assert_eq!(resumed(&format!("{run}:3")), Some((run, 3)));
        for id in ["3", "", "x:3", &format!("{run}:"), &format!("{run}:x"), &format!("{run}")] {
            assert_eq!(resumed(id), None, "{id}");
        }
    }
}
