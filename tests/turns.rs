//! Everything that a user of a Socket.IO frontend can do, with both client libraries: the real program before the simulator. The numbers are those
//! of the list of cases.

#![allow(clippy::expect_used, reason = "a test that cannot go on should say where")]

mod support;

use std::time::Duration;

use interline_sim::{Options, Pace, Simulator};
use interline_testkit::{Client, Program, eventually, get, in_repository, post, request, validate};
use serde_json::{Value, json};
use support::{INTERLINE, Stand, UPSTREAMS, token};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

const PROGRAMS: [&str; 2] = ["desk.mjs", "desk.py"];
const PATIENCE: Duration = Duration::from_secs(30);

/// What a client saw, line by line.
struct Told(Vec<Value>);

impl Told {
    fn all<'a>(&'a self, event: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |line| line["event"] == event).map(|line| &line["data"])
    }

    fn acks<'a>(&'a self, event: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |line| line["of"] == event).map(|line| &line["ack"])
    }

    fn ack<'a>(&'a self, event: &'a str) -> &'a Value {
        self.acks(event).last().unwrap_or_else(|| panic!("no ack of {event}: {:?}", self.0))
    }

    fn messages(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|line| &line["messages"]).filter(|messages| messages.is_array())
    }

    fn place(&self, what: impl Fn(&Value) -> bool) -> usize {
        self.0.iter().position(what).unwrap_or_else(|| panic!("not there: {:?}", self.0))
    }

    fn text(&self) -> String {
        let patches = self.all("turn:patch").filter(|patch| patch["patch_type"] == "add_content" && patch["data"]["type"] == "text");
        patches.filter_map(|patch| patch["data"]["text_delta"].as_str()).collect()
    }
}

async fn desk(program: &str, base: &str, cell: &str, session: Option<&str>, transport: &str, plan: Value) -> Told {
    let (secret, plan) = (token(cell), plan.to_string());
    let mut args = vec!["--token", &secret, "--plan", &plan, "--transport", transport];
    if let Some(session) = session {
        args.extend(["--session", session]);
    }
    let told = Told(Client::new(program, base).args(args).run().await.content().json_lines());
    // Whatever is told is as the contracts say.
    for line in &told.0 {
        if let Some(event) = line["event"].as_str() {
            let schema = format!("socketio/{}", event.replace(':', "-"));
            assert_eq!(validate(&schema, &line["data"]), Ok(()), "{line}");
        }
        if let Some(event) = line["of"].as_str() {
            let done = match event {
                "chat:send" => "sent",
                "chat:stop" => "stopped",
                "chat:compact" => "compacted",
                _ => "subscribed",
            };
            let schema = if line["ack"]["ok"] == true { done } else { "refused" };
            assert_eq!(validate(&format!("socketio/ack/{schema}"), &line["ack"]), Ok(()), "{line}");
        }
    }
    told
}

async fn session(base: &str, cell: &str) -> String {
    post(&format!("{base}/api/sessions"), &token(cell), "{}").await.json()["session_id"].as_str().expect("an id").to_owned()
}

fn calls<'a>(messages: &'a Value, status: &'a str) -> impl Iterator<Item = &'a Value> {
    let turns = messages.as_array().into_iter().flatten();
    turns.flat_map(|turn| turn["tool_calls"].as_array().into_iter().flatten()).filter(move |call| call["status"] == status)
}

/// The ask that a call stands for.
fn ask_of(call: &Value) -> Value {
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("text")).expect("JSON");
    arguments["ask"].clone()
}

fn send(message: &str) -> Value {
    json!(["ask", "chat:send", {"message": message}])
}

