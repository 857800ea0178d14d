//! A real engine with metrics, and hand-made transitions.

use std::path::Path;
use std::sync::Arc;

use codeq_core::command::{Claim, Command, Enqueue, NewTask, Outcome, Selector, Submit};
use codeq_core::effect::{Effect, Transition};
use codeq_core::history::Event;
use codeq_core::id::TaskId;
use codeq_core::keys::Seq;
use codeq_core::moment::Moment;
use codeq_core::place::Place;
use codeq_core::reply::{Enqueued, Reply};
use codeq_core::view::Task;
use codeq_engine::{Engine, Options, SharedObserver};
use codeq_net::NetStats;
use codeq_server::limits::budget::Budget;
use codeq_server::observe::Metrics;

use crate::observe::exposition::Exposition;

pub const TENANT: &str = "acme";

/// An engine that retries failed tasks at once.
pub async fn open(dir: &Path, metrics: &Arc<Metrics>, shards: u16) -> Engine {
    let mut options = Options { shards: Some(shards), ..Options::default() };
    options.settings.backoff.base = 0;
    options.settings.backoff.max = 0;
    options.observer = SharedObserver(Some(Arc::clone(metrics) as _));
    let dir = dir.to_owned();
    // Opening blocks.
    tokio::task::spawn_blocking(move || Engine::open(&dir, options).unwrap()).await.unwrap()
}

pub async fn scrape(metrics: &Metrics, engine: &Engine) -> Exposition {
    let (net, budget) = (NetStats::default(), Budget::new(1));
    Exposition::parse(&metrics.render(engine, &net, &budget, 0, true).await)
}

pub fn new_task(command: &str) -> NewTask {
    let max_attempts = Some(2);
    NewTask { command: command.into(), payload: "{}".into(), max_attempts, ..NewTask::default() }
}

pub async fn put(engine: &Engine, tenant: &str, tasks: Vec<NewTask>) -> Vec<TaskId> {
    let enqueue = Enqueue { tenant: tenant.into(), tasks, atomic: false, seed: 7 };
    let reply = engine.propose(Command::Enqueue(enqueue)).await.unwrap();
    let Reply::Enqueued(outcomes) = reply else { panic!("{reply:?}") };
    let id = |outcome| match outcome {
        Enqueued::Created(task) => task.id,
        other => panic!("{other:?}"),
    };
    outcomes.into_iter().map(id).collect()
}

pub async fn take(engine: &Engine, command: &str, lease: u64) -> Task {
    let from = Selector::Commands(vec![command.into()]);
    let claim = Claim { tenant: TENANT.into(), worker: "w".into(), from, lease, count: 1 };
    let reply = engine.claim(claim, 20_000).await.unwrap();
    let Reply::Claimed(mut tasks) = reply else { panic!("{reply:?}") };
    tasks.pop().expect("a task")
}

pub async fn complete(engine: &Engine, id: TaskId) {
    let submit = Submit {
        tenant: TENANT.into(),
        id,
        worker: "w".into(),
        outcome: Outcome::Completed("{}".into()),
        artifacts: Vec::new(),
    };
    let reply = engine.propose(Command::Submit(submit)).await.unwrap();
    assert!(matches!(reply, Reply::Submitted(_)), "{reply:?}");
}

/// A move of some task, one second and a half after it was made.
pub fn moved(queue: &Arc<str>, event: Event, from: Option<Place>, to: Option<Place>) -> Effect {
    Effect::Moved(Transition {
        number: 1,
        id: TaskId::new(Seq(1), 2),
        tenant: TENANT.into(),
        queue: Arc::clone(queue),
        from,
        to,
        event,
        at: Moment::agreed(11_500),
        age: 1_500,
        attempts: 0,
    })
}
