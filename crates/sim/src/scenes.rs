//! The scenes of `scene NAME`: one thing that a client can do with an agent, on its own, so that its effect can be seen.
//!
//! What a client answers is heard again: in the tool's result, and in what the agent says next. In the observed voice a scene is what
//! today's servers make of it (native-ws.md §6.4, §6.5): no form and no link, silence at a question or at a sub-agent's ask, and
//! nothing asked at all in chat and task.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use serde_json::{Map, Value, json};
use tokio::{sync::oneshot, time};

use crate::{
    frames::{self, PermissionRequest},
    ledger::Mode,
    prompt::Scene,
    run::Outcome,
    script::{Actor, form_schema},
    stage::Stage,
};

/// How often a background task tells of itself, in milliseconds.
const TASK_BEAT: u64 = 100;

/// An ask on its way to its answer.
pub(crate) struct Asked {
    request_id: String,
    frame: String,
    tool_use_id: String,
    tool: &'static str,
    input: Value,
    elicitation: Option<Elicitation>,
    answer: oneshot::Receiver<Option<Value>>,
}

struct Elicitation {
    id: String,
    server: &'static str,
}

/// What became of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Yes,
    No,
    /// No, and nothing else either.
    Stop,
}

pub(crate) async fn perform(stage: &Stage, scene: Scene) -> Outcome {
    let mut actor = Actor::new(stage);
    match scene {
        Scene::Permission => {
            for words in ["I'll run the tests. ", "And once more. "] {
                actor.say(words).await;
                let asked = actor.ask_command(json!({ "command": "cargo test --quiet", "description": "Run the unit tests" })).await;
                if actor.settle(asked).await == Settled::Stop {
                    return Outcome::Interrupted;
                }
            }
        }
        Scene::Overtake => {
            // What the request refers to comes after it.
            let id = actor.tool_id("Bash");
            let asked = actor.raise_command(&id, json!({ "command": "cargo test --quiet" }), Map::new()).await;
            actor.say("Now I'll run the tests. ").await;
            actor.announce_as(&id, "Bash", &asked.input).await;
            actor.started(&id, "Bash").await;
            actor.settle(Some(asked)).await;
        }
        Scene::Questions => questions(&mut actor).await,
        Scene::Form => {
            let asked = actor.ask_form().await;
            actor.settle(asked).await;
        }
        Scene::Link => {
            let asked = ask_link(&mut actor).await;
            actor.settle(asked).await;
        }
        Scene::Asks(count) => many(&mut actor, count).await,
        Scene::Subagent => subagent(&mut actor).await,
        Scene::Replayed(millis) => {
            actor.say("I'll run the tests. ").await;
            let asked = actor.ask_command(json!({ "command": "cargo test --quiet" })).await;
            let frame = asked.as_ref().map(|asked| asked.frame.clone());
            actor.settle(asked).await;
            stage.cut().await;
            if let Some(frame) = frame {
                stage.send_control(frame).await;
            }
            time::sleep(Duration::from_millis(millis)).await;
            actor.say("It was answered already. ").await;
        }
        Scene::Settings(millis) => {
            actor.say("I am listening. ").await;
            time::sleep(Duration::from_millis(millis)).await;
            actor.say(&stage.settings().sentence(stage.first_model())).await;
        }
        Scene::Task(millis) => task(&mut actor, millis).await,
        Scene::Compaction => compaction(&mut actor).await,
    }
    actor.finish().await;
    Outcome::Over
}

/// Whether this server asks for permissions at all.
fn asks(stage: &Stage) -> bool {
    !stage.observed() || matches!(stage.mode(), None | Some(Mode::Agent))
}

