//! A chat over the native protocol (native-ws.md): on the cloud plane a native session for each run, on the bridge one for all.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::Method;
use interline_model::{
    Actor, Body, Event, Fact, ForcedEnd, Millis, Part, Principal, Reader as _, Record, RunAccepted, RunId, SessionId, Text, What,
    path_segment,
};
use interline_native::{NativeReader, Settings, build};
use serde_json::json;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::tungstenite::Message;
use uuid::Uuid;

use super::http::{Server, Socket};
use super::wire::{ChatError, Say, Wire};

/// How long the server has to end a stopped run itself.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// How long the bridge has to close the socket after a run (native-ws.md §4.3).
const FAREWELL: Duration = Duration::from_secs(5);

/// Which of the two native servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    Cloud,
    Bridge,
}

/// What the requests say beside the prompt.
pub(crate) struct Options {
    pub(crate) plane: Plane,
    /// The mode of cloud sessions is `chat`, not `agent`.
    pub(crate) chat: bool,
    pub(crate) session: Option<String>,
    pub(crate) model: Option<String>,
}

pub(crate) async fn talk(server: Server, options: Options, mut wire: Wire) -> Result<(), ChatError> {
    let mut session = options.session.clone();
    while let Some(prompt) = wire.prompt().await {
        let socket = match options.plane {
            Plane::Cloud => cloud(&server, &options, session.get_or_insert_with(|| Uuid::new_v4().to_string()), &prompt).await?,
            Plane::Bridge => bridge(&server, &mut session, &prompt).await?,
        };
        let settings = Settings { chat: options.plane == Plane::Cloud && options.chat };
        let run = Run { plane: options.plane, socket, reader: NativeReader::new(settings), events: Vec::new(), records: 0, over: false };
        if !run.follow(&prompt, &mut wire).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// Creates a native session for the run and connects to it.
async fn cloud(server: &Server, options: &Options, thread: &str, prompt: &str) -> Result<Socket, ChatError> {
    let mode = if options.chat { "chat" } else { "agent" };
    let mut body = json!({"mode": mode, "prompt": prompt, "thread_id": thread});
    if let (Some(model), Some(body)) = (&options.model, body.as_object_mut()) {
        body.insert("model".to_owned(), model.as_str().into());
    }
    let made = server.call(Method::POST, "/v1/agent/sessions", Some(&body)).await?;
    let (Some(id), Some(token)) = (made["session_id"].as_str(), made["session_token"].as_str()) else {
        return Err(ChatError::Protocol("a new session has neither id nor token".to_owned()));
    };
    server.socket(&format!("/v1/agent/sessions/{}/stream?session_token={}", path_segment(id), path_segment(token)), false).await
}

/// Submits the run to the session and connects at once: a turn that is over before anybody listens is lost (native-ws.md §4.3).
async fn bridge(server: &Server, session: &mut Option<String>, prompt: &str) -> Result<Socket, ChatError> {
    let id = match session {
        Some(id) => id.clone(),
        None => {
            let made = server.call(Method::POST, "/v1/code/sessions", Some(&json!({}))).await?;
            let id = made["id"].as_str().ok_or_else(|| ChatError::Protocol("a new session has no id".to_owned()))?;
            session.insert(id.to_owned()).clone()
        }
    };
    let path = format!("/v1/code/sessions/{}", path_segment(&id));
    server.call(Method::POST, &format!("{path}/messages"), Some(&json!({"prompt": prompt}))).await?;
    server.socket(&format!("{path}/ws"), true).await
}

struct Run {
    plane: Plane,
    socket: Socket,
    reader: NativeReader,
    events: Vec<Event>,
    records: Millis,
    over: bool,
}

impl Run {
    /// Follows the run to its end; `false` once the person has left.
    async fn follow(mut self, prompt: &str, wire: &mut Wire) -> Result<bool, ChatError> {
        let me = Actor { principal: Principal::from("me"), surface: Text::from_static("native") };
        let accepted = RunAccepted {
            run: RunId::from_u128(Uuid::new_v4().as_u128()),
            session: SessionId::from("chat"),
            model: Text::from_static("default"),
            input: vec![Part::Text(Text::from(prompt))],
            by: me.clone(),
            headless: false,
            actor: None,
            output_schema: None,
        };
        self.fact(Fact::RunAccepted(Box::new(accepted)), wire);
        let mut stop_at: Option<Instant> = None;
        while !self.over {
            tokio::select! {
                message = self.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => self.read(Body::Frame(Text::from(text.as_str())), wire),
                    Some(Ok(Message::Close(_)) | Err(_)) | None => self.fact(Fact::EndForced(ForcedEnd::UpstreamGone), wire),
                    Some(Ok(_)) => {}
                },
                () = sleep_until(stop_at.unwrap_or_else(Instant::now)), if stop_at.is_some() => {
                    self.fact(Fact::EndForced(ForcedEnd::StopGraceOver), wire);
                }
                say = wire.hear() => match say {
                    None => return Ok(false),
                    Some(Say::Prompt(_)) => wire.note("the run goes on; send it again when it has ended"),
                    Some(Say::Stop) => {
                        let id = Uuid::new_v4().to_string();
                        let frame = if self.plane == Plane::Cloud { build::cancel(&id) } else { build::interrupt(&id) };
                        self.send(&frame).await;
                        stop_at.get_or_insert_with(|| Instant::now() + STOP_GRACE);
                        self.fact(Fact::StopRequested { by: me.clone() }, wire);
                    }
                    Some(Say::Answer(ask, answer)) => {
                        self.send(&build::answer(&ask, &answer)).await;
                        self.fact(Fact::AskAnswered { ask: ask.id.clone(), answer, by: me.clone() }, wire);
                    }
                },
            }
        }
        self.leave().await;
        Ok(true)
    }

    /// The cloud leaves the socket open, the bridge closes it after its sentinel; only then does it take the next message.
    async fn leave(mut self) {
        if self.plane == Plane::Cloud {
            let _ = timeout(FAREWELL, self.socket.close(None)).await;
        } else {
            let _ = timeout(FAREWELL, async { while let Some(Ok(_)) = self.socket.next().await {} }).await;
        }
    }

    async fn send(&mut self, frame: &Text) {
        // A broken socket shows when it is read.
        let _ = self.socket.send(Message::text(frame.to_string())).await;
    }

    fn fact(&mut self, fact: Fact, wire: &Wire) {
        self.read(Body::Fact(fact), wire);
    }

    /// Reads a record and tells what the root agent does, and what anybody asks.
    fn read(&mut self, body: Body, wire: &Wire) {
        self.records += 1;
        self.events.clear();
        self.reader.read(&Record { at: self.records, body }, &mut self.events);
        for event in self.events.drain(..) {
            self.over |= matches!(event.what, What::RunEnded(_));
            if event.lane.is_root() || matches!(event.what, What::AskRaised(_) | What::AskSettled { .. }) {
                wire.tell(event.what);
            }
        }
    }
}
