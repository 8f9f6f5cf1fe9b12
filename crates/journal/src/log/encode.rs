//! Making batches and rows of what waits for the disk.

use std::mem;

use interline_model::Millis;

use super::{Run, Stretch};
use crate::Mark;
use crate::codec::BatchWriter;
use crate::index::RunRow;
use crate::store::charge;
use crate::sync::Arc;

/// Where a batch ends: with its head, its key and the record that exceeds it, it still fits the eight pages that the store gives it.
const BATCH_BYTES: usize = 31 * 1024;

/// What goes to the disk.
pub(super) struct Encoded {
    pub(super) batches: Vec<(u64, Vec<u8>)>,
    pub(super) runs: Vec<(u64, Vec<u8>)>,
    /// What the batches take in the file.
    pub(super) stored: u64,
    /// The last run, as it is afterwards.
    pub(super) run: Option<Run>,
}

struct Encoder {
    session: u64,
    out: Encoded,
    batch: BatchWriter,
    /// The number of the batch's first record.
    first: u64,
    /// The last run's row is to be written.
    row: bool,
}

/// Encodes the records from number `first` on. `run` is the run that began last before them; `again` if its row has to be written whatever
/// becomes of it.
pub(super) fn encode(session: u64, first: u64, run: Option<Run>, again: bool, stretches: &[Arc<Stretch>]) -> Encoded {
    let out = Encoded { batches: Vec::new(), runs: Vec::new(), stored: 0, run };
    let mut encoder = Encoder { session, out, batch: BatchWriter::new(), first, row: again };
    for stretch in stretches {
        let mut marks = stretch.marks.iter().peekable();
        for (place, record) in stretch.records.iter().enumerate() {
            let mark = marks.next_if(|(marked, _)| *marked == place).map(|(_, mark)| mark);
            if let Some(Mark::Begins { run, tag }) = mark {
                encoder.begin(RunRow { run: *run, tag: tag.clone(), began_at: record.at, ended_at: None, bytes: 0 });
            }
            encoder.batch.push(record);
            if let Some(Mark::Ends) = mark {
                encoder.end(record.at);
            }
            if encoder.batch.bytes() >= BATCH_BYTES {
                encoder.close_batch();
            }
        }
    }
    encoder.close_batch();
    encoder.close_run();
    encoder.out
}

impl Encoder {
    fn begin(&mut self, row: RunRow) {
        self.close_batch();
        // From here on its row is the only one that says what it came to.
        self.row |= self.out.run.as_ref().is_some_and(|run| run.row.bytes != run.bytes_in_row);
        self.close_run();
        self.out.run = Some(Run { first: self.first, row, bytes_in_row: 0 });
        self.row = true;
    }

    fn end(&mut self, at: Millis) {
        if let Some(run) = &mut self.out.run {
            run.row.ended_at = Some(at);
            self.row = true;
        }
    }

    fn close_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let count = u64::try_from(self.batch.len()).unwrap_or(u64::MAX);
        let before = self.out.run.as_ref().map_or(0, |run| run.row.bytes);
        let value = self.batch.finish(self.session, self.first, before);
        let bytes = charge(value.len());
        self.out.stored = self.out.stored.saturating_add(bytes);
        if let Some(run) = &mut self.out.run {
            run.row.bytes = run.row.bytes.saturating_add(bytes);
        }
        self.out.batches.push((self.first, value));
        self.first = self.first.saturating_add(count);
    }

    fn close_run(&mut self) {
        if mem::take(&mut self.row)
            && let Some(run) = &mut self.out.run
        {
            run.bytes_in_row = run.row.bytes;
            self.out.runs.push((run.first, run.row.write()));
        }
    }
}
