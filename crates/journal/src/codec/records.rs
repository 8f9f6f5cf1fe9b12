//! One record. Every kind of body, fact, answer and part has its number here: what is added to the model does not compile without one.

use interline_model::{
    Actor, Answer, AskId, Body, Fact, FailureKind, ForcedEnd, FormAction, NoticeLevel, Part, Principal, RunAccepted, RunId, SessionId, Text,
};

use super::fields::{Fields, Writing};
use crate::Damage;

pub(super) fn write(out: &mut Vec<u8>, body: &Body) {
    match body {
        Body::Frame(text) => {
            out.byte(0);
            out.text(text);
        }
        Body::Fact(fact) => write_fact(out, fact),
    }
}

fn write_fact(out: &mut Vec<u8>, fact: &Fact) {
    match fact {
        Fact::RunAccepted(accepted) => {
            out.byte(1);
            write_accepted(out, accepted);
        }
        Fact::AskAnswered { ask, answer, by } => {
            out.byte(2);
            out.text(ask.as_str());
            write_answer(out, answer);
            write_actor(out, by);
        }
        Fact::AskExpired { ask } => {
            out.byte(3);
            out.text(ask.as_str());
        }
        Fact::AskDecided { ask, allowed, rule } => {
            out.byte(4);
            out.text(ask.as_str());
            out.flag(*allowed);
            out.text(rule);
        }
        Fact::AskUnconfirmed { ask } => {
            out.byte(5);
            out.text(ask.as_str());
        }
        Fact::Noticed { level, code, text } => {
            out.byte(6);
            out.byte(match level {
                NoticeLevel::Info => 0,
                NoticeLevel::Warning => 1,
                NoticeLevel::Error => 2,
            });
            out.text(code);
            out.text(text);
        }
        Fact::StopRequested { by } => {
            out.byte(7);
            write_actor(out, by);
        }
        Fact::LinkLost => out.byte(8),
        Fact::LinkBack => out.byte(9),
        Fact::EndForced(end) => {
            out.byte(10);
            write_end(out, end);
        }
        Fact::Compacted => out.byte(11),
        Fact::Titled { title } => {
            out.byte(12);
            out.text(title);
        }
        Fact::Attached { handle } => {
            out.byte(13);
            out.text(handle.as_str());
        }
        Fact::Shortened { numbers } => {
            out.byte(14);
            out.text(numbers.as_str());
        }
    }
}

pub(super) fn read(fields: &mut Fields<'_>) -> Result<Body, Damage> {
    let fact = match fields.byte()? {
        0 => return Ok(Body::Frame(fields.text()?)),
        1 => Fact::RunAccepted(Box::new(read_accepted(fields)?)),
        2 => Fact::AskAnswered { ask: read_ask(fields)?, answer: read_answer(fields)?, by: read_actor(fields)? },
        3 => Fact::AskExpired { ask: read_ask(fields)? },
        4 => Fact::AskDecided { ask: read_ask(fields)?, allowed: fields.flag()?, rule: fields.text()? },
        5 => Fact::AskUnconfirmed { ask: read_ask(fields)? },
        6 => {
            let level = match fields.byte()? {
                0 => NoticeLevel::Info,
                1 => NoticeLevel::Warning,
                2 => NoticeLevel::Error,
                _ => return Err(Damage::Unknown("the level of a notice")),
            };
            Fact::Noticed { level, code: fields.text()?, text: fields.text()? }
        }
        7 => Fact::StopRequested { by: read_actor(fields)? },
        8 => Fact::LinkLost,
        9 => Fact::LinkBack,
        10 => Fact::EndForced(read_end(fields)?),
        11 => Fact::Compacted,
        12 => Fact::Titled { title: fields.text()? },
        13 => Fact::Attached { handle: fields.json()? },
        14 => Fact::Shortened { numbers: fields.json()? },
        _ => return Err(Damage::Unknown("a kind of record")),
    };
    Ok(Body::Fact(fact))
}

fn read_ask(fields: &mut Fields<'_>) -> Result<AskId, Damage> {
    fields.text().map(AskId::from)
}

fn write_accepted(out: &mut Vec<u8>, accepted: &RunAccepted) {
    let RunAccepted { run, session, model, input, by, actor, headless, output_schema } = accepted;
    out.bits(run.as_u128());
    out.text(session.as_str());
    out.text(model);
    out.length(input.len());
    for part in input {
        write_part(out, part);
    }
    write_actor(out, by);
    out.text_if(actor.as_deref());
    out.flag(*headless);
    out.text_if(output_schema.as_ref().map(|schema| schema.as_str()));
}

fn read_accepted(fields: &mut Fields<'_>) -> Result<RunAccepted, Damage> {
    Ok(RunAccepted {
        run: RunId::from_u128(fields.bits()?),
        session: SessionId::from(fields.text()?),
        model: fields.text()?,
        input: fields.several(read_part)?,
        by: read_actor(fields)?,
        actor: fields.maybe(Fields::text)?,
        headless: fields.flag()?,
        output_schema: fields.maybe(Fields::json)?,
    })
}

fn write_part(out: &mut Vec<u8>, part: &Part) {
    match part {
        Part::Text(text) => {
            out.byte(0);
            out.text(text);
        }
        Part::Image { url } => {
            out.byte(1);
            out.text(url);
        }
        Part::File { name, data } => {
            out.byte(2);
            out.text(name);
            out.text(data);
        }
    }
}

