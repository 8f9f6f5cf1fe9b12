//! Recorded runs: where they come from, and how a file falls into runs and steps.
//!
//! A line is a frame, or `{"dir":"in"|"out","frame":{…}}`. What a server sent is kept byte for byte: only a few members are
//! looked at, to know where a run ends and where it waits for the client. A line that is no JSON is a frame like any other.

use std::{borrow::Cow, collections::BTreeSet, path::PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;

macro_rules! bundle {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../transcripts/", $name, ".jsonl")))),*]
    };
}

/// The transcripts that come with the simulator, as (name, content).
pub const BUNDLED: &[(&str, &str)] = bundle![
    "agent-permission-denied",
    "agent-with-elicitation",
    "agent-with-permission",
    "agent-with-tools",
    "apierr",
    "ask",
    "bridge-compaction",
    "bridge-text-only",
    "bridge-with-permission",
    "chat-text-only",
    "chat-thinking",
    "chat-with-tools",
    "error",
    "interrupted",
    "multi",
    "text",
    "tool-allow",
];

/// Where transcripts are looked up by name.
pub(crate) struct Library {
    dir: Option<PathBuf>,
}

impl Library {
    pub(crate) const fn new(dir: Option<PathBuf>) -> Self {
        Self { dir }
    }

    /// The transcript of that name, or a sentence that says which ones there are.
    pub(crate) async fn load(&self, name: &str) -> Result<Transcript, String> {
        // The name comes from a client and becomes part of a path: nothing that could leave the directory.
        let plain =
            !name.starts_with('.') && !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        let stem = name.strip_suffix(".jsonl").unwrap_or(name);
        let content = match &self.dir {
            _ if !plain => None,
            Some(dir) => tokio::fs::read_to_string(dir.join(format!("{stem}.jsonl"))).await.ok().map(Cow::Owned),
            None => BUNDLED.iter().find(|(known, _)| *known == stem).map(|(_, content)| Cow::Borrowed(*content)),
        };
        match content {
            Some(content) => Ok(Transcript::parse(&content)),
            None => {
                let names: Vec<_> = self.names().await.into_iter().collect();
                Err(format!("no transcript {name:?}: there are {}", names.join(", ")))
            }
        }
    }

    async fn names(&self) -> BTreeSet<String> {
        let Some(dir) = &self.dir else {
            return BUNDLED.iter().map(|(name, _)| (*name).to_owned()).collect();
        };
        let mut names = BTreeSet::new();
        if let Ok(mut entries) = tokio::fs::read_dir(dir).await {
            while let Ok(Some(entry)) = entries.next_entry().await {
                let file = entry.file_name();
                if let Some(stem) = file.to_str().and_then(|file| file.strip_suffix(".jsonl")) {
                    names.insert(stem.to_owned());
                }
            }
        }
        names
    }
}

/// The runs of one file, in order; never empty.
#[derive(Debug)]
pub(crate) struct Transcript {
    runs: Vec<Vec<Step>>,
}

/// One step of a recorded run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A frame of the server.
    Out { frame: String, kind: Kind },
    /// The client cancelled or interrupted here.
    Cancelled,
}

/// What a recorded frame means to whoever plays it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing special.
    Data,
    /// A control frame that nobody has to answer.
    Control,
    /// A permission or question (`form` false) or a form, which the client has to answer.
    Ask { request_id: String, form: bool },
    /// A `result` after which the run is over.
    End(End),
    /// The bridge's end-of-turn sentinel.
    KeepAlive,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Interrupted,
    Failed,
}

/// One line in the `{"dir","frame"}` form.
#[derive(Deserialize)]
struct Directed<'a> {
    dir: &'a str,
    #[serde(borrow)]
    frame: &'a RawValue,
}

