//! The replicated log on the simulated disk: openraft's suite, and crashes at every change of the disk. What was
//! acknowledged is there afterwards, and nothing was invented.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use codeq_core::id::{ShardId, split_mix64};
use codeq_disk::Disk;
use codeq_log::Options;
use codeq_raft::journal_record::log_id;
use codeq_raft::log_store::{LogStore, LogStoreError, NewNode, Start};
use codeq_raft::types::{
    Digests, Entry, LogId, Member, Origin, Proposal, StorageError, StoredMembership, Types, Vote,
};
use codeq_sim::disk::{Faults, SimDisk};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{EntryPayload, Membership, RaftLogReader};

use crate::suite::{Installing, Machine};

const NODE: u64 = 1;
/// Where the log begins.
const BEGIN: u64 = 5;
/// A few entries each, so that segments change often and long appends take several frames.
const OPTIONS: Options = Options { segment_bytes: 4096 };

fn dir() -> &'static Path {
    Path::new("/node")
}

fn new(start: Start) -> NewNode {
    NewNode { cluster_id: 3, node_id: NODE, log_id: 4, start }
}

fn first() -> NewNode {
    new(Start::Cluster { member: Member { address: "one:1".into() }, position: BEGIN })
}

/// A disk with an empty directory.
fn disk(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    disk.create_dir_all(dir()).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk
}

fn open(disk: &SimDisk) -> Result<LogStore, LogStoreError> {
    LogStore::open(&disk.shared(), dir(), OPTIONS, None)
}

/// The output of a future that has nothing to wait for.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

struct Builder;

impl StoreBuilder<Types, Installing, Machine> for Builder {
    async fn build(&self) -> Result<((), Installing, Machine), StorageError> {
        let disk = SimDisk::new(1);
        let new = NewNode { node_id: 0, ..new(Start::Joining) };
        let store = LogStore::create(&disk.shared(), dir(), OPTIONS, new).unwrap();
        Ok(((), Installing(store), Machine::default()))
    }
}

#[test]
fn it_passes_the_suite_of_openraft() {
    Suite::test_all(Builder).unwrap();
}

/// The one entry with this log id.
fn entry(log_id: LogId) -> Entry {
    let index = log_id.index;
    let payload = match index % 8 {
        0 => EntryPayload::Blank,
        1 => EntryPayload::Membership(members(index).membership().clone()),
        _ => {
            let (term, node) = (log_id.leader_id.term, log_id.leader_id.node_id);
            let origin = Origin { term, node, incarnation: 3, number: index };
            let record = |shard: u16| {
                let len = split_mix64(index * 3 + term + u64::from(shard)) % 700;
                (ShardId(shard), Bytes::from(vec![index as u8; len as usize]))
            };
            let digests = Some(Digests { index: index - 1, by_shard: vec![term, index] });
            EntryPayload::Normal(Proposal { origin, records: vec![record(0), record(1)], digests })
        }
    };
    Entry { log_id, payload }
}

fn members(number: u64) -> StoredMembership {
    let member = |id| (id, Member { address: format!("node-{number}:{id}") });
    let nodes: BTreeMap<u64, Member> = [NODE, 2, 3].map(member).into();
    let membership = Membership::new(vec![[NODE, 2, 3].into()], nodes);
    StoredMembership::new(Some(log_id(1, NODE, number)), membership)
}

/// A log as a start finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Image {
    purged: LogId,
    entries: Vec<LogId>,
}

impl Image {
    fn last(&self) -> LogId {
        *self.entries.last().unwrap_or(&self.purged)
    }

    fn id(&self, index: u64) -> Option<LogId> {
        self.entries.iter().chain([&self.purged]).find(|id| id.index == index).copied()
    }

    fn truncated(&self, from: u64) -> Image {
        let entries = self.entries.iter().filter(|id| id.index < from).copied().collect();
        Image { entries, ..*self }
    }

    fn purged(&self, purged: LogId) -> Image {
        let entries = self.entries.iter().filter(|id| id.index > purged.index).copied().collect();
        Image { purged, entries }
    }

    fn jumped(&self, to: LogId) -> Image {
        if self.purged.index >= to.index {
            self.clone()
        } else if self.id(to.index) == Some(to) {
            self.purged(to)
        } else {
            Image { purged: to, entries: Vec::new() }
        }
    }
}

/// Something that is done to a log.
#[derive(Debug, Clone)]
enum Step {
    Vote(Vote),
    /// Appends entries after the last one: their term, and how many.
    Append(u64, u64),
    Truncate(u64),
    /// Purges to an entry of the log.
    Purge(u64),
    /// Purges to an entry that may not be in the log, as for a snapshot.
    Snapshot(LogId),
    Installed(LogId),
    Release(u64),
    Commit(u64),
    Members(u64),
    Jobs,
    Reopen,
}

