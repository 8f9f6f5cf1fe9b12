//! The coding channel: requests that run side by side over a tree of files in memory, and pseudo-terminals whose shell only echoes.
//!
//! The envelopes are those of native-ws.md §5.5, which says nothing about the methods' parameters; the few methods here take and give
//! what their names promise. Outbound there is one queue of 256 frames: who produces faster than the client reads, waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    extract::{Request, State as Shared},
    response::Response,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time};

use crate::{
    frames, locked,
    pty::{self, Pty},
    state::State,
    stats::Plane,
    websocket::{self, Delivery, Limits, Replies, Source},
};

/// The frames that wait for a client to read them.
const QUEUE: usize = 256;

/// The longest that `after_ms` can hold a request.
const LONGEST_HOLD: u64 = 60_000;

/// The directory that paths without a leading slash are under.
const ROOT: &str = "/repo";

/// The methods of the real channel that are not simulated, by family; others are unknown.
const NOT_SIMULATED: [(&str, &[&str]); 8] = [
    (
        "git",
        &[
            "createBranch",
            "checkoutBranch",
            "deleteBranch",
            "log",
            "commitDetail",
            "showDiff",
            "showFileDiff",
            "fileDiff",
            "stage",
            "unstage",
            "stageAll",
            "unstageAll",
            "commit",
            "discardFile",
            "discardAll",
            "push",
            "pull",
            "remoteCounts",
            "generateCommitMessage",
            "createWorktree",
            "removeWorktree",
            "worktreeDiffStats",
            "mergeWorktree",
            "listUntracked",
            "rangeFileDiff",
        ],
    ),
    ("fs", &["createFile", "createDirectory", "imagePreview", "listProjectFiles", "search"]),
    ("usage", &["read"]),
    ("agent", &["detect", "generateName"]),
    ("hooks", &["status", "readiness", "install", "uninstall"]),
    ("config", &["read", "write"]),
    ("skills", &["listHub", "installations", "install", "uninstall"]),
    ("pty", &["replayLog", "reattach"]),
];

