//! Files of a session (socketio.md §5.3): what its users uploaded. They go to the agent server, and are listed from what went there; what the agent
//! itself writes is out of sight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Path, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use interline_hub::{Action, ActionError, Upload};
use interline_model::Text;
use serde_json::{Value, json};

use crate::notes::File;
use crate::refusal::Problem;
use crate::rest::{Caller, invalid};
use crate::shell::Shell;
use crate::timestamp;

/// Files in one upload, and in one session.
const MOST_FILES: usize = 256;

/// The longest path.
const LONGEST_PATH: usize = 1_024;

const NO_WRITING: &str = "Files are the agent's once they are uploaded: they cannot be changed, moved or deleted through Interline";
const NO_FOLDERS: &str = "Folders live with the agent and cannot be fetched through Interline";

/// Adds the routes.
pub(crate) fn routes(mut router: Router<Arc<Shell>>) -> Router<Arc<Shell>> {
    // Bounded by this surface's own limit instead.
    let uploading = || post(upload).layer(DefaultBodyLimit::disable());
    let one = || get(read).put(no_writing).delete(no_writing).post(no_writing);
    for (path, methods) in [("upload", uploading()), ("ls", get(list)), ("download-dir", get(no_folders))] {
        let path = format!("/api/sessions/{{id}}/{path}");
        router =
            router.route(&format!("{path}/"), methods.clone()).route(&format!("{path}/{{*dir}}"), methods.clone()).route(&path, methods);
    }
    router.route("/api/sessions/{id}/files/{*path}", one())
}

/// A session and a path in it, decoded.
type Place = Path<BTreeMap<String, String>>;

fn part<'a>(place: &'a Place, name: &str) -> &'a str {
    place.get(name).map(String::as_str).unwrap_or_default()
}

/// A path without empty and `.` segments; empty for the session's own folder. One that leads out of it is none.
fn clean(path: &str) -> Result<String, Problem> {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => return Err(Problem::BadPath),
            segment if segment.contains(|c: char| c == '\\' || c.is_control()) => return Err(Problem::BadPath),
            segment => segments.push(segment),
        }
    }
    let path = segments.join("/");
    if path.len() > LONGEST_PATH { Err(Problem::BadPath) } else { Ok(path) }
}

/// What a form holds.
#[derive(Default)]
struct Form {
    /// Name, media type and bytes of each.
    files: Vec<(String, Text, Bytes)>,
    /// Relative paths, in the same order.
    paths: Vec<String>,
}

async fn upload(State(shell): State<Arc<Shell>>, caller: Caller, place: Place, request: Request) -> Result<Response, Problem> {
    let session = caller.session(&shell, part(&place, "id"))?;
    let folder = clean(part(&place, "dir"))?;
    let reading = read_form(&shell, request);
    let form = match tokio::time::timeout(Duration::from_millis(shell.config.body_timeout_ms), reading).await {
        Ok(form) => form?,
        Err(_) => return Err(Problem::Timeout),
    };
    if form.files.is_empty() {
        return Err(invalid("files", "Field required"));
    }
    // All paths first: an upload is taken or not before anything is sent.
    let mut files = Vec::with_capacity(form.files.len());
    for (at, (name, mime, data)) in form.files.into_iter().enumerate() {
        let path = clean(&format!("{folder}/{}", form.paths.get(at).unwrap_or(&name)))?;
        if path == folder {
            return Err(invalid("files", "A file needs a name"));
        }
        files.push((path, mime, data));
    }
    let (mut uploaded, mut failed) = (Vec::new(), Vec::new());
    for (path, mime, data) in files {
        let limit = shell.config.max_message_bytes;
        let room =
            shell.notes.with(&session, |note| note.files.len() < MOST_FILES && note.file_bytes().saturating_add(data.len()) <= limit);
        if !room {
            failed.push(json!({"path": path, "error": format!("The session has too many files: at most {MOST_FILES}, of {limit} bytes")}));
            continue;
        }
        let Some(room) = shell.notes.room(data.len()) else {
            failed.push(json!({"path": path, "error": "There is no room for more files now"}));
            continue;
        };
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let action = Action::Upload(Upload { name: Text::from(name), mime: mime.clone(), data: data.clone() });
        match session.act(action, caller.0.credential().clone()).await {
            Ok(_) => {
                let created_at = session.info().updated_at;
                shell.notes.with(&session, |note| note.files.insert(path.clone(), File { mime, data, created_at, _room: room }));
                uploaded.push(Value::from(path));
            }
            // Then it cannot take any.
            Err(error @ ActionError::Unsupported(_)) => return Err(error.into()),
            Err(error) => failed.push(json!({"path": path, "error": error.to_string()})),
        }
    }
    Ok(Json(json!({"uploaded": uploaded, "failed": failed})).into_response())
}