/// A node's log, and what must be there after a crash.
struct Node {
    disk: SimDisk,
    store: LogStore,
    /// What a start may find: one image, or several while a step is under way.
    images: Vec<Image>,
    votes: Vec<Vote>,
    members: Vec<StoredMembership>,
    committed: Vec<LogId>,
    /// What openraft sees.
    seen: Image,
    /// openraft has truncated from here on, but the journal may not say so yet.
    cut: Option<u64>,
    /// The snapshot that is being installed.
    held: Option<LogId>,
}

type Failure = Box<dyn std::error::Error>;

impl Node {
    fn create(disk: &SimDisk) -> Result<Node, LogStoreError> {
        let store = LogStore::create(&disk.shared(), dir(), OPTIONS, first())?;
        let start = log_id(1, NODE, BEGIN);
        let image = Image { purged: start, entries: Vec::new() };
        Ok(Node {
            disk: disk.clone(),
            members: vec![store.membership()],
            store,
            images: vec![image.clone()],
            votes: vec![Vote::new(1, NODE)],
            committed: Vec::new(),
            seen: image,
            cut: None,
            held: None,
        })
    }

    /// What a start finds unless a step is under way.
    fn durable(&self) -> &Image {
        &self.images[0]
    }

    /// The journal with what openraft has truncated.
    fn cut(&self) -> Image {
        self.cut.map_or(self.durable().clone(), |from| self.durable().truncated(from))
    }

    /// Does a step. If it fails, anything between before and after may be what a start finds.
    fn step(&mut self, step: &Step) -> Result<(), Failure> {
        match step {
            Step::Vote(vote) => {
                self.votes.push(*vote);
                now(self.store.save_vote(vote))?;
                self.votes = vec![*vote];
            }
            Step::Append(term, count) => {
                let next = self.seen.last().index + 1;
                let ids: Vec<LogId> =
                    (next..next + count).map(|index| log_id(*term, NODE, index)).collect();
                let before = self.cut();
                let with = |count: usize| {
                    let entries = before.entries.iter().chain(&ids[..count]).copied().collect();
                    Image { purged: before.purged, entries }
                };
                self.images.extend((1..=ids.len()).map(with));
                now(self
                    .store
                    .blocking_append(ids.iter().map(|id| entry(*id)).collect::<Vec<_>>()))?;
                self.images = vec![with(ids.len())];
                self.seen.entries.extend(ids);
                self.cut = None;
            }
            Step::Truncate(from) => {
                let at = self.seen.id(*from).unwrap();
                now(self.store.truncate(at))?;
                self.seen = self.seen.truncated(*from);
                self.cut = Some(self.cut.map_or(*from, |cut| cut.min(*from)));
            }
            Step::Purge(index) => {
                let id = self.seen.id(*index).unwrap();
                now(self.store.purge(id))?;
                self.seen = self.seen.purged(id);
            }
            Step::Snapshot(id) => {
                self.held = Some(*id).filter(|id| self.seen.id(id.index) != Some(*id));
                now(self.store.purge(*id))?;
                self.seen = self.seen.jumped(*id);
            }
            Step::Installed(id) => {
                let after = self.cut().jumped(*id);
                if after != *self.durable() {
                    self.images.push(after.clone());
                }
                self.store.installed(*id)?;
                if self.durable().purged.index < id.index {
                    self.cut = None;
                }
                self.images = vec![after];
                self.seen = self.seen.jumped(*id);
                self.held = None;
            }
            Step::Release(bound) => {
                let index = self.seen.purged.index.min(*bound);
                let before = self.durable();
                let id = before.id(index).filter(|_| index > before.purged.index);
                if let Some(id) = id.filter(|_| self.held.is_none()) {
                    let after = before.purged(id);
                    self.images.push(after.clone());
                    self.store.release(*bound)?;
                    self.images = vec![after];
                } else {
                    self.store.release(*bound)?;
                }
            }
            Step::Commit(index) => {
                let id = self.seen.id(*index).unwrap();
                self.committed.push(id);
                now(self.store.save_committed(Some(id)))?;
            }
            Step::Members(number) => {
                self.members.push(members(*number));
                self.store.save_membership(&members(*number))?;
                self.members = vec![members(*number)];
            }
            Step::Jobs => {
                while let Some(job) = self.store.next_job() {
                    self.store.provide(job.run()?);
                }
            }
            Step::Reopen => {
                self.store = open(&self.disk)?;
                self.check("reopened");
            }
        }
        Ok(())
    }

