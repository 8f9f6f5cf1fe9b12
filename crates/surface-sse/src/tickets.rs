//! `POST /cells/{cell}/tickets`: a ticket for the stream of one run, which may stand in an address where a token may not (sse.md §1.1, case F1).
//!
//! `{"run_id": "run-…"}` is for that run, `{}` or nothing for the first one that it is used for. What a ticket opens, and how long, is the hub's to say.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use interline_model::RunId;
use serde::Serialize;

use crate::caller::Caller;
use crate::error::{Refusal, json};
use crate::members::Members;
use crate::shell::{Shell, read_body};

/// A ticket and what is to be known of it.
#[derive(Serialize)]
struct Issued {
    ticket: String,
    /// Seconds in which it has to be used first.
    expires_in: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
}

/// The handler.
pub(crate) async fn issue(State(shell): State<Arc<Shell>>, caller: Caller, body: Body) -> Result<Response, Refusal> {
    let cell = caller.cell(&shell)?;
    let body = read_body(&shell, body).await?;
    let run = match Members::parse_optional(&body)?.text(&["run_id"])? {
        None => None,
        Some(text) => {
            let run: Option<RunId> = text.parse().ok();
            let known = run.filter(|run| shell.target(&caller.access, &cell, *run).is_some());
            Some(known.ok_or_else(|| Refusal::RunNotFound(text.to_string()))?)
        }
    };
    let (ticket, lifetime_ms) = shell.hub.ticket(&caller.access, cell, run);
    let expires_in = lifetime_ms.div_ceil(1000);
    let mut response = (StatusCode::CREATED, json(&Issued { ticket, expires_in, run_id: run.map(|run| run.to_string()) })).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
