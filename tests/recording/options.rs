//! Every option of the legacy surfaces, alone at another value than its default.

use interline_surface_socketio::{HeadlessResult, Options as SocketOptions, PatchFormat, PauseStatus};
use interline_surface_sse::{ArgumentsForm, AskLimits, Extras, InterruptTerminal, Options as SseOptions, SubAgents};

use super::Recording;

/// One option at one value, and the four recordings that show it.
pub(crate) struct Alone<O> {
    /// `option=value`.
    pub(crate) name: &'static str,
    pub(crate) options: O,
    pub(crate) shown_by: [&'static str; 4],
    /// The oracle knows this form.
    pub(crate) readable: bool,
}

fn sse(name: &'static str, shown_by: [&'static str; 4], change: impl FnOnce(&mut SseOptions)) -> Alone<SseOptions> {
    let mut options = SseOptions::default();
    change(&mut options);
    assert_ne!(options, SseOptions::default(), "{name} is the default");
    Alone { name, options, shown_by, readable: true }
}

fn socketio(name: &'static str, shown_by: [&'static str; 4], change: impl FnOnce(&mut SocketOptions)) -> Alone<SocketOptions> {
    let mut options = SocketOptions::default();
    change(&mut options);
    assert_ne!(options, SocketOptions::default(), "{name} is the default");
    Alone { name, options, shown_by, readable: true }
}

/// The options of the SSE mapping.
pub(crate) fn sse_options() -> Vec<Alone<SseOptions>> {
    // An option that is missing below must not be forgotten: without its name here this does not compile.
    let SseOptions {
        max_event_bytes: _,
        sub_agents: _,
        interrupt_terminal: _,
        arguments: _,
        first_turn_num: _,
        extras: _,
        ask_limits: _,
        // No choice: where the session is.
        cell: _,
    } = SseOptions::default();
    vec![
        sse("max_event_bytes=1024", ["long-texts", "agent-with-tools", "multi", "line-breaks"], |options| options.max_event_bytes = 1024),
        sse("sub_agents=hide", ["sub-agents-parallel", "sub-agents-nested", "stop-then-silence", "agent-with-tools"], |options| {
            options.sub_agents = SubAgents::Hide;
        }),
        sse("interrupt_terminal=done", ["interrupted", "aborted", "stop-then-silence", "error"], |options| {
            options.interrupt_terminal = InterruptTerminal::Done;
        }),
        Alone {
            readable: false,
            ..sse("arguments=string", ["agent-with-permission", "ask", "hard-json", "input-late"], |options| {
                options.arguments = ArgumentsForm::String;
            })
        },
        Alone {
            readable: false,
            ..sse("first_turn_num=0", ["agent-with-permission", "multi", "turns-by-tools", "error"], |options| options.first_turn_num = 0)
        },
        sse("extras=fields", EXTRAS, |options| options.extras = Extras::Fields),
        // Its further events are none of the oracle's; a test of its own says that the others are those of `fields`.
        Alone { readable: false, ..sse("extras=events", EXTRAS, |options| options.extras = Extras::Events) },
        // Shows in one of the further members only.
        sse("ask_limits=30000,300000", ["agent-with-permission", "agent-with-elicitation", "questions", "elicitations"], |options| {
            options.extras = Extras::Fields;
            options.ask_limits = Some(AskLimits { permission_ms: 30_000, form_ms: 300_000 });
        }),
    ]
}

/// Everything that has further members: asks, ends of every kind, plans.
const EXTRAS: [&str; 4] = ["agent-with-permission", "runs-ok-error-ok", "plan", "interrupted"];

/// The options of the Socket.IO mapping.
pub(crate) fn socketio_options() -> Vec<Alone<SocketOptions>> {
    // As above.
    let SocketOptions {
        patch_format: _,
        thinking_delta: _,
        pause_status: _,
        headless_result: _,
        context_window: _,
        snapshot_ms: _,
        snapshot_bytes: _,
        max_result_bytes: _,
    } = SocketOptions::default();
    vec![
        socketio("patch_format=delta", ["agent-with-permission", "ask", "multi", "sub-agents-parallel"], |options| {
            options.patch_format = PatchFormat::Delta;
        }),
        socketio("patch_format=sync", ["agent-with-permission", "ask", "multi", "sub-agents-parallel"], |options| {
            options.patch_format = PatchFormat::Sync;
        }),
        socketio("thinking_delta=true", ["chat-thinking", "multi", "think-marks", "sub-agents-parallel"], |options| {
            options.thinking_delta = true;
        }),
        socketio("pause_status=paused", ["agent-with-permission", "ask", "agent-with-elicitation", "question-then-stop"], |options| {
            options.pause_status = PauseStatus::Paused;
        }),
        socketio("headless_result=docs", HEADLESS, |options| options.headless_result = HeadlessResult::Docs),
        socketio("headless_result=sdk", HEADLESS, |options| options.headless_result = HeadlessResult::Sdk),
        socketio("context_window=1000000", ["chat-text-only", "bridge-compaction", "interrupted", "error"], |options| {
            options.context_window = 1_000_000;
        }),
        socketio("snapshot_ms=0", ["chat-with-tools", "chat-text-only", "interrupted", "chat-thinking"], |options| options.snapshot_ms = 0),
        socketio("max_result_bytes=1000", ["long-texts", "sub-agents-nested", "agent-with-tools", "multi"], |options| {
            options.max_result_bytes = 1000;
        }),
        socketio("snapshot_bytes=0", ["long-texts", "chat-text-only", "multi", "chat-thinking"], |options| options.snapshot_bytes = 0),
    ]
}

/// Runs without people, whose result the option shapes.
pub(crate) const HEADLESS: [&str; 4] = ["structured", "text", "apierr", "max-turns"];

impl<O> Alone<O> {
    /// The recordings that show it, as they show it.
    pub(crate) fn recordings(&self) -> impl Iterator<Item = Recording> {
        self.shown_by.into_iter().map(Recording::named).map(|recording| match self.name {
            name if name.starts_with("headless_result") => recording.headless(),
            // What is thinned shows only where text takes its time.
            name if name.starts_with("snapshot_") => recording.slow(),
            _ => recording,
        })
    }
}
