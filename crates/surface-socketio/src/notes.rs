//! What this surface keeps beside a session, as long as the session is kept: the mode and the variables that its runs begin with, the files that
//! were uploaded in it, and the marks that frontends set. No agent knows of these, so no log does.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use interline_hub::{Environment, Session};
use interline_model::Text;

use crate::projection::Mode;

/// The most bytes of files that are kept of all sessions together.
const MOST_BYTES: usize = 256 << 20;

/// The notes of all sessions.
#[derive(Default)]
pub(crate) struct Notes {
    sessions: Mutex<HashMap<String, Noted>>,
    bytes: Arc<AtomicUsize>,
}

/// Room for a file, given back when nobody holds it any more.
pub(crate) struct Room {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A session that has notes, and these.
struct Noted {
    session: Weak<Session>,
    note: Arc<Mutex<Note>>,
}

/// The notes of one session.
#[derive(Default)]
pub(crate) struct Note {
    /// The mode that was asked for, and the one the session showed then: once it shows another one, that is newer.
    pub(crate) mode: Option<(Mode, Mode)>,
    /// Variables for every run.
    pub(crate) environment: Environment,
    /// Files by their path.
    pub(crate) files: BTreeMap<String, File>,
    pub(crate) pinned: bool,
}

/// An uploaded file.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) mime: Text,
    pub(crate) data: Bytes,
    pub(crate) created_at: u64,
    pub(crate) _room: Arc<Room>,
}

impl Note {
    /// The mode that the session has, given the one it shows.
    pub(crate) fn mode(&self, shown: Mode) -> Mode {
        match self.mode {
            Some((asked, before)) if before == shown => asked,
            _ => shown,
        }
    }

    /// The permission mode that a run must be told of which is to begin in this mode, or in the session's. Planning is told every time, since on
    /// some agent servers each run is a session of its own; that it is over is told once.
    pub(crate) fn begin_in(&mut self, wanted: Option<Mode>, shown: Mode) -> Option<Text> {
        let before = self.mode(shown);
        let now = wanted.unwrap_or(before);
        self.mode = Some((now, shown));
        match now {
            Mode::Planning => Some(Text::from_static("plan")),
            Mode::Executing => (before == Mode::Planning).then(|| Text::from_static("default")),
        }
    }

    /// All bytes of its files.
    pub(crate) fn file_bytes(&self) -> usize {
        self.files.values().map(|file| file.data.len()).sum()
    }
}

impl Notes {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Noted>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for so many bytes, if there is.
    pub(crate) fn room(&self, bytes: usize) -> Option<Arc<Room>> {
        let take = |all: usize| all.checked_add(bytes).filter(|all| *all <= MOST_BYTES);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Arc::new(Room { all: self.bytes.clone(), bytes }))
    }

    /// A session's notes. Those of sessions that are gone make room.
    pub(crate) fn of(&self, session: &Arc<Session>) -> Arc<Mutex<Note>> {
        // Ids are unique per owner only, since clients may bring their own.
        let key = format!("{}/{}", session.principal().as_str(), session.id());
        let mut all = self.all();
        if let Some(known) = all.get(&key)
            && known.session.upgrade().is_some_and(|known| Arc::ptr_eq(&known, session))
        {
            return known.note.clone();
        }
        if all.len().is_power_of_two() {
            all.retain(|_, known| known.session.strong_count() > 0);
        }
        let note = Arc::default();
        all.insert(key, Noted { session: Arc::downgrade(session), note: Arc::clone(&note) });
        note
    }

    /// Looks at a session's notes, or changes them.
    pub(crate) fn with<R>(&self, session: &Arc<Session>, work: impl FnOnce(&mut Note) -> R) -> R {
        work(&mut self.of(session).lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_given_back() {
        let notes = Notes::default();
        let most = notes.room(MOST_BYTES).unwrap();
        assert!(notes.room(1).is_none());
        drop(most);
        assert!(notes.room(1).is_some());
    }

    #[test]
    fn a_mode_is_told_when_it_has_to_be() {
        use Mode::{Executing, Planning};
        let mut note = Note::default();
        let mut begin = |wanted, shown| note.begin_in(wanted, shown).map(|mode| mode.to_string());
        assert_eq!(begin(None, Executing), None);
        assert_eq!(begin(Some(Executing), Executing), None, "it had that one");
        assert_eq!(begin(Some(Planning), Executing).as_deref(), Some("plan"));
        assert_eq!(begin(None, Planning).as_deref(), Some("plan"), "kept, and the agent's session may be new");
        assert_eq!(begin(Some(Executing), Planning).as_deref(), Some("default"));
        assert_eq!(begin(Some(Executing), Planning), None, "once");
        // The agent itself went over to acting.
        assert_eq!(begin(Some(Planning), Executing).as_deref(), Some("plan"));
        assert_eq!(begin(None, Planning).as_deref(), Some("plan"));
        assert_eq!(begin(None, Executing), None);
    }
}