/// The program with routes that have more keys than usual.
async fn routed(options: Options, route: &str, more: &str) -> (Program, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let simulator = format!("http://{}", listener.local_addr().expect("an address"));
    let stop = CancellationToken::new();
    let sim = Simulator::new(Options { pace: Pace::none(), ..options }).expect("a simulator");
    tokio::spawn(sim.serve(listener, stop.clone()));
    let mut config = format!("[auth]\nmode = \"tokens\"\n\n[link]\nbackoff_first_ms = 20\nbackoff_max_ms = 200\n\n{more}\n");
    for cell in UPSTREAMS {
        let more = if cell == "cloud" {
            "mode = \"agent\"\nenvironment_id = \"7d9f5f7e-3c1b-4a52-9d55-0a2b6f5d1c11\"\ncredential = { value = \"upstream-secret\" }\n"
        } else {
            ""
        };
        config.push_str(&format!(
            "[[token]]\nname = \"{cell}\"\nsecret = {{ value = \"{}\" }}\ncells = [\"{cell}\"]\n\n\
             [[upstream]]\nname = \"{cell}\"\nkind = \"{cell}\"\nurl = \"{simulator}\"\n{more}\n\
             [[route]]\ncell = \"{cell}\"\nupstream = \"{cell}\"\n{route}\n\n",
            token(cell),
        ));
    }
    (Program::serve(INTERLINE, &config).await, stop.drop_guard())
}

// Others' permissions vanished with the page that showed them.
#[tokio::test(flavor = "multi_thread")]
async fn c1_a_permission_is_there_until_it_is_answered_whoever_comes() {
    let stand = Stand::new().await;
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            let id = session(stand.base(), cell).await;
            let reload = [json!(["disconnect"]), json!(["connect"]), json!(["ask", "session:subscribe"]), json!(["messages"])];
            let mut plan = vec![json!(["connect"]), send("scene permission"), json!(["until", "chat:end"])];
            for _ in 0..3 {
                plan.extend(reload.clone());
            }
            let told = desk(program, stand.base(), cell, Some(&id), "websocket", json!(plan)).await;
            assert_eq!(told.messages().count(), 3);
            let mut shown = Value::Null;
            for messages in told.messages() {
                let waiting: Vec<&Value> =
                    calls(messages, "awaiting_answer").filter(|call| call["tool_name"] == "AskUserQuestion").collect();
                let [call] = waiting.as_slice() else { panic!("{program} {cell}: {messages}") };
                shown = ask_of(call);
                assert_eq!((&shown["kind"], &call["display_name"]), (&json!("permission"), &json!("Permission: Bash")));
            }
            let waits = |data: &&Value| data["status"] == "waiting_for_input";
            assert_eq!(told.all("session:updated").filter(waits).count(), 4, "when it was raised, and to each who came");
            // Another surface sees it, and answers.
            let request = shown["request_id"].as_str().expect("an id");
            let list = get(&format!("{}/cells/{cell}/asks", stand.base()), &token(cell)).await;
            assert!(list.body.contains(request), "{}", list.body);
            let answered = post(&format!("{}/cells/{cell}/hitl/{request}", stand.base()), &token(cell), r#"{"grant":"allow"}"#).await;
            assert_eq!(answered.status, 200, "{answered:?}");
            let url = format!("{}/api/sessions/{id}/messages", stand.base());
            eventually("that one is settled", PATIENCE, async || {
                let messages = get(&url, &token(cell)).await.json();
                !calls(&messages, "awaiting_answer").any(|call| ask_of(call)["request_id"] == request)
            })
            .await;
        }
    }
}

// Others let a tool run when nobody answered in time.
#[tokio::test(flavor = "multi_thread")]
async fn c2_what_nobody_answers_is_denied_and_late_answers_are_told_so() {
    let stand = Stand::with(Options::default(), "[ask]\npermission_ms = 400\nform_ms = 400\n").await;
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            let plan = json!([
                ["connect"],
                send("scene permission"),
                ["until", "chat:end"],
                ["hold"],
                ["until", "chat:start"],
                ["answer-again", "allow"],
                ["until", "system:error"],
                ["messages"],
            ]);
            let told = desk(program, stand.base(), cell, None, "websocket", plan).await;
            let ack = told.ack("chat:send");
            assert_eq!((&ack["ok"], &ack["code"]), (&json!(false), &json!("already_resolved")), "{program} {cell}: {ack}");
            assert_eq!(ack["detail"]["outcome"], "expired");
            let messages = told.messages().last().expect("messages");
            let results: Vec<&Value> =
                messages.as_array().into_iter().flatten().flat_map(|turn| turn["tool_calls"].as_array()).flatten().collect();
            let expired = results.iter().find(|call| call["tool_name"] == "AskUserQuestion").expect("the ask");
            assert_eq!((&expired["status"], &expired["result"]), (&json!("error"), &json!("Nobody answered in time.")));
        }
    }
}