/// Files in memory, the same for every channel of a simulator.
pub(crate) struct Workspace {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl Default for Workspace {
    fn default() -> Self {
        Self { files: Mutex::new(committed()) }
    }
}

/// The files as they were committed.
fn committed() -> BTreeMap<String, Vec<u8>> {
    [
        ("/repo/README.md", "# Median\n\nFinds the middle of a list.\n"),
        ("/repo/src/lib.rs", "pub fn median(v: &mut Vec<i64>) -> i64 {\n    v.sort();\n    v[v.len() / 2]\n}\n"),
        ("/repo/src/größe.txt", "漢字 🎉\n"),
    ]
    .into_iter()
    .map(|(path, content)| (path.to_owned(), content.as_bytes().to_vec()))
    .collect()
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Inbound {
    #[serde(rename = "code_request")]
    Request {
        request_id: String,
        #[serde(default)]
        method: String,
        #[serde(default)]
        params: Value,
    },
    #[serde(rename = "code_pty_input")]
    PtyInput { pty_id: String, data: String },
    #[serde(rename = "code_pty_resize")]
    PtyResize { pty_id: String, cols: u16, rows: u16 },
}

#[derive(Serialize)]
struct CodeResponse<'a> {
    r#type: &'a str,
    request_id: &'a str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// One client's channel.
pub(crate) struct Channel {
    state: Arc<State>,
    out: mpsc::Sender<Delivery>,
    ptys: Mutex<HashMap<String, Pty>>,
}

pub(crate) async fn channel(Shared(state): Shared<Arc<State>>, request: Request) -> Response {
    let limits = Limits::new(&state.options, None);
    let (out, waiting) = mpsc::channel(QUEUE);
    let channel = Arc::new(Channel { state: Arc::clone(&state), out, ptys: Mutex::default() });
    let closing = Arc::clone(&channel);
    // The terminals hold the channel, so nobody but this ends them.
    let entered = move || Ending(closing);
    let receive = move |text: &str, _: &Replies| receive(&channel, text);
    websocket::upgrade(state, Plane::Bridge, request, limits, Queue { waiting, next: None }, entered, receive)
}

struct Ending(Arc<Channel>);

impl Drop for Ending {
    fn drop(&mut self) {
        locked(&self.0.ptys).clear();
    }
}

/// The frames of a channel, in the order in which they were queued.
struct Queue {
    waiting: mpsc::Receiver<Delivery>,
    next: Option<Delivery>,
}

impl Source for Queue {
    async fn ready(&mut self) {
        if self.next.is_none() {
            self.next = self.waiting.recv().await;
            if self.next.is_none() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn take(&mut self) -> Option<Delivery> {
        self.next.take().or_else(|| self.waiting.try_recv().ok())
    }
}

fn receive(channel: &Arc<Channel>, text: &str) {
    match serde_json::from_str(text) {
        Ok(Inbound::Request { request_id, method, params }) => {
            let channel = Arc::clone(channel);
            tokio::spawn(async move { channel.perform(&request_id, &method, &params).await });
        }
        Ok(Inbound::PtyInput { pty_id, data }) => {
            if let (Some(pty), Ok(bytes)) = (locked(&channel.ptys).get(&pty_id), STANDARD.decode(data)) {
                pty.input(bytes);
            }
        }
        Ok(Inbound::PtyResize { pty_id, cols, rows }) => {
            if let Some(pty) = locked(&channel.ptys).get(&pty_id) {
                pty.resize(cols, rows);
            }
        }
        Err(_) => {}
    }
}

impl Channel {
    /// Queues a frame, waiting for a place; false if the client is gone.
    pub(crate) async fn send(&self, frame: &impl Serialize) -> bool {
        let Ok(place) = self.out.reserve().await else { return false };
        self.state.counters.count(|stats| stats.code_frames += 1);
        place.send(Delivery::text(frames::encode(frame)));
        true
    }

    /// A terminal's shell has ended.
    pub(crate) fn ended(&self, pty_id: &str) {
        locked(&self.ptys).remove(pty_id);
    }

    /// Carries out one request. Each has a task of its own, so that a slow one is overtaken.
    async fn perform(self: &Arc<Self>, request_id: &str, method: &str, params: &Value) {
        let after = params["after_ms"].as_u64().unwrap_or(0).min(LONGEST_HOLD);
        if after > 0 {
            time::sleep(Duration::from_millis(after)).await;
        }
        let outcome = match method {
            "pty.open" => {
                let id = frames::frame_id();
                let dimension = |name: &str| params[name].as_u64().and_then(|n| u16::try_from(n).ok());
                let (shell, pty) = pty::open(dimension("cols").unwrap_or(80), dimension("rows").unwrap_or(24));
                locked(&self.ptys).insert(id.clone(), pty);
                if self.reply(request_id, Ok(json!({ "pty_id": id }))).await {
                    tokio::spawn(shell.run(id, Arc::clone(self)));
                }
                return;
            }
            "pty.kill" => match locked(&self.ptys).get(text(params, "pty_id")) {
                Some(pty) => {
                    pty.kill();
                    Ok(json!({}))
                }
                None => Err("code: no such pty".to_owned()),
            },
            "pty.active" => {
                let ids: BTreeSet<String> = locked(&self.ptys).keys().cloned().collect();
                Ok(json!({ "ptys": ids }))
            }
            "code.runTask" => {
                self.run_task(request_id, text(params, "prompt")).await;
                return;
            }
            _ => self.state.bridge.workspace.answer(method, params),
        };
        self.reply(request_id, outcome).await;
    }

    async fn reply(&self, request_id: &str, outcome: Result<Value, String>) -> bool {
        let (result, error) = match outcome {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        self.send(&CodeResponse { r#type: "code_response", request_id, ok: error.is_none(), result, error }).await
    }

    /// A session of an external agent, told as events.
    async fn run_task(&self, request_id: &str, prompt: &str) {
        let task = frames::frame_id();
        if !self.reply(request_id, Ok(json!({ "task_id": task }))).await {
            return;
        }
        let events = [
            json!({ "type": "text_delta", "text": format!("Working on “{prompt}”. ") }),
            json!({ "type": "tool_use_start", "id": "t1", "name": "Bash" }),
            json!({ "type": "tool_use_result", "id": "t1", "result": "ok" }),
            json!({ "type": "cost_update", "usd": 0.001 }),
        ];
        for event in events {
            time::sleep(self.state.options.pace.of(Duration::from_millis(100))).await;
            if !self.send(&json!({ "type": "code_session_event", "task_id": task, "event": event })).await {
                return;
            }
        }
    }
}

fn text<'a>(params: &'a Value, name: &str) -> &'a str {
    params[name].as_str().unwrap_or_default()
}

fn is_known(method: &str) -> bool {
    let Some((family, name)) = method.split_once('.') else { return false };
    NOT_SIMULATED.iter().any(|(known, names)| *known == family && names.contains(&name))
}

/// The absolute form of a path; nothing leads out of the tree.
fn absolute(path: &str) -> Result<String, String> {
    let path = path.trim_end_matches('/');
    if path.split('/').any(|part| part == "..") {
        return Err(format!("code: path {path:?} leaves the workspace"));
    }
    Ok(match path {
        "" | "." => ROOT.to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("{ROOT}/{path}"),
    })
}

impl Workspace {
    fn answer(&self, method: &str, params: &Value) -> Result<Value, String> {
        let path = || absolute(text(params, "path"));
        match method {
            "git.status" => Ok(json!({ "branch": "main", "clean": self.changes().is_empty(), "files": self.changes() })),
            "git.statusFiles" | "git.changedFiles" => Ok(json!({ "files": self.changes() })),
            "git.repoRoot" => Ok(json!({ "root": ROOT })),
            "git.listBranches" => Ok(json!({ "current": "main", "branches": ["main", "fix-median"] })),
            "fs.read" => self.read(&path()?),
            "fs.list" => self.list(&path()?),
            "fs.write" => Ok(self.write(path()?, text(params, "content").as_bytes().to_vec())),
            "fs.writeBytes" => {
                let bytes = STANDARD.decode(text(params, "data")).map_err(|_| "code: data is not base64".to_owned())?;
                Ok(self.write(path()?, bytes))
            }
            "fs.delete" => {
                let path = path()?;
                let removed = locked(&self.files).remove(&path);
                removed.map(|_| json!({})).ok_or_else(|| format!("code: {path}: no such file or directory"))
            }
            _ if is_known(method) => Err(format!("code: {method} is not simulated")),
            _ => Err(format!("code: unknown method {method:?}")),
        }
    }

    fn read(&self, path: &str) -> Result<Value, String> {
        let files = locked(&self.files);
        let content = files.get(path).ok_or_else(|| format!("code: {path}: no such file or directory"))?;
        Ok(match std::str::from_utf8(content) {
            Ok(text) => json!({ "path": path, "encoding": "utf-8", "content": text, "size": content.len() }),
            Err(_) => json!({ "path": path, "encoding": "base64", "content": STANDARD.encode(content), "size": content.len() }),
        })
    }

    fn list(&self, path: &str) -> Result<Value, String> {
        let files = locked(&self.files);
        let under = format!("{path}/");
        let mut entries: BTreeMap<&str, Value> = BTreeMap::new();
        for (file, content) in files.iter() {
            let Some(rest) = file.strip_prefix(&under) else { continue };
            match rest.split_once('/') {
                Some((directory, _)) => entries.insert(directory, json!({ "name": directory, "type": "directory" })),
                None => entries.insert(rest, json!({ "name": rest, "type": "file", "size": content.len() })),
            };
        }
        if entries.is_empty() {
            return Err(format!("code: {path}: no such file or directory"));
        }
        Ok(json!({ "path": path, "entries": entries.into_values().collect::<Vec<_>>() }))
    }

    fn write(&self, path: String, content: Vec<u8>) -> Value {
        let size = content.len();
        locked(&self.files).insert(path, content);
        json!({ "size": size })
    }

    /// What is not as it was committed.
    fn changes(&self) -> Vec<Value> {
        let (before, now) = (committed(), locked(&self.files));
        let paths: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        paths
            .into_iter()
            .filter_map(|path| {
                let status = match (before.get(path), now.get(path)) {
                    (Some(old), Some(new)) if old == new => return None,
                    (Some(_), Some(_)) => "modified",
                    (Some(_), None) => "deleted",
                    (None, _) => "untracked",
                };
                Some(json!({ "path": path, "status": status }))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_listed_and_changed() {
        let workspace = Workspace::default();
        let list = workspace.answer("fs.list", &json!({})).unwrap();
        assert_eq!(list["entries"][0]["name"], "README.md");
        assert_eq!(list["entries"][1], json!({ "name": "src", "type": "directory" }));
        assert_eq!(workspace.answer("git.status", &json!({})).unwrap()["clean"], true);
        workspace.answer("fs.write", &json!({ "path": "notes.txt", "content": "x" })).unwrap();
        workspace.answer("fs.delete", &json!({ "path": "/repo/README.md" })).unwrap();
        let status = workspace.answer("git.status", &json!({})).unwrap();
        assert_eq!(status["files"][0], json!({ "path": "/repo/README.md", "status": "deleted" }));
        assert_eq!(status["files"][1]["status"], "untracked");
        workspace.answer("fs.writeBytes", &json!({ "path": "b", "data": "/w==" })).unwrap();
        assert_eq!(workspace.answer("fs.read", &json!({ "path": "b" })).unwrap()["encoding"], "base64");
    }

    #[test]
    fn what_is_not_there_is_said() {
        let workspace = Workspace::default();
        for (method, path) in [("fs.read", "no"), ("fs.list", "no"), ("fs.delete", "no"), ("fs.read", "../etc"), ("git.push", "")] {
            assert!(workspace.answer(method, &json!({ "path": path })).unwrap_err().starts_with("code: "), "{method}");
        }
        assert_eq!(workspace.answer("git.push", &Value::Null).unwrap_err(), "code: git.push is not simulated");
        assert_eq!(workspace.answer("x", &Value::Null).unwrap_err(), "code: unknown method \"x\"");
    }
}
