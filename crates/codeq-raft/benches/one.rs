//! What replication costs without other nodes: full cycles (enqueue, claim, submit) of an engine and of a cluster of
//! one, in turns on the same disk: `cargo bench -p codeq-raft`.
//!
//! `CODEQ_BENCH_DIR` names the disk, `CODEQ_BENCH_ROUNDS` and `CODEQ_BENCH_SECONDS` how often and how long.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark stops at the first error"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use codeq_core::command::{Claim, Command, Enqueue, NewTask, Outcome, Selector, Submit};
use codeq_core::id::ShardId;
use codeq_core::reply::Reply;
use codeq_disk::{RealDisk, SharedDisk};
use codeq_engine::clock::SystemClock;
use codeq_engine::request::{ReplyTo, Request};
use codeq_engine::{Answer, Engine, EngineError, Options};
use codeq_raft::log_store::{NewNode, Start};
use codeq_raft::node::{self, Node, Setup, Timing};
use codeq_raft::transport::{self, Sending, Transport, Unreachable};
use codeq_raft::types::{Member, NodeId};
use tokio::sync::oneshot;

struct Alone;

impl Transport for Alone {
    fn send(&self, _: NodeId, _: transport::Request, _: Duration) -> Sending {
        Box::pin(async { Err(Unreachable) })
    }
}

#[derive(Clone)]
enum Queue {
    Engine(Arc<Engine>),
    Cluster(Node),
}

impl Queue {
    async fn call(&self, command: Command) -> Answer {
        match self {
            Queue::Engine(engine) => engine.propose(command).await,
            Queue::Cluster(node) => {
                let (sender, answer) = oneshot::channel();
                node.submit(ShardId(0), Request::with(command, ReplyTo::One(sender), 0));
                answer.await.unwrap_or(Err(EngineError::Closed))
            }
        }
    }

    async fn close(self) {
        match self {
            Queue::Engine(engine) => {
                tokio::task::spawn_blocking(move || engine.shutdown()).await.unwrap()
            }
            Queue::Cluster(node) => node.shutdown().await,
        }
    }
}

fn open_engine(dir: &Path) -> Queue {
    Queue::Engine(Arc::new(Engine::open(dir, Options::default()).unwrap()))
}

async fn open_cluster(dir: &Path) -> Queue {
    let (disk, options): (SharedDisk, Options) = (Arc::new(RealDisk), Options::default());
    let start = Start::Cluster { member: Member::default(), position: 0 };
    let new = NewNode { cluster_id: 1, node_id: 1, log_id: 1, start };
    node::create(&disk, dir, &options, new).unwrap();
    let setup = Setup {
        disk,
        dir: dir.to_owned(),
        options,
        clock: SystemClock::new(),
        transport: Arc::new(Alone),
        incarnation: 1,
        timing: Timing::default(),
        fault: None,
    };
    let node = Node::start(setup).await.unwrap();
    while !node.is_ready() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Queue::Cluster(node)
}

async fn cycle(queue: &Queue, client: u64, number: u64) {
    let (tenant, worker): (Arc<str>, Arc<str>) = ("acme".into(), "w".into());
    let payload = Bytes::from_static(&[b'1'; 500]);
    let task = NewTask { command: "work".into(), payload, ..NewTask::default() };
    let seed = client.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number;
    let enqueue = Enqueue { tenant: tenant.clone(), tasks: vec![task], atomic: false, seed };
    queue.call(Command::Enqueue(enqueue)).await.unwrap();
    let from = Selector::Commands(vec!["work".into()]);
    let claim =
        Claim { tenant: tenant.clone(), worker: worker.clone(), from, lease: 60_000, count: 1 };
    let Reply::Claimed(tasks) = queue.call(Command::Claim(claim)).await.unwrap() else { panic!() };
    let outcome = Outcome::Completed(Bytes::from_static(b"{}"));
    let submit = Submit { tenant, id: tasks[0].id, worker, outcome, artifacts: Vec::new() };
    queue.call(Command::Submit(submit)).await.unwrap();
}

/// Cycles per second with this many clients.
async fn measure(queue: &Queue, clients: u64, time: Duration) -> f64 {
    let (done, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let run = |client: u64| {
        let (queue, done) = (queue.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            for number in 0.. {
                if start.elapsed() >= time {
                    return;
                }
                cycle(&queue, client, number).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let running: Vec<_> = (0..clients).map(run).collect();
    for client in running {
        client.await.unwrap();
    }
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let parent = std::env::var_os("CODEQ_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    std::fs::create_dir_all(&parent).unwrap();
    let rounds = setting("CODEQ_BENCH_ROUNDS", 5);
    let time = Duration::from_secs(setting("CODEQ_BENCH_SECONDS", 2));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    for clients in [1, 64, 256] {
        let (mut engine, mut cluster) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            for (replicated, rates) in [(false, &mut engine), (true, &mut cluster)] {
                let dir = tempfile::tempdir_in(&parent).unwrap();
                let data = dir.path().join("data");
                rates.push(runtime.block_on(async {
                    let queue =
                        if replicated { open_cluster(&data).await } else { open_engine(&data) };
                    let rate = measure(&queue, clients, time).await;
                    queue.close().await;
                    rate
                }));
            }
        }
        let (engine, cluster) = (median(engine), median(cluster));
        let ratio = cluster / engine;
        println!(
            "{clients} clients: engine {engine:.0}/s, cluster of one {cluster:.0}/s, ratio {ratio:.2}"
        );
    }
}
