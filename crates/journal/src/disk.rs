//! Where the file lies: opening it, setting it aside, and trying whether the disk takes anything. A trait, so that tests can have disks
//! that fail, fill up, and forget.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use crate::sync::unix_ms;

/// The place of a journal.
pub(crate) trait Disk: Send + Sync + 'static {
    /// Its name in messages.
    fn path(&self) -> &Path;

    /// The first bytes of what is there, `length` at most; `None` if nothing is.
    fn head(&self, length: usize) -> io::Result<Option<Vec<u8>>>;

    /// How long it is.
    fn len(&self) -> io::Result<u64>;

    /// Opens it, made if it is not there.
    fn open(&self) -> io::Result<Box<dyn StorageBackend>>;

    /// Opens what is there, to be read only.
    fn open_to_read(&self) -> io::Result<Box<dyn StorageBackend>>;

    /// Whether so many bytes could be written and synced beside it.
    fn probe(&self, bytes: u64) -> io::Result<()>;

    /// Gives what is there another name, and says which.
    fn set_aside(&self) -> io::Result<PathBuf>;
}

/// A file in a directory.
pub(crate) struct FileDisk {
    path: PathBuf,
}

impl FileDisk {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    }

    /// Makes a new or changed name last.
    fn sync_directory(&self) -> io::Result<()> {
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
    }
}

fn backend(file: File) -> io::Result<Box<dyn StorageBackend>> {
    let backend = FileBackend::new(file).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Box::new(backend))
}

/// For people's conversations: for the owner alone.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

impl Disk for FileDisk {
    fn path(&self) -> &Path {
        &self.path
    }

    fn head(&self, length: usize) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut head = Vec::new();
        file.take(u64::try_from(length).unwrap_or(u64::MAX)).read_to_end(&mut head)?;
        Ok(Some(head))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(fs::metadata(&self.path)?.len())
    }

    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        let new = !self.path.exists();
        let file = private(OpenOptions::new().read(true).write(true).create(true).truncate(false)).open(&self.path)?;
        if new {
            self.sync_directory()?;
        }
        backend(file)
    }

    fn open_to_read(&self) -> io::Result<Box<dyn StorageBackend>> {
        backend(File::open(&self.path)?)
    }

    fn probe(&self, bytes: u64) -> io::Result<()> {
        let path = self.beside(".probe");
        let tried = write_zeros(&path, bytes);
        let _ = fs::remove_file(&path);
        match tried {
            // Nothing may be made beside the journal, which says nothing about the journal.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            tried => tried,
        }
    }

    fn set_aside(&self) -> io::Result<PathBuf> {
        let path = self.beside(&format!(".damaged-{}", unix_ms()));
        fs::rename(&self.path, &path)?;
        self.sync_directory()?;
        Ok(path)
    }
}

fn write_zeros(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = private(OpenOptions::new().write(true).create(true).truncate(true)).open(path)?;
    io::copy(&mut io::repeat(0).take(bytes), &mut file)?;
    file.flush()?;
    file.sync_data()
}

/// A backend behind a pointer, as redb takes none.
#[derive(Debug)]
pub(crate) struct Backend(pub(crate) Box<dyn StorageBackend>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.query_lock_range(start, end)
    }
}