    /// Compares what a start has found with what may be there, and goes on from it.
    fn check(&mut self, what: &str) {
        let state = now(self.store.get_log_state()).unwrap();
        let entries = now(self.store.try_get_log_entries(..)).unwrap();
        for found in &entries {
            assert_eq!(format!("{found:?}"), format!("{:?}", entry(found.log_id)), "{what}");
        }
        let entries = entries.iter().map(|entry| entry.log_id).collect();
        let image = Image { purged: state.last_purged_log_id.unwrap(), entries };
        assert!(self.images.contains(&image), "{what}: {image:?} of {:?}", self.images);
        assert_eq!(state.last_log_id, Some(image.last()), "{what}");

        let vote = now(self.store.read_vote()).unwrap().unwrap();
        let uncommitted = |vote: &Vote| match vote.leader_id.node_id {
            NODE => Vote::new(vote.leader_id.term, NODE),
            _ => *vote,
        };
        let votes: Vec<Vote> = self.votes.iter().map(uncommitted).collect();
        assert!(votes.contains(&vote), "{what}: {vote} of {votes:?}");
        let members = self.store.membership();
        assert!(self.members.contains(&members), "{what}: {members} of {:?}", self.members);
        let committed = now(self.store.read_committed()).unwrap();
        assert!(committed.is_none_or(|id| self.committed.contains(&id)), "{what}: {committed:?}");
        assert!(committed.is_none_or(|id| id.index <= image.last().index), "{what}: {committed:?}");
        (self.images, self.seen) = (vec![image.clone()], image);
        (self.votes, self.members) = (vec![vote], vec![members]);
        (self.cut, self.held) = (None, None);
    }
}

