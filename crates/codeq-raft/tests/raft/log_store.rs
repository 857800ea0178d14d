//! The log store on a real disk: openraft's own suite, reopening, readers, and what is refused.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use codeq_core::id::ShardId;
use codeq_disk::{RealDisk, SharedDisk};
use codeq_log::{Log, NewLog, Options};
use codeq_raft::fault::Fault;
use codeq_raft::journal_record::log_id;
use codeq_raft::log_store::{LogStore, LogStoreError, MESSAGE_BYTES, NewNode, Start};
use codeq_raft::types::{Entry, LogId, Member, Origin, Proposal, StorageError, Types, Vote};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{EntryPayload, RaftLogReader};
use tempfile::TempDir;

use crate::suite::{Installing, Machine};

const NODE: u64 = 7;
const OPTIONS: Options = Options { segment_bytes: 64 << 10 };

fn disk() -> SharedDisk {
    Arc::new(RealDisk)
}

fn new(start: Start) -> NewNode {
    NewNode { cluster_id: 3, node_id: NODE, log_id: 4, start }
}

fn first(position: u64) -> Start {
    Start::Cluster { member: Member { address: "one:7000".into() }, position }
}

fn create(dir: &Path, start: Start) -> LogStore {
    LogStore::create(&disk(), dir, OPTIONS, new(start)).unwrap()
}

fn open(dir: &Path) -> LogStore {
    LogStore::open(&disk(), dir, OPTIONS, None).unwrap()
}

/// The output of a future that has nothing to wait for.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    let record = Bytes::from(vec![index as u8; bytes]);
    let origin = Origin { term, node: NODE, incarnation: 1, number: index };
    let proposal = Proposal { origin, records: vec![(ShardId(0), record)], digests: None };
    Entry { log_id: log_id(term, NODE, index), payload: EntryPayload::Normal(proposal) }
}

fn append(store: &LogStore, entries: impl IntoIterator<Item = Entry>) -> Result<(), StorageError> {
    let entries: Vec<Entry> = entries.into_iter().collect();
    now(store.clone().blocking_append(entries))
}

fn ids(store: &LogStore) -> Vec<LogId> {
    let entries = now(store.clone().try_get_log_entries(..)).unwrap();
    entries.into_iter().map(|entry| entry.log_id).collect()
}

fn indexes(store: &LogStore) -> Vec<u64> {
    ids(store).into_iter().map(|id| id.index).collect()
}

struct Builder;

impl StoreBuilder<Types, Installing, Machine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, Installing, Machine), StorageError> {
        let dir = tempfile::tempdir().unwrap();
        let new = NewNode { node_id: 0, ..new(Start::Joining) };
        let store = LogStore::create(&disk(), dir.path(), OPTIONS, new).unwrap();
        Ok((dir, Installing(store), Machine::default()))
    }
}

#[test]
fn it_passes_the_suite_of_openraft() {
    Suite::test_all(Builder).unwrap();
}

#[test]
fn a_new_cluster_begins_after_its_rows() {
    for (position, begin) in [(0, 1), (1, 1), (40, 40)] {
        let dir = tempfile::tempdir().unwrap();
        let mut store = create(dir.path(), first(position));
        let start = log_id(1, NODE, begin);
        for _ in 0..2 {
            let state = now(store.get_log_state()).unwrap();
            assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(start), Some(start)));
            assert_eq!(now(store.read_vote()).unwrap(), Some(Vote::new(1, NODE)));
            let members = store.membership();
            assert_eq!(members.log_id(), &Some(start));
            assert_eq!(members.membership().get_node(&NODE).unwrap().address, "one:7000");
            assert_eq!((store.node_id(), store.cluster_id()), (NODE, 3));
            assert_eq!(store.entry_of_checkpoint(position).unwrap(), Some(start));
            store = open(dir.path());
        }
        assert!(append(&store, [entry(2, begin + 2, 1)]).is_err(), "a hole");
        append(&store, [entry(2, begin + 1, 1)]).unwrap();
        assert_eq!(indexes(&store), [begin + 1]);
        let again = LogStore::create(&disk(), dir.path(), OPTIONS, new(Start::Joining));
        assert!(matches!(again, Err(LogStoreError::AlreadyExists(_))));
    }
}