// Others took both of two answers, or told the second one nothing.
#[tokio::test(flavor = "multi_thread")]
async fn c4_the_first_of_contradicting_answers_wins_and_the_other_hears_so() {
    let stand = Stand::new().await;
    let (mut sse_won, mut socket_won) = (0, 0);
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            for round in 0..6_u64 {
                let id = session(stand.base(), cell).await;
                let plan = json!([
                    ["connect"],
                    send("scene asks 1"),
                    ["until", "chat:end"],
                    ["hold"],
                    ["sleep", 200],
                    ["answer-again", "deny"],
                    ["sleep", 150],
                ]);
                let answering = desk(program, stand.base(), cell, Some(&id), "websocket", plan);
                let other = async {
                    let asks = format!("{}/cells/{cell}/sessions/{id}/asks", stand.base());
                    let mut request = String::new();
                    eventually("it is asked", PATIENCE, async || {
                        let body = get(&asks, &token(cell)).await.json();
                        let found = body.to_string();
                        request =
                            found.split("\"request_id\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned();
                        !request.is_empty()
                    })
                    .await;
                    tokio::time::sleep(Duration::from_millis(100 + round * 40)).await;
                    let url = format!("{}/cells/{cell}/hitl/{request}", stand.base());
                    (request, post(&url, &token(cell), r#"{"grant":"allow"}"#).await)
                };
                let (told, (request, answer)) = tokio::join!(answering, other);
                let ack = told.ack("chat:send");
                match answer.status {
                    200 => {
                        sse_won += 1;
                        assert_eq!((&ack["code"], &ack["detail"]["answered_from"]), (&json!("already_resolved"), &json!("sse")), "{ack}");
                        let error = told.all("system:error").next().expect("an error");
                        assert!(error["message"].as_str().is_some_and(|message| message.contains("from sse")), "{error}");
                    }
                    409 => {
                        socket_won += 1;
                        assert_eq!(ack["ok"], true, "{ack}");
                        assert!(answer.body.contains("socketio"), "{answer:?}");
                    }
                    _ => panic!("{answer:?}"),
                }
                let url = format!("{}/api/sessions/{id}", stand.base());
                eventually("the run ends", PATIENCE, async || get(&url, &token(cell)).await.json()["status"] == "completed").await;
                assert_eq!(stand.stats().responses_to(&request).received, 1, "{request}");
            }
        }
    }
    assert!(sse_won + socket_won == 24, "{sse_won} {socket_won}");
}

// Others showed a permission again that had been answered, since the agent's server sent it again.
#[tokio::test(flavor = "multi_thread")]
async fn c5_what_is_sent_again_after_its_answer_does_not_wait() {
    let stand = Stand::new().await;
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            let plan = json!([
                ["connect"],
                send("scene replayed 600"),
                ["until", "chat:end"],
                ["answer", "allow"],
                ["sleep", 300],
                ["messages"],
                ["until", "chat:end"],
                ["messages"],
            ]);
            let told = desk(program, stand.base(), cell, None, "websocket", plan).await;
            for messages in told.messages() {
                assert_eq!(calls(messages, "awaiting_answer").count(), 0, "{program} {cell}: {messages}");
            }
            assert_eq!((told.all("chat:start").count(), told.all("chat:end").count()), (2, 2), "{program} {cell}");
            assert!(told.text().contains("It was answered already."), "{program} {cell}");
        }
    }
}

