//! Result callbacks that are due: those in memory, and where to find the rest.
//!
//! Memory is bounded. What does not fit stays in the engine's outbox; its position is remembered and read again once
//! there is room.

use std::collections::{BTreeMap, HashMap};

use codeq_core::command::Millis;
use codeq_core::id::ShardId;
use codeq_core::keys::Seq;
use tokio::time::Instant;

use crate::dispatcher::{Call, Dispatcher, Full, Limits, Outcome, Receiver};

/// Maximum number of callbacks in memory: of one receiver, of one tenant, of all.
const WAITING_PER_RECEIVER_MAX: usize = 1_024;
const WAITING_PER_TENANT_MAX: usize = 16_384;
const WAITING_MAX: usize = 65_536;
/// Maximum number of receivers in memory: of one tenant, of all.
const RECEIVERS_PER_TENANT_MAX: usize = 1_024;
const RECEIVERS_MAX: usize = 4_096;

/// A callback: its shard, and the sequence number of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Callback {
    pub shard: ShardId,
    pub seq: Seq,
}

/// A place in the outbox of a shard: when a callback is due, and the sequence number of its task.
pub(crate) type Position = (Millis, Seq);

/// By shard, the first position to read.
pub(crate) type Positions = BTreeMap<ShardId, Position>;

#[derive(Debug)]
pub(crate) struct Backlog {
    dispatcher: Dispatcher<Callback>,
    /// Callbacks in flight. One that is found in the outbox meanwhile may be new, because its task was replayed and
    /// finished again: it is added once the call is done.
    in_flight: HashMap<Callback, Option<(Receiver, Millis)>>,
    /// The positions of the first callbacks that did not fit, by the limit that they exceeded.
    overflow: HashMap<Full, Positions>,
    /// The positions to read again, because there is room now.
    again: Positions,
}

impl Backlog {
    pub fn new(calls: usize, calls_per_host: usize) -> Backlog {
        let limits = Limits {
            calls,
            calls_per_tenant: (calls / 2).max(1),
            calls_per_host,
            waiting: WAITING_MAX,
            waiting_per_tenant: WAITING_PER_TENANT_MAX,
            waiting_per_receiver: WAITING_PER_RECEIVER_MAX,
            receivers: RECEIVERS_MAX,
            receivers_per_tenant: RECEIVERS_PER_TENANT_MAX,
        };
        Backlog {
            dispatcher: Dispatcher::new(limits),
            in_flight: HashMap::new(),
            overflow: HashMap::new(),
            again: Positions::new(),
        }
    }

    /// Adds a callback that is due, unless it is known already.
    pub fn add(&mut self, to: Receiver, callback: Callback, at: Millis) {
        if let Some(found) = self.in_flight.get_mut(&callback) {
            *found = Some((to, at));
            return;
        }
        if self.dispatcher.is_waiting(&callback) {
            return;
        }
        // Later callbacks must not overtake those that did not fit, which might then never be sent.
        let mut limits = limits_of(to).into_iter();
        let added = match limits.find(|limit| self.overflow.contains_key(limit)) {
            Some(behind) => Err(behind),
            None => self.dispatcher.add(to, callback),
        };
        if let Err(limit) = added {
            note(self.overflow.entry(limit).or_default(), callback.shard, (at, callback.seq));
        }
    }

    pub fn next_call(&mut self) -> Option<Call<Callback>> {
        let call = self.dispatcher.next_call()?;
        self.in_flight.insert(call.item, None);
        Some(call)
    }

    pub fn done(&mut self, call: Call<Callback>, outcome: Outcome, now: Instant) {
        let found = self.in_flight.remove(&call.item).flatten();
        self.dispatcher.done(call, outcome, now);
        if let Some((to, at)) = found {
            self.add(to, call.item, at);
        }
        self.refill(call.to);
    }

    /// Ends the pauses that are over.
    pub fn wake(&mut self, now: Instant) {
        for receiver in self.dispatcher.wake(now) {
            self.refill(receiver);
        }
    }

    pub fn next_wake(&self) -> Option<Instant> {
        self.dispatcher.next_wake()
    }

    /// Where to read callbacks that did not fit and may fit now.
    pub fn take_again(&mut self) -> Positions {
        std::mem::take(&mut self.again)
    }

    /// Schedules another read of what did not fit, as far as this receiver has made room for it.
    fn refill(&mut self, receiver: Receiver) {
        for limit in limits_of(receiver) {
            if self.dispatcher.has_room(limit)
                && let Some(positions) = self.overflow.remove(&limit)
            {
                for (shard, position) in positions {
                    note(&mut self.again, shard, position);
                }
            }
        }
    }
}