/// The members that are looked at. Everything else of a frame is never parsed into a value.
#[derive(Default, Deserialize)]
struct Peek<'a> {
    #[serde(borrow, default)]
    r#type: Cow<'a, str>,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    request: Option<PeekRequest>,
    #[serde(default)]
    is_error: Option<bool>,
    #[serde(default)]
    stop_reason: Option<String>,
    #[serde(default)]
    errors: Option<Vec<PeekError>>,
}

#[derive(Deserialize)]
struct PeekRequest {
    #[serde(default)]
    subtype: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PeekError {
    Object {
        #[serde(default)]
        recoverable: bool,
    },
    Other(serde::de::IgnoredAny),
}

impl Peek<'_> {
    fn kind(&self) -> Kind {
        match (&*self.r#type, &self.request, &self.request_id) {
            ("control_request", Some(request), Some(id)) => match &*request.subtype {
                "can_use_tool" => Kind::Ask { request_id: id.clone(), form: false },
                "elicitation" => Kind::Ask { request_id: id.clone(), form: true },
                _ => Kind::Control,
            },
            ("keep_alive", ..) => Kind::KeepAlive,
            ("result", ..) => self.end().map_or(Kind::Data, Kind::End),
            (other, ..) if other.starts_with("control_") => Kind::Control,
            _ => Kind::Data,
        }
    }

    /// Success, or an error that is not recoverable, ends a run (§6.7).
    fn end(&self) -> Option<End> {
        if self.is_error != Some(true) {
            let interrupted = self.stop_reason.as_deref() == Some("interrupted");
            return Some(if interrupted { End::Interrupted } else { End::Completed });
        }
        let errors = self.errors.as_deref().unwrap_or_default();
        let recoverable = |error: &PeekError| matches!(error, PeekError::Object { recoverable: true });
        (errors.is_empty() || !errors.iter().all(recoverable)).then_some(End::Failed)
    }

    fn cancels(&self) -> bool {
        self.r#type == "control_cancel_request"
            || (self.r#type == "control_request" && self.request.as_ref().is_some_and(|request| request.subtype == "interrupt"))
    }
}

impl Transcript {
    pub(crate) fn parse(content: &str) -> Self {
        let mut runs: Vec<Vec<Step>> = vec![Vec::new()];
        let mut over = false;
        for line in content.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let directed = serde_json::from_str::<Directed<'_>>(line).ok();
            let frame = directed.as_ref().map_or(line, |directed| directed.frame.get());
            let peek = serde_json::from_str::<Peek<'_>>(frame).unwrap_or_default();
            if directed.as_ref().is_some_and(|directed| directed.dir != "out") {
                if peek.r#type == "user" && over {
                    runs.push(Vec::new());
                    over = false;
                } else if peek.cancels() {
                    last(&mut runs).push(Step::Cancelled);
                }
                continue;
            }
            let kind = peek.kind();
            // Without directions, what follows an end begins the next run; the sentinel still belongs to the last.
            if over && directed.is_none() && kind != Kind::KeepAlive {
                runs.push(Vec::new());
                over = false;
            }
            over |= matches!(kind, Kind::End(_));
            last(&mut runs).push(Step::Out { frame: frame.to_owned(), kind });
        }
        Self { runs }
    }

    /// The n-th run, counted from 0; after the last one comes the first again.
    pub(crate) fn run(self, n: u64) -> Vec<Step> {
        let count = self.runs.len().max(1) as u64;
        let index = usize::try_from(n % count).unwrap_or_default();
        self.runs.into_iter().nth(index).unwrap_or_default()
    }
}

fn last(runs: &mut Vec<Vec<Step>>) -> &mut Vec<Step> {
    if runs.is_empty() {
        runs.push(Vec::new());
    }
    let end = runs.len() - 1;
    &mut runs[end]
}

