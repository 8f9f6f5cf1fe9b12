//! Tickets: what stands in the address of a stream in place of a token, since browsers' `EventSource` can send no header.
//!
//! A ticket is got with a token, and lives for seconds. It opens the stream of one run: the one it was got for, else the first one that it is used
//! for. `EventSource` reconnects to the very same address, so a ticket that has opened a stream opens that run's stream again, as long as
//! the run goes on and for one lifetime after its end, and as long as the token it was got with is still good. Whoever finds it in a log
//! some time later has nothing. What is kept of one is its hash.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use interline_model::{CellName, Millis, Principal, RunId};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::access::{Access, Denied};

/// What every ticket begins with, so that it is never taken for a token.
const MARK: &str = "itk_";

type Hash = [u8; 32];

/// The tickets that were given out.
pub(crate) struct Tickets {
    lifetime_ms: u64,
    /// For one principal.
    max: usize,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    tickets: HashMap<Hash, Ticket>,
    /// Every principal's, oldest first.
    owners: HashMap<Principal, VecDeque<Hash>>,
    /// When all were last looked at.
    swept_at: Millis,
}

#[derive(Clone)]
struct Ticket {
    access: Access,
    cell: CellName,
    run: Option<RunId>,
    given_at: Millis,
    used: bool,
}

/// What is known of the run that a ticket is to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// There is none of the client's.
    None,
    /// It goes on, or waits for its turn.
    Going,
    /// It is over since then.
    Ended(Millis),
}

