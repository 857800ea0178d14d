//! Short helpers to drive an engine, so that a change of its API touches one place.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::{Claim, Command, Enqueue, Millis, NewTask, Outcome, Selector, Submit};
use codeq_core::id::TaskId;
use codeq_core::reply::{Enqueued, Reply};
use codeq_core::view::Task;
use codeq_engine::{Engine, EngineError, Options};

use crate::start::start;

pub const TENANT: &str = "acme";

/// Small files, so that a test rotates and checkpoints.
pub fn small() -> Options {
    Options {
        segment_bytes: 256 << 10,
        memtable_bytes: 64 << 10,
        checkpoint_log_bytes: 256 << 10,
        ..Options::default()
    }
}

pub fn open(dir: &Path) -> Engine {
    start(dir, small()).unwrap()
}

pub fn new_task(command: &str, payload: &str) -> NewTask {
    NewTask {
        command: command.into(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        ..NewTask::default()
    }
}

pub fn enqueue(tasks: Vec<NewTask>, seed: u64) -> Command {
    Command::Enqueue(Enqueue { tenant: TENANT.into(), tasks, atomic: false, seed })
}

pub fn claim(command: &str, count: u32) -> Claim {
    Claim {
        tenant: TENANT.into(),
        worker: "w".into(),
        from: Selector::Commands(vec![command.into()]),
        lease: 60_000,
        count,
    }
}

pub fn created(reply: Reply) -> Vec<Task> {
    let Reply::Enqueued(outcomes) = reply else { panic!("{reply:?}") };
    let task = |outcome| match outcome {
        Enqueued::Created(task) | Enqueued::Repeated(task) => *task,
        Enqueued::Rejected(rejection) => panic!("{rejection:?}"),
    };
    outcomes.into_iter().map(task).collect()
}

pub fn claimed(reply: Reply) -> Vec<Task> {
    let Reply::Claimed(tasks) = reply else { panic!("{reply:?}") };
    tasks
}

pub fn put(engine: &Engine, command: &str, payload: &str) -> Task {
    let reply = engine.propose_blocking(enqueue(vec![new_task(command, payload)], 7)).unwrap();
    created(reply).remove(0)
}

pub fn take(engine: &Engine, command: &str, count: u32) -> Vec<Task> {
    claimed(block(engine.claim(claim(command, count), 0)).unwrap())
}

pub fn submit(engine: &Engine, id: TaskId, result: &str) -> Result<Reply, EngineError> {
    let outcome = Outcome::Completed(Bytes::copy_from_slice(result.as_bytes()));
    engine.propose_blocking(Command::Submit(Submit {
        tenant: TENANT.into(),
        id,
        worker: "w".into(),
        outcome,
        artifacts: Vec::new(),
    }))
}

pub fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Waits for a state that another thread brings about.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed().as_secs() < 30, "never happened: {what}");
        std::thread::yield_now();
    }
}

/// The same inside a runtime.
pub async fn eventually_async(what: &str, mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed().as_secs() < 30, "never happened: {what}");
        tokio::task::yield_now().await;
    }
}

pub fn waiting_claim(
    engine: &Arc<Engine>,
    claim: Claim,
    wait: Millis,
) -> tokio::task::JoinHandle<Vec<Task>> {
    let engine = Arc::clone(engine);
    tokio::spawn(async move { claimed(engine.claim(claim, wait).await.unwrap()) })
}
