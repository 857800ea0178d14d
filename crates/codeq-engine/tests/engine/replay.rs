//! Shards without threads: committed records replayed as recovery and replicas do, and claims that wait in several shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use codeq_core::codec::{begin_record, push_command, read_record};
use codeq_core::command::{Claim, Command, Enqueue, NewTask, Selector};
use codeq_core::digest::{WriteDigest, digest};
use codeq_core::id::ShardId;
use codeq_core::moment::Moment;
use codeq_core::reply::Reply;
use codeq_disk::{RealDisk, SharedDisk};
use codeq_engine::recover::OpenedDir;
use codeq_engine::replica::Replica;
use codeq_engine::request::{FirstReply, Inboxes, ReplyTo, Request, mailbox_client};
use codeq_engine::shard::Shard;
use codeq_engine::{Answer, Call, Mailbox, OpenError, Options};
use codeq_log::FrameIndex;
use tokio::sync::oneshot;

use crate::harness::small;

fn open(dir: &std::path::Path) -> OpenedDir {
    let disk: SharedDisk = Arc::new(RealDisk);
    let options = Options { segment_bytes: 64 << 10, ..Options::default() };
    OpenedDir::open(&disk, dir, &options, 7).unwrap()
}

fn enqueue(seed: u64) -> Command {
    let task = NewTask { command: "work".into(), payload: "{}".into(), ..NewTask::default() };
    Command::Enqueue(Enqueue { tenant: "t".into(), tasks: vec![task; 3], atomic: false, seed })
}

fn claim() -> Command {
    let (tenant, worker) = ("t".into(), "w".into());
    Command::Claim(Claim { tenant, worker, from: Selector::Any, lease: 30_000, count: 2 })
}

/// Applies commands as a single node does, and returns what it would log for each.
fn lead(shard: &mut Shard) -> Vec<Vec<u8>> {
    let mut log = Vec::new();
    for round in 1..=8 {
        let commands = [enqueue(round), claim()].map(Request::detached);
        shard.apply(Moment { now: round * 10, wall: round * 7 }, commands).unwrap();
        let records = shard.group.records().map(<[u8]>::to_vec);
        log.push(records.collect::<Vec<_>>().concat());
        shard.group.clear();
    }
    log
}

fn rows(shard: &Shard) -> [u8; 32] {
    let data = shard.data().read();
    digest(&data.state, &data.store).unwrap()
}

fn checkpoint(shard: &mut Shard, position: u64) {
    let job = shard.freeze(FrameIndex(position)).unwrap();
    shard.take_back(&mut job.run()).unwrap();
}

#[test]
fn a_copy_that_replays_the_records_is_equal() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut leader = open(dirs[0].path()).shards.remove(0);
    leader.keep_digest();
    let log = lead(&mut leader);
    let mut copy = open(dirs[1].path()).shards.remove(0);
    copy.keep_digest();
    for (index, record) in (1..).zip(&log) {
        assert!(!copy.replay(FrameIndex(index), record).unwrap().is_empty());
        // A copy checkpoints when it likes, and starts again from there.
        if index == 3 || index == 6 {
            checkpoint(&mut copy, index);
            let at = copy.digest();
            drop(copy);
            copy = reopened(dirs[1].path());
            copy.keep_digest();
            assert_eq!(copy.digest(), at);
            // Replaying what the checkpoint includes does nothing.
            for (index, record) in (1..=index).zip(&log) {
                assert!(copy.replay(FrameIndex(index), record).unwrap().is_empty());
            }
        }
    }
    assert_eq!(rows(&copy), rows(&leader));
    assert_eq!(copy.digest(), leader.digest());
    assert_ne!(copy.digest(), Some(WriteDigest::default()));
    // The replay leaves nothing behind that the copy would report with its own next command.
    assert!(copy.group.is_empty());
    assert_eq!(copy.data().read().batch.0, 0, "readers wait for nothing");
    copy.apply(Moment { now: 100, wall: 100 }, [Request::detached(claim())]).unwrap();
    leader.apply(Moment { now: 100, wall: 100 }, [Request::detached(claim())]).unwrap();
    assert_eq!(copy.group.effects, leader.group.effects);
}

/// A claim may wait in several shards. While one tries to serve it, the others keep it.
#[test]
fn a_claim_that_another_shard_puts_back_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut shard = open(dir.path()).shards.remove(0);
    let (sender, mut answer) = oneshot::channel();
    let first = FirstReply::new(ReplyTo::One(sender), Inboxes::default());
    let Command::Claim(claim) = claim() else { unreachable!() };
    let (call, reply) = (Call::Claim { claim, wait: 60_000 }, ReplyTo::First(first.clone()));
    let at = Moment { now: 10, wall: 10 };
    shard.apply(at, [Request::new(call, reply)]).unwrap();
    let Ok(taken) = ReplyTo::First(first.clone()).take() else { panic!("it is open") };
    shard.apply(at, [Request::detached(enqueue(1))]).unwrap();
    assert!(shard.has_unserved_queues() && shard.waiting().load(Ordering::Relaxed) == 1);
    first.put_back(taken);
    shard.sweep(at, 1).unwrap();
    assert_eq!(shard.waiting().load(Ordering::Relaxed), 0);
    for (to, answer) in shard.group.take_answers() {
        assert!(to.send(answer).is_ok());
    }
    let Ok(Reply::Claimed(tasks)) = answer.try_recv().unwrap() else { panic!("no tasks") };
    assert_eq!(tasks.len(), 2);
}

