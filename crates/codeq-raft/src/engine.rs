//! A member of a cluster as an engine: the same calls, reads and effects as on a single node.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use codeq_core::moment::Moment;
use codeq_engine::dir_lock::{DirLock, lock};
use codeq_engine::driver::{CatchingUp, Driver};
use codeq_engine::{Durability, Engine, EngineError};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::node::{Node, Setup, StartError};

/// Threads of the runtime that openraft and everything around it run on. It is a runtime of its own, so that whatever
/// else the process does delays no heartbeat.
const RUNTIME_THREADS: usize = 2;

/// The driver of an engine that is a member of a cluster.
#[derive(Clone)]
struct ClusterDriver(Arc<Inner>);

struct Inner {
    node: Node,
    runtime: Handle,
    running: Mutex<Option<Running>>,
    /// Held until the engine is dropped, so that no other process opens the directory.
    _lock: DirLock,
}

struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Starts a member of a cluster from its directory. If it is the only one, it leads when this returns.
pub fn open(setup: Setup) -> Result<Engine, StartError> {
    if setup.options.durability != Durability::Fsync {
        // A node that forgets what it has acknowledged breaks the promises of the others.
        return Err(StartError::Raft("a cluster needs the durability `fsync`".to_owned()));
    }
    let lock = lock(&setup.dir)?;
    let (disk, options) = (Arc::clone(&setup.disk), setup.options.clone());
    let seed = setup.incarnation;
    let (started, start) = mpsc::channel();
    let (stop, stopped) = oneshot::channel();
    let spawned = Builder::new().name("codeq-raft".into()).spawn(move || {
        run(setup, &started, stopped);
    });
    let no_thread =
        |error: std::io::Error| StartError::Raft(format!("cannot start a thread: {error}"));
    let thread = spawned.map_err(no_thread)?;
    let ended = || StartError::Raft("the node stopped while it was starting".to_owned());
    let (node, runtime) = match start.recv().unwrap_or_else(|_| Err(ended())) {
        Ok(started) => started,
        Err(error) => {
            // The directory is free only once everything has ended.
            let _ = thread.join();
            return Err(error);
        }
    };
    let damaged = {
        let node = node.clone();
        move |error: &EngineError| node.fail(error)
    };
    let running = Mutex::new(Some(Running { stop, thread }));
    let member =
        ClusterDriver(Arc::new(Inner { node: node.clone(), runtime, running, _lock: lock }));
    let driver = Box::new(member.clone());
    let engine = node.replica().engine(driver, (disk, options, seed), damaged);
    engine.map_err(|error| {
        member.shutdown();
        no_thread(error)
    })
}

/// The thread of a member. It owns the runtime on which everything else of the member runs.
fn run(
    setup: Setup,
    started: &mpsc::Sender<Result<(Node, Handle), StartError>>,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .thread_name("codeq-raft")
        .enable_time()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            // If this is not received, here and below, the caller is gone.
            let _ = started.send(Err(StartError::Raft(format!("cannot start threads: {error}"))));
            return;
        }
    };
    runtime.block_on(async {
        let node = match Node::start(setup).await {
            Ok(node) => node,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        if node.is_alone()
            && let Err(error) = node.lead_alone().await
        {
            let _ = started.send(Err(error));
            return node.shutdown().await;
        }
        let _ = started.send(Ok((node.clone(), Handle::current())));
        // The other end is dropped with the engine, which is as good as a signal.
        let _ = stopped.await;
        node.close().await;
    });
}

impl Driver for ClusterDriver {
    fn now(&self) -> Moment {
        self.0.node.now()
    }

    fn catch_up(&self) -> Option<CatchingUp<'_>> {
        if self.0.node.is_alone() && self.0.node.is_ready() {
            // Nobody else acknowledges anything, and what this node has acknowledged is in its rows.
            return None;
        }
        let node = self.0.node.clone();
        // On the node's own runtime: other reads may share this round, and the caller's runtime may end before it does.
        let reading = self.0.runtime.spawn(async move { node.read_index().await });
        Some(Box::pin(async { reading.await.unwrap_or(Err(EngineError::Closed)).map(drop) }))
    }

    fn shutdown(&self) {
        if let Some(Running { stop, thread }) = self.0.running.lock().take() {
            // If nobody receives this, the thread has already ended.
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}
