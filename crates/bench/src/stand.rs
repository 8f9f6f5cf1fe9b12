//! What the commands stand on: the program's binary, simulated servers, and memory as it is watched.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use interline_sim::{Options, Pace, Simulator, Voice};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Common;

impl Common {
    /// The program: the one that was named, else one that Cargo builds now, else the one beside this program.
    ///
    /// # Panics
    /// When there is none, with what to do.
    pub(crate) fn program(&self) -> String {
        if let Some(binary) = &self.binary {
            return binary.clone();
        }
        let own = std::env::current_exe().expect("a program knows itself");
        let beside = own.with_file_name("interline");
        // Cargo tells the programs that it runs where it is. What it built for this command is only this command.
        if let Some(cargo) = std::env::var_os("CARGO") {
            eprintln!("cargo build --release --bin interline …");
            let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
            let built = std::process::Command::new(cargo).args(["build", "--release", "--bin", "interline"]).current_dir(root).status();
            assert!(built.is_ok_and(|status| status.success()), "the program could not be built; --binary PATH names one that there is");
        }
        assert!(beside.exists(), "there is no {}: run `cargo build --release --bin interline`, or name it with --binary", beside.display());
        beside.to_str().expect("a UTF-8 path").to_owned()
    }

    /// The seed, which is any number unless it was given.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| u64::from(std::process::id()))
    }
}

/// A simulator of both servers in this voice: its URL, and what ends it.
pub(crate) async fn simulator(voice: Voice) -> (String, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let options = Options {
        voice,
        pace: Pace::none(),
        ping_interval: Duration::from_millis(200),
        pong_timeout: Duration::from_millis(1_500),
        session_token_ttl: Duration::from_secs(2),
        session_retention: Duration::from_secs(60),
        ..Options::default()
    };
    let stop = CancellationToken::new();
    tokio::spawn(Simulator::new(options).expect("a simulator").serve(listener, stop.clone()));
    (url, stop.drop_guard())
}

/// The memory of a process, looked at again and again.
pub(crate) struct Memory {
    peak: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Memory {
    /// Watches the process of this number.
    pub(crate) fn of(process: u32) -> Self {
        let peak = Arc::new(AtomicU64::new(0));
        let seen = peak.clone();
        let task = tokio::spawn(async move {
            loop {
                seen.fetch_max(now(process), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Self { peak, task }
    }

    /// The most so far, in bytes.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a process takes of memory, in bytes; 0 where the system does not say.
pub(crate) fn now(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() * 1024
}

/// Bytes as a table has them.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