#[test]
fn a_joining_node_has_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        LogStore::open(&disk(), dir.path(), OPTIONS, None),
        Err(LogStoreError::NotFound(_))
    ));
    let mut store = create(dir.path(), Start::Joining);
    assert_eq!(now(store.read_vote()).unwrap(), None);
    assert_eq!((store.last_log_id(), store.entry_of_checkpoint(0).unwrap()), (None, None));
    assert!(store.entry_of_checkpoint(1).is_err());
}

#[test]
fn a_cluster_can_begin_with_the_directory_of_a_single_node() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = dir.path().join("log");
    let first_index = codeq_log::FrameIndex(1);
    let mut log =
        Log::create(disk(), &log_dir, OPTIONS, NewLog { first_index, log_id: 99 }).unwrap();
    for _ in 0..5 {
        log.append(&[(0, b"a command of a single node")]).unwrap();
    }
    log.sync().unwrap();
    drop(log);
    // Its stores have to include all of it.
    let refused = LogStore::create(&disk(), dir.path(), OPTIONS, new(first(4)));
    assert!(matches!(refused, Err(LogStoreError::Mixed(_))));
    let refused = LogStore::create(&disk(), dir.path(), OPTIONS, new(Start::Joining));
    assert!(matches!(refused, Err(LogStoreError::Mixed(_))));
    let store = create(dir.path(), first(5));
    append(&store, (6..9).map(|index| entry(2, index, 10))).unwrap();
    drop(store);
    assert_eq!(indexes(&open(dir.path())), [6, 7, 8]);
    // A single node that writes to it later is noticed.
    let mut log = Log::open(disk(), &log_dir, OPTIONS).unwrap();
    log.append(&[(0, b"a command of a single node")]).unwrap();
    log.sync().unwrap();
    assert!(matches!(
        LogStore::open(&disk(), dir.path(), OPTIONS, None),
        Err(LogStoreError::Mixed(_))
    ));
}

#[test]
fn everything_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = create(dir.path(), first(5));
    append(&store, (6..=20).map(|index| entry(2, index, 9_000))).unwrap();
    now(store.truncate(log_id(2, NODE, 15))).unwrap();
    now(store.save_committed(Some(log_id(2, NODE, 12)))).unwrap();
    assert_eq!(store.last_log_id(), Some(log_id(2, NODE, 14)));
    append(&store, (15..=17).map(|index| entry(3, index, 100))).unwrap();
    // An entry in the middle implies a truncation.
    append(&store, [entry(4, 17, 50)]).unwrap();
    let expected: Vec<LogId> = (6..=14)
        .map(|index| log_id(2, NODE, index))
        .chain([log_id(3, NODE, 15), log_id(3, NODE, 16), log_id(4, NODE, 17)])
        .collect();
    assert_eq!(ids(&store), expected);
    drop(store);
    let mut store = open(dir.path());
    assert_eq!(ids(&store), expected);
    let read = now(store.try_get_log_entries(6..7)).unwrap();
    assert_eq!(format!("{:?}", read[0]), format!("{:?}", entry(2, 6, 9_000)));
    assert_eq!(now(store.read_committed()).unwrap(), Some(log_id(2, NODE, 12)));
    // A truncation alone is not written: a start finds the entries again.
    now(store.truncate(log_id(2, NODE, 13))).unwrap();
    assert_eq!(indexes(&store).last(), Some(&12));
    assert_eq!(ids(&open(dir.path())), expected);
}

#[test]
fn a_restarted_leader_has_to_win_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = create(dir.path(), Start::Joining);
    let committed = |node| Vote::new_committed(4, node);
    now(store.save_vote(&committed(NODE))).unwrap();
    drop(store);
    assert_eq!(now(open(dir.path()).read_vote()).unwrap(), Some(Vote::new(4, NODE)));
    let fault = Some(Fault::KeepCommittedVote);
    let mut planted = LogStore::open(&disk(), dir.path(), OPTIONS, fault).unwrap();
    assert_eq!(now(planted.read_vote()).unwrap(), Some(committed(NODE)));
    now(planted.save_vote(&committed(8))).unwrap();
    drop(planted);
    assert_eq!(now(open(dir.path()).read_vote()).unwrap(), Some(committed(8)), "of another node");
}

