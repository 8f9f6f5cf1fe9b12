//! Frames in places where they mean something: what the tables are held to.
//!
//! Every line of a table has to be shown by one of these, so whoever adds a line adds the frame that proves it.

use interline_model::{Actor, Answer, AskId, Body, Fact, FailureKind, ForcedEnd, Principal, Text};

/// All recorded kinds of frames.
const CATALOGUE: &str = include_str!("../../crates/native/tests/data/frames.jsonl");

/// What comes before: each lets other frames mean something.
const BEFORE: &[&[&str]] = &[
    &[],
    // A turn is open.
    &[SAID],
    // A turn is over but not closed.
    &[SAID, BASH, BASH_RESULT],
    // A call goes on, and people are asked about it.
    &[BASH, ASKED_ABOUT_BASH],
    // The same, and the sub-agent's call goes on besides.
    &[AGENT, BY_AGENT, BASH, ASKED_ABOUT_BASH],
    // A sub-agent works, with a call of its own that has ended.
    &[AGENT, BY_AGENT, AGENT_CALL, AGENT_RESULT],
    // A sub-agent works that has only spoken.
    &[AGENT, BY_AGENT],
    // A sub-agent's call is over, and it works on.
    &[AGENT, BY_AGENT, AGENT_OVER],
    // A sub-agent calls, and thinks.
    &[AGENT, AGENT_THINKS, AGENT_CALL],
    // A plan is being streamed, and people are asked about it already.
    &[PLAN_STREAMS, ASKED_ABOUT_PLAN],
    // A plan is being streamed.
    &[SAID, PLAN_STREAMS],
    // The same in a turn whose calls have ended.
    &[BASH, BASH_RESULT, PLAN_STREAMS],
    // A plan goes on.
    &[PLAN],
    // All of a plan's steps are done.
    &[PLAN, PLAN_DONE],
    // Background tasks go on, one of them with nothing else.
    &[SAID, r#"{"type":"system","subtype":"task_started","task_id":"bg-1","description":"Test"}"#],
    &[SAID, r#"{"type":"system","subtype":"task_started","task_id":"agent-1","description":"Find callers"}"#],
    // Half of a mark waits.
    &[r#"{"type":"streamlined_text","text":"so <thi"}"#],
    &[r#"{"type":"streamlined_text","text":"<think>hm\n</thi"}"#],
    // A piece of thinking waits in the writer.
    &[r#"{"type":"streamlined_text","text":"<think>hm"}"#, r#"{"type":"streamlined_text","text":", hm"}"#],
    // The same, while a call goes on that was announced without input.
    &[BASH, r#"{"type":"streamlined_text","text":"<think>hm"}"#, r#"{"type":"streamlined_text","text":", hm"}"#],
    // A form waits.
    &[SAID, FORM],
    // A question waits, in its own call.
    &[SAID, QUESTION],
    // A question and a permission wait.
    &[SAID, QUESTION, ASKED_ABOUT_BASH],
    // A call paused with its turn and has ended since.
    &[BASH, ASKED_ABOUT_BASH, BASH_RESULT],
    // The context is being compacted.
    &[SAID, r#"{"type":"biumind.compact_started","reason":"tokens_above_threshold","tokens_before":5}"#],
    // The tokens of a turn are known.
    &[
        r#"{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1","usage":{"input_tokens":3,"output_tokens":1}}}}"#,
        r#"{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a"}}}"#,
    ],
    // The same, and the turn paused and went on.
    &[
        r#"{"type":"stream_event","event":{"type":"message_start","message":{"id":"m1","usage":{"input_tokens":3,"output_tokens":1}}}}"#,
        BASH,
        ASKED_ABOUT_BASH,
        BASH_RESULT,
    ],
    // A question paused the chat, it went on by itself, and it pauses again.
    &[SAID, BASH, QUESTION, BASH_RESULT],
    // A question paused the chat and was answered.
    &[SAID, QUESTION, ANSWERED],
    // A tool that writes a file goes on.
    &[
        r#"{"type":"assistant","message":{"id":"m4","content":[{"type":"tool_use","id":"toolu_01Write","name":"Write","input":{"file_path":"/a","content":""}}]}}"#,
    ],
    // The agent plans.
    &[r#"{"type":"system","subtype":"status","permissionMode":"plan"}"#],
    &[SAID, ASKED_ABOUT_BASH, r#"{"type":"streamlined_text","text":"<think>hm"}"#, r#"{"type":"streamlined_text","text":", hm"}"#],
];

const SAID: &str = r#"{"type":"streamlined_text","text":"Let me see."}"#;
const BASH: &str = r#"{"type":"tool_progress","tool_use_id":"toolu_01Bash","tool_name":"Bash","elapsed_time_seconds":0}"#;
const BASH_RESULT: &str = r#"{"type":"tool_use_summary","summary":"ok","preceding_tool_use_ids":["toolu_01Bash"]}"#;
const ASKED_ABOUT_BASH: &str = r#"{"type":"control_request","request_id":"p1","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"},"tool_use_id":"toolu_01Bash","decision_reason":"first use"}}"#;
const AGENT: &str = r#"{"type":"tool_progress","tool_use_id":"toolu_01Agent","tool_name":"Agent","elapsed_time_seconds":0}"#;
const BY_AGENT: &str = r#"{"type":"streamlined_text","text":"Looking.","parent_tool_use_id":"toolu_01Agent"}"#;
const AGENT_THINKS: &str = r#"{"type":"streamlined_text","text":"<think>hm","parent_tool_use_id":"toolu_01Agent"}"#;
const AGENT_CALL: &str = r#"{"type":"tool_progress","tool_use_id":"toolu_01Sub","tool_name":"Grep","parent_tool_use_id":"toolu_01Agent"}"#;
const AGENT_RESULT: &str =
    r#"{"type":"tool_use_summary","summary":"ok","preceding_tool_use_ids":["toolu_01Sub"],"parent_tool_use_id":"toolu_01Agent"}"#;
const AGENT_OVER: &str = r#"{"type":"tool_use_summary","summary":"found","preceding_tool_use_ids":["toolu_01Agent"]}"#;
const PLAN_STREAMS: &str = concat!(
    r#"{"type":"stream_event","event":{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_01Plan","name":"TodoWrite","#,
    r#""input":{"todos":[{"content":"one","status":"pending"},{"content":"two","status":"pending"}]}}}}"#
);
const ASKED_ABOUT_PLAN: &str = r#"{"type":"control_request","request_id":"p2","request":{"subtype":"can_use_tool","tool_name":"TodoWrite","tool_use_id":"toolu_01Plan"}}"#;
const PLAN: &str = r#"{"type":"assistant","message":{"id":"m9","content":[{"type":"tool_use","id":"toolu_02Plan","name":"TodoWrite","input":{"todos":[{"content":"one","status":"pending"},{"content":"two","status":"pending"}]}}]}}"#;
const PLAN_DONE: &str = r#"{"type":"assistant","message":{"id":"m9","content":[{"type":"tool_use","id":"toolu_03Plan","name":"TodoWrite","input":{"todos":[{"content":"one","status":"completed"},{"content":"two","status":"completed"}]}}]}}"#;
const FORM: &str = r#"{"type":"control_request","request_id":"f1","request":{"subtype":"elicitation","mcp_server_name":"deploy","message":"Where?","mode":"form","elicitation_id":"el_01","requested_schema":{"type":"object","properties":{}}}}"#;
const QUESTION: &str = r#"{"type":"control_request","request_id":"q1","request":{"subtype":"can_use_tool","tool_name":"AskUserQuestion","input":{"questions":[{"question":"Which?","options":[{"label":"a"},{"label":"b"}]}]},"tool_use_id":"toolu_01Ask"}}"#;

/// Stands for the answer to that question, which no frame says.
const ANSWERED: &str = "answered";

/// Frames that mean something else than the catalogue's of their kind.
const MORE: &[&str] = &[
    SAID,
    BY_AGENT,
    r#"{"type":"streamlined_text","text":"<think>\nhm\n</think>\n\nso"}"#,
    r#"{"type":"streamlined_text","text":"<think>hm","parent_tool_use_id":"toolu_01Agent"}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}}"#,
    r#"{"type":"stream_event","event":{"type":"content_block_stop","index":1}}"#,
    r#"{"type":"stream_event","event":{"type":"message_stop"}}"#,
    r#"{"type":"assistant","message":{"id":"m2","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"so"}]}}"#,
    r#"{"type":"assistant","message":{"id":"m2","content":[{"type":"tool_use","id":"toolu_01Bash","name":"Bash","input":{"command":"ls"}}]}}"#,
    r#"{"type":"assistant","parent_tool_use_id":"toolu_01Agent","message":{"id":"m3","content":[{"type":"tool_use","id":"toolu_07Plan","name":"TodoWrite","input":{"todos":[{"content":"inner","status":"pending"}]}}]}}"#,
    PLAN,
    PLAN_DONE,
    r#"{"type":"assistant","message":{"id":"m9","content":[{"type":"tool_use","id":"toolu_04Plan","name":"TodoWrite","input":{"todos":[{"content":"one","status":"in_progress"},{"content":"two","status":"pending"}]}}]}}"#,
    r#"{"type":"assistant","message":{"id":"m9","content":[{"type":"tool_use","id":"toolu_05Plan","name":"TodoWrite","input":{"todos":[]}}]}}"#,
    r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01Bash","content":"no","is_error":true}]}}"#,
    r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01Agent","content":"found"}]}}"#,
    r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01Bash","content":"ok"}]}}"#,
    r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01Plan","content":"ok"}]}}"#,
    r#"{"type":"user","isReplay":true,"message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01Bash","content":"no","is_error":true}]}}"#,
    r#"{"type":"user","isReplay":true,"message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01Agent","content":"found"}]}}"#,
    r#"{"type":"user","isReplay":true,"message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01Plan","content":"ok"}]}}"#,
    BASH_RESULT,
    AGENT_RESULT,
    AGENT_OVER,
    r#"{"type":"tool_use_summary","summary":"error in Bash: no","preceding_tool_use_ids":["toolu_01Bash"]}"#,
    r#"{"type":"tool_use_summary","summary":"ok","preceding_tool_use_ids":["toolu_01Plan"]}"#,
    r#"{"type":"tool_use_summary","summary":"answered","preceding_tool_use_ids":["toolu_01Ask"]}"#,
    r#"{"type":"streamlined_tool_use_summary","tool_summary":"error in Bash: no"}"#,
    r#"{"type":"result","subtype":"success","is_error":false,"stop_reason":"interrupted"}"#,
    r#"{"type":"result","subtype":"error_max_turns","is_error":false,"num_turns":3,"usage":{"input_tokens":1},"total_cost_usd":0.5}"#,
    r#"{"type":"result","subtype":"error_max_turns","is_error":true,"num_turns":3,"usage":{"input_tokens":1},"total_cost_usd":0.5}"#,
    r#"{"type":"result","is_error":true,"terminal_reason":"aborted_tools"}"#,
    r#"{"type":"result","is_error":true,"errors":[{"message":"once more","recoverable":true}]}"#,
    r#"{"type":"result","is_error":true,"errors":["529: overloaded"]}"#,
    r#"{"type":"tool_use_summary","summary":"error in Grep: no","preceding_tool_use_ids":["toolu_01Sub"],"parent_tool_use_id":"toolu_01Agent"}"#,
    r#"{"type":"tool_use_summary","summary":"ok","preceding_tool_use_ids":["toolu_01Write"]}"#,
    r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01Bash","content":{"ok":true,"_meta":{"bridge":{"action":"open","payload":{}},"ui":{"title":"t"}}}}]}}"#,
    r#"{"type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01Bash","is_error":true,"content":{"ok":false,"_meta":{"bridge":{"action":"open","payload":{}},"ui":{"title":"t"}}}}]}}"#,
    r#"{"type":"system","subtype":"status","permissionMode":"plan"}"#,
    r#"{"type":"control_request","request_id":"p4","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"toolu_01Bash"}}"#,
    QUESTION,
    ASKED_ABOUT_BASH,
    ASKED_ABOUT_PLAN,
    r#"{"type":"control_request","request_id":"p3","request":{"subtype":"can_use_tool","tool_name":"TodoWrite","tool_use_id":"toolu_06Plan","input":{"todos":[{"content":"one"}]}}}"#,
    r#"{"type":"control_request","request_id":"q2","request":{"subtype":"can_use_tool","tool_name":"AskUserQuestion","tool_use_id":"toolu_01Bash","input":{"questions":[{"question":"Which?","options":[{"label":"a"}]}]}}}"#,
    r#"{"type":"control_request","request":{"subtype":"can_use_tool","tool_name":"Bash","tool_use_id":"toolu_01Bash"}}"#,
    r#"{"type":"control_request","request":{"subtype":"elicitation","message":"Where?"}}"#,
    r#"{"type":"control_request","request_id":"x","request":{"subtype":"a_new_one"}}"#,
    r#"{"type":"control_cancel_request","request_id":"p1"}"#,
    r#"{"type":"system","subtype":"init"}"#,
    r#"{"type":"system","subtype":"status","status":"compacting"}"#,
    r#"{"type":"system","subtype":"session_state_changed"}"#,
    r#"{"type":"system","subtype":"post_turn_summary","title":""}"#,
    r#"{"type":"system","subtype":"hook_response","hook_id":"h","outcome":"error","stderr":"no"}"#,
    r#"{"type":"auth_status","isAuthenticating":false,"output":[],"error":"expired"}"#,
    r#"{"type":"prompt_suggestion","suggestion":""}"#,
    r#"{"type":"system","subtype":"form_answer","request_id":"f1","elicitation_id":"el_01","action":"timeout"}"#,
    r#"{"type":"system","subtype":"task_notification","task_id":"bg-1","tool_use_id":"toolu_01Bash","status":"failed","output_file":"/o","summary":"no"}"#,
    r#"{"type":"streamlined_audio","data":"AA=="}"#,
    "null",
    "{",
];

fn by() -> Actor {
    Actor { principal: Principal::from("anonymous"), surface: Text::from_static("sse") }
}

fn facts() -> Vec<Fact> {
    let answered = |ask: &str, answer| Fact::AskAnswered { ask: AskId::from(ask), answer, by: by() };
    let mut facts = vec![
        answered("p1", Answer::Allow { input: None, always: false }),
        answered("p1", Answer::Deny { message: Text::from_static("no") }),
        answered("q1", Answer::Choose(vec![(Text::from_static("Which?"), Text::from_static("a"))])),
        Fact::StopRequested { by: by() },
        Fact::LinkLost,
        Fact::LinkBack,
        Fact::Titled { title: Text::from_static("A title") },
    ];
    facts.extend(["p1", "q1", "f1"].map(|ask| Fact::AskExpired { ask: AskId::from(ask) }));
    let refused = ForcedEnd::Refused { kind: FailureKind::EngineNotReady, message: Text::from_static("no") };
    facts.extend(
        [ForcedEnd::UpstreamGone, ForcedEnd::StopGraceOver, ForcedEnd::Idle, ForcedEnd::ErrorStayed, ForcedEnd::Shutdown, refused]
            .map(Fact::EndForced),
    );
    facts
}

fn frame(text: &str) -> Body {
    if text == ANSWERED {
        let answer = Answer::Choose(vec![(Text::from_static("Which?"), Text::from_static("a"))]);
        return Body::Fact(Fact::AskAnswered { ask: AskId::from("q1"), answer, by: by() });
    }
    Body::Frame(Text::from(text))
}

/// Rows of records, each ending with the one that is looked at.
pub(crate) fn examples() -> Vec<Vec<Body>> {
    let frames = CATALOGUE.lines().chain(MORE.iter().copied()).map(frame);
    let looked_at: Vec<Body> = frames.chain(facts().into_iter().map(Body::Fact)).collect();
    let before = BEFORE.iter().map(|before| before.iter().map(|text| frame(text)).collect::<Vec<_>>());
    before.flat_map(|before| looked_at.iter().map(move |last| before.iter().cloned().chain([last.clone()]).collect())).collect()
}