/// True if the recorded run ends because the client cancelled it.
pub(crate) fn ends_by_cancel(steps: &[Step]) -> bool {
    steps.iter().any(|step| matches!(step, Step::Cancelled | Step::Out { kind: Kind::End(End::Interrupted), .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundled(name: &str) -> Transcript {
        Transcript::parse(BUNDLED.iter().find(|(known, _)| *known == name).unwrap().1)
    }

    fn frames(steps: &[Step]) -> Vec<&str> {
        steps
            .iter()
            .filter_map(|step| match step {
                Step::Out { frame, .. } => Some(frame.as_str()),
                Step::Cancelled => None,
            })
            .collect()
    }

    #[test]
    fn bare_files_are_kept_byte_for_byte_with_their_sentinel() {
        for (name, content) in BUNDLED.iter().filter(|(_, content)| !content.starts_with("{\"dir\"")) {
            let transcript = Transcript::parse(content);
            assert_eq!(transcript.runs.len(), 1, "{name}");
            assert_eq!(frames(&transcript.runs[0]), content.lines().collect::<Vec<_>>(), "{name}");
        }
    }

    #[test]
    fn directed_files_keep_the_bytes_of_the_frame_member_and_split_at_user_lines() {
        let multi = bundled("multi");
        assert_eq!(multi.runs.len(), 2);
        for run in &multi.runs {
            assert!(matches!(run.last(), Some(Step::Out { kind: Kind::End(End::Completed), .. })));
        }
        // The recorder put a space after each colon; it is still there.
        assert!(frames(&multi.runs[1])[0].starts_with("{\"type\": \"system\", \"subtype\": \"init\""));
        let asks = multi.runs[1].iter().filter(|s| matches!(s, Step::Out { kind: Kind::Ask { form: false, .. }, .. }));
        assert_eq!(asks.count(), 1);
    }

    #[test]
    fn runs_follow_each_other_and_begin_again() {
        let first = bundled("multi").run(0);
        assert_eq!(bundled("multi").run(2), first);
        assert_ne!(bundled("multi").run(1), first);
        assert!(Transcript::parse("").run(7).is_empty());
    }

    #[test]
    fn recoverable_errors_do_not_end_a_run() {
        let lines = [
            r#"{"type":"result","is_error":true,"errors":[{"message":"x","recoverable":true}]}"#,
            r#"{"type":"streamlined_text","text":"on"}"#,
            r#"{"type":"result","is_error":true,"errors":["plain"]}"#,
            r#"{"type":"streamlined_text","text":"next"}"#,
        ];
        let transcript = Transcript::parse(&lines.join("\n"));
        assert_eq!(transcript.runs.iter().map(Vec::len).collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn cancels_are_steps_and_late_frames_stay_in_their_run() {
        let lines = [
            r#"{"dir":"in","frame":{"type":"user"}}"#,
            r#"{"dir":"out","frame":{"type":"streamlined_text","text":"a"}}"#,
            r#"{"dir":"in","frame":{"type":"control_cancel_request","request_id":"c"}}"#,
            r#"{"dir":"out","frame":{"type":"result","is_error":false,"stop_reason":"interrupted","n":1e400}}"#,
            r#"{"dir":"out","frame":{"type":"result","is_error":true}}"#,
            "not json",
        ];
        let steps = Transcript::parse(&lines.join("\n"));
        assert_eq!(steps.runs.len(), 2, "the undirected line begins a run of its own");
        let steps = steps.run(0);
        assert_eq!(steps.len(), 4);
        assert_eq!(steps[1], Step::Cancelled);
        assert!(ends_by_cancel(&steps));
        assert!(frames(&steps)[1].contains("1e400"));
    }

    #[tokio::test]
    async fn names_cannot_leave_the_directory() {
        let dir = std::env::temp_dir();
        for name in ["../secrets", "a/b", "", ".hidden", "a\\b", "a\0b"] {
            let library = Library::new(Some(dir.clone()));
            assert!(library.load(name).await.is_err(), "{name}");
        }
        let refusal = Library::new(None).load("nothing").await.unwrap_err();
        assert!(refusal.contains("chat-text-only, chat-thinking"), "{refusal}");
    }
}