async fn read_form(shell: &Shell, request: Request) -> Result<Form, Problem> {
    let limit = shell.config.max_message_bytes;
    let wrong = |message: String| Problem::Invalid { place: vec!["body"], message };
    let mut multipart = Multipart::from_request(request, &()).await.map_err(|error| wrong(error.body_text()))?;
    let (mut form, mut bytes) = (Form::default(), 0_usize);
    while let Some(mut field) = multipart.next_field().await.map_err(|error| wrong(error.body_text()))? {
        let kind = field.name().unwrap_or_default().to_owned();
        let name = field.file_name().unwrap_or_default().to_owned();
        let mime = field.content_type().unwrap_or("application/octet-stream").to_owned();
        let mut data = Vec::new();
        while let Some(chunk) = field.chunk().await.map_err(|error| wrong(error.body_text()))? {
            bytes = bytes.saturating_add(chunk.len());
            if bytes > limit {
                return Err(Problem::TooLarge(limit));
            }
            data.extend_from_slice(&chunk);
        }
        match kind.as_str() {
            "files" | "file" if form.files.len() >= MOST_FILES => {
                return Err(Problem::TooMany(format!("At most {MOST_FILES} files are taken at a time")));
            }
            "files" | "file" => form.files.push((name, Text::from(mime), Bytes::from(data))),
            "paths" => {
                form.paths = serde_json::from_slice(&data).map_err(|_| invalid("paths", "Input should be a list of strings"))?;
            }
            _ => {}
        }
    }
    Ok(form)
}

/// `path` is documented by nobody and read by Python; both families get theirs.
async fn list(State(shell): State<Arc<Shell>>, caller: Caller, place: Place) -> Result<Json<Value>, Problem> {
    let session = caller.session(&shell, part(&place, "id"))?;
    let folder = clean(part(&place, "dir"))?;
    let prefix = if folder.is_empty() { folder } else { format!("{folder}/") };
    let entries = shell.notes.with(&session, |note| {
        let mut entries: BTreeMap<String, Value> = BTreeMap::new();
        for (path, file) in &note.files {
            let Some(rest) = path.strip_prefix(&prefix) else { continue };
            let (name, is_dir) = rest.split_once('/').map_or((rest, false), |(name, _)| (name, true));
            entries.entry(name.to_owned()).or_insert_with(|| {
                json!({
                    "name": name, "path": format!("{prefix}{name}"), "type": if is_dir { "directory" } else { "file" }, "is_dir": is_dir,
                    "size": if is_dir { Value::Null } else { Value::from(file.data.len()) },
                    "created_at": timestamp(file.created_at), "tags": [],
                })
            });
        }
        entries.into_values().collect::<Vec<_>>()
    });
    Ok(Json(Value::from(entries)))
}

async fn read(State(shell): State<Arc<Shell>>, caller: Caller, place: Place) -> Result<Response, Problem> {
    let session = caller.session(&shell, part(&place, "id"))?;
    let path = clean(part(&place, "path"))?;
    let file = shell.notes.with(&session, |note| note.files.get(&path).cloned()).ok_or(Problem::NotFound("File"))?;
    let mut response = Response::new(Body::from(file.data));
    let headers = response.headers_mut();
    let mime = HeaderValue::from_str(&file.mime).unwrap_or(HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_TYPE, mime);
    // A page that a user uploaded is no page of ours.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    Ok(response)
}

/// Also `…/rename` and `…/copy`, which are POSTs below a file's path.
async fn no_writing(State(shell): State<Arc<Shell>>, caller: Caller, place: Place) -> Problem {
    refuse(&shell, &caller, &place, "path", NO_WRITING)
}

async fn no_folders(State(shell): State<Arc<Shell>>, caller: Caller, place: Place) -> Problem {
    refuse(&shell, &caller, &place, "dir", NO_FOLDERS)
}

fn refuse(shell: &Shell, caller: &Caller, place: &Place, path: &str, why: &'static str) -> Problem {
    let judged = caller.session(shell, part(place, "id")).and_then(|_| clean(part(place, path)));
    judged.err().unwrap_or(Problem::NotHere(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out() {
        for (path, expected) in [("", ""), (".", ""), ("a//b/./c", "a/b/c"), ("/a", "a"), ("a b/ü", "a b/ü"), ("...", "...")] {
            assert_eq!(clean(path).ok().as_deref(), Some(expected), "{path}");
        }
        for path in ["..", "a/../b", "../etc/passwd", "a/..", "a\\b", "a\0b", "a\nb", &"x".repeat(2_000)] {
            assert!(clean(path).is_err(), "{path:?}");
        }
    }
}
