//! What is to be sent: the hub's commands as frames of the upstream's plane, kept while there is no connection.
//!
//! Nothing of this is ever acknowledged (native-ws.md §3.4), and what was written to a connection that then broke may never have
//! arrived. Answers and the stop of the last half minute are therefore sent again on the next connection: servers ignore what
//! they know already.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use futures_util::FutureExt;
use interline_hub::{ActionError, Command, Control, RunPort};
use interline_model::{Answer, Ask, Json, RunId, Text};
use interline_native::build;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::LinkConfig;
use crate::wire::reply_in;

/// Frames that wait to be sent, and those sent lately.
pub(crate) struct Outbox {
    upstream: String,
    /// What the ids of our requests for this run begin with, whichever process made them.
    requester: String,
    /// Tells this process's requests from those of the one before it; empty where there was none.
    life: String,
    /// The frame that stops a run on this plane.
    stop: Text,
    stopping: bool,
    /// The largest frame that the plane takes.
    limit: usize,
    max_pending: usize,
    resend: Duration,
    waiting: VecDeque<Message>,
    lately: VecDeque<(Instant, Text)>,
    /// Requests of ours that wait for a reply, by their ids. Whoever asked gives up by himself.
    asked: HashMap<Text, oneshot::Sender<Result<Json, ActionError>>>,
    requests: u64,
}

struct Message {
    text: Text,
    /// Sending it twice does no harm.
    repeatable: bool,
}

impl Outbox {
    pub(crate) fn new(upstream: &str, run: RunId, stop: Text, limit: usize, config: &LinkConfig) -> Self {
        Self {
            upstream: upstream.to_owned(),
            requester: format!("interline-{run}-"),
            life: String::new(),
            stop,
            stopping: false,
            limit,
            max_pending: config.max_pending,
            resend: config.resend(),
            waiting: VecDeque::new(),
            lately: VecDeque::new(),
            asked: HashMap::new(),
            requests: 0,
        }
    }

    /// The run was another process's before, whose requests may be answered yet.
    pub(crate) fn taken_up(&mut self, random: u32) {
        self.life = format!("{random:08x}-");
    }

    /// Takes a command.
    pub(crate) fn take(&mut self, command: Command) {
        match command {
            Command::Answer { ask, answer } => {
                let text = self.answer(&ask, &answer);
                self.push(Message { text, repeatable: true });
            }
            Command::Stop => self.stop(),
            Command::Frame(text) if text.len() > self.limit => {
                tracing::warn!(
                    upstream = %self.upstream, bytes = text.len(), limit = self.limit,
                    "a client's frame is larger than the upstream takes, and was not passed on"
                );
            }
            Command::Frame(text) => self.push(Message { text, repeatable: false }),
            Command::Control(Control { request, reply }) => self.ask(&request, reply),
        }
    }

    /// Sends a request of ours.
    fn ask(&mut self, request: &Json, reply: oneshot::Sender<Result<Json, ActionError>>) {
        self.requests = self.requests.saturating_add(1);
        let id = Text::from(format!("{}{}{}", self.requester, self.life, self.requests));
        let text = build::request(&id, request);
        if text.len() > self.limit {
            let message = format!("it is {} bytes long, and this connection takes {}", text.len(), self.limit);
            let _ = reply.send(Err(ActionError::Refused { status: None, message }));
            return;
        }
        self.asked.retain(|_, reply| !reply.is_closed());
        self.asked.insert(id, reply);
        self.push(Message { text, repeatable: false });
    }

    /// Whether a message is the reply to a request of ours, which is nobody else's business; then whoever asked has it.
    pub(crate) fn answered(&mut self, message: &Text) -> bool {
        if (self.requests == 0 && self.life.is_empty()) || !message.contains("control_response") {
            return false;
        }
        let Some((id, result)) = reply_in(message) else { return false };
        match self.asked.remove(&id) {
            // Nobody may be waiting any more.
            Some(reply) => {
                let _ = reply.send(result);
                true
            }
            None => id.starts_with(&self.requester),
        }
    }

    /// Takes all commands that are there.
    pub(crate) fn take_all(&mut self, port: &mut RunPort) {
        while let Some(command) = port.command().now_or_never() {
            self.take(command);
        }
    }

    /// Stops the run, once.
    pub(crate) fn stop(&mut self) {
        if !self.stopping {
            self.stopping = true;
            // Before everything else, and whatever waits.
            self.waiting.push_front(Message { text: self.stop.clone(), repeatable: true });
        }
    }

    /// Whether the run is to be stopped.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// An answer that the plane takes. One that is too large would close the socket (§3.2): then the tool does not run, and the
    /// model is told why. Leaving the input out instead would run it with none (decision 19).
    fn answer(&self, ask: &Ask, answer: &Answer) -> Text {
        let text = build::answer(ask, answer);
        if text.len() <= self.limit {
            return text;
        }
        tracing::warn!(
            upstream = %self.upstream, ask = %ask.id, bytes = text.len(), limit = self.limit,
            "an answer is larger than the upstream takes; it was answered with a refusal"
        );
        let message = format!(
            "The user's answer could not be delivered: it is {} bytes long, and this connection takes {}. Try with a smaller input.",
            text.len(),
            self.limit
        );
        build::answer(ask, &Answer::Deny { message: Text::from(message) })
    }

