//! What is told beside the turns: the session, files, tasks, notices (socketio.md §3.5).
//!
//! The documents leave the payloads of some events open. Interline's are small, and will not change:
//!
//! | event | when | payload beside `session_id` |
//! |---|---|---|
//! | `session:updated` | model, title or status changed | `model`, `intent`, `replay_state` (null), `status` |
//! | `workspace:files_changed` | files were stored, or a tool that writes a file is done | `file_path`, null for many |
//! | `artifact:created` | files were stored for the user | `file_path`, `name`, null for many |
//! | `bg:started` | a background task begins | `task_id`, `tool_call_id`, `description` |
//! | `task:updated` | a background task begins, goes on, ends | `task_id`, `tool_call_id`, `status`, `summary` |
//! | `system:notification` | a notice that ends nothing | `notification_type`, `title`, `detail`, `status` |
//! | `system:error` | what ends the run or refuses a request | `message`, `code`, `detail`, of runs `chat_run_id` |
//! | `memory:inject:done`, `skills:changed`, `replay:input_mismatch` | never: no upstream says anything that would be one | |

use interline_model::{CallId, NoticeLevel, TaskPhase, Text};

use crate::mapping::{SocketEvent, SocketWriter};
use crate::object::object;
use crate::session::SessionStatus;

/// How many changed files are told one by one. More are told as "many": `file_path: null`.
const MAX_FILES: usize = 20;

/// Tools that write the file which their input names, and under which name. What others change is not known.
const WRITING_TOOLS: [(&str, &str); 4] =
    [("Write", "file_path"), ("Edit", "file_path"), ("MultiEdit", "file_path"), ("NotebookEdit", "notebook_path")];

impl SocketWriter {
    pub(crate) fn session_changed(&mut self, model: Option<&Text>, title: Option<&Text>) {
        let mut changed = false;
        if let Some(model) = model.filter(|model| self.model.as_ref() != Some(*model)) {
            self.model = Some(model.clone());
            changed = true;
        }
        if let Some(title) = title.filter(|title| self.intent != **title) {
            self.intent = title.clone();
            changed = true;
        }
        if changed {
            self.tell_session();
        }
    }

    pub(crate) fn set_status(&mut self, status: SessionStatus) {
        self.status = status;
        self.tell_session();
    }

    fn tell_session(&mut self) {
        let event = self.session_event();
        self.out.extend(event);
    }

    /// `session:updated`, as the session is.
    pub(crate) fn session_event(&self) -> Option<SocketEvent> {
        let facts = self.facts.as_ref()?;
        let data = object(|object| {
            object.text("session_id", facts.session.as_str());
            object.text_or_null("model", self.model.as_deref());
            object.text("intent", &self.intent);
            object.null("replay_state");
            object.text("status", self.status.as_str());
        });
        Some(SocketEvent { name: "session:updated", data })
    }

    /// Never `system:error`: that one ends every Python iterator of the session (socketio.md §3.5).
    pub(crate) fn notice(&mut self, level: NoticeLevel, code: &Text, text: &Text) {
        let Some(facts) = &self.facts else { return };
        let data = object(|object| {
            object.text("session_id", facts.session.as_str());
            object.text("notification_type", code);
            object.text("title", &code.replace('_', " "));
            object.text("detail", text);
            object.text(
                "status",
                match level {
                    NoticeLevel::Info => "info",
                    NoticeLevel::Warning => "warning",
                    NoticeLevel::Error => "error",
                },
            );
        });
        self.out.push(SocketEvent { name: "system:notification", data });
    }

    /// Files were stored where the user finds them.
    pub(crate) fn files_stored(&mut self, paths: &[Text]) {
        if paths.is_empty() || paths.len() > MAX_FILES {
            self.file_changed(None);
            self.artifact_created(None);
            return;
        }
        for path in paths {
            self.file_changed(Some(path));
            self.artifact_created(Some(path));
        }
    }

    /// A call is done: if its tool is one that writes a file, that file has changed (socketio.md §4.3).
    pub(crate) fn tool_wrote(&mut self, at: usize, number: usize) {
        let Some(call) = self.turns.get(at).and_then(|turn| turn.calls.get(number)) else { return };
        let Some((_, member)) = WRITING_TOOLS.iter().find(|(tool, _)| *call.tool_name == **tool) else { return };
        let path = call.input.to_value().get(*member).and_then(|path| path.as_str()).map(str::to_owned);
        if let Some(path) = path {
            self.file_changed(Some(&path));
        }
    }

    fn artifact_created(&mut self, path: Option<&str>) {
        let Some(facts) = &self.facts else { return };
        let data = object(|object| {
            object.text("session_id", facts.session.as_str());
            object.text_or_null("file_path", path);
            object.text_or_null("name", path.and_then(|path| path.rsplit(['/', '\\']).next()));
        });
        self.out.push(SocketEvent { name: "artifact:created", data });
    }

    pub(crate) fn task(&mut self, task: &Text, call: Option<&CallId>, phase: TaskPhase, summary: &Text) {
        let Some(facts) = &self.facts else { return };
        if phase == TaskPhase::Started {
            let data = object(|object| {
                object.text("session_id", facts.session.as_str());
                object.text("task_id", task);
                object.text_or_null("tool_call_id", call.map(CallId::as_str));
                object.text("description", summary);
            });
            self.out.push(SocketEvent { name: "bg:started", data });
        }
        let data = object(|object| {
            object.text("session_id", facts.session.as_str());
            object.text("task_id", task);
            object.text_or_null("tool_call_id", call.map(CallId::as_str));
            object.text(
                "status",
                match phase {
                    TaskPhase::Started | TaskPhase::Progress => "running",
                    TaskPhase::Finished => "completed",
                    TaskPhase::Failed => "failed",
                },
            );
            object.text("summary", summary);
        });
        self.out.push(SocketEvent { name: "task:updated", data });
    }

    fn file_changed(&mut self, path: Option<&str>) {
        let Some(facts) = &self.facts else { return };
        let data = object(|object| {
            object.text("session_id", facts.session.as_str());
            object.text_or_null("file_path", path);
        });
        self.out.push(SocketEvent { name: "workspace:files_changed", data });
    }
}
