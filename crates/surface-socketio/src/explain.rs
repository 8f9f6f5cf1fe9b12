//! Why turns are as they are: for every event that told of a turn, the records that caused it and the rules by which they did.

use std::collections::HashMap;
use std::sync::Arc;

use interline_hub::Session;
use interline_model::{Explained, Json};

use crate::object::{Object, object, write_array};
use crate::shell::Shell;
use crate::{SocketEvent, SocketWriter, rules};

/// The session's turns, each with `explain`: its events in order, each with its causes and rules.
///
/// The session is read again for each of its runs, so this is for people who look for something.
pub(crate) fn messages(shell: &Shell, session: &Arc<Session>) -> Json {
    let title = session.first_title().cloned().unwrap_or_default();
    let mut told: HashMap<String, Vec<Json>> = HashMap::new();
    for run in session.runs() {
        let writer = SocketWriter::new(shell.config.options()).titled(title.clone());
        let Some(mut explaining) = session.explain(run.run, writer) else { continue };
        for explained in explaining.more() {
            if let Some(turn) = turn_of(&explained.item) {
                told.entry(turn.to_owned()).or_default().push(entry(&run.run.to_string(), explained));
            }
        }
    }
    // What came meanwhile is in both or in the turns alone: a turn that is still new has no events here.
    shell.projection(session).with(|writer, _| {
        writer.messages_with(|object: &mut Object<'_>, turn| {
            let events = told.get(turn).map(Vec::as_slice).unwrap_or_default();
            object.member("explain", |out| write_array(out, events, |out, event| out.push_str(event.as_str())));
        })
    })
}

/// `{"event", "run_id", "causes", "rules"}`.
fn entry(run: &str, explained: Explained<SocketEvent>) -> Json {
    let why = explained.why();
    let members = why.as_str().strip_prefix('{').and_then(|why| why.strip_suffix('}')).unwrap_or_default();
    object(|object| {
        object.text("event", &rules::name(&explained.item));
        object.text("run_id", run);
        object.spliced(members);
    })
}

/// The turn that an event is about.
fn turn_of(event: &SocketEvent) -> Option<&str> {
    if !event.name.starts_with("turn:") {
        return None;
    }
    // Ours, and before anything that somebody else wrote; without escapes, as our ids are.
    let (_, rest) = event.data.as_str().split_once("\"turn_id\":\"")?;
    rest.split_once('"').map(|(turn, _)| turn)
}
