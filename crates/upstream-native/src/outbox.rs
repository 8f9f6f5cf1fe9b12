//! What is to be sent: the hub's commands as frames of the upstream's plane, kept while there is no connection.
//!
//! Nothing of this is ever acknowledged (native-ws.md §3.4), and what was written to a connection that then broke may never have
//! arrived. Answers and the stop of the last half minute are therefore sent again on the next connection: servers ignore what
//! they know already.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::FutureExt;
use interline_hub::{Command, RunPort};
use interline_model::{Answer, Ask, Text};
use interline_native::build;
use tokio::time::Instant;

use crate::LinkConfig;

/// Frames that wait to be sent, and those sent lately.
pub(crate) struct Outbox {
    upstream: String,
    /// The frame that stops a run on this plane.
    stop: Text,
    stopping: bool,
    /// The largest frame that the plane takes.
    limit: usize,
    max_pending: usize,
    resend: Duration,
    waiting: VecDeque<Message>,
    lately: VecDeque<(Instant, Text)>,
}

struct Message {
    text: Text,
    /// Sending it twice does no harm.
    repeatable: bool,
}

impl Outbox {
    pub(crate) fn new(upstream: &str, stop: Text, limit: usize, config: &LinkConfig) -> Self {
        Self {
            upstream: upstream.to_owned(),
            stop,
            stopping: false,
            limit,
            max_pending: config.max_pending,
            resend: config.resend(),
            waiting: VecDeque::new(),
            lately: VecDeque::new(),
        }
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

    use interline_model::{AskId, AskKind, Json};

    use super::*;

    const LIMIT: usize = 400;

    fn outbox() -> Outbox {
        let config = LinkConfig { max_pending: 3, resend_ms: 1000, ..LinkConfig::default() };
        Outbox::new("main", build::cancel("stop-1"), LIMIT, &config)
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