#[test]
fn messages_and_memory_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 16 << 20 };
    let mut store = LogStore::create(&disk(), dir.path(), options, new(first(0))).unwrap();
    // 80 MiB, so the first ones are read from disk.
    for index in 2..162 {
        append(&store, [entry(2, index, 512 << 10)]).unwrap();
    }
    append(&store, [entry(2, 162, 3 << 20)]).unwrap();
    for from in [2, 20, 100, 150] {
        let read = now(store.limited_get_log_entries(from, 162)).unwrap();
        assert_eq!(read.len() as u64, MESSAGE_BYTES / (513 << 10), "from {from}");
        let expected = entry(2, from, 512 << 10);
        assert_eq!(read[0].log_id, expected.log_id);
        let (EntryPayload::Normal(read), EntryPayload::Normal(expected)) =
            (&read[0].payload, &expected.payload)
        else {
            panic!("not proposals")
        };
        assert_eq!(read, expected);
    }
    assert_eq!(now(store.limited_get_log_entries(162, 163)).unwrap().len(), 1, "at least one");
    // 3 MiB and six halves.
    assert_eq!(store.index_keeping(6 << 20), Some(155));
    assert_eq!(store.index_keeping(0), Some(162));
    assert_eq!(store.index_keeping(1 << 40), None);
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir.join("log")).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|it| it == "seg")).collect()
}

#[test]
fn entries_leave_the_disk_only_as_far_as_the_owner_allows() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = create(dir.path(), first(0));
    for index in 2..=60 {
        append(&store, [entry(2, index, 9_000)]).unwrap();
    }
    let tidy = |store: &LogStore| {
        while let Some(job) = store.next_job() {
            store.provide(job.run().unwrap());
        }
    };
    tidy(&store);
    let before = segments(dir.path()).len();
    now(store.purge(log_id(2, NODE, 50))).unwrap();
    tidy(&store);
    assert_eq!(indexes(&store)[0], 51);
    assert_eq!(segments(dir.path()).len(), before, "no one has allowed it");
    // A start finds them again: perhaps the stores do not include them.
    assert_eq!(indexes(&open(dir.path()))[0], 2);

    store.release(30).unwrap();
    tidy(&store);
    assert!(segments(dir.path()).len() < before);
    let reopened = open(dir.path());
    assert_eq!(indexes(&reopened), (31..=60).collect::<Vec<_>>());
    assert_eq!(reopened.entry_of_checkpoint(30).unwrap(), Some(log_id(2, NODE, 30)));
    assert!(reopened.entry_of_checkpoint(29).is_err(), "entry 30 is gone");
    drop(reopened);
    let mut store = open(dir.path());
    // Nor further than openraft has purged.
    now(store.purge(log_id(2, NODE, 40))).unwrap();
    store.release(60).unwrap();
    drop(store);
    let mut store = open(dir.path());
    assert_eq!(indexes(&store), (41..=60).collect::<Vec<_>>());
    now(store.purge(log_id(2, NODE, 60))).unwrap();
    store.release(60).unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!((indexes(&store), store.last_log_id()), (Vec::new(), Some(log_id(2, NODE, 60))));
    append(&store, [entry(2, 61, 9)]).unwrap();
}

