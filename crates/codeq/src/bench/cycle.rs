//! Full cycles through an engine: every client enqueues a task, claims one, submits its result.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use codeq_core::command::{Claim, Command, Enqueue, NewTask, Outcome, Selector, Submit};
use codeq_core::id::{TaskId, split_mix64};
use codeq_core::reply::{Enqueued, Reply};
use codeq_engine::Engine;
use hdrhistogram::Histogram;
use parking_lot::Mutex;

/// State shared by the clients of a run.
#[derive(Clone)]
pub struct Load {
    pub engine: Arc<Engine>,
    pub tenant: Arc<str>,
    pub command: Arc<str>,
    pub payload: Bytes,
    pub result: Bytes,
}

/// The result of a run.
pub struct Measured {
    pub cycles: u64,
    pub elapsed: Duration,
    /// Latency of single operations in microseconds.
    pub operations: Histogram<u64>,
    /// Latency of full cycles in microseconds.
    pub full: Histogram<u64>,
}

impl Load {
    /// A load on one queue.
    pub fn new(engine: Arc<Engine>, payload: usize) -> Load {
        let text = format!("\"{}\"", "x".repeat(payload.saturating_sub(2).max(1)));
        Load {
            engine,
            tenant: "bench".into(),
            command: "bench".into(),
            payload: Bytes::from(text),
            result: Bytes::from_static(br#"{"ok":true}"#),
        }
    }

    /// Enqueues `count` tasks in one command.
    pub async fn enqueue(&self, count: usize, seed: u64) -> anyhow::Result<()> {
        self.enqueue_at(count, None, seed).await
    }

    /// The same, not claimable before `run_at`.
    pub async fn enqueue_at(
        &self,
        count: usize,
        run_at: Option<u64>,
        seed: u64,
    ) -> anyhow::Result<()> {
        let task = NewTask {
            command: self.command.clone(),
            payload: self.payload.clone(),
            run_at,
            ..NewTask::default()
        };
        let tasks = vec![task; count];
        let enqueue = Enqueue { tenant: self.tenant.clone(), tasks, atomic: false, seed };
        match self.engine.propose(Command::Enqueue(enqueue)).await? {
            Reply::Enqueued(tasks) if tasks.iter().all(|t| matches!(t, Enqueued::Created(_))) => {
                Ok(())
            }
            other => bail!("enqueue answered {other:?}"),
        }
    }

    /// Claims up to `count` tasks.
    pub async fn claim(&self, count: u32) -> anyhow::Result<Vec<TaskId>> {
        let claim = Claim {
            tenant: self.tenant.clone(),
            worker: self.command.clone(),
            from: Selector::Commands(vec![self.command.clone()]),
            lease: 300_000,
            count,
        };
        match self.engine.claim(claim, 0).await? {
            Reply::Claimed(tasks) => Ok(tasks.into_iter().map(|task| task.id).collect()),
            other => bail!("claim answered {other:?}"),
        }
    }

    /// Submits a result.
    pub async fn submit(&self, id: TaskId) -> anyhow::Result<()> {
        let submit = Submit {
            tenant: self.tenant.clone(),
            id,
            worker: self.command.clone(),
            outcome: Outcome::Completed(self.result.clone()),
            artifacts: Vec::new(),
        };
        match self.engine.propose(Command::Submit(submit)).await? {
            Reply::Submitted(_) => Ok(()),
            other => bail!("submit answered {other:?}"),
        }
    }

    async fn cycle(&self, seed: u64, latencies: &Latencies) -> anyhow::Result<()> {
        let start = Instant::now();
        self.enqueue(1, seed).await?;
        let enqueued = Instant::now();
        let id = self.claim(1).await?.pop().context("no task to claim")?;
        let claimed = Instant::now();
        self.submit(id).await?;
        let mut latencies = latencies.lock();
        for took in [enqueued - start, claimed - enqueued, claimed.elapsed()] {
            latencies.operations.saturating_record(took.as_micros() as u64);
        }
        latencies.full.saturating_record(start.elapsed().as_micros() as u64);
        latencies.cycles += 1;
        Ok(())
    }

    async fn client(
        self,
        mut seed: u64,
        until: Instant,
        latencies: Latencies,
    ) -> anyhow::Result<()> {
        while Instant::now() < until {
            seed = split_mix64(seed);
            self.cycle(seed, &latencies).await?;
        }
        Ok(())
    }

    /// A closed loop: `clients` at a time, each beginning its next cycle when the last one is done.
    pub fn closed(&self, clients: usize, time: Duration) -> anyhow::Result<Measured> {
        runtime()?.block_on(async {
            let start = Instant::now();
            let latencies: Latencies = Arc::new(Mutex::new(Measured::new()?));
            let client = |n: usize| {
                let seed = split_mix64(n as u64);
                tokio::spawn(self.clone().client(seed, start + time, Arc::clone(&latencies)))
            };
            let tasks: Vec<_> = (0..clients).map(client).collect();
            for task in tasks {
                task.await??;
            }
            let measured = Arc::into_inner(latencies).context("a client is still running")?;
            Ok(Measured { elapsed: start.elapsed(), ..measured.into_inner() })
        })
    }
}

/// Records of a run's clients. One thread runs them all, so the lock is never contended.
type Latencies = Arc<Mutex<Measured>>;

impl Measured {
    fn new() -> anyhow::Result<Measured> {
        let (operations, full) = (histogram()?, histogram()?);
        Ok(Measured { cycles: 0, elapsed: Duration::ZERO, operations, full })
    }

    /// Full cycles per second.
    pub fn rate(&self) -> f64 {
        self.cycles as f64 / self.elapsed.as_secs_f64()
    }
}

/// One thread for all clients, to leave the machine to the engine.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_time().build()?)
}

fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000, 3)?)
}