impl Actor<'_> {
    /// Announces a command and asks for it, unless it need not be asked for.
    pub(crate) async fn ask_command(&mut self, input: Value) -> Option<Asked> {
        let stage = self.stage();
        let id = self.announce("Bash", &input).await;
        self.started(&id, "Bash").await;
        let refusal = match stage.settings().mode() {
            "plan" => Some("permission flow aborted: plan mode"),
            "dontAsk" => Some("permission flow aborted: denied by permission mode"),
            _ => None,
        };
        if let Some(refusal) = refusal {
            self.fail(&id, "Bash", refusal).await;
            return None;
        }
        if !asks(stage) || stage.settings().allows("Bash") {
            self.ran(&id, &input).await;
            self.say("That needed no answer. ").await;
            return None;
        }
        let mut more = Map::new();
        if !stage.observed() {
            more.insert("title".to_owned(), json!("Run the unit tests?"));
            more.insert("display_name".to_owned(), json!("Shell"));
            more.insert("description".to_owned(), json!("Runs a command in the workspace"));
            more.insert("blocked_path".to_owned(), json!("/workspace"));
        }
        Some(self.raise_command(&id, input, more).await)
    }

    /// Asks for a command, whether or not it was announced.
    async fn raise_command(&mut self, tool_use_id: &str, input: Value, more: Map<String, Value>) -> Asked {
        let suggestions = json!([
            { "type": "addRules", "rules": [{ "toolName": "Bash", "ruleContent": "cargo test:*" }], "behavior": "allow", "destination": "session" },
            { "type": "setMode", "mode": "acceptEdits", "destination": "session" },
        ]);
        let request = PermissionRequest {
            subtype: "can_use_tool",
            tool_name: "Bash",
            input: &input,
            decision_reason: Some("first use of Bash"),
            tool_use_id,
            permission_suggestions: (!self.stage().observed()).then_some(suggestions),
            more,
        };
        let request_id = self.stage().request_id();
        let frame = frames::can_use_tool(&request_id, &request);
        let answer = self.stage().raise(&request_id, &frame, false).await;
        Asked { request_id, frame, tool_use_id: tool_use_id.to_owned(), tool: "Bash", input, elicitation: None, answer }
    }

    /// Shows a form, where there are forms.
    pub(crate) async fn ask_form(&mut self) -> Option<Asked> {
        if self.stage().observed() {
            self.say("There is no way to show a form here. ").await;
            return None;
        }
        let frame = |request_id: &str, id: &str| frames::elicitation(request_id, id, "Where should this build go?", &form_schema());
        Some(self.elicit("mcp__deploy__start", "deploy", frame).await)
    }

    async fn elicit(&mut self, tool: &'static str, server: &'static str, frame: impl FnOnce(&str, &str) -> String) -> Asked {
        let input = json!({ "build": 418 });
        let tool_use_id = self.announce(tool, &input).await;
        self.started(&tool_use_id, tool).await;
        let request_id = self.stage().request_id();
        let id = format!("el_{}", frames::frame_id());
        let frame = frame(&request_id, &id);
        let answer = self.stage().raise(&request_id, &frame, true).await;
        Asked { request_id, frame, tool_use_id, tool, input, elicitation: Some(Elicitation { id, server }), answer }
    }

    /// Waits for the answer to an ask, and lets everybody see what it was.
    pub(crate) async fn settle(&mut self, asked: Option<Asked>) -> Settled {
        let Some(Asked { request_id, tool_use_id, tool, input, elicitation, answer, .. }) = asked else { return Settled::Yes };
        let answer = self.stage().answered(&request_id, answer, elicitation.is_some()).await;
        match elicitation {
            Some(elicitation) => self.form_settled(&request_id, &tool_use_id, tool, &elicitation, answer.as_ref()).await,
            None => self.permission_settled(&tool_use_id, tool, &input, &answer.unwrap_or_default()).await,
        }
    }

    async fn permission_settled(&mut self, tool_use_id: &str, tool: &str, input: &Value, answer: &Value) -> Settled {
        let observed = self.stage().observed();
        if answer["behavior"] != "allow" {
            self.fail(tool_use_id, tool, "denied by user").await;
            match answer["message"].as_str().filter(|_| !observed) {
                Some(message) => self.say(&format!("Not allowed: {message} ")).await,
                None => self.say("Not allowed. ").await,
            }
            return if answer["interrupt"] == true && !observed { Settled::Stop } else { Settled::No };
        }
        // §5.2: today nothing of an answer counts but that it allows.
        let input = if observed || !answer["updatedInput"].is_object() { input } else { &answer["updatedInput"] };
        if !observed && let Some(mode) = self.stage().settings().update_permissions(&answer["updatedPermissions"]) {
            self.stage().send(frames::status(self.stage().session(), mode)).await;
        }
        self.ran(tool_use_id, input).await;
        self.say("Allowed. ").await;
        Settled::Yes
    }

    async fn ran(&mut self, tool_use_id: &str, input: &Value) {
        self.stage().pause(200).await;
        let command = input["command"].as_str().unwrap_or_default();
        self.tool_result(tool_use_id, &format!("[sandbox=off exit=0]\nstdout:\nran: {command}\n")).await;
    }

    async fn form_settled(
        &mut self,
        request_id: &str,
        tool_use_id: &str,
        tool: &str,
        elicitation: &Elicitation,
        answer: Option<&Value>,
    ) -> Settled {
        let stage = self.stage();
        let action = match answer.map(|answer| answer["action"].as_str()) {
            None => "timeout",
            Some(Some("accept")) => "accept",
            Some(Some("cancel")) => "cancel",
            Some(_) => "decline",
        };
        let content = answer.map(|answer| &answer["content"]).filter(|content| content.is_object());
        if action == "accept" {
            // A link takes the user some time elsewhere.
            stage.pause(300).await;
            stage.send(frames::elicitation_complete(stage.session(), elicitation.server, &elicitation.id)).await;
        }
        stage.send(frames::form_answer(stage.session(), request_id, &elicitation.id, action, content)).await;
        if action != "accept" {
            self.fail(tool_use_id, tool, &format!("not answered ({action})")).await;
            self.say(&format!("Settled with {action}. ")).await;
            return Settled::No;
        }
        self.tool_result(tool_use_id, "done").await;
        let content = content.map_or_else(String::new, |content| format!(": {content}"));
        self.say(&format!("Settled with accept{content}. ")).await;
        Settled::Yes
    }
}

