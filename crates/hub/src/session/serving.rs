//! Who serves a session, and by which ways of its cell. Both come from the routes, and the routes may change while the session lives.
//!
//! Another upstream serves from the next run on: a run that goes on keeps the link it has. Policies and the other ways of the cell hold at once.
//! What was said before is read as it was by the upstream that said it, so that nothing that clients have seen ever changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use interline_model::{CellName, RunId};

use super::Session;
use crate::conduct::Conduct;
use crate::route::Route;
use crate::upstream::{Link, SessionSeed, Upstream};

/// An upstream, and the session's link to it.
struct Served {
    upstream: Arc<dyn Upstream>,
    link: Arc<dyn Link>,
}

/// Who serves, and how.
pub(super) struct Serving {
    served: ArcSwap<Served>,
    conduct: ArcSwap<Conduct>,
    /// The runs that another upstream served than the one that serves now.
    before: Mutex<HashMap<RunId, Arc<dyn Upstream>>>,
}

impl Serving {
    pub(super) fn new(upstream: Arc<dyn Upstream>, link: Arc<dyn Link>, conduct: &Conduct, cell: &CellName) -> Self {
        Self {
            served: ArcSwap::from_pointee(Served { upstream, link }),
            conduct: ArcSwap::from_pointee(conduct.of(cell)),
            before: Mutex::default(),
        }
    }

    fn before(&self) -> MutexGuard<'_, HashMap<RunId, Arc<dyn Upstream>>> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who serves the next run, or the one that goes on.
    pub(super) fn upstream(&self) -> Arc<dyn Upstream> {
        self.served.load().upstream.clone()
    }

    pub(super) fn link(&self) -> Arc<dyn Link> {
        self.served.load().link.clone()
    }

    pub(super) fn conduct(&self) -> Arc<Conduct> {
        self.conduct.load_full()
    }

    /// Who served a run.
    pub(super) fn upstream_of(&self, run: RunId) -> Arc<dyn Upstream> {
        let before = self.before().get(&run).cloned();
        before.unwrap_or_else(|| self.upstream())
    }
}

impl Session {
    /// Its connection to whoever serves it now.
    pub(crate) fn link(&self) -> Arc<dyn Link> {
        self.serving.link()
    }

    /// The ways of its cell have changed.
    pub(crate) fn obey(&self, conduct: &Conduct) {
        self.serving.conduct.store(Arc::new(conduct.of(&self.birth.cell)));
    }

    /// Has the next run served by the upstream of `route`, unless a run goes on. The link that is not used any more.
    pub(crate) fn follow(&self, route: &Route) -> Option<Arc<dyn Link>> {
        let mut state = self.state();
        let served = self.serving.served.load_full();
        if state.active().is_some() || Arc::ptr_eq(&served.upstream, &route.upstream) {
            return None;
        }
        let mut before = self.serving.before();
        for kept in &state.kept {
            before.entry(kept.run).or_insert_with(|| served.upstream.clone());
        }
        drop(before);
        state.told_model = None;
        let seed = SessionSeed { session: self.id.clone(), principal: self.principal.clone(), cell: self.birth.cell.clone() };
        let link = route.upstream.open(&seed);
        self.serving.served.store(Arc::new(Served { upstream: route.upstream.clone(), link }));
        Some(served.link.clone())
    }
}
