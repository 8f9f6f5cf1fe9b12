//! Logs in memory: nothing survives the process, and nothing is promised.

use std::collections::{HashMap, VecDeque};

use interline_model::Record;

use crate::sync::{Arc, Mutex, lock};
use crate::{Birth, Damaged, Durability, Health, Journal, JournalError, Log, LogKey, Mark, Stored, Unstored};

/// Logs in memory.
#[derive(Default)]
pub struct Memory {
    logs: Mutex<HashMap<LogKey, Arc<MemoryLog>>>,
}

impl Memory {
    pub(crate) fn get(&self, key: &LogKey) -> Option<Arc<dyn Log>> {
        let log = lock(&self.logs).get(key)?.clone();
        Some(log)
    }
}

impl Journal for Memory {
    fn open(&self, key: &LogKey, _birth: &Birth, _durability: Durability) -> Arc<dyn Log> {
        lock(&self.logs).entry(key.clone()).or_default().clone()
    }

    fn remove(&self, key: &LogKey) {
        lock(&self.logs).remove(key);
    }

    fn stored(&self) -> Result<Vec<Stored>, JournalError> {
        Ok(Vec::new())
    }

    fn health(&self) -> Health {
        Health::Well
    }

    fn stored_bytes(&self) -> u64 {
        0
    }

    fn flush(&self) -> Result<(), JournalError> {
        Ok(())
    }
}

#[derive(Default)]
struct MemoryLog {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    first: usize,
    records: VecDeque<Record>,
}

impl Kept {
    fn end(&self) -> usize {
        self.first.saturating_add(self.records.len())
    }
}

/// How many records are copied at a time for a reader: whoever appends waits that long at most.
const AT_A_TIME: usize = 256;

impl Log for MemoryLog {
    fn append(&self, record: Record, _mark: Mark) -> Result<(), Unstored> {
        lock(&self.kept).records.push_back(record);
        Ok(())
    }

    fn len(&self) -> usize {
        lock(&self.kept).end()
    }

    fn first(&self) -> usize {
        lock(&self.kept).first
    }

    fn replay(&self, from: usize, visit: &mut dyn FnMut(&Record)) -> Result<(), Damaged> {
        let end = self.len();
        let mut next = from;
        while next < end {
            let some: Vec<Record> = {
                let kept = lock(&self.kept);
                next = next.max(kept.first);
                let at_most = AT_A_TIME.min(end.saturating_sub(next));
                kept.records.iter().skip(next - kept.first).take(at_most).cloned().collect()
            };
            if some.is_empty() {
                break;
            }
            next = next.saturating_add(some.len());
            some.iter().for_each(&mut *visit);
        }
        Ok(())
    }

    fn forget_before(&self, number: usize) {
        let mut kept = lock(&self.kept);
        let number = number.min(kept.end());
        let gone = number.saturating_sub(kept.first);
        kept.records.drain(..gone);
        kept.records.shrink_to_fit();
        kept.first = kept.first.max(number);
    }

    fn durability(&self) -> Durability {
        Durability::Memory
    }
}
