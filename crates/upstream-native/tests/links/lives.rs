//! A proxy that is killed and started again over the same log, beside agent servers that know nothing of it. A life is a runtime that is gone
//! afterwards with all its tasks; what of its log had got to the disk is decided to the frame.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use interline_hub::{Access, Gate, Hub};
use interline_journal::{
    Birth, Damaged, Durability, Durable, Health, Journal, JournalConfig, JournalError, Log, LogKey, Mark, Memory, Stored, Unstored,
};
use interline_model::{Body, Record, RunId};
use interline_sim::{Options, Simulator};
use interline_upstream_native::{Kind, LinkConfig, Mode, UpstreamConfig};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::world::{Watched, config, delete, hub_on};

/// An agent server, and the folder of the proxy's log.
pub(crate) struct Site {
    pub(crate) sim: Simulator,
    kind: Kind,
    mode: Mode,
    url: String,
    folder: PathBuf,
    pub(crate) stop: CancellationToken,
    /// Outlives the lives.
    _server: Runtime,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A life of the proxy.
pub(crate) struct Life {
    pub(crate) hub: Arc<Hub>,
    pub(crate) access: Access,
}

impl Life {
    pub(crate) fn run(&self, run: RunId) -> Watched {
        Watched::of(&self.access, self.hub.run(&self.access, run).unwrap(), run)
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

impl Site {
    pub(crate) fn new(options: Options, kind: Kind, mode: Mode) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::temp_dir().join(format!("interline-lives-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir_all(&folder).unwrap();
        let (server, stop) = (runtime(), CancellationToken::new());
        let listener = server.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let sim = Simulator::new(options).unwrap();
        server.spawn(sim.clone().serve(listener, stop.clone()));
        Self { sim, kind, mode, url, folder, stop, _server: server }
    }

    /// Sends `DELETE` past the proxy.
    pub(crate) async fn delete(&self, path: &str) {
        assert_eq!(delete(&self.url, path).await, 204);
    }

    /// A life to its end. Of each session's log, so many frames get to the disk, and what is between them and the next one.
    pub(crate) fn live<R>(&self, link: LinkConfig, frames: usize, life: impl AsyncFnOnce(Life) -> R) -> R {
        let keeping =
            JournalConfig { path: self.folder.join("journal").to_str().unwrap().to_owned(), flush_ms: 5, ..JournalConfig::default() };
        let runtime = runtime();
        let lived = runtime.block_on(async {
            let journal = Arc::new(Forgetful { disk: opened(&keeping).await, memory: Memory::default(), frames });
            let upstream = UpstreamConfig {
                mode: self.mode,
                environment_id: (self.mode == Mode::Agent).then(|| "11111111-1111-4111-8111-111111111111".to_owned()),
                ..config(self.kind, self.url.clone())
            };
            let hub = hub_on(Gate::Open, upstream, link, journal, Durability::Buffered);
            let access = hub.admit(None).unwrap();
            hub.restore().unwrap();
            life(Life { hub, access }).await
        });
        runtime.shutdown_timeout(Duration::from_secs(5));
        lived
    }
}

/// The file, as soon as the life before has let go of it: the last of its threads may still be about to.
async fn opened(keeping: &JournalConfig) -> Durable {
    for _ in 0..500 {
        match Durable::start(keeping) {
            Err(JournalError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            opened => return opened.unwrap(),
        }
    }
    panic!("the journal stays in use");
}

/// Everything gets to the disk.
pub(crate) const ALL: usize = usize::MAX;

/// A journal whose file misses what a kill would have cost it.
struct Forgetful {
    disk: Durable,
    memory: Memory,
    frames: usize,
}

impl Journal for Forgetful {
    fn open(&self, key: &LogKey, birth: &Birth, durability: Durability) -> Arc<dyn Log> {
        let disk = self.disk.open(key, birth, durability);
        if self.frames == ALL {
            return disk;
        }
        Arc::new(ForgetfulLog { disk, memory: self.memory.open(key, birth, durability), left: Mutex::new(Some(self.frames)) })
    }

    fn remove(&self, key: &LogKey) {
        self.disk.remove(key);
    }

    fn stored(&self) -> Result<Vec<Stored>, JournalError> {
        self.disk.stored()
    }

    fn health(&self) -> Health {
        self.disk.health()
    }

    fn stored_bytes(&self) -> u64 {
        self.disk.stored_bytes()
    }

    fn flush(&self) -> Result<(), JournalError> {
        self.disk.flush()
    }
}

struct ForgetfulLog {
    disk: Arc<dyn Log>,
    memory: Arc<dyn Log>,
    /// How many more frames are kept; `None` once one was not.
    left: Mutex<Option<usize>>,
}

impl Log for ForgetfulLog {
    fn append(&self, record: Record, mark: Mark) -> Result<(), Unstored> {
        let mut left = self.left.lock().unwrap();
        if matches!(record.body, Body::Frame(_)) {
            *left = left.and_then(|left| left.checked_sub(1));
        }
        if left.is_some() {
            self.disk.append(record.clone(), mark.clone())?;
        }
        self.memory.append(record, mark)
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn first(&self) -> usize {
        self.memory.first()
    }

    fn replay(&self, from: usize, visit: &mut dyn FnMut(&Record)) -> Result<(), Damaged> {
        self.memory.replay(from, visit)
    }

    fn forget_before(&self, number: usize) {
        self.memory.forget_before(number);
    }

    fn durability(&self) -> Durability {
        self.disk.durability()
    }
}

/// Frames as they are in every run alike: without ids and times.
pub(crate) fn alike(frames: &[String]) -> Vec<String> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                let own =
                    ["uuid", "session_id", "request_id", "tool_use_id", "duration_ms", "duration_api_ms", "id", "preceding_tool_use_ids"];
                members.retain(|name, _| !own.contains(&name.as_str()));
                members.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let stripped = |frame: &String| {
        let mut value: Value = serde_json::from_str(frame).unwrap();
        strip(&mut value);
        value.to_string()
    };
    frames.iter().map(stripped).collect()
}