/// A mailbox that its reader may leave.
#[derive(Default)]
struct Mail(AtomicBool);

impl Mailbox for Mail {
    fn deliver(&self, _: u64, answer: Answer) -> Result<(), Answer> {
        Err(answer)
    }

    fn wake(&self) {}

    fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn a_client_that_leaves_is_forgotten_although_another_shard_tries_to_serve_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut shard = open(dir.path()).shards.remove(0);
    let mail = Arc::new(Mail::default());
    let mailbox: Arc<dyn Mailbox> = mail.clone();
    let replies: Vec<FirstReply> = (0..3)
        .map(|n| FirstReply::new(ReplyTo::Mailbox(mailbox.clone(), n), Inboxes::default()))
        .collect();
    for first in &replies {
        let Command::Claim(claim) = claim() else { unreachable!() };
        let (call, reply) = (Call::Claim { claim, wait: 60_000 }, ReplyTo::First(first.clone()));
        shard.apply(Moment { now: 10, wall: 10 }, [Request::new(call, reply)]).unwrap();
    }
    let Ok(taken) = ReplyTo::First(replies[0].clone()).take() else { panic!("it is open") };
    mail.0.store(true, Ordering::Relaxed);
    shard.forget(mailbox_client(&mailbox));
    assert_eq!(shard.waiting().load(Ordering::Relaxed), 1, "all but the one that is taken");
    replies[0].clone().put_back(taken);
    shard.forget(replies[0].client());
    assert_eq!(shard.waiting().load(Ordering::Relaxed), 0);
}

/// The shard of a directory whose log has no records, whatever its store says.
fn reopened(dir: &std::path::Path) -> Shard {
    let disk: SharedDisk = Arc::new(RealDisk);
    let path = codeq_engine::layout::store_path(dir, ShardId(0));
    let store = codeq_store::Store::open(disk, &path, Default::default()).unwrap();
    let state = codeq_core::state::State::load(&store, ShardId(0), 1).unwrap();
    Shard::new(ShardId(0), state, store)
}

#[test]
fn a_copy_that_misses_a_record_has_another_digest() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut leader = open(dirs[0].path()).shards.remove(0);
    leader.keep_digest();
    let log = lead(&mut leader);
    let mut copy = open(dirs[1].path()).shards.remove(0);
    copy.keep_digest();
    for (index, record) in (1..).zip(&log).filter(|(index, _)| *index != 4) {
        copy.replay(FrameIndex(index), record).unwrap();
    }
    assert_ne!(copy.digest(), leader.digest());
}

#[test]
fn a_record_that_does_not_decode_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut shard = open(dir.path()).shards.remove(0);
    let record = lead(&mut shard).remove(0);
    let mut copy = open(tempfile::tempdir().unwrap().path()).shards.remove(0);
    let error = copy.replay(FrameIndex(9), &record[..record.len() - 1]).unwrap_err();
    assert!(matches!(error, OpenError::Record { index: FrameIndex(9), .. }), "{error}");
    assert!(error.to_string().starts_with("log frame 9, shard 0: "), "{error}");
}

/// A client may have been told that its lease had ended, so the next leader's time must not be earlier than that.
#[test]
fn a_replica_notes_the_time_of_commands_that_changed_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut replica = Replica::new(open(dir.path()).shards, 0, &small(), &Arc::default());
    let mut record = Vec::new();
    begin_record(Moment { now: 50, wall: 70 }, &mut record);
    push_command(&claim(), &mut record);
    replica.apply(1, None, &[(ShardId(0), record.into())], |_, _| {}).unwrap();
    assert_eq!(replica.now(), 50);
}

/// Many claims that wait can become servable at once. They go into as many entries as the log needs.
#[test]
fn an_entry_has_at_most_as_many_bytes_as_the_log_takes() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 64 << 10, ..Options::default() };
    let bytes_max = options.group_bytes_max();
    let mut replica = Replica::new(open(dir.path()).shards, 0, &options, &Arc::default());
    let at = Moment { now: 50, wall: 70 };
    for _ in 0..200 {
        let names: Vec<Arc<str>> = (0..20).map(|n| format!("queue-{n}").into()).collect();
        let from = Selector::Commands([vec!["work".into()], names].concat());
        let claim = Claim { tenant: "t".into(), worker: "w".into(), from, lease: 30_000, count: 1 };
        let request = Request::with(Command::Claim(claim), ReplyTo::Nobody, 60_000);
        replica.status().push(ShardId(0), request);
    }
    assert!(replica.gather(at, 1).is_none(), "nothing to claim: they wait");
    (0..70).for_each(|seed| replica.status().push(ShardId(0), Request::detached(enqueue(seed))));
    let (mut index, mut claims) = (0, 0);
    while let Some(gathered) = replica.gather(at, 1) {
        let bytes: usize = gathered.records.iter().map(|(_, record)| record.len()).sum();
        assert!(bytes <= bytes_max, "{bytes} bytes");
        for (_, record) in &gathered.records {
            let (_, commands) = read_record(record).unwrap();
            claims += commands.iter().filter(|it| matches!(it, Command::Claim(_))).count();
        }
        index += 1;
        replica.apply(index, Some(gathered.number), &gathered.records, |_, _| {}).unwrap();
    }
    assert!(index > 3 && claims >= 200, "{claims} claims in {index} entries");
}
