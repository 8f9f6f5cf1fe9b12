//! The real program as a child process, and files that go away with the test.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};

/// The program while it runs; killed when dropped.
pub struct Program {
    child: Child,
    base: String,
    output: Arc<Mutex<String>>,
    files: Vec<Temp>,
}

impl Program {
    /// Starts `binary ARGS` and waits until it prints the address it listens on.
    ///
    /// # Panics
    /// When it does not within ten seconds, with what it printed.
    pub async fn start(binary: &str, args: &[&str]) -> Self {
        Self::start_with(binary, args, Vec::new()).await
    }

    /// Starts `binary serve` with this config on a free port.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn serve(binary: &str, config: &str) -> Self {
        Self::serve_at(binary, config, "127.0.0.1:0").await
    }

    /// The same at this address: where another one was, for example.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn serve_at(binary: &str, config: &str, listen: &str) -> Self {
        let file = Temp::file("interline.toml", config);
        let path = file.path().to_str().expect("a UTF-8 path").to_owned();
        Self::start_with(binary, &["serve", "--config", &path, "--listen", listen], vec![file]).await
    }

    /// Writes another config into the file it was started with.
    ///
    /// # Panics
    /// When it was started without one.
    pub fn rewrite(&self, config: &str) {
        let file = self.files.first().expect("a config file");
        std::fs::write(file.path(), config).expect("the file can be written");
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    async fn start_with(binary: &str, args: &[&str], files: Vec<Temp>) -> Self {
        let mut child = Command::new(binary)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let output = Arc::new(Mutex::new(String::new()));
        collect(child.stdout.take().expect("a pipe"), output.clone());
        collect(child.stderr.take().expect("a pipe"), output.clone());
        for _ in 0..500 {
            let found = address(&output.lock().unwrap_or_else(PoisonError::into_inner));
            if let Some(base) = found {
                return Self { child, base, output, files };
            }
            if let Ok(Some(status)) = child.try_wait() {
                tokio::time::sleep(Duration::from_millis(50)).await;
                panic!("{binary} {args:?} ended with {status}:\n{}", output.lock().unwrap_or_else(PoisonError::into_inner));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{binary} {args:?} printed no address:\n{}", output.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The base URL, without a slash at its end.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// What it printed so far, on either stream.
    #[must_use]
    pub fn output(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id().expect("it still runs")
    }

    /// Sends it a signal by name (`TERM`, `INT`, `HUP`, `KILL`).
    ///
    /// # Panics
    /// When there is nobody to send it to.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it still runs").to_string();
        let status = std::process::Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(status.success());
    }

    /// Waits for it to end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn ended(&mut self, within: Duration) -> std::process::ExitStatus {
        match tokio::time::timeout(within, self.child.wait()).await {
            Ok(status) => status.expect("it can be waited for"),
            Err(_) => panic!("the program did not end within {within:?}:\n{}", self.output()),
        }
    }
}

/// A test that fails shows what the program said meanwhile: often only that tells why.
impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the program printed:\n{}", self.output());
        }
    }
}

/// The first `http://HOST:PORT` that the program printed.
fn address(output: &str) -> Option<String> {
    let (_, rest) = output.split_once("http://")?;
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".:[]-".contains(c)))?;
    let host = rest.get(..end)?;
    host.contains(':').then(|| format!("http://{host}"))
}

fn collect(pipe: impl AsyncRead + Unpin + Send + 'static, output: Arc<Mutex<String>>) {
    tokio::spawn(async move {
        let mut lines = BufReader::new(pipe).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let _ = writeln!(output.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
        }
    });
}

/// A folder that goes away with the test, and a file in it.
pub struct Temp {
    folder: PathBuf,
    file: PathBuf,
}

impl Temp {
    /// A file of this name and content.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn file(name: &str, content: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("interline-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let file = folder.join(name);
        std::fs::write(&file, content).expect("a temporary file");
        Self { folder, file }
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits until `check` holds.
///
/// # Panics
/// When it does not within `within`.
pub async fn eventually(what: &str, within: Duration, mut check: impl AsyncFnMut() -> bool) {
    let begun = tokio::time::Instant::now();
    while !check().await {
        assert!(begun.elapsed() < within, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
