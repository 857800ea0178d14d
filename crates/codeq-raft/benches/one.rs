//! What replication costs without other nodes: an engine of its own and a cluster of one, in turns on the same disk:
//! `cargo bench -p codeq-raft`. Measures full cycles (enqueue, claim, submit), one at a time and in batches as streams send
//! them, and how long a waiting claim takes to get a new task.
//!
//! `CODEQ_BENCH_DIR` names the disk, `CODEQ_BENCH_ROUNDS` and `CODEQ_BENCH_SECONDS` how often and how long.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark stops at the first error"
)]

#[path = "../tests/raft/start.rs"]
mod start;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use codeq_core::command::{Claim, Command, Enqueue, NewTask, Outcome, Selector, Submit};
use codeq_core::reply::Reply;
use codeq_core::view::Task;
use codeq_engine::{Answer, Engine, Options};
use tokio::task::JoinSet;

/// Wake-ups per round.
const WAKES: u64 = 300;
/// Tasks in a batch, and clients that send batches.
const BATCH: u64 = 32;
const BATCH_CLIENTS: u64 = 32;

fn open(dir: &Path, replicated: bool) -> Arc<Engine> {
    let open = if replicated { start::start } else { Engine::open };
    Arc::new(open(dir, Options::default()).unwrap())
}

fn enqueue(client: u64, number: u64, count: u64) -> Command {
    let payload = Bytes::from_static(&[b'1'; 500]);
    let task = NewTask { command: "work".into(), payload, ..NewTask::default() };
    let seed = client.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number;
    let tasks = vec![task; count as usize];
    Command::Enqueue(Enqueue { tenant: "acme".into(), tasks, atomic: false, seed })
}

fn claim(count: u64) -> Claim {
    let from = Selector::Commands(vec!["work".into()]);
    Claim { tenant: "acme".into(), worker: "w".into(), from, lease: 60_000, count: count as u32 }
}

fn claimed(answer: Answer) -> Vec<Task> {
    match answer {
        Ok(Reply::Claimed(tasks)) => tasks,
        other => panic!("{other:?}"),
    }
}

fn submit(task: &Task) -> Command {
    let outcome = Outcome::Completed(Bytes::from_static(b"{}"));
    let (tenant, worker) = ("acme".into(), "w".into());
    Command::Submit(Submit { tenant, id: task.id, worker, outcome, artifacts: Vec::new() })
}

/// Cycles per second with this many clients, each with so many tasks at a time.
async fn cycles(engine: &Arc<Engine>, clients: u64, batch: u64, time: Duration) -> f64 {
    let (done, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let run = |client: u64| {
        let (engine, done) = (Arc::clone(engine), Arc::clone(&done));
        tokio::spawn(async move {
            for number in 0.. {
                if start.elapsed() >= time {
                    return;
                }
                engine.propose(enqueue(client, number, batch)).await.unwrap();
                let tasks = claimed(engine.claim(claim(batch), 0).await);
                let mut submits = JoinSet::new();
                for task in &tasks {
                    let (engine, submit) = (Arc::clone(&engine), submit(task));
                    submits.spawn(async move { engine.propose(submit).await.unwrap() });
                }
                submits.join_all().await;
                done.fetch_add(tasks.len() as u64, Ordering::Relaxed);
            }
        })
    };
    let running: Vec<_> = (0..clients).map(run).collect();
    for client in running {
        client.await.unwrap();
    }
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

/// Microseconds from an enqueue until a claim that waits has the task: the median.
async fn wake(engine: &Arc<Engine>) -> f64 {
    let mut times = Vec::new();
    for number in 0..WAKES {
        let waiting = {
            let engine = Arc::clone(engine);
            tokio::spawn(async move { claimed(engine.claim(claim(1), 60_000).await).remove(0) })
        };
        while engine.waiting_claims() == 0 {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        engine.propose(enqueue(1, number, 1)).await.unwrap();
        let task = waiting.await.unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e6);
        engine.propose(submit(&task)).await.unwrap();
    }
    median(times)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Measures both in turns. Returns the medians of the engine and of the cluster.
fn compare(measure: impl AsyncFn(&Arc<Engine>) -> f64) -> (f64, f64) {
    let parent = std::env::var_os("CODEQ_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    std::fs::create_dir_all(&parent).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    let (mut alone, mut cluster) = (Vec::new(), Vec::new());
    for _ in 0..setting("CODEQ_BENCH_ROUNDS", 5) {
        for (replicated, figures) in [(false, &mut alone), (true, &mut cluster)] {
            let dir = tempfile::tempdir_in(&parent).unwrap();
            let engine = open(&dir.path().join("data"), replicated);
            figures.push(runtime.block_on(measure(&engine)));
            engine.shutdown();
        }
    }
    (median(alone), median(cluster))
}

fn main() {
    let time = Duration::from_secs(setting("CODEQ_BENCH_SECONDS", 2));
    for (clients, batch) in [(1, 1), (64, 1), (256, 1), (BATCH_CLIENTS, BATCH)] {
        let (alone, cluster) = compare(async |engine| cycles(engine, clients, batch, time).await);
        let ratio = cluster / alone;
        println!(
            "{clients} clients, {batch} at a time: engine {alone:.0}/s, cluster of one {cluster:.0}/s, ratio {ratio:.2}"
        );
    }
    let (alone, cluster) = compare(async |engine| wake(engine).await);
    println!("a waiting claim gets a task: engine {alone:.0} µs, cluster of one {cluster:.0} µs");
}