    fn push(&mut self, message: Message) {
        if self.waiting.len() >= self.max_pending {
            tracing::warn!(upstream = %self.upstream, limit = self.max_pending, "too much waits for the connection: a frame was dropped");
            return;
        }
        self.waiting.push_back(message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The frame to be sent next.
    pub(crate) fn first(&self) -> Option<Text> {
        self.waiting.front().map(|message| message.text.clone())
    }

    /// That frame was sent.
    pub(crate) fn sent(&mut self, now: Instant) {
        if let Some(message) = self.waiting.pop_front()
            && message.repeatable
        {
            self.forget(now);
            self.lately.push_back((now, message.text));
        }
    }

    /// There is a new connection: what may have been lost with the last one goes first.
    pub(crate) fn reconnected(&mut self, now: Instant) {
        self.forget(now);
        for (_, text) in std::mem::take(&mut self.lately).into_iter().rev() {
            self.waiting.push_front(Message { text, repeatable: true });
        }
    }

    fn forget(&mut self, now: Instant) {
        while self.lately.front().is_some_and(|(sent, _)| *sent + self.resend < now) {
            self.lately.pop_front();
        }
    }

    /// Waits without a connection, collecting what is to be sent. `false` if the run ended meanwhile.
    pub(crate) async fn wait(&mut self, pause: Duration, port: &mut RunPort) -> bool {
        let over = port.over().clone();
        let pause = tokio::time::sleep(pause);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                biased;
                () = over.cancelled() => return false,
                command = port.command() => self.take(command),
                () = &mut pause => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use interline_model::{AskId, AskKind};

    use super::*;

    const LIMIT: usize = 400;

    fn outbox() -> Outbox {
        let config = LinkConfig { max_pending: 3, resend_ms: 1000, ..LinkConfig::default() };
        Outbox::new("main", RunId::from_u128(1), build::cancel("stop-1"), LIMIT, &config)
    }

    fn answer(input: &str) -> Command {
        let ask = Ask {
            id: AskId::from("q"),
            kind: AskKind::Permission,
            call: None,
            tool_name: Text::from_static("Bash"),
            message: None,
            input: Json::parse(input).unwrap(),
            questions: Vec::new(),
            suggestions: None,
        };
        Command::Answer { ask: Arc::new(ask), answer: Answer::Allow { input: None, always: false } }
    }

    fn drain(outbox: &mut Outbox, now: Instant) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(text) = outbox.first() {
            texts.push(text.to_string());
            outbox.sent(now);
        }
        texts
    }

    #[tokio::test]
    async fn answers_and_stops_are_sent_again_and_frames_are_not() {
        let (mut outbox, now) = (outbox(), Instant::now());
        outbox.take(answer(r#"{"command":"ls"}"#));
        outbox.take(Command::Frame(Text::from_static("{}")));
        outbox.take(Command::Stop);
        outbox.take(Command::Stop);
        let first = drain(&mut outbox, now);
        assert_eq!(first.len(), 3);
        assert!(first[0].contains("control_cancel_request"), "{first:?}");
        assert!(first[1].contains(r#""updatedInput":{"command":"ls"}"#), "{first:?}");
        outbox.reconnected(now + Duration::from_millis(900));
        assert_eq!(drain(&mut outbox, now + Duration::from_millis(900)), [first[0].clone(), first[1].clone()]);
        outbox.reconnected(now + Duration::from_millis(5000));
        assert!(outbox.is_empty());
    }

    #[tokio::test]
    async fn a_reply_reaches_whoever_asked_and_nobody_else() {
        let (mut outbox, now) = (outbox(), Instant::now());
        let (reply, answer) = oneshot::channel();
        outbox.take(Command::Control(Control { request: build::request_body("get_context_usage", &[]), reply }));
        let sent = drain(&mut outbox, now);
        assert!(sent[0].contains(r#""request":{"subtype":"get_context_usage"}"#), "{sent:?}");
        let said = |id: &str| {
            Text::from(format!(
                r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"{id}","response":{{"totalTokens":7}}}}}}"#
            ))
        };
        assert!(!outbox.answered(&said("somebody-elses")));
        let id = format!("interline-{}-1", RunId::from_u128(1));
        assert!(outbox.answered(&said(&id)));
        assert_eq!(answer.await.unwrap().unwrap().as_str(), r#"{"totalTokens":7}"#);
        assert!(outbox.answered(&said(&id)), "replayed, it is still nobody else's");
        outbox.reconnected(now);
        assert!(outbox.is_empty(), "a request is not made twice");
        let (reply, answer) = oneshot::channel();
        let long = format!("\"{}\"", "x".repeat(LIMIT));
        outbox.take(Command::Control(Control { request: build::request_body("set_model", &[("model", &long)]), reply }));
        assert!(outbox.is_empty() && answer.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn what_the_plane_does_not_take_is_refused_here() {
        let mut outbox = outbox();
        outbox.take(Command::Frame(Text::from("x".repeat(LIMIT + 1))));
        assert!(outbox.is_empty());
        outbox.take(Command::Frame(Text::from("x".repeat(LIMIT))));
        outbox.take(answer(&format!(r#"{{"content":"{}"}}"#, "x".repeat(LIMIT))));
        let texts = drain(&mut outbox, Instant::now());
        assert_eq!(texts[0].len(), LIMIT);
        assert!(texts[1].contains(r#""behavior":"deny""#) && texts[1].contains("could not be delivered"), "{texts:?}");
        assert!(texts.iter().all(|text| text.len() <= LIMIT));
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_a_stop_always_finds_room() {
        let mut outbox = outbox();
        for n in 0..5 {
            outbox.take(Command::Frame(Text::from(n.to_string())));
        }
        outbox.take(Command::Stop);
        let texts = drain(&mut outbox, Instant::now());
        assert_eq!(texts.len(), 4);
        assert_eq!(texts[1..], ["0", "1", "2"]);
    }
}
