//! The mapping: which of a session's records are frames for native clients, and what is added to them.
//!
//! Upstream frames pass as they came, in order (decision 28). Left out are: `keep_alive`, `biumind.session_desynced` and
//! `control_response`, which belong to the connection between Interline and its upstream; repeats (decision 13); messages that are
//! no JSON object, requests that a policy decided, the literal `null` of native-ws.md §8.2 among them, because stock clients stumble over them; and everything after
//! the run's end. Added is a `result` where the upstream gave none. A settled ask needs no frame.

use std::collections::HashSet;

use interline_model::{AskId, Body, Event, Fact, Millis, Record, RunAccepted, RunEnd, RunId, SessionId, Text, Usage, What, Writer};
use interline_native::frame::{Control, Data, Key, Lifecycle};
use interline_native::{Frame, build};

/// One frame for native clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeFrame {
    /// The text of the message: the upstream's own, or ours.
    pub text: Text,
    /// What a shell must know of it.
    pub kind: Kind,
}

/// What a shell must know of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: it is data or lifecycle.
    Data,
    /// The frame that ends the run: exactly one in every run.
    End,
    /// The request that raised an ask.
    Ask(AskId),
    /// Another control frame.
    Control,
}

impl NativeFrame {
    /// Whether the bridge counts it. Its control frames have no number (native-ws.md §4.3).
    #[must_use]
    pub fn is_counted(&self) -> bool {
        matches!(self.kind, Kind::Data | Kind::End)
    }
}

/// Where a run's frames lie among those of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunSpan {
    /// The run.
    pub run: RunId,
    /// The position (0-based) of its first frame.
    pub from: u64,
    /// The position behind its last frame, once it has ended.
    pub to: Option<u64>,
}

/// An ask that nobody has settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingAsk {
    /// The ask.
    pub ask: AskId,
    /// The position of the frame that raised it.
    pub at: u64,
    /// The text of that frame.
    pub text: Text,
}

/// What a session has cost, over all its ended runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Tokens.
    pub usage: Usage,
    /// US dollars.
    pub usd: f64,
}

/// Writes a session as native frames. Frame number n (from 1) of the session is the n-th that comes out.
#[derive(Debug, Default)]
pub struct NativeWriter {
    current: Option<Current>,
    /// How many frames came out.
    written: u64,
    /// The positions of those that the bridge does not count: few, so the others are found by them.
    uncounted: Vec<u64>,
    runs: Vec<RunSpan>,
    pending: Vec<PendingAsk>,
    spent: Spent,
}

/// The run that goes on.
#[derive(Debug)]
struct Current {
    run: RunId,
    session: SessionId,
    since: Millis,
    /// The upstream's own session id, as its frames say.
    upstream_session: Option<Text>,
    seen: HashSet<Key<'static>>,
    /// Asks that a policy decided: their requests are nobody's to answer.
    decided: Vec<AskId>,
}

impl NativeWriter {
    /// A writer for a session that has said nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The session's runs, oldest first.
    #[must_use]
    pub fn runs(&self) -> &[RunSpan] {
        &self.runs
    }

    /// Where a run's frames lie.
    #[must_use]
    pub fn span(&self, run: RunId) -> Option<RunSpan> {
        self.runs.iter().rfind(|span| span.run == run).copied()
    }

    /// The asks that wait, oldest first.
    #[must_use]
    pub fn pending(&self) -> &[PendingAsk] {
        &self.pending
    }

    /// What the session has cost.
    #[must_use]
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// The position behind the frame that the bridge counts as number `counted`; the end if there are not so many.
    #[must_use]
    pub fn behind_counted(&self, counted: u64) -> u64 {
        // As many counted frames come before an uncounted one as its position exceeds its index here.
        let before = |(index, position): (usize, &u64)| position.saturating_sub(index as u64);
        let skipped = self.uncounted.iter().enumerate().take_while(|entry| before(*entry) < counted).count() as u64;
        counted.saturating_add(skipped).min(self.written)
    }

    fn push(&mut self, text: Text, kind: Kind, items: &mut Vec<NativeFrame>) {
        let item = NativeFrame { text, kind };
        if !item.is_counted() {
            self.uncounted.push(self.written);
        }
        if let Kind::Ask(ask) = &item.kind {
            self.pending.push(PendingAsk { ask: ask.clone(), at: self.written, text: item.text.clone() });
        }
        self.written += 1;
        items.push(item);
    }

    fn begin(&mut self, accepted: &RunAccepted, at: Millis) {
        self.pending.clear();
        self.runs.push(RunSpan { run: accepted.run, from: self.written, to: None });
        self.current = Some(Current {
            run: accepted.run,
            session: accepted.session.clone(),
            since: at,
            upstream_session: None,
            seen: HashSet::new(),
            decided: Vec::new(),
        });
    }

