//! Runs the threads around the inbox and the pipeline in many orders (`make interleavings`). A thread whose wake-up was
//! lost waits for ever, which the scheduler reports. A failure prints the schedule that reproduces it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use codeq_core::codec::read_record;
use codeq_core::command::{Command, Sweep};
use codeq_core::id::ShardId;
use codeq_core::moment::Moment;
use codeq_core::reply::Reply;
use codeq_disk::RealDisk;
use codeq_log::{FrameIndex, Log, LogError, NewLog};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use tokio::sync::oneshot;

use crate::background::Background;
use crate::error::EngineError;
use crate::group::{Batch, Group};
use crate::observer::SharedObserver;
use crate::options::{Durability, Options};
use crate::pipeline::{Committer, Pipeline};
use crate::request::{Inbox, Notice, ReplyTo, Request};
use crate::status::Status;

/// Runs a test in many orders. In half of them, the scheduler switches threads rarely, which finds rare bugs sooner.
fn check(test: impl Fn() + Send + Sync + 'static) {
    let orders = std::env::var("CODEQ_INTERLEAVINGS").ok().and_then(|orders| orders.parse().ok());
    let orders = orders.unwrap_or(400) / 2;
    let test = Arc::new(test);
    let again = Arc::clone(&test);
    Runner::new(RandomScheduler::new_from_seed(1, orders), Config::default()).run(move || test());
    Runner::new(PctScheduler::new_from_seed(1, 3, orders), Config::default()).run(move || again());
}

/// A command that carries its sender and its number.
fn command(of: u64, number: u64) -> Command {
    Command::Sweep(Sweep { limit: of as u32, seed: number })
}

fn numbers(requests: &[Request]) -> Vec<(u64, u64)> {
    let number = |request: &Request| match &request.command {
        Command::Sweep(sweep) => (u64::from(sweep.limit), sweep.seed),
        other => panic!("{other:?}"),
    };
    requests.iter().map(number).collect()
}

#[test]
fn every_request_is_taken_once_and_in_its_order() {
    const EACH: u64 = 3;
    check(|| {
        let inbox = Arc::new(Inbox::default());
        let senders: Vec<_> = (0..2)
            .map(|sender| {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || {
                    for number in 0..EACH {
                        inbox.push(Request::detached(command(sender, number)));
                    }
                })
            })
            .collect();
        let log = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || {
                for few in [false, true] {
                    inbox.set_syncing(true, false);
                    inbox.set_syncing(false, few);
                }
            })
        };
        let mut taken = Vec::new();
        while taken.len() < 2 * EACH as usize {
            let mut batch = Vec::new();
            inbox.take(4, 1 << 20, None, &mut batch, &mut Vec::new());
            taken.append(&mut batch);
        }
        senders.into_iter().chain([log]).for_each(|thread| thread.join().unwrap());
        for sender in 0..2 {
            let of = numbers(&taken).into_iter().filter(|(of, _)| *of == sender);
            assert!(of.map(|(_, number)| number).eq(0..EACH));
        }
    });
}

#[test]
fn a_closed_inbox_leaves_nobody_without_an_answer() {
    check(|| {
        let inbox = Arc::new(Inbox::default());
        let sender = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || {
                let mut waiting = Vec::new();
                for number in 0..3 {
                    let (reply, answer) = oneshot::channel();
                    let request = Request::with(command(0, number), ReplyTo::One(reply), 0);
                    inbox.push(request);
                    waiting.push(answer);
                }
                waiting
            })
        };
        let shard = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || {
                let mut notices = Vec::new();
                // As a shard does: it goes on until it is told to stop.
                while !notices.iter().any(|notice| matches!(notice, Notice::Stop)) {
                    let mut requests = Vec::new();
                    inbox.take(4, 1 << 20, None, &mut requests, &mut notices);
                    for request in requests {
                        let _ = request.reply.send(Ok(Reply::Done));
                    }
                    thread::yield_now();
                }
            })
        };
        inbox.close(&EngineError::Closed);
        inbox.notify(Notice::Stop);
        shard.join().unwrap();
        for mut answer in sender.join().unwrap() {
            assert!(answer.try_recv().is_ok(), "an answer");
        }
    });
}

#[test]
fn whatever_is_offered_is_logged_and_answered() {
    const SHARDS: u16 = 2;
    const GROUPS: u64 = 3;
    const LOG: codeq_log::Options = codeq_log::Options { segment_bytes: 64 << 10 };
    check(|| {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { durability: Durability::Os, ..Options::default() };
        let path = dir.path().join("log");
        let new = NewLog { first_index: FrameIndex(1), log_id: 7 };
        let log = Log::create(Arc::new(RealDisk), &path, LOG, new).unwrap();
        let shards = usize::from(SHARDS);
        let status = Status::new(shards, SharedObserver::default());
        let positions = vec![[FrameIndex(0); 2]; shards];
        let committer = Committer::new(log, shards, &options, Background::idle());
        let pipeline = Arc::new(Pipeline::new(status, positions, committer, &options));
        let committing = {
            let pipeline = Arc::clone(&pipeline);
            thread::spawn(move || pipeline.run())
        };
        let answers = Arc::new(Mutex::new(Vec::new()));
        let shards: Vec<_> = (0..SHARDS)
            .map(|shard| {
                let (pipeline, answers) = (Arc::clone(&pipeline), Arc::clone(&answers));
                thread::spawn(move || {
                    for number in 1..=GROUPS {
                        let mut group = Group::default();
                        group.begin(Moment::agreed(number));
                        group.push(&command(u64::from(shard), number));
                        group.end();
                        group.batch = Batch(number);
                        let (reply, answer) = oneshot::channel();
                        group.answer(ReplyTo::One(reply), Ok(Reply::Done));
                        answers.lock().unwrap().push(answer);
                        // Every other group is offered as `alone`, so that the shard's own thread may commit it.
                        pipeline.offer(ShardId(shard), &mut group, number % 2 == 1).unwrap();
                    }
                })
            })
            .collect();
        shards.into_iter().for_each(|shard| shard.join().unwrap());
        pipeline.stop();
        committing.join().unwrap();
        for answer in answers.lock().unwrap().iter_mut() {
            assert!(answer.try_recv().is_ok(), "an answer");
        }
        assert!(
            pipeline.status.shards.iter().all(|shard| *shard.durable.borrow() == Batch(GROUPS))
        );
        drop(pipeline);
        let log = Log::open(Arc::new(RealDisk), &path, LOG).unwrap();
        let mut logged: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        let replayed = log.replay(FrameIndex(1), |_, shard, bytes| {
            let (_, commands) = read_record(bytes).unwrap();
            let commands: Vec<Request> = commands.into_iter().map(Request::detached).collect();
            let numbers = numbers(&commands).into_iter().map(|(_, number)| number);
            logged.entry(shard).or_default().extend(numbers);
            Ok::<_, LogError>(())
        });
        replayed.unwrap();
        assert!(logged.len() == usize::from(SHARDS) && logged.values().all(|of| of == &[1, 2, 3]));
    });
}
