//! Every kind of record comes back as it was, and what changed on the way is found.

use interline_model::{
    Actor, Answer, AskId, Body, Fact, FailureKind, ForcedEnd, FormAction, Json, NoticeLevel, Part, Principal, Record, RunAccepted, RunId,
    SessionId, Text,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;

use super::*;
use crate::Damage;

/// Which kind of record it is. What is added to the model does not compile here before it has a number, and fails
/// [`every_kind_is_tried`] before it is generated below.
fn kind(body: &Body) -> usize {
    match body {
        Body::Frame(_) => 0,
        Body::Fact(Fact::RunAccepted(_)) => 1,
        Body::Fact(Fact::AskAnswered { answer, .. }) => match answer {
            Answer::Allow { .. } => 2,
            Answer::Deny { .. } => 3,
            Answer::Choose(_) => 4,
            Answer::Form { action, .. } => match action {
                FormAction::Accept => 5,
                FormAction::Decline => 6,
                FormAction::Cancel => 7,
            },
            Answer::Native(_) => 8,
        },
        Body::Fact(Fact::AskExpired { .. }) => 9,
        Body::Fact(Fact::AskDecided { .. }) => 10,
        Body::Fact(Fact::AskUnconfirmed { .. }) => 11,
        Body::Fact(Fact::Noticed { level, .. }) => match level {
            NoticeLevel::Info => 12,
            NoticeLevel::Warning => 13,
            NoticeLevel::Error => 14,
        },
        Body::Fact(Fact::StopRequested { .. }) => 15,
        Body::Fact(Fact::Attached { .. }) => 16,
        Body::Fact(Fact::LinkLost) => 17,
        Body::Fact(Fact::LinkBack) => 18,
        Body::Fact(Fact::EndForced(end)) => match end {
            ForcedEnd::StopGraceOver => 19,
            ForcedEnd::UpstreamGone => 20,
            ForcedEnd::Idle => 21,
            ForcedEnd::ErrorStayed => 22,
            ForcedEnd::Shutdown => 23,
            ForcedEnd::Refused { kind, .. } => match kind {
                FailureKind::MissingTerminalEvent => 24,
                FailureKind::EngineNotReady => 25,
                FailureKind::AuthRequired => 26,
                FailureKind::ProviderOverloaded => 27,
                FailureKind::ProviderRateLimit => 28,
                FailureKind::ProviderBillingOverdue => 29,
                FailureKind::NoProvider => 30,
                FailureKind::InvalidRequest => 31,
                FailureKind::UpstreamTimeout => 32,
                FailureKind::UpstreamDisconnected => 33,
                FailureKind::Internal => 34,
            },
        },
        Body::Fact(Fact::Compacted) => 35,
        Body::Fact(Fact::Titled { .. }) => 36,
        Body::Fact(Fact::Shortened { .. }) => 37,
    }
}

const KINDS: usize = 37;

fn text() -> impl Strategy<Value = Text> {
    ".{0,40}".prop_map(Text::from)
}

fn json() -> impl Strategy<Value = Json> {
    select(vec!["{}", r#"{"a":1.0,"a":-0}"#, "[1e400,12345678901234567890123]", r#""\ud83d""#, "null", r#"{"é": [ ]}"#])
        .prop_map(|text| Json::parse(text).unwrap())
}

fn maybe<T: Clone + std::fmt::Debug + 'static>(strategy: impl Strategy<Value = T> + 'static) -> BoxedStrategy<Option<T>> {
    proptest::option::of(strategy).boxed()
}

fn ask() -> impl Strategy<Value = AskId> {
    text().prop_map(AskId::from)
}

fn actor() -> impl Strategy<Value = Actor> {
    (text(), text()).prop_map(|(principal, surface)| Actor { principal: Principal::from(principal), surface })
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        text().prop_map(Part::Text),
        text().prop_map(|url| Part::Image { url }),
        (text(), text()).prop_map(|(name, data)| Part::File { name, data }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let action = select(vec![FormAction::Accept, FormAction::Decline, FormAction::Cancel]);
    prop_oneof![
        (maybe(json()), any::<bool>()).prop_map(|(input, always)| Answer::Allow { input, always }),
        text().prop_map(|message| Answer::Deny { message }),
        proptest::collection::vec((text(), text()), 0..4).prop_map(Answer::Choose),
        (action, maybe(json())).prop_map(|(action, content)| Answer::Form { action, content }),
        json().prop_map(Answer::Native),
    ]
}

fn end() -> impl Strategy<Value = ForcedEnd> {
    use FailureKind as F;
    let kinds = vec![
        F::MissingTerminalEvent,
        F::EngineNotReady,
        F::AuthRequired,
        F::ProviderOverloaded,
        F::ProviderRateLimit,
        F::ProviderBillingOverdue,
        F::NoProvider,
        F::InvalidRequest,
        F::UpstreamTimeout,
        F::UpstreamDisconnected,
        F::Internal,
    ];
    let plain = [ForcedEnd::StopGraceOver, ForcedEnd::UpstreamGone, ForcedEnd::Idle, ForcedEnd::ErrorStayed, ForcedEnd::Shutdown];
    prop_oneof![select(plain.to_vec()), (select(kinds), text()).prop_map(|(kind, message)| ForcedEnd::Refused { kind, message })]
}

fn accepted() -> impl Strategy<Value = RunAccepted> {
    let input = proptest::collection::vec(part(), 0..4);
    (any::<u128>(), text(), text(), input, actor(), maybe(text()), any::<bool>(), maybe(json())).prop_map(
        |(run, session, model, input, by, actor, headless, output_schema)| RunAccepted {
            run: RunId::from_u128(run),
            session: SessionId::from(session),
            model,
            input,
            by,
            actor,
            headless,
            output_schema,
        },
    )
}

fn body() -> impl Strategy<Value = Body> {
    let level = select(vec![NoticeLevel::Info, NoticeLevel::Warning, NoticeLevel::Error]);
    let fact = prop_oneof![
        accepted().prop_map(|accepted| Fact::RunAccepted(Box::new(accepted))),
        (ask(), answer(), actor()).prop_map(|(ask, answer, by)| Fact::AskAnswered { ask, answer, by }),
        ask().prop_map(|ask| Fact::AskExpired { ask }),
        (ask(), any::<bool>(), text()).prop_map(|(ask, allowed, rule)| Fact::AskDecided { ask, allowed, rule }),
        ask().prop_map(|ask| Fact::AskUnconfirmed { ask }),
        (level, text(), text()).prop_map(|(level, code, text)| Fact::Noticed { level, code, text }),
        actor().prop_map(|by| Fact::StopRequested { by }),
        json().prop_map(|handle| Fact::Attached { handle }),
        json().prop_map(|numbers| Fact::Shortened { numbers }),
        select(vec![Fact::LinkLost, Fact::LinkBack, Fact::Compacted]),
        end().prop_map(Fact::EndForced),
        text().prop_map(|title| Fact::Titled { title }),
    ];
    prop_oneof![text().prop_map(Body::Frame), fact.prop_map(Body::Fact)]
}

fn record() -> impl Strategy<Value = Record> {
    (any::<u64>(), body()).prop_map(|(at, body)| Record { at, body })
}

fn written(session: u64, first: u64, records: &[Record]) -> Vec<u8> {
    let mut writer = BatchWriter::new();
    records.iter().for_each(|record| writer.push(record));
    writer.finish(session, first, 77)
}

fn read(session: u64, first: u64, value: &[u8]) -> Result<Vec<Record>, Damage> {
    let mut reader = BatchReader::new(session, first, value)?;
    let mut records = Vec::new();
    while let Some(record) = reader.next() {
        records.push(record?);
    }
    Ok(records)
}

proptest! {
    #[test]
    fn records_come_back_as_they_were(records in proptest::collection::vec(record(), 1..20), session: u64, first: u64) {
        let value = written(session, first, &records);
        prop_assert_eq!(read(session, first, &value).unwrap(), &records[..]);
        prop_assert_eq!(count_of(&value), records.len());
        prop_assert_eq!(end_of(session, first, &value), (records.len(), 77, Ok(())));
    }

    #[test]
    fn whatever_changes_is_found(records in proptest::collection::vec(record(), 1..5), at: prop::sample::Index, bit in 0..8_u8) {
        let mut value = written(3, 4, &records);
        let at = at.index(value.len());
        value[at] ^= 1 << bit;
        prop_assert!(read(3, 4, &value).is_err());
        value[at] ^= 1 << bit;
        prop_assert_eq!(read(3, 5, &value), Err(Damage::Changed));
        prop_assert_eq!(read(4, 4, &value), Err(Damage::Changed));
        prop_assert!(read(3, 4, &value[..at]).is_err());
    }

    #[test]
    fn no_bytes_make_the_reader_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(1, 2, &bytes);
        let _ = (count_of(&bytes), end_of(1, 2, &bytes));
        // The same with a checksum that holds, so that what is behind it is read.
        if let Some((head, body)) = bytes.split_at_mut_checked(5) {
            head[0] = FORMAT;
            head[1..].copy_from_slice(&batch::checksum(1, 2, body).to_le_bytes());
            let _ = read(1, 2, &bytes);
        }
    }
}

#[test]
fn every_kind_is_tried() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut missing: std::collections::BTreeSet<usize> = (0..KINDS).collect();
    for _ in 0..20_000 {
        let body = body().new_tree(&mut runner).unwrap().current();
        missing.remove(&kind(&body));
    }
    assert!(missing.is_empty(), "never generated: {missing:?}");
}

#[test]
fn what_a_newer_version_wrote_is_said_and_not_guessed() {
    let mut value = written(1, 2, &[Record { at: 1, body: Body::Frame(Text::from("x")) }]);
    value[0] = FORMAT + 1;
    assert_eq!(read(1, 2, &value), Err(Damage::Format(FORMAT + 1)));
    let mut body = vec![1, 0, 0, 0, 99];
    let mut value = vec![FORMAT];
    value.extend(batch::checksum(1, 2, &body).to_le_bytes());
    value.append(&mut body);
    assert_eq!(read(1, 2, &value), Err(Damage::Unknown("a kind of record")));
}

#[test]
fn a_frame_takes_few_bytes_more_than_its_text() {
    let records: Vec<_> =
        (0..100).map(|n| Record { at: 1_700_000_000_000 + n * 50, body: Body::Frame(Text::from("x".repeat(150))) }).collect();
    assert!(written(1, 0, &records).len() <= 100 * (150 + 4) + 20);
}