    fn end(&mut self, end: &RunEnd) {
        self.current = None;
        self.pending.clear();
        if let Some(span) = self.runs.last_mut() {
            span.to = Some(self.written);
        }
        let usage = end.usage.unwrap_or_default();
        let spent = &mut self.spent.usage;
        for (sum, part) in [
            (&mut spent.input_tokens, usage.input_tokens),
            (&mut spent.output_tokens, usage.output_tokens),
            (&mut spent.cache_read_tokens, usage.cache_read_tokens),
            (&mut spent.cache_write_tokens, usage.cache_write_tokens),
        ] {
            *sum = sum.saturating_add(part);
        }
        let usd = end.cost_usd.as_ref().and_then(|cost| cost.as_str().parse::<f64>().ok());
        self.spent.usd += usd.filter(|usd| usd.is_finite()).unwrap_or(0.0);
    }
}

impl Writer for NativeWriter {
    type Item = NativeFrame;

    fn write(&mut self, record: &Record, events: &[Event], items: &mut Vec<NativeFrame>) {
        if let Body::Fact(Fact::RunAccepted(accepted)) = &record.body {
            self.begin(accepted, record.at);
        }
        if let (Body::Fact(Fact::AskDecided { ask, .. }), Some(current)) = (&record.body, &mut self.current) {
            current.decided.push(ask.clone());
        }
        let ending = events.iter().find_map(|event| match &event.what {
            What::RunEnded(end) => Some(&**end),
            _ => None,
        });
        let mut ended_by_frame = false;
        if let (Some(current), Body::Frame(text)) = (&mut self.current, &record.body)
            && let Some(passes) = current.admit(text)
        {
            ended_by_frame = ending.is_some_and(|end| !end.synthesised) && passes == Passes::Result;
            let raised = events.iter().find_map(|event| match &event.what {
                What::AskRaised(ask) => Some(ask.id.clone()),
                _ => None,
            });
            let kind = match passes {
                Passes::Result if ended_by_frame => Kind::End,
                Passes::Control => raised.map_or(Kind::Control, Kind::Ask),
                Passes::Result | Passes::Other => Kind::Data,
            };
            self.push(text.clone(), kind, items);
        }
        for event in events {
            if let What::AskSettled { ask, .. } = &event.what {
                self.pending.retain(|pending| pending.ask != *ask);
            }
        }
        if let (Some(end), Some(current)) = (ending, &self.current) {
            if !ended_by_frame {
                let text = current.result(end, record.at);
                self.push(text, Kind::End, items);
            }
            self.end(end);
        }
    }
}

/// A frame that passes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passes {
    Result,
    Control,
    Other,
}

impl Current {
    /// The `result` of a run whose upstream gave none. A replay must give the same bytes, so its `uuid` is the run's.
    fn result(&self, end: &RunEnd, at: Millis) -> Text {
        let duration_ms = end.duration_ms.or_else(|| Some(at.saturating_sub(self.since)));
        let session = self.upstream_session.as_deref().unwrap_or(self.session.as_str());
        build::result(&RunEnd { duration_ms, ..end.clone() }, session, &format!("{:032x}", self.run.as_u128()))
    }