#[test]
fn nothing_is_appended_after_a_snapshot_that_is_not_durable() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = create(dir.path(), first(0));
    append(&store, (2..=9).map(|index| entry(2, index, 10))).unwrap();
    let snapshot = log_id(3, 8, 20);
    now(store.purge(snapshot)).unwrap();
    assert_eq!((store.last_log_id(), indexes(&store)), (Some(snapshot), Vec::new()));
    store.release(20).unwrap();
    let mut writer = store.clone();
    let mut appending = pin!(writer.blocking_append([entry(3, 21, 10)]));
    let mut context = Context::from_waker(Waker::noop());
    assert!(appending.as_mut().poll(&mut context).is_pending());
    assert_eq!(indexes(&open(dir.path())), (2..=9).collect::<Vec<_>>(), "all of the old ones");
    store.installed(snapshot).unwrap();
    assert!(matches!(appending.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    store.installed(snapshot).unwrap();
    assert_eq!(indexes(&store), [21]);
    let reopened = open(dir.path());
    assert_eq!((indexes(&reopened), reopened.last_log_id()), (vec![21], Some(log_id(3, NODE, 21))));
    reopened.installed(snapshot).unwrap();
    assert_eq!(indexes(&reopened), [21], "a start repeats it");
    drop(reopened);

    let mut store = open(dir.path());
    now(store.purge(log_id(4, 8, 40))).unwrap();
    let mut writer = store.clone();
    let mut appending = pin!(writer.blocking_append([entry(4, 41, 10)]));
    assert!(appending.as_mut().poll(&mut context).is_pending());
    store.not_installed("the disk is full");
    let Poll::Ready(Err(error)) = appending.as_mut().poll(&mut context) else { panic!("waits") };
    assert!(error.to_string().contains("the disk is full"), "{error}");
}

#[test]
fn a_snapshot_keeps_later_entries_only_if_its_own_entry_matches() {
    for (snapshot, left) in [(log_id(2, NODE, 6), vec![7, 8, 9]), (log_id(3, 8, 6), vec![])] {
        for purges in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let mut store = create(dir.path(), first(0));
            append(&store, (2..=9).map(|index| entry(2, index, 10))).unwrap();
            if purges && left.is_empty() {
                // As openraft does.
                now(store.truncate(log_id(2, NODE, 4))).unwrap();
            }
            if purges {
                now(store.purge(snapshot)).unwrap();
            }
            store.installed(snapshot).unwrap();
            assert_eq!((indexes(&store), store.log_id(6)), (left.clone(), Some(snapshot)));
            drop(store);
            for _ in 0..2 {
                let store = open(dir.path());
                assert_eq!((indexes(&store), store.log_id(6)), (left.clone(), Some(snapshot)));
            }
            let store = open(dir.path());
            let next = store.last_log_id().unwrap().index + 1;
            append(&store, [entry(4, next, 10)]).unwrap();
            drop(store);
            let all: Vec<u64> = left.iter().copied().chain([next]).collect();
            assert_eq!(indexes(&open(dir.path())), all);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[test]
fn a_log_that_lost_its_end_or_its_beginning_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (old, path) = (dir.path().join("old"), dir.path().join("node"));
    let mut store = create(&path, first(0));
    append(&store, (2..=9).map(|index| entry(2, index, 10))).unwrap();
    copy(&path, &old);
    append(&store, (10..=30).map(|index| entry(2, index, 9_000))).unwrap();
    assert_eq!(store.entry_of_checkpoint(30).unwrap(), Some(log_id(2, NODE, 30)));
    // The whole log of last week: intact in itself, but a store is ahead of it.
    let mixed = dir.path().join("mixed");
    copy(&path, &mixed);
    std::fs::remove_dir_all(mixed.join("log")).unwrap();
    copy(&old.join("log"), &mixed.join("log"));
    let behind = open(&mixed);
    let error = behind.entry_of_checkpoint(30).unwrap_err().to_string();
    assert!(
        error.contains("a store is at entry 30, but the log") && error.contains("-9"),
        "{error}"
    );

    // The state file may show it too.
    now(store.purge(log_id(2, NODE, 25))).unwrap();
    store.release(25).unwrap();
    while let Some(job) = store.next_job() {
        store.provide(job.run().unwrap());
    }
    append(&store, [entry(2, 31, 10)]).unwrap();
    drop(store);
    let refused = |dir: &Path| match LogStore::open(&disk(), dir, OPTIONS, None) {
        Err(LogStoreError::Mixed(what)) => what,
        other => panic!("{other:?}"),
    };
    copy(&path.join("raft"), &mixed.join("raft"));
    assert!(refused(&mixed).contains("but is needed from"));
    // The state of last week: the log no longer has entries that it needs.
    copy(&old.join("raft"), &path.join("raft"));
    assert!(refused(&path).contains("but is needed from"));
    // The log of another node.
    let other = dir.path().join("other");
    drop(LogStore::create(&disk(), &other, OPTIONS, NewNode { log_id: 5, ..new(first(0)) }));
    copy(&old.join("raft"), &other.join("raft"));
    assert!(refused(&other).contains("the log is 0000000000000005"));
}
