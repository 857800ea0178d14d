//! Counts what goes in and what comes out: nothing lost, nothing done twice.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use codeq_client::{HttpClient, NewTask, Options, Outcome, Producer, Task, Worker, WorkerBuilder};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Running, TIMEOUT, soon};

/// Tasks per run.
pub const TASKS: u64 = 500;

/// A producer and a worker with tasks between them.
pub struct Ledger {
    http: HttpClient,
    worker: Running,
    producing: JoinHandle<HashMap<String, u64>>,
}

fn worker(options: Options) -> WorkerBuilder {
    // Short leases: tasks assigned over a broken connection come back soon.
    let builder = Worker::builder(options).concurrency(8).lease(Duration::from_secs(2));
    builder.handle("square", |task: Task<u64>| async move {
        Outcome::complete(&json!({"square": task.payload * task.payload}))
    })
}

impl Ledger {
    /// Starts both. Tasks go in by the dozen, to leave time for outages.
    pub async fn start(options: Options) -> Ledger {
        let options = options.enqueue_timeout(TIMEOUT);
        let http = HttpClient::new(&options).unwrap();
        let producer = Producer::connect(options.clone()).await.unwrap();
        let worker = Running::start(worker(options));
        let producing = tokio::spawn(produce(producer));
        Ledger { http, worker, producing }
    }

    /// Waits for this many acknowledged completions.
    pub async fn reaches(&self, completed: u64) {
        soon(async {
            while self.worker.handle.stats().completed < completed {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// Waits until the number of tasks that are assigned is as wanted.
    pub async fn in_progress(&self, wanted: impl Fn(u64) -> bool) {
        soon(async {
            while !wanted(self.http.queue("square").await.unwrap().in_progress) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Waits for every result, and checks the books.
    pub async fn check(self) {
        let Ledger { http, worker, producing } = self;
        let tasks = soon(producing).await.unwrap();
        assert_eq!(tasks.len() as u64, TASKS, "each enqueue made a task of its own");
        for (id, n) in &tasks {
            let result = http.wait_result(id, TIMEOUT).await.unwrap();
            let value: Value = result.json().unwrap();
            assert_eq!(value, json!({"square": n * n}));
            let history = http.history(id).await.unwrap();
            let submits = history.items.iter().filter(|item| item.event == "submitted").count();
            assert_eq!(submits, 1, "{history:?}");
        }
        let stats = worker.stop().await;
        assert_eq!(stats.completed, TASKS, "acknowledged completions: {stats:?}");
        let queue = http.queue("square").await.unwrap();
        let left = [queue.ready, queue.delayed, queue.in_progress, queue.dlq];
        assert_eq!(left, [0; 4], "nothing more than what was enqueued");
    }
}

async fn produce(producer: Producer) -> HashMap<String, u64> {
    let mut ids = HashMap::new();
    let mut repeated = HashSet::new();
    for dozen in (0..TASKS).step_by(12) {
        let numbers: Vec<u64> = (dozen..TASKS.min(dozen + 12)).collect();
        let new = |n: &u64| NewTask::new("square", n).unwrap().max_attempts(100);
        let answers = producer.enqueue_batch(numbers.iter().map(new).collect()).await;
        for (n, answer) in numbers.into_iter().zip(answers) {
            let enqueued = answer.unwrap();
            repeated.insert(enqueued.repeated);
            ids.insert(enqueued.task_id, n);
        }
    }
    assert_eq!(repeated, HashSet::from([false]), "callers do not notice resends");
    ids
}
