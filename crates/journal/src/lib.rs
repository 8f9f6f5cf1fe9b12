//! The log: the ordered records of every session, and the only truth about it.
//!
//! Everything that a client sees is made from here by pure code. The log is a trait, so that where the records live is one
//! decision in one place; [`Memory`] keeps them as long as the process lives.

#![warn(missing_docs)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use interline_model::{Principal, Record, SessionId};

/// Whose session: ids that clients bring are only unique within a principal (decision 1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogKey {
    /// The owner.
    pub principal: Principal,
    /// The session.
    pub session: SessionId,
}

/// Where logs live.
pub trait Journal: Send + Sync {
    /// The log of a session; a new one is empty.
    fn open(&self, key: &LogKey) -> Arc<dyn Log>;

    /// Forgets a session and all its records.
    fn remove(&self, key: &LogKey);
}

/// The records of one session. Appending is for the session's owner alone; reading is for everybody.
pub trait Log: Send + Sync {
    /// Appends a record.
    fn append(&self, record: Record);

    /// How many records there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hands out the records from number `from` (0-based) on, in order.
    fn replay(&self, from: usize, visit: &mut dyn FnMut(&Record));
}

/// Logs in memory. Nothing survives the process.
#[derive(Default)]
pub struct Memory {
    logs: Mutex<HashMap<LogKey, Arc<MemoryLog>>>,
}

impl Journal for Memory {
    fn open(&self, key: &LogKey) -> Arc<dyn Log> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.entry(key.clone()).or_default().clone()
    }

    fn remove(&self, key: &LogKey) {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[derive(Default)]
struct MemoryLog {
    records: Mutex<Vec<Record>>,
}

impl Log for MemoryLog {
    fn append(&self, record: Record) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }

    fn len(&self) -> usize {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn replay(&self, from: usize, visit: &mut dyn FnMut(&Record)) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).iter().skip(from).for_each(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use interline_model::{Body, Text};

    #[test]
    fn what_was_appended_is_replayed_in_order_to_whoever_opens_the_log() {
        let journal = Memory::default();
        let key = LogKey { principal: Principal::from("p"), session: SessionId::from("s") };
        for n in 0..3 {
            journal.open(&key).append(Record { at: n, body: Body::Frame(Text::from(n.to_string())) });
        }
        let mut seen = Vec::new();
        journal.open(&key).replay(1, &mut |record| seen.push(record.at));
        assert_eq!(seen, [1, 2]);
        journal.remove(&key);
        assert!(journal.open(&key).is_empty());
    }
}
