//! The pages: the code's own tables, joined and written down.

use std::fmt::Write as _;

use interline_model::{Actor, Answer, AskId, EventKind, Fact, ForcedEnd, Part, Principal, RunAccepted, RunId, SessionId};
use interline_model::{Rule, Shown, Text};
use interline_native::FrameKind;
use interline_native::rules::{self, Means};

/// A surface as its page describes it.
pub(crate) struct Surface {
    pub(crate) title: &'static str,
    pub(crate) name: &'static str,
    pub(crate) shown: fn(EventKind) -> &'static [Shown],
    /// What comes of a record as a whole, and what never comes.
    pub(crate) besides: &'static [(&'static str, &'static [Shown])],
    pub(crate) rules: &'static [Rule],
    /// Lines that hold for many events and would hide what is particular to each.
    pub(crate) common: &'static [&'static str],
}

/// The facts, one of each kind; a test in this file's crate holds it to [`Fact::name`].
pub(crate) fn facts() -> Vec<Fact> {
    let by = Actor { principal: Principal::from("p"), surface: Text::from_static("sse") };
    let ask = || AskId::from("r");
    let accepted = RunAccepted {
        run: RunId::from_u128(1),
        session: SessionId::from("s"),
        model: Text::from_static("m"),
        input: vec![Part::Text(Text::from_static("hi"))],
        by: by.clone(),
        actor: None,
        headless: false,
        output_schema: None,
    };
    vec![
        Fact::RunAccepted(Box::new(accepted)),
        Fact::AskAnswered { ask: ask(), answer: Answer::Deny { message: Text::new() }, by: by.clone() },
        Fact::AskExpired { ask: ask() },
        Fact::StopRequested { by },
        Fact::LinkLost,
        Fact::LinkBack,
        Fact::EndForced(ForcedEnd::UpstreamGone),
        Fact::Titled { title: Text::new() },
    ]
}

