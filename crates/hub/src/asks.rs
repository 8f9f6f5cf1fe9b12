//! The asks of a session: which wait, until when, who settled the others, and of which answers nothing shows that the agent took them.
//!
//! No clock and no I/O: times come in, and what is to be done goes out.

use std::collections::HashSet;
use std::sync::Arc;

use interline_model::{Actor, Answer, Ask, AskId, AskKind, AskOutcome, Millis, RunId, Text};

use crate::policy::Decided;
use crate::session::AnswerError;

/// All asks of one session.
#[derive(Default)]
pub(crate) struct Asks {
    entries: Vec<Entry>,
    /// Answers that no frame has followed yet.
    unsure: Vec<Unsure>,
    /// Asks that a policy decided: they were never raised. By run, since servers number their requests anew.
    decided: HashSet<(RunId, AskId)>,
    /// The run that was told to stop: what it asked is void, whether the upstream has heard of it yet or not.
    stopping: Option<RunId>,
    verdicts: Vec<AskVerdict>,
    /// What happens was settled, and logged, by another process.
    is_recalling: bool,
}

struct Entry {
    ask: Arc<Ask>,
    run: RunId,
    deadline: Millis,
    settled: Option<(AskOutcome, Option<Actor>)>,
}

struct Unsure {
    ask: AskId,
    since: Millis,
    told: bool,
}

/// A waiting ask as lists show it.
#[derive(Clone, Debug)]
pub struct PendingAsk {
    /// The ask.
    pub ask: Arc<Ask>,
    /// Its run.
    pub run: RunId,
    /// When it is denied.
    pub deadline: Millis,
    /// It was answered, nothing shows that the agent took the answer, and another one is taken.
    pub unconfirmed: bool,
}

/// How an ask was settled: the record that audits read.
#[derive(Clone, Debug, PartialEq)]
pub struct AskVerdict {
    /// When.
    pub at: Millis,
    /// The run.
    pub run: RunId,
    /// Which ask.
    pub ask: AskId,
    /// What it waited for.
    pub kind: AskKind,
    /// The tool, or the server of a form.
    pub tool_name: Text,
    /// How it ended.
    pub outcome: AskOutcome,
    /// Who answered, and on which surface; `None` if nobody did.
    pub by: Option<Actor>,
    /// The rule that decided, if one did.
    pub rule: Option<Text>,
}

/// An answer that was taken.
pub(crate) struct Taken {
    pub(crate) ask: Arc<Ask>,
    pub(crate) run: RunId,
    pub(crate) outcome: AskOutcome,
}

impl Asks {
    /// None yet; what happens from now on is read from the log, until [`Asks::recalled`].
    pub(crate) fn recalling() -> Self {
        Self { is_recalling: true, ..Self::default() }
    }

    /// What happens from now on happens here.
    pub(crate) fn recalled(&mut self) {
        self.is_recalling = false;
    }

    pub(crate) fn raise(&mut self, ask: Ask, run: RunId, deadline: Millis) {
        self.entries.push(Entry { ask: Arc::new(ask), run, deadline, settled: None });
    }

    /// Whether the run asked this before.
    pub(crate) fn knows(&self, id: &AskId, run: RunId) -> bool {
        self.decided.contains(&(run, id.clone())) || self.entries.iter().rev().any(|entry| entry.run == run && entry.ask.id == *id)
    }

    /// The run was told to stop.
    pub(crate) fn stopping(&mut self, run: RunId) {
        self.stopping = Some(run);
        self.unsure.clear();
    }

    pub(crate) fn get(&self, id: &AskId) -> Option<Arc<Ask>> {
        self.entry(id).map(|entry| entry.ask.clone())
    }

    pub(crate) fn run_of(&self, id: &AskId) -> Option<RunId> {
        self.entry(id).map(|entry| entry.run)
    }

    /// The newest of that id.
    fn entry(&self, id: &AskId) -> Option<&Entry> {
        self.entries.iter().rfind(|entry| entry.ask.id == *id)
    }

