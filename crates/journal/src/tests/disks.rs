//! A disk for tests: in memory, with a cache that a loss of power empties, and faults on demand: it refuses, or it does not come back.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use redb::{BackendError, StorageBackend};
use std::ops::Bound;

use crate::disk::Disk;

/// A disk and what is on it. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(super) struct TestDisk(Arc<Drive>);

#[derive(Debug, Default)]
struct Drive {
    plate: Mutex<Plate>,
    /// Who hangs waits here for another fault, or none.
    moves: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct Plate {
    /// What a loss of power leaves, whatever else it leaves.
    synced: Vec<u8>,
    /// What the system shows.
    shown: Vec<u8>,
    /// What lies between the two.
    cached: Vec<Change>,
    exists: bool,
    locked: bool,
    pub(super) aside: Vec<Vec<u8>>,
    pub(super) fault: Fault,
    /// Bytes that the disk holds at most.
    pub(super) capacity: Option<u64>,
    pub(super) syncs: usize,
    pub(super) writes: usize,
    /// Calls that wait for the disk to go on.
    pub(super) hanging: usize,
}

#[derive(Clone, Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fault {
    #[default]
    None,
    /// Nothing is written.
    Writes,
    /// Everything is written, and no sync succeeds.
    Syncs,
    /// Whoever writes waits until there is another fault, or none. What is there can be read.
    HangingWrites,
    /// The same for whoever syncs.
    HangingSyncs,
    /// Nothing can be opened, as without the right to.
    Opening,
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(offset, data) => {
            let (begin, end) = (usize::try_from(*offset).unwrap(), usize::try_from(*offset).unwrap() + data.len());
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[begin..end].copy_from_slice(data);
        }
        Change::Length(length) => bytes.resize(usize::try_from(*length).unwrap(), 0),
    }
}

impl TestDisk {
    pub(super) fn plate(&self) -> MutexGuard<'_, Plate> {
        self.0.plate.lock().unwrap()
    }

    pub(super) fn set(&self, fault: Fault) {
        self.plate().fault = fault;
        self.0.moves.notify_all();
    }

    /// The plate, once the disk does not hang in this way.
    fn plate_unless(&self, hangs: Fault) -> MutexGuard<'_, Plate> {
        let mut plate = self.plate();
        plate.hanging += 1;
        while plate.fault == hangs {
            plate = self.0.moves.wait(plate).unwrap();
        }
        plate.hanging -= 1;
        plate
    }

    /// The disk as it is after a loss of power: `keep` says of each change since the last sync how many bytes of it were written. Length
    /// changes are kept if any byte is.
    pub(super) fn after_power_loss(&self, mut keep: impl FnMut(usize) -> usize) -> Self {
        let plate = self.plate();
        let mut bytes = plate.synced.clone();
        for change in &plate.cached {
            match change {
                Change::Write(offset, data) => {
                    let kept = keep(data.len()).min(data.len());
                    if kept > 0 {
                        apply(&mut bytes, &Change::Write(*offset, data[..kept].to_vec()));
                    }
                }
                Change::Length(_) => {
                    if keep(1) > 0 {
                        apply(&mut bytes, change);
                    }
                }
            }
        }
        Self::holding(bytes)
    }

    /// The disk as the next process finds it when this one is killed: caches are the system's.
    pub(super) fn after_kill(&self) -> Self {
        Self::holding(self.plate().shown.clone())
    }

    pub(super) fn holding(bytes: Vec<u8>) -> Self {
        let plate = Plate { synced: bytes.clone(), shown: bytes, exists: true, ..Plate::default() };
        Self(Arc::new(Drive { plate: Mutex::new(plate), moves: Condvar::new() }))
    }

    /// Changes what lies on the disk behind everybody's back.
    pub(super) fn scribble(&self) {
        let mut plate = self.plate();
        plate.cached.clear();
        plate.shown.iter_mut().skip(512).for_each(|byte| *byte ^= 0x55);
        plate.synced = plate.shown.clone();
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.plate().shown.clone()
    }
}

impl Plate {
    fn change(&mut self, change: Change) -> io::Result<()> {
        if self.fault == Fault::Writes {
            return Err(io::Error::other("the disk does not write"));
        }
        let end = match &change {
            Change::Write(offset, data) => offset + data.len() as u64,
            Change::Length(length) => *length,
        };
        if self.capacity.is_some_and(|capacity| end > capacity.max(self.shown.len() as u64)) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left"));
        }
        self.writes += 1;
        apply(&mut self.shown, &change);
        self.cached.push(change);
        Ok(())
    }
}

impl Disk for TestDisk {
    fn path(&self) -> &Path {
        Path::new("test.journal")
    }

    fn head(&self, length: usize) -> io::Result<Option<Vec<u8>>> {
        let plate = self.plate();
        Ok(plate.exists.then(|| plate.shown.iter().copied().take(length).collect()))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.plate().shown.len() as u64)
    }

    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        let mut plate = self.plate();
        if plate.fault == Fault::Opening {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        plate.exists = true;
        Ok(Box::new(self.clone()))
    }

    fn open_to_read(&self) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(self.clone()))
    }

    fn probe(&self, bytes: u64) -> io::Result<()> {
        let plate = self.plate();
        let fits = plate.capacity.is_none_or(|capacity| plate.shown.len() as u64 + bytes <= capacity);
        if plate.fault == Fault::None && fits { Ok(()) } else { Err(io::Error::other("the disk still fails")) }
    }

    fn set_aside(&self) -> io::Result<PathBuf> {
        let mut plate = self.plate();
        let bytes = std::mem::take(&mut plate.shown);
        plate.aside.push(bytes);
        plate.synced.clear();
        plate.cached.clear();
        plate.exists = false;
        Ok(PathBuf::from("test.journal.damaged-1"))
    }
}

impl StorageBackend for TestDisk {
    fn len(&self) -> io::Result<u64> {
        Disk::len(self)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let plate = self.plate();
        let begin = usize::try_from(offset).unwrap();
        let found = plate.shown.get(begin..begin.saturating_add(out.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.plate_unless(Fault::HangingWrites).change(Change::Length(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut plate = self.plate_unless(Fault::HangingSyncs);
        if plate.fault == Fault::Syncs {
            return Err(io::Error::other("the disk does not sync"));
        }
        plate.syncs += 1;
        let cached = std::mem::take(&mut plate.cached);
        cached.iter().for_each(|change| apply(&mut plate.synced, change));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.plate_unless(Fault::HangingWrites).change(Change::Write(offset, data.to_vec()))
    }

    fn close(&self) -> io::Result<()> {
        self.plate().locked = false;
        Ok(())
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        if matches!(start, Bound::Unbounded | Bound::Included(0)) && end == Bound::Unbounded {
            Ok(!std::mem::replace(&mut self.plate().locked, true))
        } else {
            Err(BackendError::Unsupported)
        }
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        self.plate().locked = false;
        Ok(())
    }
}