// Others' answers were lost on the way, and their users thought they had been given.
#[tokio::test(flavor = "multi_thread")]
async fn c6_an_answer_that_nothing_confirms_can_be_given_again() {
    let options = Options { control_retention: Duration::from_millis(300), ..Options::default() };
    let stand = Stand::with(options, "[ask]\nconfirm_ms = 600\n").await;
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            let plan = json!([
                ["connect"],
                send("fault deaf 1500"),
                ["until", "chat:end"],
                ["answer", "allow"],
                ["until", "system:notification"],
                ["sleep", 1200],
                ["answer-again", "allow"],
                ["until", "chat:end"],
                ["messages"],
            ]);
            let told = desk(program, stand.base(), cell, None, "websocket", plan).await;
            let notice = told.all("system:notification").next().expect("a notification");
            assert_eq!(notice["notification_type"], "answer_unconfirmed", "{program} {cell}");
            assert!(told.acks("chat:send").all(|ack| ack["ok"] == true), "{program} {cell}: {:?}", told.0);
            assert_eq!(told.all("chat:end").last().expect("an end")["status"], "completed", "{program} {cell}");
        }
    }
}

// Others could not tell a closed tab from a stop.
#[tokio::test(flavor = "multi_thread")]
async fn d2_leaving_is_no_stop_and_a_stop_is_one_in_every_state() {
    let stand = Stand::new().await;
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            let id = session(stand.base(), cell).await;
            let at = Some(id.as_str());
            let info = || async { get(&format!("{}/api/sessions/{id}", stand.base()), &token(cell)).await.json()["status"].clone() };
            // Idle: nothing happens, and it is said.
            let told = desk(program, stand.base(), cell, at, "websocket", json!([["connect"], ["ask", "chat:stop"]])).await;
            assert_eq!((&told.ack("chat:stop")["status"], told.all("chat:end").count()), (&json!("idle"), 0));
            // The client goes, the run stays.
            let plan = json!([["connect"], send("fault hang-after 2"), ["until", "turn:patch"], ["drop"]]);
            let left = desk(program, stand.base(), cell, at, "websocket", plan).await;
            let run = left.ack("chat:send")["chat_run_id"].clone();
            assert_eq!(info().await, "running", "{program} {cell}");
            // Another run's id stops nothing; this one's does, and twice is once.
            let plan = json!([
                ["connect"], ["ask", "session:subscribe"], ["ask", "chat:stop", {"chat_run_id": "run-00000000000000000000000000000000"}],
                ["emit", "chat:stop", {"chat_run_id": run}], ["emit", "chat:stop"], ["until", "chat:end"], ["ask", "chat:stop", {"chat_run_id": run}],
                ["messages"],
            ]);
            let told = desk(program, stand.base(), cell, at, "websocket", plan).await;
            let words: Vec<&Value> = told.acks("chat:stop").map(|ack| &ack["status"]).collect();
            assert_eq!((words[0], words[1], words[3]), (&json!("idle"), &json!("stopping"), &json!("interrupted")), "{program} {cell}");
            let ends: Vec<&Value> = told.all("chat:end").collect();
            assert_eq!(ends.len(), 1, "{program} {cell}");
            assert_eq!(
                (&ends[0]["status"], &ends[0]["chat_run_id"], &ends[0]["finish_reason"]),
                (&json!("interrupted"), &run, &Value::Null)
            );
            assert_eq!(info().await, "interrupted");
            // While something is asked.
            let plan = json!([
                ["connect"],
                send("scene permission"),
                ["until", "chat:end"],
                ["ask", "chat:stop"],
                ["until", "chat:end"],
                ["messages"]
            ]);
            let told = desk(program, stand.base(), cell, at, "websocket", plan).await;
            assert_eq!(
                (&told.ack("chat:stop")["status"], told.all("chat:end").last().map(|end| end["status"].clone())),
                (&json!("stopping"), Some(json!("interrupted")))
            );
            assert_eq!(calls(told.messages().last().expect("messages"), "awaiting_answer").count(), 0);
        }
    }
}