    pub(crate) fn is_any_open(&self) -> bool {
        self.entries.iter().any(|entry| entry.settled.is_none() && self.stopping != Some(entry.run))
    }

    /// Those that take an answer, oldest first.
    pub(crate) fn pending(&self) -> Vec<PendingAsk> {
        let pending = |entry: &Entry| {
            let unconfirmed = entry.settled.is_some() && self.is_unconfirmed(&entry.ask.id);
            let waits = entry.settled.is_none() && self.stopping != Some(entry.run);
            (waits || unconfirmed).then(|| PendingAsk { ask: entry.ask.clone(), run: entry.run, deadline: entry.deadline, unconfirmed })
        };
        self.entries.iter().filter_map(pending).collect()
    }

    fn is_unconfirmed(&self, id: &AskId) -> bool {
        self.unsure.iter().any(|unsure| unsure.told && unsure.ask == *id)
    }

    pub(crate) fn verdicts(&self) -> &[AskVerdict] {
        &self.verdicts
    }

    /// A policy decided about an ask before it was raised.
    pub(crate) fn decide(&mut self, ask: &Ask, run: RunId, decided: &Decided, at: Millis) {
        self.decided.insert((run, ask.id.clone()));
        let outcome = if decided.allowed { AskOutcome::Allowed } else { AskOutcome::Denied };
        self.judge(at, run, ask, outcome, None, Some(decided.rule.clone()));
    }

    /// Takes an answer, if the ask waits for one: the first wins. Another one is taken while nothing shows that the agent took the first, and for a
    /// form that expired as long as its run goes on: agents keep late answers to forms.
    pub(crate) fn answer(
        &mut self,
        id: &AskId,
        answer: &Answer,
        by: &Actor,
        now: Millis,
        active: Option<RunId>,
    ) -> Result<Taken, AnswerError> {
        let again = self.is_unconfirmed(id);
        let entry = self.entries.iter_mut().rfind(|entry| entry.ask.id == *id).ok_or(AnswerError::NotFound)?;
        if let Some((outcome, by)) = &entry.settled {
            let late_form = *outcome == AskOutcome::Expired && matches!(entry.ask.kind, AskKind::Form | AskKind::Link);
            if active != Some(entry.run) || !(again || late_form) {
                return Err(AnswerError::Settled { outcome: *outcome, by: by.clone() });
            }
        }
        if self.stopping == Some(entry.run) {
            return Err(AnswerError::Settled { outcome: AskOutcome::Void, by: None });
        }
        let outcome = answer.outcome();
        entry.settled = Some((outcome, Some(by.clone())));
        let taken = Taken { ask: entry.ask.clone(), run: entry.run, outcome };
        self.unsure.retain(|unsure| unsure.ask != *id);
        self.unsure.push(Unsure { ask: id.clone(), since: now, told: false });
        self.judge(now, taken.run, &taken.ask, outcome, Some(by.clone()), None);
        Ok(taken)
    }

    /// An ask is over that nobody answered here.
    pub(crate) fn settle(&mut self, id: &AskId, outcome: AskOutcome, now: Millis) {
        let Some(entry) = self.entries.iter_mut().rfind(|entry| entry.ask.id == *id && entry.settled.is_none()) else { return };
        entry.settled = Some((outcome, None));
        let (ask, run) = (entry.ask.clone(), entry.run);
        self.judge(now, run, &ask, outcome, None, None);
    }

    /// The run is over, and what it asked with it.
    pub(crate) fn run_ended(&mut self, now: Millis) {
        self.unsure.clear();
        let open: Vec<AskId> = self.entries.iter().filter(|entry| entry.settled.is_none()).map(|entry| entry.ask.id.clone()).collect();
        for id in open {
            self.settle(&id, AskOutcome::Void, now);
        }
    }

    /// The agent spoke: whatever it was told, it is alive to it.
    pub(crate) fn frame_came(&mut self) {
        self.unsure.clear();
    }

