//! Why each event of a run is there: `GET …/events?explain=1`, for people who look for something.
//!
//! A list and no stream: what there is now, made by reading the whole session again. So it is off unless the config allows it.

use std::sync::Arc;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use interline_hub::Session;
use interline_model::{Explained, RunId};

use crate::error::Refusal;
use crate::shell::Shell;
use crate::{Block, Extras};

/// Whether a request asks for it.
pub(crate) fn is_asked(query: Option<&str>) -> bool {
    matches!(query, Some("" | "1" | "true" | "yes" | "on"))
}

/// The run's events from number `from` on as a JSON array, each with its causes.
pub(crate) async fn answer(shell: Arc<Shell>, session: Arc<Session>, run: RunId, from: u64, extras: Extras) -> Result<Response, Refusal> {
    if !shell.config.explain {
        return Err(Refusal::ExplainIsOff);
    }
    // As long as the session is, so not where other clients wait for their turn.
    let reading = tokio::task::spawn_blocking(move || {
        let mut explaining = session.explain(run, shell.writer(&session, extras))?;
        let wanted = explaining.more().into_iter().filter(|explained| explained.item.is_from(from));
        let entries: Vec<String> = wanted.map(|explained| entry(&explained)).collect();
        Some(format!("[{}]", entries.join(",\n")))
    });
    let list = reading.await.ok().flatten().ok_or(Refusal::EventsExpired(run))?;
    Ok(([(header::CONTENT_TYPE, "application/json; charset=utf-8"), (header::CACHE_CONTROL, "no-store")], list).into_response())
}

/// `{"seq":3,"event":{…},"causes":[…],"rules":[…]}`; an aside has no number here either.
fn entry(explained: &Explained<Block>) -> String {
    let block = &explained.item;
    let number = if block.is_aside() { String::new() } else { format!("\"seq\":{},", block.seq()) };
    let why = explained.why();
    let why = why.as_str().strip_prefix('{').unwrap_or("}");
    format!("{{{number}\"event\":{},{why}", String::from_utf8_lossy(&block.json()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_asks() {
        for (query, asked) in
            [(Some("1"), true), (Some("true"), true), (Some(""), true), (Some("0"), false), (Some("no"), false), (None, false)]
        {
            assert_eq!(is_asked(query), asked, "{query:?}");
        }
    }
}
