//! A file that can be read as if it could be written: what is written stays in memory.
//!
//! redb has to write to open a file that was not closed properly. While a disk takes nothing, what is on it is read through this.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;

use redb::StorageBackend;

use crate::sync::{Mutex, lock};

const BLOCK: u64 = 4096;
const BLOCK_LENGTH: usize = 4096;

#[derive(Debug)]
pub(crate) struct Overlay {
    below: Box<dyn StorageBackend>,
    above: Mutex<Above>,
}

#[derive(Debug)]
struct Above {
    length: u64,
    /// How much of what is below shows.
    shows: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Overlay {
    pub(crate) fn new(below: Box<dyn StorageBackend>) -> io::Result<Self> {
        let length = below.len()?;
        Ok(Self { below, above: Mutex::new(Above { length, shows: length, blocks: BTreeMap::new() }) })
    }

    /// The block as it is below, zeros where nothing is.
    fn block_below(&self, block: u64, shows: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_LENGTH];
        let begin = block.saturating_mul(BLOCK);
        let length = usize::try_from(shows.saturating_sub(begin)).unwrap_or(BLOCK_LENGTH).min(BLOCK_LENGTH);
        if let Some(part) = bytes.get_mut(..length).filter(|part| !part.is_empty()) {
            self.below.read(begin, part)?;
        }
        Ok(bytes)
    }
}

/// The parts of `offset..offset + length` by blocks: the block, where in it, and how long.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut at = offset;
    let mut left = length;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let inside = usize::try_from(at % BLOCK).unwrap_or(0);
        let count = (BLOCK_LENGTH - inside).min(left);
        let part = (at / BLOCK, inside, count);
        at = at.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        left -= count;
        Some(part)
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.above).length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let above = lock(&self.above);
        let end = offset.saturating_add(u64::try_from(out.len()).unwrap_or(u64::MAX));
        if end > above.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if above.blocks.is_empty() && end <= above.shows {
            drop(above);
            return self.below.read(offset, out);
        }
        let mut rest = out;
        for (block, inside, count) in parts(offset, rest.len()) {
            let (part, after) = rest.split_at_mut(count);
            let below;
            let bytes = match above.blocks.get(&block) {
                Some(bytes) => bytes,
                None => {
                    below = self.block_below(block, above.shows)?;
                    &below
                }
            };
            part.copy_from_slice(bytes.get(inside..inside + count).unwrap_or_default());
            rest = after;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut above = lock(&self.above);
        if len < above.length {
            above.shows = above.shows.min(len);
            above.blocks.retain(|block, _| block.saturating_mul(BLOCK) < len);
            let inside = usize::try_from(len % BLOCK).unwrap_or(0);
            if let Some(rest) = above.blocks.get_mut(&(len / BLOCK)).and_then(|block| block.get_mut(inside..)) {
                rest.fill(0);
            }
        }
        above.length = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut above = lock(&self.above);
        let shows = above.shows;
        let mut rest = data;
        for (block, inside, count) in parts(offset, data.len()) {
            let (part, after) = rest.split_at(count);
            let bytes = match above.blocks.entry(block) {
                Entry::Occupied(bytes) => bytes.into_mut(),
                Entry::Vacant(none) => none.insert(self.block_below(block, shows)?),
            };
            if let Some(place) = bytes.get_mut(inside..inside + count) {
                place.copy_from_slice(part);
            }
            rest = after;
        }
        above.length = above.length.max(offset.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redb::backends::InMemoryBackend;

    use super::*;

    proptest! {
        #[test]
        fn it_reads_like_a_file_that_was_written_and_leaves_the_one_below_alone(
            begin in 0..20_000_u64,
            steps in proptest::collection::vec((0..3_u8, 0..20_000_u64, 0..9_000_usize), 1..30),
        ) {
            let below = InMemoryBackend::new();
            below.set_len(begin).unwrap();
            let pattern: Vec<u8> = (0..begin).map(|at| (at % 251) as u8).collect();
            below.write(0, &pattern).unwrap();
            let overlay = Overlay::new(Box::new(below)).unwrap();
            let mut wanted = pattern.clone();
            for (step, (action, offset, length)) in steps.into_iter().enumerate() {
                let at = usize::try_from(offset).unwrap();
                match action {
                    0 => {
                        overlay.set_len(offset).unwrap();
                        wanted.resize(at, 0);
                    }
                    1 => {
                        let data = vec![step as u8; length];
                        overlay.write(offset, &data).unwrap();
                        if wanted.len() < at + length {
                            wanted.resize(at + length, 0);
                        }
                        wanted[at..at + length].copy_from_slice(&data);
                    }
                    _ => {
                        let mut out = vec![0; length];
                        let read = overlay.read(offset, &mut out);
                        match wanted.get(at..at + length) {
                            Some(wanted) => prop_assert_eq!(wanted, &out[..]),
                            None => prop_assert!(read.is_err()),
                        }
                    }
                }
                prop_assert_eq!(overlay.len().unwrap(), wanted.len() as u64);
            }
            let mut out = vec![0; pattern.len()];
            overlay.below.read(0, &mut out).unwrap();
            prop_assert_eq!(out, pattern);
        }
    }
}
