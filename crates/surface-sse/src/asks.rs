//! What is asked, as a list, so that a page that is loaded again can draw it; and how it was decided, as a record (design §5).

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use interline_hub::{AskVerdict, Filter, PendingAsk, Session};
use interline_model::{Ask, AskKind, write_json_string};

use crate::caller::Caller;
use crate::error::Refusal;
use crate::escape::splice_json;
use crate::lists::raw;
use crate::mapping::{InputForm, approval_request};
use crate::members::Members;
use crate::moment::rfc3339;
use crate::shell::Shell;
use crate::{AskLimits, extras};

/// `GET /cells/{cell}/asks`: of all the client's sessions in the cell, those used last first.
pub(crate) async fn of_cell(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let cell = caller.cell(&shell)?;
    let sessions = shell.hub.sessions(&caller.access, &Filter { cell: Some(cell), actor: None });
    Ok(list(&shell, sessions.iter().flat_map(pending)))
}

/// `GET …/sessions/{session_id}/asks`.
pub(crate) async fn of_session(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    Ok(list(&shell, pending(&session)))
}

/// `GET …/runs/{run_id}/asks`.
pub(crate) async fn of_run(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let (session, run) = caller.run(&shell)?;
    Ok(list(&shell, pending(&session).filter(|(_, asked)| asked.run == run)))
}

/// `GET …/sessions/{session_id}/decisions`: who decided what, oldest first.
pub(crate) async fn decisions(State(shell): State<Arc<Shell>>, caller: Caller) -> Result<Response, Refusal> {
    let session = caller.session(&shell)?;
    let verdicts: Vec<String> = session.verdicts().iter().map(decision).collect();
    Ok(raw(format!("{{\"decisions\":[{}]}}", verdicts.join(","))))
}

fn pending(session: &Arc<Session>) -> impl Iterator<Item = (Arc<Session>, PendingAsk)> + use<> {
    let session = session.clone();
    session.pending_asks().into_iter().map(move |asked| (session.clone(), asked))
}

fn list(shell: &Shell, asked: impl Iterator<Item = (Arc<Session>, PendingAsk)>) -> Response {
    let asks: Vec<String> = asked.map(|(session, asked)| pending_ask(shell, &session, &asked)).collect();
    raw(format!("{{\"asks\":[{}]}}", asks.join(",")))
}

/// The event that raised it, with the members of `extras=fields`, and what a page needs to draw it without that event.
fn pending_ask(shell: &Shell, session: &Session, asked: &PendingAsk) -> String {
    let PendingAsk { ask, run, deadline, unconfirmed } = asked;
    let config = shell.hub.ask_config();
    let limits = AskLimits { permission_ms: config.permission_ms, form_ms: config.form_ms };
    let created = deadline.saturating_sub(ask.kind.deadline(0, limits.permission_ms, limits.form_ms));
    let room = shell.config.max_event_bytes;
    let mut out = String::new();
    approval_request(&mut out, ask, &InputForm { form: shell.config.arguments, room, whole: None });
    extras::ask(&mut out, ask, created, Some(limits), room);
    drawing(&mut out, ask, room);
    out.push_str(&format!(",\"run_id\":\"{run}\",\"session_id\":"));
    write_json_string(&mut out, session.id().as_str());
    out.push_str(&format!(",\"created_at\":\"{}\",\"unconfirmed\":{unconfirmed}}}", rfc3339(created)));
    out
}

/// What exactly is asked, and what can be answered.
fn drawing(out: &mut String, ask: &Ask, room: usize) {
    out.push_str(&format!(",\"asks\":\"{}\"", word(ask.kind)));
    if ask.kind == AskKind::Permission {
        out.push_str(&format!(",\"always\":{}", ask.suggestions.is_some()));
    }
    for (n, question) in ask.questions.iter().enumerate() {
        out.push_str(if n == 0 { ",\"questions\":[{\"question\":" } else { ",{\"question\":" });
        write_json_string(out, &question.question);
        if let Some(header) = &question.header {
            out.push_str(",\"header\":");
            write_json_string(out, header);
        }
        out.push_str(&format!(",\"multi_select\":{},\"options\":[", question.multi_select));
        for (n, choice) in question.options.iter().enumerate() {
            out.push_str(if n == 0 { "{\"label\":" } else { ",{\"label\":" });
            write_json_string(out, &choice.label);
            out.push_str(",\"description\":");
            write_json_string(out, &choice.description);
            out.push('}');
        }
        out.push_str("]}");
    }
    if !ask.questions.is_empty() {
        out.push(']');
    }
    if matches!(ask.kind, AskKind::Form | AskKind::Link) && ask.input.as_str().len() <= room {
        let mut request = String::new();
        splice_json(&mut request, ask.input.as_str());
        let Ok(request) = Members::parse(request.as_bytes()).as_ref().map(|request| form(request)) else { return };
        out.push_str(&request);
    }
}

/// A form's schema and a link's address.
fn form(request: &Members<'_>) -> String {
    let mut out = String::new();
    if let Ok(Some(schema)) = request.object(&["requested_schema", "requestedSchema"]) {
        out.push_str(",\"schema\":");
        out.push_str(schema.as_str());
    }
    if let Ok(Some(url)) = request.text(&["url"]) {
        out.push_str(",\"url\":");
        write_json_string(&mut out, &url);
    }
    out
}

fn decision(verdict: &AskVerdict) -> String {
    let AskVerdict { at, run, ask, kind, tool_name, outcome, by, rule } = verdict;
    let mut out = format!("{{\"at\":\"{}\",\"run_id\":\"{run}\",\"request_id\":", rfc3339(*at));
    write_json_string(&mut out, ask.as_str());
    out.push_str(&format!(",\"asks\":\"{}\",\"tool_name\":", word(*kind)));
    write_json_string(&mut out, tool_name);
    out.push_str(&format!(",\"outcome\":\"{}\"", outcome.as_str()));
    for (name, text) in [
        ("principal", by.as_ref().map(|by| by.principal.as_str())),
        ("surface", by.as_ref().map(|by| &*by.surface)),
        ("rule", rule.as_deref()),
    ] {
        if let Some(text) = text {
            out.push_str(&format!(",\"{name}\":"));
            write_json_string(&mut out, text);
        }
    }
    out.push('}');
    out
}

fn word(kind: AskKind) -> &'static str {
    match kind {
        AskKind::Permission => "permission",
        AskKind::Question => "question",
        AskKind::Form => "form",
        AskKind::Link => "link",
    }
}