    /// The asks of `run` whose time is over. Forms wait while their session is paused: nobody could hand their answers on.
    pub(crate) fn expired(&mut self, run: RunId, now: Millis, paused: bool) -> Vec<Arc<Ask>> {
        if self.stopping == Some(run) {
            return Vec::new();
        }
        let due = |entry: &&mut Entry| entry.run == run && entry.waits_until(paused).is_some_and(|deadline| deadline <= now);
        let asks: Vec<Arc<Ask>> = self.entries.iter_mut().filter(due).map(|entry| entry.ask.clone()).collect();
        for ask in &asks {
            self.settle(&ask.id, AskOutcome::Expired, now);
        }
        asks
    }

    /// The answers of which it should be said, once, that nothing shows them to have been taken for `limit` milliseconds.
    pub(crate) fn unconfirmed(&mut self, now: Millis, limit: u64) -> Vec<AskId> {
        let due = self.unsure.iter_mut().filter(|unsure| !unsure.told && unsure.since.saturating_add(limit) <= now);
        due.map(|unsure| {
            unsure.told = true;
            unsure.ask.clone()
        })
        .collect()
    }

    /// It was said that nothing shows this answer to have been taken.
    pub(crate) fn told_unconfirmed(&mut self, id: &AskId) {
        self.unsure.iter_mut().filter(|unsure| unsure.ask == *id).for_each(|unsure| unsure.told = true);
    }

    /// The run is no longer kept.
    pub(crate) fn forget(&mut self, run: RunId) {
        self.entries.retain(|entry| entry.run != run);
        self.decided.retain(|(of, _)| *of != run);
        self.verdicts.retain(|verdict| verdict.run != run);
    }

    /// When something of this is due next.
    pub(crate) fn next_deadline(&self, paused: bool, confirm: u64) -> Option<Millis> {
        let waiting = self.entries.iter().filter(|entry| self.stopping != Some(entry.run));
        let open = waiting.filter_map(|entry| entry.waits_until(paused)).min();
        let unsure = self.unsure.iter().filter(|unsure| !unsure.told).map(|unsure| unsure.since.saturating_add(confirm)).min();
        [open, unsure].into_iter().flatten().min()
    }

    fn judge(&mut self, at: Millis, run: RunId, ask: &Ask, outcome: AskOutcome, by: Option<Actor>, rule: Option<Text>) {
        if !self.is_recalling {
            log_verdict(run, ask, outcome, by.as_ref(), rule.as_ref());
        }
        let (kind, tool_name) = (ask.kind, ask.tool_name.clone());
        self.verdicts.push(AskVerdict { at, run, ask: ask.id.clone(), kind, tool_name, outcome, by, rule });
    }
}

fn log_verdict(run: RunId, ask: &Ask, outcome: AskOutcome, by: Option<&Actor>, rule: Option<&Text>) {
    tracing::info!(
        target: "interline::audit",
        %run, ask = %ask.id, tool = %ask.tool_name, outcome = outcome.as_str(),
        principal = by.map(|by| tracing::field::display(&by.principal)),
        surface = by.map(|by| tracing::field::display(&by.surface)),
        rule = rule.map(tracing::field::display),
        "an ask was settled"
    );
}

impl Entry {
    fn waits_until(&self, paused: bool) -> Option<Millis> {
        let suspended = paused && matches!(self.ask.kind, AskKind::Form | AskKind::Link);
        (self.settled.is_none() && !suspended).then_some(self.deadline)
    }
}

#[cfg(test)]
mod tests {
    use interline_model::{FormAction, Json, Principal};

    use super::*;

    const RUN: RunId = RunId::from_u128(1);

    fn ask(id: &str, kind: AskKind) -> Ask {
        Ask {
            id: AskId::from(id),
            kind,
            call: None,
            tool_name: Text::from_static("Bash"),
            message: None,
            input: Json::empty_object(),
            questions: Vec::new(),
            suggestions: None,
        }
    }

    fn by(surface: &'static str) -> Actor {
        Actor { principal: Principal::from("p"), surface: Text::from_static(surface) }
    }

    fn asks(kind: AskKind) -> Asks {
        let mut asks = Asks::default();
        asks.raise(ask("q", kind), RUN, 100);
        asks
    }

    const YES: Answer = Answer::Allow { input: None, always: false };

