//! Transitions of tasks as event streams show them: on every node, each transition comes once and with the same number, or
//! the reader is told that some are missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use codeq_core::effect::Effect;
use codeq_core::id::{ShardId, TaskId};
use codeq_core::place::Place;
use codeq_engine::{Observer, SharedObserver};
use codeq_sim::cluster::script::{Script, Setup};
use parking_lot::Mutex;

use super::traps::{MILLISECOND, SECOND, holds};

type Transition = (TaskId, Option<Place>, Option<Place>);

/// What one shard of a node has reported since the node started or got rows from another one.
#[derive(Default)]
struct Kept {
    first: u64,
    transitions: Vec<Transition>,
}

impl Kept {
    fn next(&self) -> u64 {
        self.first + self.transitions.len() as u64
    }
}

/// The observers of all nodes.
#[derive(Default)]
struct Seen {
    nodes: Mutex<BTreeMap<(u64, ShardId), Kept>>,
    /// Every transition that any node has reported, by shard and number.
    all: Mutex<BTreeMap<(ShardId, u64), Transition>>,
    /// How often rows were replaced in a running process.
    replaced: Mutex<u64>,
}

/// The observer of one process.
struct Watch {
    node: u64,
    seen: Arc<Seen>,
    fresh: Mutex<bool>,
}

impl Observer for Watch {
    fn committed(&self, shard: ShardId, effects: &[Effect]) {
        let mut nodes = self.seen.nodes.lock();
        let kept = nodes.entry((self.node, shard)).or_default();
        for effect in effects {
            let Effect::Moved(moved) = effect else { continue };
            assert_eq!(moved.number, kept.next(), "node {}: not the next transition", self.node);
            let transition = (moved.id, moved.from, moved.to);
            let mut all = self.seen.all.lock();
            let known = all.entry((shard, moved.number)).or_insert(transition);
            assert_eq!(*known, transition, "node {}: another transition", self.node);
            kept.transitions.push(transition);
        }
    }

    fn resumed(&self, shard: ShardId, next: u64) {
        *self.seen.replaced.lock() += u64::from(!*self.fresh.lock());
        *self.fresh.lock() = false;
        let kept = Kept { first: next, transitions: Vec::new() };
        self.seen.nodes.lock().insert((self.node, shard), kept);
    }
}

impl Seen {
    fn observe(seen: &Arc<Seen>) -> Setup {
        let seen = Arc::clone(seen);
        let observers = move |node| {
            let watch = Watch { node, seen: Arc::clone(&seen), fresh: Mutex::new(true) };
            SharedObserver(Some(Arc::new(watch) as Arc<dyn Observer>))
        };
        Setup { observers: Some(Arc::new(observers)), ..Setup::default() }
    }

    /// The number of the next transition on a node.
    fn next(&self, node: u64) -> u64 {
        self.nodes.lock().get(&(node, ShardId(0))).map_or(0, Kept::next)
    }
}

/// A reader of transitions that knows where it is.
#[derive(Default)]
struct Reader {
    position: u64,
    read: Vec<Transition>,
    missed: u64,
}

impl Reader {
    /// Reads on from a node, like a client that resumes there. Returns true if the node does not have what comes next.
    fn read(&mut self, seen: &Seen, node: u64) -> bool {
        let nodes = seen.nodes.lock();
        let Some(kept) = nodes.get(&(node, ShardId(0))) else { return false };
        if !(kept.first..=kept.next()).contains(&self.position) {
            self.missed += 1;
            self.position = kept.next();
            return true;
        }
        let from = (self.position - kept.first) as usize;
        self.read.extend(&kept.transitions[from..]);
        self.position = kept.next();
        false
    }
}