    /// Whether a message of the upstream is for native clients.
    fn admit(&mut self, text: &Text) -> Option<Passes> {
        let frame = Frame::parse(text).ok()?;
        let passes = match &frame {
            Frame::Data(Data::ResultSuccess(_) | Data::ResultError(_)) => Passes::Result,
            Frame::Control(Control::Response(_)) | Frame::Lifecycle(Lifecycle::KeepAlive(_) | Lifecycle::SessionDesynced(_)) => {
                return None;
            }
            Frame::Control(Control::Request(request))
                if request.request_id().is_some_and(|id| self.decided.iter().any(|decided| decided.as_str() == &*id)) =>
            {
                return None;
            }
            Frame::Control(_) => Passes::Control,
            // A response without a readable body is a response all the same.
            Frame::Unknown(object) => match object.cow("type").as_deref() {
                Some("control_response") => return None,
                Some("control_request") => Passes::Control,
                _ => Passes::Other,
            },
            _ => Passes::Other,
        };
        if let Some(key) = frame.key()
            && !self.seen.insert(key.into_owned())
        {
            return None;
        }
        if self.upstream_session.is_none() {
            self.upstream_session = frame.object().str("session_id");
        }
        Some(passes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use interline_model::{Actor, Ask, AskKind, AskOutcome, Completion, FailureKind, Json, Outcome, Principal};

    #[derive(Default)]
    struct Session {
        writer: NativeWriter,
        items: Vec<NativeFrame>,
    }

    impl Session {
        fn record(&mut self, at: Millis, body: Body, what: Vec<What>) {
            let events: Vec<Event> = what.into_iter().map(Event::root).collect();
            self.writer.write(&Record { at, body }, &events, &mut self.items);
        }

        fn start(&mut self, run: u128) {
            let by = Actor { principal: Principal::from("p"), surface: Text::from_static("native") };
            let (run, session) = (RunId::from_u128(run), SessionId::from("s"));
            let model = Text::from_static("m");
            let accepted = RunAccepted { run, session, model, input: Vec::new(), by, actor: None, headless: false, output_schema: None };
            self.record(1_000, Body::Fact(Fact::RunAccepted(Box::new(accepted))), Vec::new());
        }

        fn frame(&mut self, text: &str, what: Vec<What>) {
            self.record(1_500, Body::Frame(Text::from(text)), what);
        }

        fn texts(&self) -> Vec<&str> {
            self.items.iter().map(|item| &*item.text).collect()
        }
    }

    fn ended(outcome: Outcome, synthesised: bool) -> Vec<What> {
        vec![What::RunEnded(Box::new(RunEnd { synthesised, ..RunEnd::synthesised(outcome) }))]
    }

    fn done() -> Vec<What> {
        ended(Outcome::Completed(Completion::EndTurn), false)
    }

    fn raised(id: &str) -> Vec<What> {
        vec![What::AskRaised(Box::new(Ask {
            id: AskId::from(id),
            kind: AskKind::Permission,
            call: None,
            tool_name: Text::from_static("Bash"),
            message: None,
            input: Json::empty_object(),
            questions: Vec::new(),
            suggestions: None,
        }))]
    }

    const RESULT: &str = r#"{"type":"result","is_error":false,"uuid":"r"}"#;

    #[test]
    fn a_request_that_a_policy_decided_is_nobodys_to_answer() {
        let request = |id: &str| {
            format!(r#"{{"type":"control_request","request_id":"{id}","request":{{"subtype":"can_use_tool","tool_name":"Bash"}}}}"#)
        };
        let mut session = Session::default();
        session.start(1);
        session.record(1_200, Body::Fact(Fact::AskDecided { ask: AskId::from("a"), allowed: true, rule: "r".into() }), vec![]);
        session.frame(&request("a"), vec![]);
        session.frame(&request("b"), raised("b"));
        assert_eq!(session.texts(), [request("b")]);
    }

    #[test]
    fn a_request_whose_id_reads_like_an_earlier_uuid_is_shown() {
        let request = r#"{"type":"control_request","request_id":"1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{}}}"#;
        let text = r#"{"type":"streamlined_text","text":"a","uuid":"1"}"#;
        let mut session = Session::default();
        session.start(1);
        session.frame(text, vec![]);
        session.frame(request, raised("1"));
        session.frame(request, vec![]);
        assert_eq!(session.texts(), [text, request]);
    }

    #[test]
    fn frames_pass_as_they_came() {
        let odd = [
            r#"{ "type" : "streamlined_text","text":"\ud83d","uuid":"1","n":1e400,"n":-0 }"#,
            r#"{"type":"streamlined_audio","uuid":"2"}"#,
            r#"{"no":"type"}"#,
            r#"{"type":"biumind.compact_started","session_id":"u","reason":"x","tokens_before":1}"#,
            r#"{"type":"biumind.compact_started","session_id":"u","reason":"x","tokens_before":1}"#,
            r#"{"type":"control_request","request_id":"h","request":{"subtype":"hook_callback"}}"#,
            r#"{"type":"control_cancel_request","request_id":"h"}"#,
            r#"{"type":"result","is_error":true,"errors":[{"recoverable":true}],"uuid":"3"}"#,
        ];
        let mut session = Session::default();
        session.start(1);
        for text in odd {
            session.frame(text, Vec::new());
        }
        session.frame(RESULT, done());
        assert_eq!(session.texts(), [&odd[..], &[RESULT]].concat());
        assert_eq!(session.items[7].kind, Kind::Data);
        assert_eq!(session.items[8].kind, Kind::End);
    }

    #[test]
    fn what_belongs_to_the_upstream_connection_stays_there() {
        let mut session = Session::default();
        session.frame(r#"{"type":"streamlined_text","uuid":"before any run"}"#, Vec::new());
        session.start(1);
        for text in [
            r#"{"type":"keep_alive","ts":1}"#,
            r#"{"type":"biumind.session_desynced","session_id":"u"}"#,
            r#"{"type":"control_response","response":{"subtype":"success","request_id":"ours"}}"#,
            r#"{"type":"control_response","response":7}"#,
            "null",
            "",
            "{",
            "[]",
        ] {
            session.frame(text, Vec::new());
        }
        session.frame(r#"{"type":"x","uuid":"1"}"#, Vec::new());
        session.frame(r#"{"type":"x","uuid":"1","again":true}"#, Vec::new());
        session.frame(RESULT, done());
        session.frame(r#"{"type":"x","uuid":"late"}"#, Vec::new());
        assert_eq!(session.texts(), [r#"{"type":"x","uuid":"1"}"#, RESULT]);
    }

    #[test]
    fn every_run_has_exactly_one_end_and_ours_speaks_for_the_upstream_session() {
        let mut session = Session::default();
        session.start(1);
        session.frame(r#"{"type":"x","uuid":"1","session_id":"theirs"}"#, Vec::new());
        session.record(1_700, Body::Fact(Fact::LinkLost), ended(Outcome::Interrupted { reason: Text::from_static("user") }, true));
        session.record(1_800, Body::Fact(Fact::LinkBack), Vec::new());
        session.start(2);
        let failed = Outcome::Failed { kind: FailureKind::Internal, message: Text::from_static("no") };
        session.frame(r#"{"type":"biumind.session_desynced","session_id":"u"}"#, ended(failed, true));
        let ends: Vec<&str> = session.items.iter().filter(|item| item.kind == Kind::End).map(|item| &*item.text).collect();
        assert_eq!(ends.len(), 2);
        assert!(ends[0].contains(r#""duration_ms":700,"#) && ends[0].contains(r#""stop_reason":"interrupted""#), "{}", ends[0]);
        assert!(ends[0].ends_with(r#""uuid":"00000000000000000000000000000001","session_id":"theirs"}"#), "{}", ends[0]);
        assert!(ends[1].contains(r#""errors":[{"message":"no","recoverable":false}]"#) && ends[1].ends_with(r#""session_id":"s"}"#));
        let spans: Vec<_> = session.writer.runs().iter().map(|span| (span.from, span.to)).collect();
        assert_eq!(spans, [(0, Some(2)), (2, Some(3))]);
    }

    #[test]
    fn asks_are_pending_until_they_are_settled_or_the_run_is_over() {
        let request = |id: &str| format!(r#"{{"type":"control_request","request_id":"{id}","request":{{"subtype":"can_use_tool"}}}}"#);
        let mut session = Session::default();
        session.start(1);
        for id in ["a", "b", "c"] {
            session.frame(&request(id), raised(id));
        }
        let settled = vec![What::AskSettled { ask: AskId::from("b"), outcome: AskOutcome::Allowed }];
        session.record(1_600, Body::Fact(Fact::AskExpired { ask: AskId::from("b") }), settled);
        let pending: Vec<_> = session.writer.pending().iter().map(|ask| (ask.ask.as_str(), ask.at, &*ask.text)).collect();
        assert_eq!(pending, [("a", 0, request("a").as_str()), ("c", 2, request("c").as_str())]);
        session.frame(RESULT, done());
        assert!(session.writer.pending().is_empty());
    }

    #[test]
    fn bridge_numbers_skip_control_frames() {
        let control = r#"{"type":"control_request","request":{"subtype":"mcp_message"}}"#;
        let data = r#"{"type":"x"}"#;
        let mut session = Session::default();
        session.start(1);
        for text in [control, data, data, control, control, data] {
            session.frame(text, Vec::new());
        }
        // Positions: c0 d1 d2 c3 c4 d5
        let behind: Vec<u64> = (0..6).map(|n| session.writer.behind_counted(n)).collect();
        assert_eq!(behind, [0, 2, 3, 6, 6, 6]);
        assert_eq!(session.writer.behind_counted(u64::MAX), 6);
    }

    #[test]
    fn costs_add_up_over_the_runs() {
        let mut session = Session::default();
        for run in 1..=2 {
            session.start(run);
            let usage = Usage { input_tokens: 120, output_tokens: 24, cache_read_tokens: 1, cache_write_tokens: u64::MAX };
            let end = RunEnd {
                usage: Some(usage),
                cost_usd: Some(Json::parse("0.25").unwrap()),
                synthesised: false,
                ..RunEnd::synthesised(Outcome::Completed(Completion::EndTurn))
            };
            session.frame(RESULT, vec![What::RunEnded(Box::new(end))]);
        }
        let spent = session.writer.spent();
        assert_eq!((spent.usage.input_tokens, spent.usage.output_tokens, spent.usage.cache_write_tokens), (240, 48, u64::MAX));
        assert!((spent.usd - 0.5).abs() < f64::EPSILON);
    }
}
