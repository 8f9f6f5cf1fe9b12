//! The rows of the index: which sessions there are, and which runs each has. What a start reads instead of records.

use interline_model::{CellName, Millis, Principal, RunId, SessionId, Text};

use crate::codec::{FORMAT, Fields, Writing};
use crate::{Birth, Damage, Durability, LogKey};

/// A session.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SessionRow {
    pub(crate) key: LogKey,
    pub(crate) birth: Birth,
    pub(crate) durability: Durability,
    /// The first record that is kept.
    pub(crate) first: u64,
}

/// A run, under the number of its first record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunRow {
    pub(crate) run: RunId,
    pub(crate) tag: Option<Text>,
    pub(crate) began_at: Millis,
    pub(crate) ended_at: Option<Millis>,
    pub(crate) bytes: u64,
}

impl SessionRow {
    pub(crate) fn write(&self) -> Vec<u8> {
        let Self { key, birth, durability, first } = self;
        let Birth { cell, created_at, title, model, labels } = birth;
        sealed(|out| {
            out.text(key.principal.as_str());
            out.text(key.session.as_str());
            out.text(cell.as_str());
            out.number(*created_at);
            out.text_if(title.as_deref());
            out.text_if(model.as_deref());
            // A map of JSON values has nothing that cannot be written.
            out.text(&serde_json::to_string(labels).unwrap_or_default());
            out.byte(match durability {
                Durability::Memory => 0,
                Durability::Buffered => 1,
                Durability::Fsync => 2,
            });
            out.number(*first);
            if let Some(run) = key.waiting {
                out.bits(run.as_u128());
            }
        })
    }

    pub(crate) fn read(row: &[u8]) -> Result<Self, Damage> {
        let mut fields = opened(row)?;
        let mut key = LogKey::session(Principal::from(fields.text()?), SessionId::from(fields.text()?));
        let birth = Birth {
            cell: CellName::from(fields.text()?),
            created_at: fields.number()?,
            title: fields.maybe(Fields::text)?,
            model: fields.maybe(Fields::text)?,
            labels: serde_json::from_str(&fields.text()?).map_err(|_| Damage::Changed)?,
        };
        let durability = match fields.byte()? {
            0 => Durability::Memory,
            1 => Durability::Buffered,
            2 => Durability::Fsync,
            _ => return Err(Damage::Unknown("a durability")),
        };
        let first = fields.number()?;
        if !fields.is_empty() {
            key.waiting = Some(RunId::from_u128(fields.bits()?));
        }
        Ok(Self { key, birth, durability, first })
    }
}

impl RunRow {
    pub(crate) fn write(&self) -> Vec<u8> {
        let Self { run, tag, began_at, ended_at, bytes } = self;
        sealed(|out| {
            out.bits(run.as_u128());
            out.text_if(tag.as_deref());
            out.number(*began_at);
            out.number_if(*ended_at);
            out.number(*bytes);
        })
    }

    pub(crate) fn read(row: &[u8]) -> Result<Self, Damage> {
        let mut fields = opened(row)?;
        Ok(Self {
            run: RunId::from_u128(fields.bits()?),
            tag: fields.maybe(Fields::text)?,
            began_at: fields.number()?,
            ended_at: fields.maybe(Fields::number)?,
            bytes: fields.number()?,
        })
    }
}

/// Format, checksum, fields.
fn sealed(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut fields = Vec::new();
    write(&mut fields);
    let mut out = Vec::with_capacity(fields.len().saturating_add(5));
    out.byte(FORMAT);
    out.extend_from_slice(&crc32fast::hash(&fields).to_le_bytes());
    out.append(&mut fields);
    out
}

fn opened(row: &[u8]) -> Result<Fields<'_>, Damage> {
    let mut fields = Fields::new(row);
    match fields.byte()? {
        FORMAT => {}
        other => return Err(Damage::Format(other)),
    }
    let sum = fields.word()?;
    if crc32fast::hash(fields.rest()) == sum { Ok(fields) } else { Err(Damage::Changed) }
}