/// Everything that happens to a log, and some of it twice.
fn script() -> Vec<Step> {
    use Step::{
        Append, Commit, Installed, Jobs, Members, Purge, Release, Reopen, Snapshot, Truncate,
    };
    vec![
        Step::Vote(Vote::new(2, NODE)),
        Step::Vote(Vote::new_committed(2, NODE)),
        Append(2, 4),
        Commit(7),
        Append(2, 1),
        Members(6),
        Truncate(9),
        Step::Vote(Vote::new_committed(3, 2)),
        Append(3, 12),
        Jobs,
        Commit(19),
        Append(3, 1),
        Purge(14),
        Release(11),
        Jobs,
        Reopen,
        Truncate(20),
        Reopen,
        Purge(19),
        Release(30),
        Append(4, 3),
        // A snapshot that the log does not reach.
        Snapshot(log_id(5, 2, 40)),
        Release(40),
        Members(40),
        Installed(log_id(5, 2, 40)),
        Append(5, 9),
        Jobs,
        Release(40),
        // One that conflicts with the log.
        Truncate(43),
        Snapshot(log_id(6, 3, 46)),
        Installed(log_id(6, 3, 46)),
        Append(6, 8),
        // One that is in the log.
        Snapshot(log_id(6, NODE, 50)),
        Installed(log_id(6, NODE, 50)),
        // One that was in the log, and no longer is.
        Truncate(52),
        Snapshot(log_id(6, NODE, 53)),
        Installed(log_id(6, NODE, 53)),
        Append(7, 6),
        Truncate(56),
        Reopen,
        Append(8, 2),
        Purge(57),
        Release(55),
        Jobs,
        Append(8, 1),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Crash {
    Kill,
    PowerCut,
}

fn crash(disk: &SimDisk, crash: Crash) {
    match crash {
        Crash::Kill => disk.kill(),
        Crash::PowerCut => disk.power_cut(),
    }
}

#[test]
fn a_crash_at_any_moment_costs_nothing_acknowledged() {
    let (mut moment, mut crashes) = (0, 0);
    loop {
        moment += 1;
        let mut done = false;
        for (number, kinds) in (0..).zip([
            (Crash::Kill, Crash::Kill),
            (Crash::Kill, Crash::PowerCut),
            (Crash::PowerCut, Crash::Kill),
            (Crash::PowerCut, Crash::PowerCut),
        ]) {
            let disk = disk(moment * 10 + number);
            disk.plan(Faults { cut_at_change: Some(moment), ..Faults::default() });
            let created = Node::create(&disk);
            let mut failed = created.is_err();
            let mut node = created.ok();
            if let Some(node) = &mut node {
                failed = script().iter().any(|step| node.step(step).is_err());
            }
            done = !failed && !disk.is_dead();
            crash(&disk, kinds.0);
            crashes += 1;
            // The first start may not get far either.
            let second = 1 + (moment * 7 + number) % 9;
            disk.plan(Faults { cut_at_change: Some(second), ..Faults::default() });
            drop(open(&disk));
            crash(&disk, kinds.1);

            let what = format!("moment {moment}, {kinds:?}");
            let Some(mut node) = node else {
                match open(&disk) {
                    // Nobody was told that the log was created, so the creation can be repeated.
                    Err(LogStoreError::NotFound(_)) => drop(Node::create(&disk).unwrap()),
                    opened => {
                        assert_eq!(opened.unwrap().last_log_id(), Some(log_id(1, NODE, BEGIN)))
                    }
                }
                continue;
            };
            node.store = open(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            node.check(&what);
            // It works, and what it has shown stays true.
            node.step(&Step::Append(9, 2)).unwrap();
            disk.power_cut();
            node.step(&Step::Reopen).unwrap();
        }
        if done {
            break;
        }
        assert!(moment < 5_000, "it never finishes");
    }
    assert!(moment > 150, "{moment} moments, {crashes} crashes");
}

/// A step that openraft could take now.
fn random_step(node: &Node, draw: &mut impl FnMut(u64) -> u64, term: &mut u64) -> Step {
    let (first, last) = (node.seen.purged.index, node.seen.last().index);
    let committed = node.committed.iter().map(|id| id.index).max().unwrap_or(0).max(first);
    if let Some(held) = node.held {
        return match draw(3) {
            0 => Step::Reopen,
            _ => Step::Installed(held),
        };
    }
    match draw(16) {
        0..5 => {
            *term += draw(2);
            Step::Append(*term, 1 + draw(6))
        }
        5..7 => Step::Commit(committed + draw(last - committed + 1)),
        7 if last > committed => {
            *term += 1;
            Step::Truncate(committed + 1 + draw(last - committed))
        }
        8 => Step::Purge(first + draw(committed - first + 1)),
        9 => Step::Release(first.saturating_sub(3) + draw(9)),
        10 => {
            *term += 1;
            Step::Snapshot(log_id(*term, 2, last + 1 + draw(5)))
        }
        11 => Step::Members(committed),
        12 => Step::Vote(Vote::new(*term, 1 + draw(3))),
        13 => Step::Jobs,
        14 => Step::Reopen,
        _ => Step::Append(*term, 1),
    }
}

#[test]
fn the_log_store_matches_a_plain_list() {
    for seed in 0..60_u64 {
        let mut draws = seed << 32;
        let mut draw = |below: u64| {
            draws += 1;
            split_mix64(draws) % below
        };
        let disk = disk(seed);
        let mut node = Node::create(&disk).unwrap();
        let mut term = 2;
        for number in 0..200 {
            let step = random_step(&node, &mut draw, &mut term);
            if matches!(step, Step::Reopen) {
                crash(&disk, if draw(3) == 0 { Crash::Kill } else { Crash::PowerCut });
            }
            let what = format!("seed {seed}, step {number}: {step:?}");
            node.step(&step).unwrap_or_else(|error| panic!("{what}: {error}"));
            let entries = now(node.store.try_get_log_entries(..)).unwrap();
            let ids: Vec<LogId> = entries.iter().map(|entry| entry.log_id).collect();
            assert_eq!(ids, node.seen.entries, "{what}");
            assert_eq!(node.store.last_log_id(), Some(node.seen.last()), "{what}");
        }
    }
}

#[test]
fn damage_to_the_journal_is_refused_or_harmless() {
    let disk = disk(1);
    let mut node = Node::create(&disk).unwrap();
    for step in [Step::Append(2, 5), Step::Commit(7), Step::Append(2, 2), Step::Jobs] {
        node.step(&step).unwrap();
    }
    let log = dir().join("log");
    let names: Vec<String> =
        disk.list(&log).unwrap().into_iter().filter(|name| name.ends_with(".seg")).collect();
    let (mut refused, mut harmless) = (0, 0);
    for name in names {
        let path = log.join(name);
        let bytes = disk.bytes(&path).unwrap();
        for at in (0..bytes.len()).step_by(7) {
            let file = disk.open(&path).unwrap();
            file.write_all_at(&[bytes[at] ^ (1 << (at % 8))], at as u64).unwrap();
            match open(&disk) {
                Ok(store) => {
                    node.store = store;
                    node.check("flipped");
                    harmless += 1;
                }
                Err(_) => refused += 1,
            }
            disk.open(&path).unwrap().write_all_at(&bytes, 0).unwrap();
        }
    }
    assert!(refused > 100 && harmless > 100, "{refused} refused, {harmless} harmless");
}