// Others' runs died with the first client that left.
#[tokio::test(flavor = "multi_thread")]
async fn d3_a_client_that_leaves_takes_nothing_with_it() {
    let stand = Stand::with(Options { transcripts: Some(in_repository("tests/transcripts")), ..Options::default() }, "").await;
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            let id = session(stand.base(), cell).await;
            let watching = desk(
                program,
                stand.base(),
                cell,
                Some(&id),
                "websocket",
                json!([["connect"], ["ask", "session:subscribe"], ["until", "chat:end"], ["messages"]]),
            );
            let leaving = async {
                tokio::time::sleep(Duration::from_millis(1_200)).await;
                desk(
                    program,
                    stand.base(),
                    cell,
                    Some(&id),
                    "websocket",
                    json!([["connect"], send("play long-texts auto gap=40"), ["until", "turn:patch"], ["drop"]]),
                )
                .await
            };
            let (watched, left) = tokio::join!(watching, leaving);
            assert_eq!(watched.all("chat:end").next().expect("an end")["status"], "completed", "{program} {cell}");
            assert!(watched.text().starts_with(&left.text()) && watched.text().len() > left.text().len(), "{program} {cell}");
            // And with nobody there at all.
            let plan = json!([["connect"], send("play long-texts auto gap=20"), ["until", "turn:patch"], ["drop"]]);
            let _ = desk(program, stand.base(), cell, Some(&id), "websocket", plan).await;
            let url = format!("{}/api/sessions/{id}", stand.base());
            eventually("it ends by itself", PATIENCE, async || get(&url, &token(cell)).await.json()["status"] == "completed").await;
        }
    }
}

// Others' agents worked on for ever with nobody there.
#[tokio::test(flavor = "multi_thread")]
async fn d4_a_run_that_nobody_watches_is_stopped_where_that_is_wanted() {
    let (place, _stop) = routed(Options::default(), "stop_unwatched_ms = 500", "").await;
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            let id = session(place.base(), cell).await;
            let plan = json!([["connect"], send("fault hang-after 1"), ["until", "turn:patch"], ["sleep", 1_200], ["messages"], ["drop"]]);
            let told = desk(program, place.base(), cell, Some(&id), "websocket", plan).await;
            let messages = told.messages().last().expect("messages");
            assert!(messages.to_string().contains("streaming"), "watched, it goes on: {messages}");
            let url = format!("{}/api/sessions/{id}", place.base());
            eventually("it is stopped", PATIENCE, async || get(&url, &token(cell)).await.json()["status"] == "interrupted").await;
        }
    }
}

// Others acknowledged a message after the events that it caused.
#[tokio::test(flavor = "multi_thread")]
async fn e6_the_acknowledgement_comes_before_what_it_confirms() {
    let stand = Stand::new().await;
    for program in PROGRAMS {
        for transport in ["websocket", "polling", "default"] {
            for pause in [0, 50] {
                let plan = json!([
                    ["connect"], ["sleep", pause], ["emit", "session:subscribe"], ["emit", "chat:send", {"message": "play chat-text-only"}],
                    ["until", "chat:end"],
                ]);
                let told = desk(program, stand.base(), "cloud", None, transport, plan).await;
                let acked = told.place(|line| line["of"] == "chat:send");
                let started = told.place(|line| line["event"] == "chat:start");
                assert!(acked < started, "{program} {transport} {pause}: {:?}", told.0);
                assert!(told.place(|line| line["of"] == "session:subscribe") < acked);
            }
        }
    }
}

