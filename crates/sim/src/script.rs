//! The scripted agent: reasoning, text in words, tools, a permission, a question, a form.
//!
//! It announces tools, asks and ends as the server it stands for does (native-ws.md §6): once in chat, twice elsewhere; permissions
//! are not asked in chat and task on today's servers, where no question and no form works at all.

use serde_json::{Map, Value, json};
use tokio::time;
use uuid::Uuid;

use crate::{
    frames::{self, PermissionRequest, Success},
    ledger::{Mode, SessionState},
    prompt::Scenes,
    run::Outcome,
    stage::{Host, Stage},
    transcript::End,
};

/// How many characters of the prompt the final text repeats.
const QUOTED: usize = 120;

/// How many times a form's own time a session can be paused.
const LONGEST_PAUSE: u32 = 10;

pub(crate) async fn perform(stage: &Stage, scenes: Scenes) -> Outcome {
    let mut actor = Actor::new(stage);
    actor.think("The request is clear. I will look at the code first, then act on it.").await;
    actor.say("I'll look at the file first.").await;
    actor.read().await;
    if scenes.permission && !actor.permission().await {
        return Outcome::Interrupted;
    }
    // A question that nobody asked for is left out where it would hang.
    if scenes.question && !(scenes.usual && stage.observed()) {
        actor.question().await;
    }
    if scenes.form {
        actor.form(false).await;
    }
    if scenes.long {
        actor.recite().await;
    }
    let quoted: String = stage.prompt.trim().chars().take(QUOTED).collect();
    actor.say(&format!("That is all there is to do for “{quoted}”.")).await;
    actor.finish().await;
    Outcome::Over
}

/// What a form asks for: one of each kind of member there is.
pub(crate) fn form_schema() -> Value {
    json!({ "type": "object", "required": ["env"], "properties": {
        "env": { "type": "string", "title": "Environment", "enum": ["staging", "production"] },
        "replicas": { "type": "integer", "minimum": 1, "maximum": 10, "default": 2 },
        "notify": { "type": "boolean", "default": true },
    }})
}

/// Speaks for the agent, and remembers what the closing snapshot has to hold.
pub(crate) struct Actor<'a> {
    stage: &'a Stage,
    /// The answer's text without reasoning.
    said: String,
    content: Vec<Value>,
    turns: u64,
    tools: u32,
}

impl<'a> Actor<'a> {
    pub(crate) const fn new(stage: &'a Stage) -> Self {
        Self { stage, said: String::new(), content: Vec::new(), turns: 1, tools: 0 }
    }