/// The whole page.
pub(crate) fn page(surface: &Surface) -> String {
    let Surface { title, name, .. } = surface;
    let mut page = format!(
        "# Native frames on {title}

What becomes of every frame of the native protocol on {title}, and why. A frame becomes events of the canonical vocabulary, and each event
becomes what clients see. Every step has a named rule; [the rules](#rules) are at the end of the page.

These tables are the ones that Interline itself explains its output with: `interline map --to {name} --explain` says of each event of your own
transcript which frames caused it, and by which of these rules. `cargo test --test mapping` drives every frame through the real reader and
writer and fails where a row says something else, or where the page is not what the code gives (`UPDATE_DOCS=1` writes it again).

"
    );
    let mut section = |heading: &str, text: &str, kinds: &mut dyn Iterator<Item = FrameKind>| {
        let rows: Vec<(&str, &[Means])> = kinds.map(|kind| (kind.name(), rules::means(kind))).collect();
        table(&mut page, surface, heading, text, &rows);
    };
    let all: Vec<FrameKind> = FrameKind::all().collect();
    let mut of = |heading, text, which: fn(&FrameKind) -> bool| section(heading, text, &mut all.iter().copied().filter(which));
    of("Data frames", "28 variants, and `system/form_answer`.", |kind| matches!(kind, FrameKind::Data(_)));
    of("Control frames", "21 requests, any other request, responses, and cancels.", |kind| {
        matches!(kind, FrameKind::Request(_) | FrameKind::OtherRequest | FrameKind::Response | FrameKind::Cancel)
    });
    of("Lifecycle frames", "", |kind| matches!(kind, FrameKind::Lifecycle(_)));
    of("Code frames", "The code plane is a socket of its own beside the runs.", |kind| matches!(kind, FrameKind::Code(_)));
    of("Anything else", "", |kind| matches!(kind, FrameKind::Unknown | FrameKind::Malformed));
    let facts = facts();
    let rows: Vec<(&str, &[Means])> = facts.iter().map(|fact| (fact.name(), rules::fact_means(fact))).collect();
    table(&mut page, surface, "What Interline adds", "No frame says these; they are records of the log like frames.", &rows);

    let _ = writeln!(
        page,
        "## Events on {title}\n\nThe right half of the tables above, with all conditions.\n\n| event | becomes | when | why |\n|---|---|---|---|"
    );
    for kind in EventKind::ALL {
        for (n, line) in (surface.shown)(*kind).iter().enumerate() {
            let event = if n == 0 { format!("`{}`", kind.name()) } else { String::new() };
            row(&mut page, &event, line);
        }
    }
    for (heading, lines) in surface.besides {
        let _ = writeln!(page, "\n### {heading}\n\n| | becomes | when | why |\n|---|---|---|---|");
        for line in *lines {
            row(&mut page, "", line);
        }
    }
    let _ = writeln!(page, "\n## Rules\n\nHow frames are read:\n");
    list(&mut page, rules::ALL);
    let _ = writeln!(page, "\nHow events are told on {title}:\n");
    list(&mut page, surface.rules);
    page
}

fn row(page: &mut String, event: &str, line: &Shown) {
    let item = if line.item.is_empty() { "nothing".to_owned() } else { format!("`{}`", line.item) };
    let option = if line.option.is_empty() { String::new() } else { format!(" with `{}`", line.option) };
    let _ = writeln!(page, "| {event} | {item}{option} | {} | {} |", line.when, link(line.rule));
}

fn table(page: &mut String, surface: &Surface, heading: &str, text: &str, rows: &[(&str, &[Means])]) {
    let _ = writeln!(page, "## {heading}\n");
    if !text.is_empty() {
        let _ = writeln!(page, "{text}\n");
    }
    let _ = writeln!(page, "| frame | event | when | on {} | why |\n|---|---|---|---|---|", surface.title);
    for (name, means) in rows {
        if means.is_empty() {
            let _ = writeln!(page, "| `{name}` | none | always | nothing | |");
        }
        for (n, line) in means.iter().enumerate() {
            let frame = if n == 0 { format!("`{name}`") } else { String::new() };
            let shown = (surface.shown)(line.event);
            let mut why = vec![link(line.rule)];
            let particular = shown.iter().filter(|shown| !surface.common.contains(&shown.when));
            for shown in particular.clone() {
                let link = link(shown.rule);
                if !why.contains(&link) {
                    why.push(link);
                }
            }
            let event = line.event.name();
            let _ = writeln!(page, "| {frame} | `{event}` | {} | {} | {} |", line.when, cell(particular), why.join(", "));
        }
    }
    page.push('\n');
}

/// What an event becomes, in few words: by default, and what options add.
fn cell<'s>(shown: impl Iterator<Item = &'s Shown> + Clone) -> String {
    let mut parts: Vec<String> = Vec::new();
    for line in shown.clone().filter(|line| line.option.is_empty() && !line.item.is_empty()) {
        let when = if line.when == "always" { String::new() } else { format!(" ({})", line.when) };
        parts.push(format!("`{}`{when}", line.item));
    }
    if parts.is_empty() {
        parts.push("nothing".to_owned());
    }
    for line in shown.filter(|line| !line.option.is_empty()) {
        let Shown { item, when, option, .. } = line;
        parts.push(match (*item, *when) {
            ("", when) => format!("with `{option}` nothing {when}"),
            (item, when) if when.starts_with("its ") => format!("with `{option}` `{item}` has {when}"),
            (item, _) => format!("with `{option}` `{item}`"),
        });
    }
    parts.join("; ")
}

fn link(rule: Rule) -> String {
    format!("[{0}](#{0})", rule.name)
}

fn list(page: &mut String, rules: &[Rule]) {
    for Rule { name, sentence } in rules {
        let _ = writeln!(page, "- <a id=\"{name}\"></a>**{name}**: {sentence}");
    }
}