// A second message while a run goes on: refused, taken in its turn, or in the place of the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_session_does_with_a_message_what_its_route_says() {
    let again = json!(["ask", "chat:send", {"message": "play chat-text-only"}]);
    for on_busy in ["reject", "queue", "interrupt"] {
        let (place, _stop) = routed(Options::default(), &format!("on_busy = \"{on_busy}\""), "").await;
        for program in PROGRAMS {
            for cell in UPSTREAMS {
                let head = [json!(["connect"]), send("fault hang-after 2"), json!(["until", "turn:patch"]), again.clone()];
                let tail = match on_busy {
                    "reject" => vec![json!(["until", "system:error"])],
                    // The second is stopped before it begins, a third one waits and begins after the first was stopped.
                    "queue" => vec![
                        json!(["mark", "queued"]),
                        json!(["ask", "chat:stop"]),
                        json!(["until", "chat:end"]),
                        json!(["until", "chat:end"]),
                    ],
                    _ => vec![json!(["until", "chat:end"]), json!(["until", "chat:end"])],
                };
                let plan: Vec<Value> = head.into_iter().chain(tail).collect();
                let told = desk(program, place.base(), cell, None, "websocket", json!(plan)).await;
                let acks: Vec<&Value> = told.acks("chat:send").collect();
                let ends: Vec<(&Value, &Value)> = told.all("chat:end").map(|end| (&end["chat_run_id"], &end["status"])).collect();
                match on_busy {
                    "reject" => {
                        assert!(acks[1]["message"].as_str().is_some_and(|message| message.contains("has an active chat")), "{:?}", acks[1]);
                        assert_eq!((&acks[1]["code"], ends.len()), (&json!("chat_active"), 0));
                    }
                    "queue" => {
                        assert_eq!(
                            (&acks[1]["ok"], acks[1]["chat_run_id"] == acks[0]["chat_run_id"]),
                            (&json!(true), false),
                            "{program} {cell}"
                        );
                        let status = |run: &Value| ends.iter().find(|(id, _)| *id == run).map(|(_, status)| (*status).clone());
                        assert_eq!(status(&acks[0]["chat_run_id"]), Some(json!("interrupted")), "{program} {cell}");
                        assert_eq!(status(&acks[1]["chat_run_id"]), Some(json!("interrupted")), "{program} {cell}");
                        assert_eq!(told.all("chat:start").count(), 1, "the second never began");
                    }
                    _ => {
                        let expected = [(&acks[0]["chat_run_id"], &json!("interrupted")), (&acks[1]["chat_run_id"], &json!("completed"))];
                        assert_eq!(ends, expected, "{program} {cell}");
                    }
                }
            }
        }
        if on_busy == "queue" {
            for cell in UPSTREAMS {
                let id = session(place.base(), cell).await;
                let plan = json!([
                    ["connect"],
                    send("fault busy 600"),
                    ["until", "turn:patch"],
                    again,
                    ["until", "chat:end"],
                    ["until", "chat:end"]
                ]);
                let told = desk("desk.mjs", place.base(), cell, Some(&id), "websocket", plan).await;
                let runs: Vec<&Value> = told.acks("chat:send").map(|ack| &ack["chat_run_id"]).collect();
                let starts: Vec<&Value> = told.all("chat:start").map(|start| &start["chat_run_id"]).collect();
                let ends: Vec<&Value> = told.all("chat:end").map(|end| &end["chat_run_id"]).collect();
                assert_eq!((&starts, &ends), (&runs, &runs), "{cell}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_and_variables_reach_the_agent_and_replays_are_refused() {
    let stand = Stand::new().await;
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            let id = session(stand.base(), cell).await;
            let set = request(
                "PUT",
                &format!("{}/api/sessions/{id}/env", stand.base()),
                &[("authorization", &format!("Bearer {}", token(cell))), ("content-type", "application/json")],
                r#"{"env":{"A":"1","B":"1"}}"#.to_owned(),
            )
            .await;
            assert_eq!(set.status, 200);
            let send = |more: Value| {
                let mut payload = json!({"message": "scene settings 400"});
                payload.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
                json!(["ask", "chat:send", payload])
            };
            let plan = json!([
                ["connect"],
                send(json!({"mode": "planning", "runtime_env": {"B": "2"}})),
                ["until", "chat:end"],
                ["mark", "1"],
                send(json!({"mode": null})),
                ["until", "chat:end"],
                ["mark", "2"],
                send(json!({"mode": "executing"})),
                ["until", "chat:end"],
                ["mark", "3"],
                send(json!({"whatif": {"from_step": 1}})),
                send(json!({"replay_decision": "keep_replay"})),
            ]);
            let told = desk(program, stand.base(), cell, Some(&id), "websocket", plan).await;
            let text = told.text();
            let said: Vec<&str> = text.split("Settings: ").skip(1).collect();
            let expected = [("mode plan", "A=1 B=2"), ("mode plan", "A=1 B=1"), ("mode default", "A=1 B=1")];
            assert_eq!(said.len(), 3, "{program} {cell}: {text}");
            for (said, (mode, variables)) in said.iter().zip(expected) {
                assert!(said.contains(mode) && said.contains(variables), "{program} {cell}: {said} is not {mode} {variables}");
            }
            let refused: Vec<&Value> = told.acks("chat:send").skip(3).map(|ack| &ack["code"]).collect();
            assert_eq!(refused, ["unsupported", "unsupported"]);
            assert!(told.all("system:error").all(|error| error["session_id"] == id));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_is_a_turn_where_it_can_be_and_a_sentence_where_not() {
    let stand = Stand::new().await;
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            let id = session(stand.base(), cell).await;
            let plan = json!([
                ["connect"],
                send("play chat-text-only"),
                ["until", "chat:end"],
                ["mark", "over"],
                ["ask", "chat:compact"],
                ["messages"],
                send("fault hang-after 1"),
                ["until", "turn:patch"],
                ["ask", "chat:compact"],
                ["ask", "chat:stop"],
                ["until", "chat:end"],
            ]);
            let told = desk(program, stand.base(), cell, Some(&id), "websocket", plan).await;
            let acks: Vec<&Value> = told.acks("chat:compact").collect();
            assert_eq!(acks[1]["code"], "chat_active", "{program} {cell}");
            let url = format!("{}/api/sessions/{id}/compact", stand.base());
            let over_rest = post(&url, &token(cell), "").await;
            if cell == "cloud" {
                assert_eq!((&acks[0]["status"], &acks[0]["code"]), (&json!("error"), &json!("unsupported")), "{program}");
                assert!(told.all("system:error").any(|error| error["code"] == "unsupported" && error["session_id"] == id));
                assert_eq!(over_rest.status, 501, "{over_rest:?}");
                assert!(over_rest.json()["detail"].as_str().is_some_and(|detail| detail.contains("compact")));
                continue;
            }
            assert_eq!((acks[0]["ok"].clone(), over_rest.status), (json!(true), 200), "{program} {over_rest:?}");
            let over = told.place(|line| line["mark"] == "over");
            let acked = told.place(|line| line["of"] == "chat:compact");
            let turns: Vec<(&Value, &Value, &Value)> = told
                .0
                .get(over..acked)
                .expect("in order")
                .iter()
                .filter(|line| line["event"].is_string())
                .map(|line| (&line["event"], &line["data"]["kind"], &line["data"]["trigger"]))
                .collect();
            let kinds = (&json!("compaction"), &json!("manual"));
            assert_eq!(turns, [(&json!("turn:start"), kinds.0, kinds.1), (&json!("turn:end"), kinds.0, kinds.1)], "{program}");
            let listed = told.messages().next().expect("messages").as_array().expect("a list").last().expect("a turn").clone();
            assert_eq!((&listed["kind"], &listed["role"], &listed["status"]), (kinds.0, &json!("system"), &json!("completed")));
        }
    }
    assert!(stand.stats().compactions >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_go_to_the_agent_and_are_listed_and_no_path_leads_out() {
    let stand = Stand::new().await;
    let form = "--x\r\nContent-Disposition: form-data; name=\"files\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\nPNG\r\n\
                --x\r\nContent-Disposition: form-data; name=\"files\"; filename=\"b.txt\"\r\nContent-Type: text/plain\r\n\r\nhello\r\n\
                --x\r\nContent-Disposition: form-data; name=\"paths\"\r\n\r\n[\"pics/a.png\",\"b.txt\"]\r\n--x--\r\n";
    for cell in UPSTREAMS {
        let bearer = format!("Bearer {}", token(cell));
        let id = session(stand.base(), cell).await;
        // The bridge has a session from the first run on.
        let _ = desk(
            "desk.mjs",
            stand.base(),
            cell,
            Some(&id),
            "websocket",
            json!([["connect"], send("play chat-text-only"), ["until", "chat:end"]]),
        )
        .await;
        let upload = async |folder: &str| {
            let headers = [("authorization", bearer.as_str()), ("content-type", "multipart/form-data; boundary=x")];
            let answer = request("POST", &format!("{}/api/sessions/{id}/upload{folder}", stand.base()), &headers, form.to_owned()).await;
            (answer.status, answer.rest().await)
        };
        let (status, body) = upload("/%2E").await;
        if cell == "cloud" {
            assert_eq!(status, 501, "{body}");
            assert!(body.contains("cannot take files"), "{body}");
            continue;
        }
        let taken: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((status, &taken["uploaded"], &taken["failed"]), (200, &json!(["pics/a.png", "b.txt"]), &json!([])), "{body}");
        assert_eq!(upload("/data%2Fdeep").await.0, 200);
        for folder in ["/..", "/%2e%2e/x", "/a%2f..%2f..", "/a%5Cb", "/a%00"] {
            assert_eq!(upload(folder).await.0, 400, "{folder}");
        }
        let at = |path: &str| format!("{}/api/sessions/{id}/{path}", stand.base());
        let list = get(&at("ls/."), &token(cell)).await.json();
        let names: Vec<(&str, bool)> = list
            .as_array()
            .expect("a list")
            .iter()
            .map(|entry| (entry["name"].as_str().expect("a name"), entry["is_dir"] == true))
            .collect();
        assert_eq!(names, [("b.txt", false), ("data", true), ("pics", true)]);
        assert_eq!(get(&at("ls/data/deep"), &token(cell)).await.json()[0]["path"], "data/deep/b.txt");
        assert_eq!(get(&at("files/b.txt"), &token(cell)).await.body, "hello");
        for (path, status) in [("files/none", 404), ("files/..%2f..%2fetc%2fpasswd", 400), ("ls/..%2f", 400), ("download-dir/data", 501)] {
            assert_eq!(get(&at(path), &token(cell)).await.status, status, "{path}");
        }
        assert_eq!(stand.stats().attachments.len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_headless_result_is_what_its_schema_says_or_a_failure() {
    let stand = Stand::with(Options { transcripts: Some(in_repository("tests/transcripts")), ..Options::default() }, "").await;
    for program in PROGRAMS {
        for cell in UPSTREAMS {
            for (schema, fits) in [(json!({"type": "object"}), true), (json!({"type": "object", "required": ["nowhere"]}), false)] {
                let payload = json!({"message": "play structured auto", "headless": true, "output_schema": schema});
                let told = desk(
                    program,
                    stand.base(),
                    cell,
                    None,
                    "websocket",
                    json!([["connect"], ["ask", "chat:send", payload], ["until", "chat:end"]]),
                )
                .await;
                let end = told.all("chat:end").next().expect("an end");
                assert_eq!(end["status"], if fits { "completed" } else { "failed" }, "{program} {cell}: {end}");
                let why = end["result"]["err_msg"].as_str().unwrap_or_default();
                assert_eq!(why.contains("\"nowhere\" is a required property"), !fits, "{program} {cell}: {end}");
            }
            let payload = json!({"message": "x", "headless": true, "output_schema": {"type": "thing"}});
            let told = desk(program, stand.base(), cell, None, "websocket", json!([["connect"], ["ask", "chat:send", payload]])).await;
            assert_eq!(told.ack("chat:send")["code"], "invalid_request");
        }
    }
}