    fn outcome(result: Result<Taken, AnswerError>) -> Result<AskOutcome, AnswerError> {
        result.map(|taken| taken.outcome)
    }

    #[test]
    fn the_first_answer_wins_and_the_others_hear_who_gave_it() {
        let (mut asks, id) = (asks(AskKind::Permission), AskId::from("q"));
        assert_eq!(outcome(asks.answer(&id, &YES, &by("sse"), 1, Some(RUN))), Ok(AskOutcome::Allowed));
        let lost = outcome(asks.answer(&id, &YES, &by("socketio"), 2, Some(RUN)));
        assert_eq!(lost, Err(AnswerError::Settled { outcome: AskOutcome::Allowed, by: Some(by("sse")) }));
        assert!(asks.pending().is_empty());
        assert_eq!(outcome(asks.answer(&AskId::from("x"), &YES, &by("sse"), 3, Some(RUN))), Err(AnswerError::NotFound));
        assert_eq!(asks.verdicts().len(), 1);
    }

    #[test]
    fn an_answer_that_nothing_follows_can_be_given_again() {
        let (mut asks, id) = (asks(AskKind::Permission), AskId::from("q"));
        asks.answer(&id, &YES, &by("sse"), 10, Some(RUN)).ok().unwrap();
        assert_eq!(asks.next_deadline(false, 35), Some(45));
        assert!(asks.unconfirmed(44, 35).is_empty());
        assert_eq!(asks.unconfirmed(45, 35), std::slice::from_ref(&id));
        assert!(asks.unconfirmed(99, 35).is_empty(), "once");
        assert!(asks.pending()[0].unconfirmed);
        assert_eq!(outcome(asks.answer(&id, &YES, &by("socketio"), 50, Some(RUN))), Ok(AskOutcome::Allowed));
        assert!(asks.pending().is_empty());
        asks.unconfirmed(100, 35);
        asks.frame_came();
        assert!(outcome(asks.answer(&id, &YES, &by("sse"), 101, Some(RUN))).is_err(), "the agent spoke");
        assert_eq!(asks.next_deadline(false, 35), None);
    }

    #[test]
    fn what_a_stopped_run_asked_takes_no_answer_any_more() {
        let (mut asks, id) = (asks(AskKind::Permission), AskId::from("q"));
        asks.stopping(RUN);
        assert!(asks.pending().is_empty() && !asks.is_any_open());
        let refused = outcome(asks.answer(&id, &YES, &by("sse"), 1, Some(RUN)));
        assert_eq!(refused, Err(AnswerError::Settled { outcome: AskOutcome::Void, by: None }));
        // The same id in the next run is another ask.
        let next = RunId::from_u128(2);
        assert!(asks.knows(&id, RUN) && !asks.knows(&id, next));
        asks.raise(ask("q", AskKind::Permission), next, 200);
        assert_eq!(outcome(asks.answer(&id, &YES, &by("sse"), 1, Some(next))), Ok(AskOutcome::Allowed));
    }

    #[test]
    fn what_expired_is_denied_for_good_and_forms_are_answered_late() {
        let id = AskId::from("q");
        let mut permission = asks(AskKind::Permission);
        assert_eq!(permission.expired(RUN, 100, true).len(), 1);
        let late = outcome(permission.answer(&id, &YES, &by("sse"), 101, Some(RUN)));
        assert_eq!(late, Err(AnswerError::Settled { outcome: AskOutcome::Expired, by: None }));

        let accept = Answer::Form { action: FormAction::Accept, content: None };
        let mut form = asks(AskKind::Form);
        assert!(form.expired(RUN, 100, true).is_empty(), "paused");
        assert_eq!(form.expired(RUN, 100, false).len(), 1);
        assert_eq!(outcome(form.answer(&id, &accept, &by("sse"), 101, Some(RUN))), Ok(AskOutcome::Answered));

        let mut over = asks(AskKind::Form);
        over.run_ended(50);
        assert!(outcome(over.answer(&id, &accept, &by("sse"), 101, None)).is_err());
    }
}