/// A client reads transitions from a node that is up to date and resumes on one that lags behind. That one must not say
/// that something is missing: it waits for a read index and then has everything that the client has seen, and more.
#[test]
fn a_reader_that_resumes_on_a_lagging_node_misses_nothing() {
    let seen = Arc::new(Seen::default());
    holds(&Seen::observe(&seen), |script| {
        let mut reader = Reader::default();
        let leader = script.leader();
        reader.read(&seen, leader);
        reader = Reader { position: reader.position, ..Reader::default() };
        for round in 0..6 {
            let (leader, lagging) = (script.leader(), script.followers()[round % 2]);
            script.isolate(lagging);
            script.enqueue_many("work", 5);
            reader.read(&seen, leader);
            let behind = seen.next(lagging) < reader.position;
            script.expect(behind, "the node is behind the reader");
            // It is reached again, but slowly.
            script.heal();
            script.slow_down(leader, lagging, MILLISECOND * 30);
            let read = script.read(lagging);
            script.expect(read.is_ok(), "the node gets a read index");
            let missed = reader.read(&seen, lagging);
            script.expect(!missed, "the node has what the reader has seen");
            script.heal();
            script.enqueue_many("work", 2);
            let read = script.read(lagging);
            script.expect(read.is_ok(), "the node gets a read index");
            reader.read(&seen, lagging);
        }
        let first = reader.position - reader.read.len() as u64;
        let all = seen.all.lock();
        let expected: Vec<Transition> =
            all.range((ShardId(0), first)..).map(|(_, transition)| *transition).collect();
        script.expect(reader.read == expected, "the reader has seen each transition once");
    });
}

/// A client reads from one node over restarts of that node, and over rows that the node gets from another one. It sees
/// each transition once, or is told that some are missing.
#[test]
fn a_reader_sees_each_transition_once_over_a_restart_and_an_installation_or_is_told() {
    let seen = Arc::new(Seen::default());
    let (mut told, mut restarts) = (0, 0);
    holds(&Seen::observe(&seen), |script| {
        let node = script.followers()[0];
        let mut reader = Reader { position: seen.next(node), ..Reader::default() };
        let mut segment = reader.position;
        let mut look = |script: &mut Script, reader: &mut Reader| {
            let before = (reader.position, reader.read.len());
            if reader.read(&seen, node) {
                // Whatever is missing was announced, and reading goes on behind it.
                told += 1;
                reader.read.truncate(before.1);
                segment = reader.position;
                reader.read.clear();
                return;
            }
            let all = seen.all.lock();
            let expected: Vec<Transition> = all
                .range((ShardId(0), segment)..(ShardId(0), reader.position))
                .map(|(_, transition)| *transition)
                .collect();
            drop(all);
            script.expect(reader.read == expected, "each transition once");
        };
        for round in 0..12 {
            script.work(3);
            for _ in 0..10 {
                script.pass(MILLISECOND * 50);
                look(script, &mut reader);
            }
            script.work(0);
            match round % 3 {
                // A restart repeats what came after the checkpoint.
                0 => {
                    restarts += 1;
                    script.power_cut(node);
                    script.start(node);
                }
                // After a checkpoint there is nothing to repeat.
                1 => {
                    script.compact(node);
                    script.pass(MILLISECOND * 50);
                    script.enqueue_many("work", 3);
                    look(script, &mut reader);
                    script.kill(node);
                    script.start(node);
                }
                _ => {
                    script.isolate(node);
                    let others = script.members().into_iter().filter(|id| *id != node);
                    let others: Vec<u64> = others.collect();
                    script.next_leader(node);
                    for _ in 0..3 {
                        script.enqueue_many("work", 4);
                        others.iter().for_each(|id| script.compact(*id));
                        script.pass(MILLISECOND * 50);
                    }
                    script.heal();
                }
            }
            script.pass_until("it is up to date", SECOND * 10, |script| {
                script.applied(node) == script.committed()
            });
            look(script, &mut reader);
            script.settle();
        }
    });
    let replaced = *seen.replaced.lock();
    assert!(replaced >= 4 && told >= 4 && restarts >= 4, "{replaced}, {told}, {restarts}");
}
