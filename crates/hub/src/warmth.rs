//! How much of what is on the disk is in memory as well, over all sessions, and whose is let go of first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use interline_model::{Principal, SessionId};

use crate::session::Session;

/// The sessions whose projections are warm, by when they were last used.
pub(crate) struct Warmth {
    /// In bytes of frames, once for each projection.
    budget: u64,
    warm: Mutex<Warm>,
}

type Key = (Principal, SessionId);

#[derive(Default)]
struct Warm {
    total: u64,
    /// Ticks are used once.
    tick: u64,
    sessions: HashMap<Key, Entry>,
    order: BTreeMap<u64, Key>,
}

struct Entry {
    session: Weak<Session>,
    bytes: u64,
    tick: u64,
}

impl Warmth {
    pub(crate) fn new(budget: u64) -> Self {
        Self { budget, warm: Mutex::default() }
    }

    /// `session` was used: it is the last to let go of anything. Those that were used least recently do, until the rest is within the budget.
    /// Sessions in which a run goes on keep what they have.
    pub(crate) fn settle(&self, session: &Arc<Session>) {
        let key = (session.principal().clone(), session.id().clone());
        let bytes = session.warm_bytes();
        let mut warm = self.warm.lock().unwrap_or_else(PoisonError::into_inner);
        warm.remove(&key);
        if bytes > 0 {
            warm.insert(key.clone(), Entry { session: Arc::downgrade(session), bytes, tick: 0 });
        }
        let mut busy = Vec::new();
        while warm.total > self.budget {
            let Some((oldest, entry)) = warm.oldest(&key) else { break };
            if let Some(session) = entry.session.upgrade()
                && !session.cool()
            {
                busy.push((oldest, entry));
            }
        }
        for (key, entry) in busy {
            warm.insert(key, entry);
        }
    }
}

impl Warm {
    fn insert(&mut self, key: Key, mut entry: Entry) {
        self.tick += 1;
        entry.tick = self.tick;
        self.total = self.total.saturating_add(entry.bytes);
        self.order.insert(self.tick, key.clone());
        self.sessions.insert(key, entry);
    }

    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.sessions.remove(key)?;
        self.order.remove(&entry.tick);
        self.total = self.total.saturating_sub(entry.bytes);
        Some(entry)
    }

    /// Takes out the one that was used least recently, `but` this one.
    fn oldest(&mut self, but: &Key) -> Option<(Key, Entry)> {
        let key = self.order.values().find(|key| *key != but)?.clone();
        self.remove(&key).map(|entry| (key, entry))
    }
}