async fn ask_link(actor: &mut Actor<'_>) -> Option<Asked> {
    if actor.stage().observed() {
        actor.say("There is no way to show a link here. ").await;
        return None;
    }
    let frame = |request_id: &str, id: &str| {
        frames::link(request_id, id, "Sign in to continue", &format!("https://auth.example.com/device?code={id}"))
    };
    Some(actor.elicit("mcp__github__login", "github", frame).await)
}

async fn questions(actor: &mut Actor<'_>) {
    let name = "AskUserQuestion";
    let stage = actor.stage();
    let input = json!({ "questions": [
        { "question": "Where should it go?", "header": "Target", "multiSelect": false, "options": [
            { "label": "staging", "description": "Try it out first" },
            { "label": "production", "description": "Straight to everybody" },
        ]},
        { "question": "Which checks first?", "header": "Checks", "multiSelect": true, "options": [
            { "label": "lint", "description": "Style" },
            { "label": "tests", "description": "Behaviour" },
            { "label": "bench", "description": "Speed" },
        ]},
    ]});
    actor.say("Two things I need to know. ").await;
    let id = actor.announce(name, &input).await;
    actor.started(&id, name).await;
    if stage.observed() {
        if asks(stage) {
            // §6.5: silence until somebody cancels.
            std::future::pending::<()>().await;
        }
        actor.tool_result(&id, "The user answered: nothing.").await;
        return;
    }
    let request = PermissionRequest {
        subtype: "can_use_tool",
        tool_name: name,
        input: &input,
        decision_reason: None,
        tool_use_id: &id,
        permission_suggestions: None,
        more: Map::new(),
    };
    let request_id = stage.request_id();
    let answer = stage.ask(&request_id, &frames::can_use_tool(&request_id, &request), false).await.unwrap_or_default();
    if answer["behavior"] != "allow" {
        actor.fail(&id, name, "denied by user").await;
        actor.say("Not answered. ").await;
        return;
    }
    let answers = &answer["updatedInput"]["answers"];
    let told: Vec<String> = input["questions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|question| question["question"].as_str())
        .map(|question| format!("{question}={}", told(&answers[question])))
        .collect();
    let told = told.join("; ");
    actor.tool_result(&id, &format!("The user answered: {told}.")).await;
    actor.say(&format!("Answers: {told}. ")).await;
}

/// An answer as words: one label, several, or none.
fn told(answer: &Value) -> String {
    match answer {
        Value::String(label) => label.clone(),
        Value::Array(labels) => labels.iter().map(told).collect::<Vec<_>>().join(", "),
        Value::Null => "nothing".to_owned(),
        other => other.to_string(),
    }
}

/// Several tools of one response, each with an ask of its own; they go on in the order of their answers.
async fn many(actor: &mut Actor<'_>, count: u64) {
    let stage = actor.stage();
    actor.say(&format!("I'll do {count} things at once. ")).await;
    let mut waiting = FuturesUnordered::new();
    let mut allowed = 0_u64;
    for n in 1..=count {
        let input = json!({ "command": format!("make part-{n}") });
        let id = actor.announce("Bash", &input).await;
        actor.started(&id, "Bash").await;
        if !asks(stage) {
            actor.ran(&id, &input).await;
            allowed += 1;
            continue;
        }
        let asked = actor.raise_command(&id, input, Map::new()).await;
        waiting.push(async move {
            let answer = stage.answered(&asked.request_id, asked.answer, false).await.unwrap_or_default();
            (asked.tool_use_id, asked.input, answer)
        });
    }
    while let Some((id, input, answer)) = waiting.next().await {
        if answer["behavior"] == "allow" {
            actor.ran(&id, &input).await;
            allowed += 1;
        } else {
            actor.fail(&id, "Bash", "denied by user").await;
        }
    }
    actor.say(&format!("Allowed were {allowed} of {count}. ")).await;
}

/// A sub-agent that runs a command: its own tools name the tool it runs under, its ask names the agent.
async fn subagent(actor: &mut Actor<'_>) {
    let stage = actor.stage();
    let session = stage.session();
    actor.say("Somebody else will do that. ").await;
    let input = json!({ "subagent_type": "general-purpose", "description": "Run the tests", "prompt": "Run the tests and tell me" });
    let parent = actor.announce("Agent", &input).await;
    actor.started(&parent, "Agent").await;
    if stage.observed() {
        if asks(stage) {
            // §6.5: the ask of a sub-agent goes nowhere.
            std::future::pending::<()>().await;
        }
        actor.tool_result(&parent, "[general-purpose] The tests pass.").await;
        return;
    }
    let agent = format!("agent-{}", frames::frame_id());
    let describe = |mut frame: Value| {
        frame["task_id"] = json!(agent);
        frames::data(session, frame)
    };
    let started = json!({ "type": "system", "subtype": "task_started", "tool_use_id": parent, "description": "Run the tests",
                          "task_type": "local_agent", "prompt": "Run the tests and tell me" });
    stage.send(describe(started)).await;
    let inner = actor.tool_id("Bash");
    stage.announced(&inner, "Bash");
    stage.send(frames::inner_tool_progress(session, &inner, "Bash", &parent)).await;
    let mut more = Map::new();
    more.insert("agent_id".to_owned(), json!(agent));
    more.insert("title".to_owned(), json!("The sub-agent wants to run the tests"));
    let asked = actor.raise_command(&inner, json!({ "command": "cargo test --quiet" }), more).await;
    let answer = stage.answered(&asked.request_id, asked.answer, false).await.unwrap_or_default();
    let allowed = answer["behavior"] == "allow";
    stage.tool_ended(&inner);
    let (summary, report) = if allowed {
        ("[sandbox=off exit=0]\nstdout:\nran: cargo test --quiet\n", "[general-purpose] The tests pass.")
    } else {
        ("error in Bash: denied by user", "[general-purpose] I was not allowed to run them.")
    };
    stage.send(frames::tool_use_summary(session, &inner, summary)).await;
    let over = json!({ "type": "system", "subtype": "task_notification", "tool_use_id": parent, "output_file": "",
                       "status": if allowed { "completed" } else { "failed" }, "summary": report });
    stage.send(describe(over)).await;
    actor.tool_result(&parent, report).await;
    actor.say(if allowed { "They say it works. " } else { "They were not allowed to. " }).await;
}

async fn task(actor: &mut Actor<'_>, millis: u64) {
    let stage = actor.stage();
    let session = stage.session();
    if stage.observed() {
        actor.say("There are no background tasks here. ").await;
        return;
    }
    let id = "bg-1";
    let stop = stage.settings().begin_task(id);
    let started =
        json!({ "type": "system", "subtype": "task_started", "task_id": id, "description": "cargo test", "task_type": "local_bash" });
    stage.send(frames::data(session, started)).await;
    let beats = async {
        loop {
            stage.pause(TASK_BEAT).await;
            let progress = json!({ "type": "system", "subtype": "task_progress", "task_id": id, "summary": "Still running" });
            stage.send(frames::data(session, progress)).await;
            // Also at a pace without pauses there are not more of them than somebody can read.
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    let stopped = tokio::select! {
        () = stop.cancelled() => true,
        () = time::sleep(Duration::from_millis(millis)) => false,
        () = beats => false,
    };
    stage.settings().end_task(id);
    let (status, words) = if stopped { ("stopped", "The task was stopped. ") } else { ("completed", "The task is over. ") };
    let over = json!({ "type": "system", "subtype": "task_notification", "task_id": id, "status": status,
                       "output_file": "/var/log/bg-1.log", "summary": format!("cargo test {status}") });
    stage.send(frames::data(session, over)).await;
    actor.say(words).await;
}

async fn compaction(actor: &mut Actor<'_>) {
    let stage = actor.stage();
    actor.say("There is much to remember. ").await;
    // §6.1: today's chat compacts without a word.
    let told = !(stage.observed() && stage.mode() == Some(Mode::Chat));
    let before = stage.settings().context();
    if told {
        stage.send(frames::compact_started(stage.session(), "tokens_above_threshold", before)).await;
    }
    stage.pause(400).await;
    stage.settings().compact();
    if told {
        stage.send(frames::compact_finished(stage.session(), before, stage.settings().context())).await;
    }
    actor.say("Now there is less. ").await;
}