    pub(crate) const fn stage(&self) -> &'a Stage {
        self.stage
    }

    /// Reasoning has no frame of its own: it is text between marks (§0.4).
    pub(crate) async fn think(&mut self, text: &str) {
        self.raw("<think>\n").await;
        for word in text.split_inclusive(' ') {
            self.stage.pause(35).await;
            self.raw(word).await;
        }
        self.raw("\n</think>\n\n").await;
    }

    pub(crate) async fn say(&mut self, text: &str) {
        for (i, word) in text.split_inclusive(' ').enumerate() {
            self.stage.pause(if i % 3 == 0 { 90 } else { 45 }).await;
            self.raw(word).await;
        }
        self.note(text);
    }

    /// Text in one frame, without a pause.
    pub(crate) async fn say_whole(&mut self, text: &str) {
        self.raw(text).await;
        self.note(text);
    }

    /// Text as one frame.
    async fn raw(&self, text: &str) {
        self.stage.spoke(1);
        self.stage.send(frames::text(self.stage.session(), text)).await;
    }

    /// What was said belongs to the answer, whoever has heard it.
    pub(crate) fn note(&mut self, text: &str) {
        self.said.push_str(text);
        if let Some(Value::Object(block)) = self.content.last_mut()
            && let Some(Value::String(open)) = block.get_mut("text")
        {
            open.push_str(text);
        } else {
            self.content.push(json!({ "type": "text", "text": text }));
        }
    }

    /// About twenty seconds of slow text.
    async fn recite(&mut self) {
        let line = "One step after the other, and each of them small enough to be seen. ";
        for _ in 0..15 {
            for word in line.split_inclusive(' ') {
                self.stage.pause(95).await;
                self.raw(word).await;
            }
            self.note(line);
        }
    }

    pub(crate) async fn read(&mut self) {
        let id = self.announce("Read", &json!({ "file_path": "/workspace/src/lib.rs" })).await;
        self.started(&id, "Read").await;
        self.stage.pause(180).await;
        let source = "     1\tpub fn median(v: &mut Vec<i64>) -> i64 {\n     2\t    v.sort();\n     3\t    v[v.len() / 2]\n     4\t}\n";
        self.tool_result(&id, source).await;
    }

    /// Asks for a command and runs it if allowed. False if the answer was to stop.
    async fn permission(&mut self) -> bool {
        let observed = self.stage.observed();
        let input = json!({ "command": "cargo test --quiet", "description": "Run the unit tests" });
        let asks = !observed || matches!(self.stage.mode(), None | Some(Mode::Agent));
        let words = "Now I'll run the tests.";
        if !asks {
            self.say(words).await;
            let id = self.announce("Bash", &input).await;
            self.started(&id, "Bash").await;
            self.run_command(&id).await;
            return true;
        }
        let request_id = self.stage.request_id();
        let id = self.tool_id("Bash");
        let request = PermissionRequest {
            subtype: "can_use_tool",
            tool_name: "Bash",
            input: &input,
            decision_reason: Some("first use of Bash"),
            tool_use_id: &id,
            permission_suggestions: (!observed).then(|| {
                json!([{ "type": "addRules", "rules": [{ "toolName": "Bash", "ruleContent": "cargo test:*" }],
                         "behavior": "allow", "destination": "session" }])
            }),
            more: Map::new(),
        };
        let frame = frames::can_use_tool(&request_id, &request);
        let answer = if observed {
            // §6.4: asked from another thread, a request may overtake the text and the announcements before it.
            let answer = self.stage.raise(&request_id, &frame, false).await;
            self.say(words).await;
            self.announce_as(&id, "Bash", &input).await;
            self.started(&id, "Bash").await;
            answer
        } else {
            self.say(words).await;
            self.announce_as(&id, "Bash", &input).await;
            self.started(&id, "Bash").await;
            self.stage.raise(&request_id, &frame, false).await
        };
        let answer = self.stage.answered(&request_id, answer, false).await.unwrap_or_default();
        if answer["behavior"] == "allow" {
            self.run_command(&id).await;
        } else {
            self.fail(&id, "Bash", "denied by user").await;
            if answer["interrupt"] == true && !observed {
                return false;
            }
        }
        true
    }

    async fn run_command(&mut self, id: &str) {
        self.stage.pause(400).await;
        self.tool_result(id, "[sandbox=off exit=0]\nstdout:\ntest result: ok. 3 passed; 0 failed\n").await;
    }

    async fn question(&mut self) {
        let name = "AskUserQuestion";
        if self.stage.observed() {
            if matches!(self.stage.mode(), None | Some(Mode::Agent)) {
                // §6.5: announced, then silence until somebody cancels.
                let id = self.announce(name, &json!({})).await;
                self.started(&id, name).await;
                std::future::pending::<()>().await;
            }
            return;
        }
        let question = "Where should the result go?";
        let input = json!({ "questions": [{
            "question": question, "header": "Target", "multiSelect": false,
            "options": [
                { "label": "staging", "description": "Try it out first" },
                { "label": "production", "description": "Straight to everybody" },
            ],
        }]});
        self.say("One thing I need to know.").await;
        let id = self.announce(name, &input).await;
        self.started(&id, name).await;
        let request_id = self.stage.request_id();
        let request = PermissionRequest {
            subtype: "can_use_tool",
            tool_name: name,
            input: &input,
            decision_reason: None,
            tool_use_id: &id,
            permission_suggestions: None,
            more: Map::new(),
        };
        let frame = frames::can_use_tool(&request_id, &request);
        let answer = self.stage.ask(&request_id, &frame, false).await.unwrap_or_default();
        if answer["behavior"] != "allow" {
            self.fail(&id, name, "denied by user").await;
            return;
        }
        let chosen = match &answer["updatedInput"]["answers"][question] {
            Value::String(label) => label.clone(),
            Value::Null => "nothing".to_owned(),
            other => other.to_string(),
        };
        self.tool_result(&id, &format!("The user answered: \"{question}\"=\"{chosen}\".")).await;
        self.say(&format!("So it goes to {chosen}. ")).await;
    }

    /// A form; if `paused`, the executor goes away while it is open and comes back when it is told to.
    pub(crate) async fn form(&mut self, paused: bool) {
        if self.stage.observed() {
            self.say("There is no way to show a form here. ").await;
            return;
        }
        let session = self.stage.session();
        let name = "mcp__deploy__start";
        let id = self.announce(name, &json!({ "build": 418 })).await;
        self.started(&id, name).await;
        let request_id = self.stage.request_id();
        let elicitation_id = format!("el_{}", frames::frame_id());
        let frame = frames::elicitation(&request_id, &elicitation_id, "Where should this build go?", &form_schema());
        let answer = self.stage.raise(&request_id, &frame, true).await;
        if paused {
            self.away().await;
        }
        let answer = self.stage.answered(&request_id, answer, true).await;
        let action = match &answer {
            None => "timeout",
            Some(answer) => match answer["action"].as_str() {
                Some("accept") => "accept",
                Some("cancel") => "cancel",
                _ => "decline",
            },
        };
        let content = answer.as_ref().map(|answer| &answer["content"]).filter(|content| content.is_object());
        self.stage.send(frames::form_answer(session, &request_id, &elicitation_id, action, content)).await;
        if action == "accept" {
            let env = content.and_then(|content| content["env"].as_str()).unwrap_or("nowhere").to_owned();
            self.tool_result(&id, &format!("deployed build 418 to {env}")).await;
            self.say(&format!("Build 418 is live on {env}. ")).await;
        } else {
            self.fail(&id, name, &format!("the form was not filled in ({action})")).await;
        }
    }

    /// The executor is away until somebody resumes the session. The cloud only; the bridge is its own executor.
    async fn away(&self) {
        let Host::Cloud(ledger) = self.stage.host() else { return };
        ledger.set_state(SessionState::Paused);
        self.stage.send(frames::session_paused(&ledger.id, "executor_offline")).await;
        // A form outlasts its time while nobody is there to enforce it; but nothing waits for ever.
        let limit = self.stage.options().form_timeout.saturating_mul(LONGEST_PAUSE);
        let _ = time::timeout(limit, ledger.resumed.notified()).await;
        ledger.set_state(SessionState::Active);
        self.stage.send(frames::session_resumed(&ledger.id, ledger.newest())).await;
    }

    pub(crate) fn tool_id(&mut self, name: &str) -> String {
        self.tools += 1;
        // §1.1: today's chat makes up an id for each call.
        if self.stage.observed() && self.stage.mode() == Some(Mode::Chat) {
            Uuid::new_v4().to_string()
        } else {
            let mut unique = frames::frame_id();
            unique.truncate(12);
            format!("toolu_{:02}{name}{unique}", self.tools)
        }
    }

    pub(crate) async fn announce(&mut self, name: &str, input: &Value) -> String {
        let id = self.tool_id(name);
        self.announce_as(&id, name, input).await;
        id
    }

    pub(crate) async fn announce_as(&mut self, id: &str, name: &str, input: &Value) {
        self.stage.announced(id, name);
        self.content.push(json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
        self.stage.pause(40).await;
        self.stage.send(frames::tool_progress(self.stage.session(), id, name)).await;
    }

    /// The second announcement, at the start of execution; chat has none (§6.1).
    pub(crate) async fn started(&self, id: &str, name: &str) {
        if self.stage.mode() != Some(Mode::Chat) {
            self.stage.pause(20).await;
            self.stage.send(frames::tool_progress(self.stage.session(), id, name)).await;
        }
    }

    pub(crate) async fn tool_result(&mut self, id: &str, result: &str) {
        self.stage.tool_ended(id);
        self.turns += 1;
        self.stage.send(frames::tool_use_summary(self.stage.session(), id, result)).await;
        if self.stage.observed() && self.stage.mode() == Some(Mode::Task) {
            // §8.2.8: a runtime publishes what it leaves out as a literal null.
            self.stage.send_control("null").await;
        }
    }

    pub(crate) async fn fail(&mut self, id: &str, name: &str, why: &str) {
        // §6.1: today's chat puts a prefix of its own before the failure.
        let prefix = if self.stage.observed() && self.stage.mode() == Some(Mode::Chat) { "error: " } else { "" };
        self.tool_result(id, &format!("{prefix}error in {name}: {why}")).await;
    }

    /// The snapshot, if this voice has one, and a success.
    pub(crate) async fn finish(&mut self) {
        let stage = self.stage;
        let success = Success { duration_ms: stage.duration_ms(), stop_reason: "end_turn", usage: stage.usage(), ..Success::default() };
        if stage.observed() {
            // §6.6: today's servers leave most of a result empty.
            stage.end(frames::success(stage.session(), &success), End::Completed).await;
            return;
        }
        stage.pause(30).await;
        stage.send(frames::assistant(stage.session(), &stage.model(), &self.content)).await;
        let model = stage.model();
        let success = Success { num_turns: self.turns, result: &self.said, model: Some(&model), ..success };
        stage.end(frames::success(stage.session(), &success), End::Completed).await;
    }
}