/// The limits that callbacks to a receiver may exceed.
fn limits_of(receiver: Receiver) -> [Full; 3] {
    [Full::Receiver(receiver), Full::Tenant(receiver.tenant), Full::All]
}

/// Records a position of a shard, unless an earlier one is recorded.
pub(crate) fn note(positions: &mut Positions, shard: ShardId, position: Position) {
    positions.entry(shard).and_modify(|first| *first = position.min(*first)).or_insert(position);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(backlog: &mut Backlog, tenant: u64, host: u64, seq: u64) {
        backlog.add(Receiver { tenant, host }, Callback { shard: ShardId(0), seq: Seq(seq) }, seq);
    }

    /// Each receiver belongs to a tenant of its own.
    fn filled(calls: usize, per_host: usize, receivers: u64, callbacks: u64) -> Backlog {
        let mut backlog = Backlog::new(calls, per_host);
        for seq in 0..callbacks {
            add(&mut backlog, seq % receivers, seq % receivers, seq);
        }
        backlog
    }

    fn all(backlog: &mut Backlog) -> Vec<Call<Callback>> {
        std::iter::from_fn(|| backlog.next_call()).collect()
    }

    fn seqs(calls: &[Call<Callback>]) -> Vec<u64> {
        calls.iter().map(|call| call.item.seq.0).collect()
    }

    /// Makes calls until something has to be read again; returns how many.
    fn until_again(backlog: &mut Backlog) -> (usize, Positions) {
        for done in 1.. {
            let call = backlog.next_call().expect("something waits");
            backlog.done(call, Outcome::Delivered, Instant::now());
            let again = backlog.take_again();
            if !again.is_empty() {
                return (done, again);
            }
        }
        unreachable!()
    }

    #[test]
    fn a_waiting_callback_is_sent_once_and_then_forgotten() {
        let mut backlog = Backlog::new(10, 10);
        add(&mut backlog, 1, 1, 5);
        add(&mut backlog, 1, 1, 5);
        let calls = all(&mut backlog);
        assert_eq!(seqs(&calls), [5]);
        backlog.done(calls[0], Outcome::Failed, Instant::now());
        assert_eq!(all(&mut backlog), []);
        add(&mut backlog, 1, 1, 5);
        assert_eq!(seqs(&all(&mut backlog)), [5]);
    }

    #[test]
    fn a_callback_found_during_its_call_is_sent_afterwards() {
        let mut backlog = Backlog::new(10, 10);
        add(&mut backlog, 1, 1, 5);
        let calls = all(&mut backlog);
        add(&mut backlog, 1, 1, 5);
        assert_eq!(all(&mut backlog), [], "one call at a time");
        backlog.done(calls[0], Outcome::Failed, Instant::now());
        let again = all(&mut backlog);
        assert_eq!(seqs(&again), [5]);
        backlog.done(again[0], Outcome::Skipped, Instant::now());
        assert_eq!(all(&mut backlog), []);
    }

    #[test]
    fn callbacks_that_did_not_fit_are_read_again_in_order() {
        let max = WAITING_PER_RECEIVER_MAX as u64;
        let many = max + 500;
        let mut backlog = filled(1, 1, 1, many);
        assert_eq!(backlog.dispatcher.waiting(), WAITING_PER_RECEIVER_MAX);
        assert_eq!(backlog.take_again(), Positions::new());
        let mut sent = Vec::new();
        while let Some(call) = backlog.next_call() {
            sent.push(call.item.seq.0);
            backlog.done(call, Outcome::Delivered, Instant::now());
            for (shard, (at, _)) in backlog.take_again() {
                assert_eq!((shard, at), (ShardId(0), max), "the first that did not fit");
                (at..many).for_each(|seq| add(&mut backlog, 0, 0, seq));
            }
        }
        assert_eq!(sent, (0..many).collect::<Vec<_>>());
        assert!(backlog.dispatcher.is_empty() && backlog.in_flight.is_empty());
        assert!(backlog.overflow.is_empty());
    }

    #[test]
    fn later_ones_do_not_overtake_those_that_did_not_fit() {
        let mut backlog = filled(1, 1, 1, WAITING_PER_RECEIVER_MAX as u64 + 1);
        let call = backlog.next_call().unwrap();
        backlog.done(call, Outcome::Delivered, Instant::now());
        add(&mut backlog, 0, 0, 9_999);
        assert_eq!(backlog.dispatcher.waiting(), WAITING_PER_RECEIVER_MAX - 1);
    }

    #[test]
    fn too_many_receivers_wait_their_turn() {
        let many = RECEIVERS_MAX as u64 + 10;
        let mut backlog = filled(1, 1, many, many);
        assert_eq!(backlog.dispatcher.receivers(), RECEIVERS_MAX);
        let (done, again) = until_again(&mut backlog);
        assert_eq!(done, RECEIVERS_MAX / 16);
        let first = RECEIVERS_MAX as u64;
        assert_eq!(again, Positions::from([(ShardId(0), (first, Seq(first)))]));
        add(&mut backlog, first, first, first);
        assert_eq!(backlog.dispatcher.receivers(), RECEIVERS_MAX - done + 1);
    }

    #[test]
    fn too_many_receivers_of_one_tenant_wait_their_turn() {
        let mut backlog = Backlog::new(8, 4);
        for seq in 0..5_000 {
            add(&mut backlog, 1, seq, seq);
        }
        assert_eq!(backlog.dispatcher.receivers(), RECEIVERS_PER_TENANT_MAX);
        let calls = all(&mut backlog);
        assert_eq!(calls.len(), 4);
        add(&mut backlog, 2, 99_999, 9_000);
        assert_eq!(seqs(&all(&mut backlog)), [9_000], "another tenant has room");
        backlog.done(calls[0], Outcome::Delivered, Instant::now());
        let (done, again) = until_again(&mut backlog);
        assert_eq!(done + 1, RECEIVERS_PER_TENANT_MAX / 16);
        let first = RECEIVERS_PER_TENANT_MAX as u64;
        assert_eq!(again, Positions::from([(ShardId(0), (first, Seq(first)))]));
    }

    #[test]
    fn a_long_backlog_of_one_tenant_is_read_rarely_and_sent_once() {
        let many = 2 * WAITING_PER_TENANT_MAX as u64;
        let host = |seq| seq % 64;
        let mut backlog = Backlog::new(1, 1);
        (0..many).for_each(|seq| add(&mut backlog, 1, host(seq), seq));
        assert_eq!(backlog.dispatcher.waiting(), WAITING_PER_TENANT_MAX);
        let (mut sent, mut reads) = (vec![false; many as usize], 0);
        while let Some(call) = backlog.next_call() {
            let seq = call.item.seq.0;
            assert!(!std::mem::replace(&mut sent[seq as usize], true), "{seq} is sent once");
            backlog.done(call, Outcome::Delivered, Instant::now());
            for (_, (first, _)) in backlog.take_again() {
                reads += 1;
                (first..many).for_each(|seq| add(&mut backlog, 1, host(seq), seq));
            }
        }
        assert!(sent.iter().all(|sent| *sent));
        assert_eq!(reads, 16);
        assert!(backlog.dispatcher.is_empty() && backlog.overflow.is_empty());
    }

    #[test]
    fn later_ones_of_a_tenant_do_not_overtake_those_that_did_not_fit() {
        let mut backlog = Backlog::new(1, 1);
        (0..=WAITING_PER_TENANT_MAX as u64).for_each(|seq| add(&mut backlog, 1, seq % 64, seq));
        let call = backlog.next_call().unwrap();
        backlog.done(call, Outcome::Delivered, Instant::now());
        add(&mut backlog, 1, 99, 99_999);
        assert_eq!(backlog.dispatcher.waiting(), WAITING_PER_TENANT_MAX - 1);
    }

    #[test]
    fn failing_receivers_that_are_remembered_leave_room_for_what_did_not_fit() {
        let many = 2 * RECEIVERS_PER_TENANT_MAX as u64;
        let mut backlog = Backlog::new(8, 4);
        (0..many).for_each(|seq| add(&mut backlog, 1, seq, seq));
        let (mut sent, mut now) = (0, Instant::now());
        loop {
            for call in all(&mut backlog) {
                sent += 1;
                backlog.done(call, Outcome::Failed, now);
            }
            let again = backlog.take_again();
            for (first, _) in again.values() {
                (*first..many).for_each(|seq| add(&mut backlog, 1, seq, seq));
            }
            let Some(next) = backlog.next_wake() else {
                if again.is_empty() && backlog.dispatcher.waiting() == 0 {
                    break;
                }
                continue;
            };
            now = next;
            backlog.wake(now);
        }
        assert_eq!(sent, many);
    }
}
