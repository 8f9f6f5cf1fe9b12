//! What is told beside the turns: the session, files, notices (socketio.md §3.5).

use interline_model::{NoticeLevel, Text};

use crate::mapping::{SessionStatus, SocketEvent, SocketWriter};
use crate::object::object;

/// How many changed files are told one by one. More are told as "many": `file_path: null`.
const MAX_FILES: usize = 20;

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
        let Some(facts) = &self.facts else { return };
        let data = object(|object| {
            object.text("session_id", facts.session.as_str());
            object.text_or_null("model", self.model.as_deref());
            object.text("intent", &self.intent);
            object.null("replay_state");
            object.text("status", self.status.as_str());
        });
        self.out.push(SocketEvent { name: "session:updated", data });
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

    pub(crate) fn files_changed(&mut self, paths: &[Text]) {
        if paths.is_empty() || paths.len() > MAX_FILES {
            self.file_changed(None);
        } else {
            for path in paths {
                self.file_changed(Some(path));
            }
        }
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
