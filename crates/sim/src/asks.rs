//! The asks a session has open, and the client frames that answer them.

use std::sync::Mutex;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{locked, stats::Counters};

/// The open asks of one session. The first answer wins; whatever comes later finds nothing to answer.
#[derive(Default)]
pub(crate) struct Asks {
    open: Mutex<Vec<Ask>>,
}

struct Ask {
    request_id: String,
    frame: String,
    form: bool,
    deadline_ms: u64,
    answer: oneshot::Sender<Option<Value>>,
}

/// An open form, as the list of elicitations shows it.
pub(crate) struct OpenForm {
    pub(crate) frame: String,
    pub(crate) deadline_ms: u64,
}

/// The part of a `control_response` that matters here.
#[derive(Deserialize)]
struct Response {
    response: Inner,
}

#[derive(Deserialize)]
struct Inner {
    subtype: String,
    request_id: String,
    #[serde(default)]
    response: Option<Value>,
}

/// The request that a `control_response` is for, if it can be read.
pub(crate) fn answers(frame: &str) -> Option<String> {
    serde_json::from_str::<Response>(frame).ok().map(|frame| frame.response.request_id)
}

impl Asks {
    /// Opens an ask. What comes out is the answer, or `None` if it was denied or could not be read.
    pub(crate) fn open(&self, request_id: &str, frame: &str, form: bool, deadline_ms: u64) -> oneshot::Receiver<Option<Value>> {
        let (answer, receiver) = oneshot::channel();
        let ask = Ask { request_id: request_id.to_owned(), frame: frame.to_owned(), form, deadline_ms, answer };
        locked(&self.open).push(ask);
        receiver
    }

    /// Takes a client's `control_response`. A reply that cannot be read, or says error, counts as a denial (§5.2).
    pub(crate) fn answer(&self, frame: &str) -> bool {
        let Ok(Response { response: inner }) = serde_json::from_str(frame) else { return false };
        let Some(ask) = self.take(&inner.request_id) else { return false };
        let value = if inner.subtype == "success" { inner.response } else { None };
        ask.answer.send(value).is_ok()
    }

    /// Takes a client's `control_response`, and counts that it settled something if it did.
    pub(crate) fn settle(&self, frame: &str, counters: &Counters) {
        if self.answer(frame)
            && let Some(id) = answers(frame)
        {
            counters.response(&id, |responses| responses.taken += 1);
        }
    }

    /// Closes an ask that nobody answered in time.
    pub(crate) fn close(&self, request_id: &str) {
        self.take(request_id);
    }

    /// Denies whatever is open.
    pub(crate) fn deny_all(&self) {
        for ask in locked(&self.open).drain(..) {
            // The run may have stopped waiting already; then there is nobody to tell.
            let _ = ask.answer.send(None);
        }
    }

    pub(crate) fn forms(&self) -> Vec<OpenForm> {
        locked(&self.open)
            .iter()
            .filter(|ask| ask.form)
            .map(|ask| OpenForm { frame: ask.frame.clone(), deadline_ms: ask.deadline_ms })
            .collect()
    }

    fn take(&self, request_id: &str) -> Option<Ask> {
        let mut open = locked(&self.open);
        let at = open.iter().position(|ask| ask.request_id == request_id)?;
        Some(open.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(id: &str, subtype: &str) -> String {
        format!(
            r#"{{"type":"control_response","response":{{"subtype":"{subtype}","request_id":"{id}","response":{{"behavior":"allow"}}}}}}"#
        )
    }

    #[test]
    fn the_first_answer_wins() {
        let asks = Asks::default();
        let mut answer = asks.open("r1", "{}", false, 0);
        assert!(!asks.answer(&reply("r2", "success")));
        assert!(asks.answer(&reply("r1", "success")));
        assert!(!asks.answer(&reply("r1", "success")));
        assert_eq!(answer.try_recv().unwrap().unwrap()["behavior"], "allow");
    }

    #[test]
    fn errors_and_nonsense_deny_or_do_nothing() {
        let asks = Asks::default();
        let mut answer = asks.open("r1", "{}", true, 9);
        for nonsense in ["null", "{}", r#"{"response":{}}"#, "["] {
            assert!(!asks.answer(nonsense));
        }
        assert_eq!(asks.forms().len(), 1);
        assert!(asks.answer(&reply("r1", "error")));
        assert_eq!(answer.try_recv().unwrap(), None);
        assert!(asks.forms().is_empty());
    }
}