impl Tickets {
    pub(crate) fn new(lifetime_ms: u64, max: usize) -> Self {
        Self { lifetime_ms, max: max.max(1), given: Mutex::default() }
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out a ticket, with the milliseconds in which it is to be used first. `life` tells of the runs of those that were used.
    pub(crate) fn issue(
        &self,
        access: Access,
        cell: CellName,
        run: Option<RunId>,
        now: Millis,
        life: impl Fn(&Access, RunId) -> Life,
    ) -> (String, u64) {
        self.sweep(now, life);
        let ticket = format!("{MARK}{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let hash = hash(&ticket);
        let mut given = self.given();
        let Given { tickets, owners, .. } = &mut *given;
        // One principal pushes out its own alone.
        let own = owners.entry(access.principal().clone()).or_default();
        while own.len() >= self.max {
            own.pop_front().map(|oldest| tickets.remove(&oldest));
        }
        own.push_back(hash);
        tickets.insert(hash, Ticket { access, cell, run, given_at: now, used: false });
        (ticket, self.lifetime_ms)
    }

    /// Forgets, once in a lifetime, every ticket that opens nothing any more.
    fn sweep(&self, now: Millis, life: impl Fn(&Access, RunId) -> Life) {
        let all: Vec<(Hash, Ticket)> = {
            let mut given = self.given();
            if now.saturating_sub(given.swept_at) < self.lifetime_ms {
                return;
            }
            given.swept_at = now;
            given.tickets.iter().map(|(hash, ticket)| (*hash, ticket.clone())).collect()
        };
        // Not while the tickets are locked: it asks the hub.
        let is_over = |ticket: &Ticket| {
            let life = ticket.run.filter(|_| ticket.used).map_or(Life::None, |run| life(&ticket.access, run));
            ticket.is_over(life, self.lifetime_ms, now)
        };
        let over: Vec<Hash> = all.iter().filter(|(_, ticket)| is_over(ticket)).map(|(hash, _)| *hash).collect();
        let mut given = self.given();
        let Given { tickets, owners, .. } = &mut *given;
        for hash in over {
            tickets.remove(&hash);
        }
        owners.retain(|_, own| {
            own.retain(|hash| tickets.contains_key(hash));
            !own.is_empty()
        });
    }

    /// Lets whoever brings a ticket to the stream of a run, of which `life` tells.
    ///
    /// # Errors
    /// [`Denied::Invalid`] for one that was never given out or is for something else, [`Denied::Expired`] when its time is over.
    pub(crate) fn open(
        &self,
        ticket: &str,
        cell: &CellName,
        run: RunId,
        now: Millis,
        life: impl FnOnce(&Access) -> Life,
    ) -> Result<Access, Denied> {
        let hash = hash(ticket);
        let found = self.given().tickets.get(&hash).cloned().ok_or(Denied::Invalid)?;
        if found.cell != *cell || found.run.is_some_and(|bound| bound != run) {
            return Err(Denied::Invalid);
        }
        // Not while the tickets are locked: it asks the hub.
        let life = life(&found.access);
        if found.is_over(life, self.lifetime_ms, now) {
            return Err(Denied::Expired);
        }
        if life != Life::None
            && let Some(ticket) = self.given().tickets.get_mut(&hash)
        {
            // Two that come at the same time for two runs: the first one has it.
            if ticket.run.is_some_and(|bound| bound != run) {
                return Err(Denied::Invalid);
            }
            ticket.run = Some(run);
            ticket.used = true;
        }
        Ok(found.access)
    }
}

impl Ticket {
    fn is_over(&self, life: Life, lifetime_ms: u64, now: Millis) -> bool {
        let since = match life {
            Life::Going if self.used => return false,
            Life::Ended(at) if self.used => at.max(self.given_at),
            _ => self.given_at,
        };
        since.saturating_add(lifetime_ms) <= now
    }
}

fn hash(ticket: &str) -> Hash {
    Sha256::digest(ticket.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gate;

    const ONE: RunId = RunId::from_u128(1);
    const TWO: RunId = RunId::from_u128(2);

    const NONE: fn(&Access, RunId) -> Life = |_, _| Life::None;

    fn access(bearer: &str) -> Access {
        Gate::Passthrough.admit(Some(bearer), 0).unwrap()
    }

    fn open(tickets: &Tickets, ticket: &str, run: RunId, now: Millis, life: Life) -> Result<(), Denied> {
        tickets.open(ticket, &CellName::from("c"), run, now, |_| life).map(drop)
    }

    #[test]
    fn a_ticket_that_nobody_uses_is_gone_soon() {
        let tickets = Tickets::new(1_000, 8);
        let (ticket, lifetime) = tickets.issue(access("a"), "c".into(), None, 10, NONE);
        assert_eq!(lifetime, 1_000);
        assert_eq!(open(&tickets, &ticket, ONE, 1_010, Life::Going), Err(Denied::Expired));
        assert_eq!(open(&tickets, "itk_x", ONE, 10, Life::Going), Err(Denied::Invalid));
        // The next one sweeps it away, whoever gets it.
        tickets.issue(access("b"), "c".into(), None, 2_000, NONE);
        let given = tickets.given();
        assert_eq!((given.tickets.len(), given.owners.len()), (1, 1));
    }

    #[test]
    fn it_opens_one_run_and_that_one_again_until_shortly_after_its_end() {
        let tickets = Tickets::new(1_000, 8);
        let (ticket, _) = tickets.issue(access("a"), "c".into(), None, 0, NONE);
        assert_eq!(open(&tickets, &ticket, ONE, 5, Life::None), Ok(()), "the refusal of a run that is not there is the shell's");
        assert_eq!(open(&tickets, &ticket, ONE, 10, Life::Going), Ok(()));
        assert_eq!(open(&tickets, &ticket, TWO, 10, Life::Going), Err(Denied::Invalid));
        assert_eq!(open(&tickets, &ticket, ONE, 900_000, Life::Going), Ok(()));
        assert_eq!(open(&tickets, &ticket, ONE, 900_999, Life::Ended(900_000)), Ok(()));
        assert_eq!(open(&tickets, &ticket, ONE, 901_000, Life::Ended(900_000)), Err(Denied::Expired));
        let other = tickets.open(&ticket, &CellName::from("d"), ONE, 10, |_| Life::Going).map(drop);
        assert_eq!(other, Err(Denied::Invalid));
    }

    #[test]
    fn one_that_was_got_for_a_run_opens_no_other() {
        let tickets = Tickets::new(1_000, 8);
        let (ticket, _) = tickets.issue(access("a"), "c".into(), Some(TWO), 0, NONE);
        assert_eq!(open(&tickets, &ticket, ONE, 1, Life::Going), Err(Denied::Invalid));
        assert_eq!(open(&tickets, &ticket, TWO, 1, Life::Ended(0)), Ok(()));
    }

    #[test]
    fn one_principal_pushes_out_its_own_alone_and_nothing_of_a_ticket_is_kept() {
        let tickets = Tickets::new(1_000, 2);
        let other = tickets.issue(access("b"), "c".into(), None, 0, NONE).0;
        let own: Vec<String> = (0..3).map(|_| tickets.issue(access("a"), "c".into(), None, 0, NONE).0).collect();
        assert_eq!(open(&tickets, &own[0], ONE, 1, Life::Going), Err(Denied::Invalid));
        assert!([&own[1], &own[2], &other].iter().all(|ticket| open(&tickets, ticket, ONE, 1, Life::Going).is_ok()));
        assert!(tickets.given().tickets.keys().all(|kept| own.iter().any(|ticket| hash(ticket) == *kept) || *kept == hash(&other)));
    }
}
