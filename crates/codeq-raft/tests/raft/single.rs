//! A cluster of one node, with real files and a real runtime.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use codeq_core::command::{Claim, Command, Enqueue, NewTask, Outcome, Selector, Submit};
use codeq_core::id::ShardId;
use codeq_core::reply::Reply;
use codeq_core::view::Task;
use codeq_disk::{RealDisk, SharedDisk};
use codeq_engine::clock::SystemClock;
use codeq_engine::request::{ReplyTo, Request};
use codeq_engine::{Answer, Engine, EngineError, Options};
use codeq_raft::log_store::{NewNode, Start};
use codeq_raft::node::{self, Node, Setup, Timing};
use codeq_raft::transport::{self, Sending, Transport, Unreachable};
use codeq_raft::types::{Member, NodeId};
use tokio::sync::oneshot;

/// The transport of a cluster's only member: it reaches nobody.
struct Alone;

impl Transport for Alone {
    fn send(&self, _: NodeId, _: transport::Request, _: Duration) -> Sending {
        Box::pin(async { Err(Unreachable) })
    }
}

fn options() -> Options {
    Options { segment_bytes: 1 << 20, memtable_bytes: 64 << 10, ..Options::default() }
}

fn create(dir: &Path, options: &Options) {
    let disk: SharedDisk = Arc::new(RealDisk);
    let start = Start::Cluster { member: Member { address: "here:1".to_owned() }, position: 0 };
    node::create(&disk, dir, options, NewNode { cluster_id: 7, node_id: 3, log_id: 11, start })
        .unwrap();
}

async fn start(dir: &Path, options: &Options, incarnation: u64) -> Node {
    let setup = Setup {
        disk: Arc::new(RealDisk),
        dir: dir.to_owned(),
        options: options.clone(),
        clock: SystemClock::new(),
        transport: Arc::new(Alone),
        incarnation,
        timing: Timing::default(),
        fault: None,
    };
    Node::start(setup).await.unwrap()
}

/// Repeats a request until the node leads.
async fn call(node: &Node, command: Command, wait: u64) -> Answer {
    loop {
        let (sender, answer) = oneshot::channel();
        let request = Request::with(command.clone(), ReplyTo::One(sender), wait);
        node.submit(ShardId(0), request);
        match answer.await.unwrap() {
            Err(EngineError::NoLeader) => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
}

fn enqueue(seed: u64) -> Command {
    let task = NewTask { command: "resize".into(), payload: "{}".into(), ..NewTask::default() };
    Command::Enqueue(Enqueue { tenant: "t".into(), tasks: vec![task], atomic: false, seed })
}

fn claim() -> Command {
    let from = Selector::Commands(vec!["resize".into()]);
    let (tenant, worker) = ("t".into(), "w".into());
    Command::Claim(Claim { tenant, worker, from, lease: 60_000, count: 1 })
}

fn claimed(answer: Answer) -> Vec<Task> {
    match answer {
        Ok(Reply::Claimed(tasks)) => tasks,
        other => panic!("{other:?}"),
    }
}

fn submit(task: &Task) -> Command {
    let (tenant, worker) = ("t".into(), "w".into());
    let outcome = Outcome::Completed("1".into());
    Command::Submit(Submit { tenant, id: task.id, worker, outcome, artifacts: Vec::new() })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

#[test]
fn a_cluster_of_one_keeps_its_tasks_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let options = options();
    create(dir.path(), &options);
    let mut open = 0;
    for round in 1..4 {
        runtime().block_on(async {
            let node = start(dir.path(), &options, round).await;
            for seed in 0..500 {
                assert!(matches!(call(&node, enqueue(seed), 0).await, Ok(Reply::Enqueued(_))));
                open += 1;
            }
            for _ in 0..200 {
                let task = claimed(call(&node, claim(), 0).await).remove(0);
                call(&node, submit(&task), 0).await.unwrap();
                open -= 1;
            }
            node.compact().await;
            node.shutdown().await;
        });
    }
    runtime().block_on(async {
        let node = start(dir.path(), &options, 9).await;
        for _ in 0..open {
            assert_eq!(claimed(call(&node, claim(), 0).await).len(), 1);
        }
        assert!(claimed(call(&node, claim(), 0).await).is_empty());
        node.shutdown().await;
    });
}

#[test]
fn a_waiting_claim_gets_the_next_task_or_times_out_empty() {
    let dir = tempfile::tempdir().unwrap();
    let options = options();
    create(dir.path(), &options);
    runtime().block_on(async {
        let node = start(dir.path(), &options, 1).await;
        assert!(claimed(call(&node, claim(), 50).await).is_empty());
        let waiting = {
            let node = node.clone();
            tokio::spawn(async move { call(&node, claim(), 60_000).await })
        };
        while node.replica().each().all(|shard| shard.waiting().load(Relaxed) == 0) {
            tokio::task::yield_now().await;
        }
        let entries = node.replica().applied();
        call(&node, enqueue(1), 0).await.unwrap();
        assert_eq!(claimed(waiting.await.unwrap()).len(), 1);
        assert_eq!(node.replica().applied(), entries + 2, "the wait itself cost no entry");
        node.shutdown().await;
    });
}

#[test]
fn a_single_node_refuses_the_directory_of_a_member() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), &options());
    let refused = Engine::open(dir.path(), options()).err().unwrap().to_string();
    assert!(refused.contains("member of a cluster"), "{refused}");
}