fn read_part(fields: &mut Fields<'_>) -> Result<Part, Damage> {
    match fields.byte()? {
        0 => Ok(Part::Text(fields.text()?)),
        1 => Ok(Part::Image { url: fields.text()? }),
        2 => Ok(Part::File { name: fields.text()?, data: fields.text()? }),
        _ => Err(Damage::Unknown("a part of an input")),
    }
}

fn write_actor(out: &mut Vec<u8>, actor: &Actor) {
    let Actor { principal, surface } = actor;
    out.text(principal.as_str());
    out.text(surface);
}

fn read_actor(fields: &mut Fields<'_>) -> Result<Actor, Damage> {
    Ok(Actor { principal: Principal::from(fields.text()?), surface: fields.text()? })
}

fn write_answer(out: &mut Vec<u8>, answer: &Answer) {
    match answer {
        Answer::Allow { input, always } => {
            out.byte(0);
            out.text_if(input.as_ref().map(|input| input.as_str()));
            out.flag(*always);
        }
        Answer::Deny { message } => {
            out.byte(1);
            out.text(message);
        }
        Answer::Choose(chosen) => {
            out.byte(2);
            out.length(chosen.len());
            for (question, label) in chosen {
                out.text(question);
                out.text(label);
            }
        }
        Answer::Form { action, content } => {
            out.byte(3);
            out.byte(match action {
                FormAction::Accept => 0,
                FormAction::Decline => 1,
                FormAction::Cancel => 2,
            });
            out.text_if(content.as_ref().map(|content| content.as_str()));
        }
        Answer::Native(body) => {
            out.byte(4);
            out.text(body.as_str());
        }
    }
}

fn read_answer(fields: &mut Fields<'_>) -> Result<Answer, Damage> {
    Ok(match fields.byte()? {
        0 => Answer::Allow { input: fields.maybe(Fields::json)?, always: fields.flag()? },
        1 => Answer::Deny { message: fields.text()? },
        2 => Answer::Choose(fields.several(|fields| Ok((fields.text()?, fields.text()?)))?),
        3 => {
            let action = match fields.byte()? {
                0 => FormAction::Accept,
                1 => FormAction::Decline,
                2 => FormAction::Cancel,
                _ => return Err(Damage::Unknown("an end of a form")),
            };
            Answer::Form { action, content: fields.maybe(Fields::json)? }
        }
        4 => Answer::Native(fields.json()?),
        _ => return Err(Damage::Unknown("a kind of answer")),
    })
}

fn write_end(out: &mut Vec<u8>, end: &ForcedEnd) {
    match end {
        ForcedEnd::StopGraceOver => out.byte(0),
        ForcedEnd::UpstreamGone => out.byte(1),
        ForcedEnd::Refused { kind, message } => {
            out.byte(2);
            out.byte(failure_number(*kind));
            out.text(message);
        }
        ForcedEnd::Idle => out.byte(3),
        ForcedEnd::ErrorStayed => out.byte(4),
        ForcedEnd::Shutdown => out.byte(5),
    }
}

fn read_end(fields: &mut Fields<'_>) -> Result<ForcedEnd, Damage> {
    Ok(match fields.byte()? {
        0 => ForcedEnd::StopGraceOver,
        1 => ForcedEnd::UpstreamGone,
        2 => ForcedEnd::Refused { kind: failure_of(fields.byte()?)?, message: fields.text()? },
        3 => ForcedEnd::Idle,
        4 => ForcedEnd::ErrorStayed,
        5 => ForcedEnd::Shutdown,
        _ => return Err(Damage::Unknown("a forced end")),
    })
}

fn failure_number(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::MissingTerminalEvent => 0,
        FailureKind::EngineNotReady => 1,
        FailureKind::AuthRequired => 2,
        FailureKind::ProviderOverloaded => 3,
        FailureKind::ProviderRateLimit => 4,
        FailureKind::ProviderBillingOverdue => 5,
        FailureKind::NoProvider => 6,
        FailureKind::InvalidRequest => 7,
        FailureKind::UpstreamTimeout => 8,
        FailureKind::UpstreamDisconnected => 9,
        FailureKind::Internal => 10,
    }
}

fn failure_of(number: u8) -> Result<FailureKind, Damage> {
    Ok(match number {
        0 => FailureKind::MissingTerminalEvent,
        1 => FailureKind::EngineNotReady,
        2 => FailureKind::AuthRequired,
        3 => FailureKind::ProviderOverloaded,
        4 => FailureKind::ProviderRateLimit,
        5 => FailureKind::ProviderBillingOverdue,
        6 => FailureKind::NoProvider,
        7 => FailureKind::InvalidRequest,
        8 => FailureKind::UpstreamTimeout,
        9 => FailureKind::UpstreamDisconnected,
        10 => FailureKind::Internal,
        _ => return Err(Damage::Unknown("a kind of failure")),
    })
}

/// About how much memory a record takes, for the bound on what waits for the disk.
pub(crate) fn weight(body: &Body) -> usize {
    let texts = |texts: &[&Text]| texts.iter().fold(0_usize, |sum, text| sum.saturating_add(text.len()));
    let more = match body {
        Body::Frame(text) => text.len(),
        Body::Fact(Fact::RunAccepted(accepted)) => accepted.input.iter().fold(512, |sum: usize, part| {
            sum.saturating_add(match part {
                Part::Text(text) | Part::Image { url: text } => text.len(),
                Part::File { name, data } => texts(&[name, data]),
            })
        }),
        Body::Fact(_) => 256,
    };
    more.saturating_add(size_of::<interline_model::Record>())
}
