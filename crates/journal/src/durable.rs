//! A journal with a file: what a program opens, and what it finds in it.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::disk::{Disk, FileDisk};
use crate::index::RunRow;
use crate::log::{DiskLog, Handle};
use crate::store::{Found, RedbStore};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock, thread};
use crate::writer::{self, Shared};
use crate::{Birth, Durability, Health, Journal, JournalConfig, JournalError, Log, LogKey, Memory, Stored, StoredRun};

/// Logs in a file, besides those in memory.
pub struct Durable {
    shared: Arc<Shared>,
    memory: Memory,
    logs: Mutex<HashMap<LogKey, Arc<DiskLog>>>,
    next_session: AtomicU64,
    opened: Opened,
    writer: Option<thread::JoinHandle<()>>,
}

/// What a journal found when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opened {
    /// The file was damaged, and lies here now: what it held is gone from this journal.
    pub set_aside: Option<PathBuf>,
    /// The last process did not close the file; it was put in order.
    pub repaired: bool,
    /// Sessions in it.
    pub sessions: usize,
    /// Rows of the index that could not be read. What they stood for is not shown, and stays in the file.
    pub unreadable_rows: usize,
}

impl Durable {
    /// Opens the journal that the config names.
    ///
    /// # Errors
    /// [`JournalError`], if the file belongs to somebody else, or there can be none. A damaged file is no error: it is set aside, which
    /// [`Self::opened`] and the log tell.
    pub fn start(config: &JournalConfig) -> Result<Self, JournalError> {
        Self::on(Box::new(FileDisk::new(PathBuf::from(&config.path))), config)
    }

    pub(crate) fn on(disk: Box<dyn Disk>, config: &JournalConfig) -> Result<Self, JournalError> {
        let path = disk.path().to_owned();
        let (store, loaded, Found { set_aside, repaired }) = RedbStore::open(disk)?;
        let opened = Opened { set_aside, repaired, sessions: loaded.sessions.len(), unreadable_rows: loaded.unreadable };
        if opened.unreadable_rows > 0 {
            tracing::error!(
                "{} rows of the index of the journal {} cannot be read and are left out",
                opened.unreadable_rows,
                path.display()
            );
        }
        let shared = Shared::new(Box::new(store), config.flush_ms, config.max_unwritten_bytes, loaded.bytes);
        let logs = loaded.sessions.into_iter().map(|session| {
            let log = DiskLog::loaded(session, shared.clone());
            (log.key().clone(), log)
        });
        let logs = Mutex::new(logs.collect());
        let writing = shared.clone();
        let writer = thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer::run(&writing))
            .map_err(|cause| JournalError::Unopened { path, cause })?;
        let next_session = AtomicU64::new(loaded.next_session);
        Ok(Self { shared, memory: Memory::default(), logs, next_session, opened, writer: Some(writer) })
    }

    /// What was found when it was opened.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// About how much memory is taken by what is not on the disk yet.
    #[must_use]
    pub fn unwritten_bytes(&self) -> u64 {
        self.shared.unwritten_bytes()
    }
}

impl Journal for Durable {
    fn open(&self, key: &LogKey, birth: &Birth, durability: Durability) -> Arc<dyn Log> {
        let mut logs = lock(&self.logs);
        if let Some(log) = logs.get(key) {
            log.declare(durability);
            return Arc::new(Handle(log.clone()));
        }
        if durability == Durability::Memory {
            return self.memory.open(key, birth, durability);
        }
        if let Some(log) = self.memory.get(key) {
            return log;
        }
        let number = self.next_session.fetch_add(1, Ordering::Relaxed);
        let log = DiskLog::new(key.clone(), number, birth.clone(), durability, self.shared.clone());
        logs.insert(key.clone(), log.clone());
        Arc::new(Handle(log))
    }

    fn remove(&self, key: &LogKey) {
        let log = lock(&self.logs).remove(key);
        match log {
            Some(log) => log.remove(),
            None => self.memory.remove(key),
        }
    }

    fn stored(&self) -> Result<Vec<Stored>, JournalError> {
        let logs: Vec<Arc<DiskLog>> = lock(&self.logs).values().cloned().collect();
        logs.into_iter().map(|log| self.stored_log(log)).collect()
    }

    fn health(&self) -> Health {
        self.shared.health()
    }

    fn stored_bytes(&self) -> u64 {
        self.shared.stored_bytes()
    }

    fn flush(&self) -> Result<(), JournalError> {
        self.shared.flush()
    }
}

impl Durable {
    fn stored_log(&self, log: Arc<DiskLog>) -> Result<Stored, JournalError> {
        let store = self.shared.store();
        let unread = |why: &str| JournalError::Unread { path: store.path().to_owned(), why: why.to_owned() };
        let last = log.last_run();
        let mut runs = Vec::new();
        for (first, row) in store.runs(log.number()).map_err(|fault| unread(fault.text()))? {
            // One that cannot be read was counted at the start.
            let Ok(RunRow { run, tag, began_at, ended_at, bytes }) = RunRow::read(&row) else { continue };
            let bytes = last.filter(|(last, id, _)| *last == first && *id == run).map_or(bytes, |(_, _, bytes)| bytes);
            runs.push(StoredRun { run, tag, began_at, ended_at, bytes, first: usize::try_from(first).unwrap_or(usize::MAX) });
        }
        let handle = Handle(log.clone());
        Ok(Stored { key: log.key().clone(), birth: log.birth(), durability: handle.durability(), runs, log: Arc::new(handle) })
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}
