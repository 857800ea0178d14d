//! Who is called next: fair between tenants and their receivers, patient with those that are down.
//!
//! Pure: time comes in, decisions come out. A receiver is a host and port of one tenant. Each has a queue and a
//! few slots. Tenants take turns, and so do the receivers of each; none has more than half of all slots. A slot
//! whose call failed rests before it is used again, a little longer with every failure in a row, so that a
//! receiver that is down costs next to nothing however much waits for it; and receivers that keep failing share
//! half of the slots as well. What does not fit into memory stays where it is, in the outbox: the position is
//! noted, and looked at again when there is room.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use codeq_core::command::Millis;

/// Callbacks of one receiver in memory.
const WAITING_MAX: usize = 1_024;
/// With so few left, those that did not fit are looked for.
const WAITING_LOW: usize = 256;
/// Callbacks in memory, of one tenant and of all.
const TENANT_TOTAL_MAX: usize = 16_384;
const TOTAL_MAX: usize = 65_536;
/// Receivers in memory, of one tenant and of all.
const TENANT_RECEIVERS_MAX: usize = 1_024;
const RECEIVERS_MAX: usize = 4_096;
/// A receiver is failing after so many failures in a row.
const FAILING_AFTER: u32 = 3;
/// The first rest of a slot of a failing receiver, and the longest.
const REST_MIN: Duration = Duration::from_millis(50);
const REST_MAX: Duration = Duration::from_secs(1);

/// A callback that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Due {
    /// Its shard.
    pub shard: u16,
    /// When it was due.
    pub at: Millis,
    /// The number of its task.
    pub seq: u64,
}

/// A place in the outbox of a shard.
pub type Position = (Millis, u64);

/// A receiver: the number of the tenant, and that of the host and port.
pub type Whom = (u64, u64);

/// A call to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The receiver.
    pub to: Whom,
    /// What is sent.
    pub due: Due,
    /// The receiver had failed several times in a row.
    failing: bool,
}

/// How a call went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Went {
    /// The receiver took it.
    Well,
    /// It did not.
    Badly,
    /// There was nothing to send.
    Nowhere,
}

/// The calls that wait and run.
#[derive(Debug)]
pub struct Schedule {
    tenants: HashMap<u64, Tenant>,
    receivers: HashMap<Whom, Receiver>,
    /// Tenants with receivers that have a turn, in turn.
    turns: VecDeque<u64>,
    known: HashSet<(u16, u64)>,
    /// Calls that run, by host and port, whosoever they are.
    hosts: HashMap<u64, usize>,
    resting: BinaryHeap<Reverse<(Instant, Whom)>>,
    running: usize,
    running_failing: usize,
    /// What did not fit.
    left: BTreeMap<u16, Position>,
    /// Positions to be looked at again.
    again: BTreeMap<u16, Position>,
    slots: usize,
    slots_each: usize,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Receivers with something to send and a slot to send it, in turn.
    turns: VecDeque<u64>,
    has_turn: bool,
    /// Callbacks in memory.
    known: usize,
    receivers: usize,
    running: usize,
    /// What did not fit.
    left: BTreeMap<u16, Position>,
}

#[derive(Debug, Default)]
struct Receiver {
    waiting: VecDeque<Due>,
    /// Slots that run or rest.
    busy: usize,
    failures: u32,
    has_turn: bool,
    /// What did not fit.
    left: BTreeMap<u16, Position>,
}

impl Receiver {
    fn is_failing(&self) -> bool {
        self.failures >= FAILING_AFTER
    }

    fn rest(&self) -> Duration {
        let doublings = self.failures.saturating_sub(FAILING_AFTER).min(16);
        REST_MIN.saturating_mul(1 << doublings).min(REST_MAX)
    }
}

impl Schedule {
    /// With so many calls at once, and so many to one host and port.
    pub fn new(slots: usize, slots_each: usize) -> Schedule {
        Schedule {
            tenants: HashMap::new(),
            receivers: HashMap::new(),
            turns: VecDeque::new(),
            known: HashSet::new(),
            hosts: HashMap::new(),
            resting: BinaryHeap::new(),
            running: 0,
            running_failing: 0,
            left: BTreeMap::new(),
            again: BTreeMap::new(),
            slots,
            slots_each,
        }
    }

    /// A callback is due. It may be known already.
    pub fn add(&mut self, to: Whom, due: Due) {
        if self.known.contains(&(due.shard, due.seq)) {
            return;
        }
        let position = (due.at, due.seq);
        let new = !self.receivers.contains_key(&to);
        if self.known.len() >= TOTAL_MAX || (new && self.receivers.len() >= RECEIVERS_MAX) {
            note(&mut self.left, due.shard, position);
            return;
        }
        let tenant = self.tenants.entry(to.0).or_default();
        if tenant.known >= TENANT_TOTAL_MAX || (new && tenant.receivers >= TENANT_RECEIVERS_MAX) {
            note(&mut tenant.left, due.shard, position);
            return;
        }
        tenant.receivers += usize::from(new);
        let receiver = self.receivers.entry(to).or_default();
        // Nobody overtakes those that did not fit, or they might never.
        if receiver.waiting.len() >= WAITING_MAX || !receiver.left.is_empty() {
            note(&mut receiver.left, due.shard, position);
            return;
        }
        tenant.known += 1;
        self.known.insert((due.shard, due.seq));
        receiver.waiting.push_back(due);
        self.give_turn(to);
    }

    /// The next call to be made now. The caller says with [`Schedule::done`] how it went.
    pub fn next_call(&mut self) -> Option<Call> {
        if self.running >= self.slots {
            return None;
        }
        for _ in 0..self.turns.len() {
            let id = self.turns.pop_front()?;
            let call = self.next_of(id);
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.has_turn = !tenant.turns.is_empty();
                if tenant.has_turn {
                    self.turns.push_back(id);
                }
            }
            if call.is_some() {
                return call;
            }
        }
        None
    }

    /// The next call of a tenant, if it may have one.
    fn next_of(&mut self, id: u64) -> Option<Call> {
        let half = (self.slots / 2).max(1);
        let tenant = self.tenants.get_mut(&id)?;
        if tenant.running >= half {
            return None;
        }
        for _ in 0..tenant.turns.len() {
            let host = tenant.turns.pop_front()?;
            let Some(receiver) = self.receivers.get_mut(&(id, host)) else { continue };
            let failing = receiver.is_failing();
            let full = self.hosts.get(&host).is_some_and(|running| *running >= self.slots_each);
            if full || (failing && self.running_failing >= half) {
                tenant.turns.push_back(host);
                continue;
            }
            receiver.has_turn = false;
            let Some(due) = receiver.waiting.pop_front() else { continue };
            receiver.busy += 1;
            tenant.running += 1;
            self.running += 1;
            self.running_failing += usize::from(failing);
            *self.hosts.entry(host).or_default() += 1;
            let to = (id, host);
            self.give_turn(to);
            return Some(Call { to, due, failing });
        }
        None
    }

    /// A call has ended.
    pub fn done(&mut self, call: Call, went: Went, now: Instant) {
        let Call { to, due, failing } = call;
        self.known.remove(&(due.shard, due.seq));
        self.running = self.running.saturating_sub(1);
        self.running_failing = self.running_failing.saturating_sub(usize::from(failing));
        if let Some(running) = self.hosts.get_mut(&to.1) {
            *running = running.saturating_sub(1);
            if *running == 0 {
                self.hosts.remove(&to.1);
            }
        }
        if let Some(tenant) = self.tenants.get_mut(&to.0) {
            tenant.running = tenant.running.saturating_sub(1);
            tenant.known = tenant.known.saturating_sub(1);
        }
        let Some(receiver) = self.receivers.get_mut(&to) else { return };
        match went {
            Went::Well => receiver.failures = 0,
            Went::Badly => receiver.failures = receiver.failures.saturating_add(1),
            Went::Nowhere => {}
        }
        if went == Went::Badly && receiver.is_failing() {
            self.resting.push(Reverse((now + receiver.rest(), to)));
        } else {
            self.free(to);
        }
    }

    /// Slots that have rested are free again.
    pub fn wake(&mut self, now: Instant) {
        while let Some(Reverse((at, to))) = self.resting.peek().copied()
            && at <= now
        {
            self.resting.pop();
            self.free(to);
        }
    }

    /// When the next slot has rested.
    pub fn next_wake(&self) -> Option<Instant> {
        self.resting.peek().map(|Reverse((at, _))| *at)
    }

    /// Where to look again for what did not fit, by shard.
    pub fn take_again(&mut self) -> BTreeMap<u16, Position> {
        std::mem::take(&mut self.again)
    }

    fn free(&mut self, to: Whom) {
        let crowded = self.receivers.len() > RECEIVERS_MAX / 2;
        let Some(receiver) = self.receivers.get_mut(&to) else { return };
        receiver.busy = receiver.busy.saturating_sub(1);
        if receiver.waiting.len() <= WAITING_LOW {
            again(&mut self.again, &mut receiver.left);
        }
        let idle = receiver.waiting.is_empty() && receiver.busy == 0;
        if let Some(tenant) = self.tenants.get_mut(&to.0) {
            let crowded = crowded || tenant.receivers > TENANT_RECEIVERS_MAX / 2;
            // One that was failing is remembered, as long as there is room.
            if idle && (receiver.failures == 0 || crowded) {
                self.receivers.remove(&to);
                tenant.receivers = tenant.receivers.saturating_sub(1);
            }
            if tenant.known < TENANT_TOTAL_MAX && tenant.receivers < TENANT_RECEIVERS_MAX {
                again(&mut self.again, &mut tenant.left);
            }
            if tenant.receivers == 0 && tenant.running == 0 && tenant.left.is_empty() {
                // Its place in the turns, if it has one, finds nobody.
                self.tenants.remove(&to.0);
            }
        }
        if self.receivers.len() < RECEIVERS_MAX && self.known.len() < TOTAL_MAX {
            again(&mut self.again, &mut self.left);
        }
        self.give_turn(to);
    }

    fn give_turn(&mut self, to: Whom) {
        let Some(receiver) = self.receivers.get_mut(&to) else { return };
        if receiver.has_turn || receiver.waiting.is_empty() || receiver.busy >= self.slots_each {
            return;
        }
        receiver.has_turn = true;
        let tenant = self.tenants.entry(to.0).or_default();
        tenant.turns.push_back(to.1);
        if !tenant.has_turn {
            tenant.has_turn = true;
            self.turns.push_back(to.0);
        }
    }
}

/// What did not fit is looked at again.
fn again(again: &mut BTreeMap<u16, Position>, left: &mut BTreeMap<u16, Position>) {
    for (shard, position) in std::mem::take(left) {
        note(again, shard, position);
    }
}

/// Notes a position of a shard, unless an earlier one is noted.
pub(super) fn note(positions: &mut BTreeMap<u16, Position>, shard: u16, position: Position) {
    positions.entry(shard).and_modify(|first| *first = position.min(*first)).or_insert(position);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(seq: u64) -> Due {
        Due { shard: 0, at: seq, seq }
    }

    /// Each receiver is a tenant's of its own.
    fn filled(slots: usize, each: usize, receivers: u64, callbacks: u64) -> Schedule {
        let mut schedule = Schedule::new(slots, each);
        for seq in 0..callbacks {
            schedule.add((seq % receivers, seq % receivers), due(seq));
        }
        schedule
    }

    fn all(schedule: &mut Schedule) -> Vec<Call> {
        std::iter::from_fn(|| schedule.next_call()).collect()
    }

    fn seqs(calls: &[Call]) -> Vec<u64> {
        calls.iter().map(|call| call.due.seq).collect()
    }

    #[test]
    fn receivers_take_turns_within_their_slots() {
        let mut schedule = filled(100, 2, 3, 30);
        let calls = all(&mut schedule);
        assert_eq!(seqs(&calls), [0, 1, 2, 3, 4, 5]);
        schedule.done(calls[1], Went::Well, Instant::now());
        assert_eq!(seqs(&all(&mut schedule)), [7], "the slot that is free is that receiver's");
        schedule.add((7, 7), due(100));
        schedule.add((1, 1), due(1));
        assert_eq!(seqs(&all(&mut schedule)), [100], "nobody waits for another's slots");
    }

    #[test]
    fn all_slots_together_are_bounded() {
        let mut schedule = filled(4, 2, 10, 100);
        let calls = all(&mut schedule);
        assert_eq!(calls.len(), 4);
        schedule.done(calls[0], Went::Nowhere, Instant::now());
        assert_eq!(all(&mut schedule).len(), 1);
    }

    #[test]
    fn what_is_known_is_not_sent_twice_and_what_is_done_is_forgotten() {
        let mut schedule = Schedule::new(10, 10);
        schedule.add((1, 1), due(5));
        schedule.add((1, 1), due(5));
        let calls = all(&mut schedule);
        schedule.add((1, 1), due(5));
        assert_eq!((seqs(&calls), all(&mut schedule).len()), (vec![5], 0));
        schedule.done(calls[0], Went::Badly, Instant::now());
        schedule.add((1, 1), due(5));
        assert_eq!(seqs(&all(&mut schedule)), [5]);
    }

    /// Runs a receiver that never answers well for a while; how many calls were made.
    fn calls_to_the_dead(schedule: &mut Schedule, seconds: u64) -> usize {
        let start = Instant::now();
        let mut calls = 0;
        let mut now = start;
        while now < start + Duration::from_secs(seconds) {
            schedule.wake(now);
            for call in all(schedule) {
                calls += 1;
                schedule.done(call, Went::Badly, now);
            }
            now = schedule.next_wake().unwrap_or(now + Duration::from_millis(1));
        }
        calls
    }

    #[test]
    fn one_that_is_down_is_called_rarely_until_it_is_up() {
        let mut schedule = filled(64, 8, 1, 1_000);
        let calls = calls_to_the_dead(&mut schedule, 60);
        assert!((400..=560).contains(&calls), "{calls}");
        let later = Instant::now() + Duration::from_secs(120);
        schedule.wake(later);
        let call = schedule.next_call().unwrap();
        schedule.done(call, Went::Well, later);
        let calls = all(&mut schedule);
        assert_eq!(calls.len(), 8, "one good answer and all is as before");
        calls.iter().for_each(|call| schedule.done(*call, Went::Badly, later));
        assert_eq!(all(&mut schedule).len(), 8 - 6, "slots rest from the third failure on");
    }

    #[test]
    fn those_that_fail_leave_half_of_the_slots_to_the_others() {
        let mut schedule = filled(8, 8, 4, 400);
        let now = Instant::now();
        for _ in 0..20 {
            for call in all(&mut schedule) {
                schedule.done(call, Went::Badly, now);
            }
            schedule.wake(now + Duration::from_secs(9));
        }
        let hanging = all(&mut schedule);
        assert_eq!(hanging.len(), 4, "half, however many of them there are");
        for seq in 1_000..1_010 {
            schedule.add((9, 99), due(seq));
        }
        assert_eq!(all(&mut schedule).len(), 4);
    }

    #[test]
    fn what_does_not_fit_is_found_again_in_order() {
        let many = WAITING_MAX as u64 + 500;
        let mut schedule = filled(1, 1, 1, many);
        assert_eq!(schedule.known.len(), WAITING_MAX);
        assert_eq!(schedule.take_again(), BTreeMap::new());
        let mut sent = Vec::new();
        while let Some(call) = schedule.next_call() {
            sent.push(call.due.seq);
            schedule.done(call, Went::Well, Instant::now());
            for (shard, (at, _)) in schedule.take_again() {
                assert_eq!((shard, at), (0, WAITING_MAX as u64), "the first that did not fit");
                (at..many).for_each(|seq| schedule.add((0, 0), due(seq)));
            }
        }
        assert_eq!(sent, (0..many).collect::<Vec<_>>());
        assert!(schedule.receivers.is_empty() && schedule.known.is_empty());
    }

    #[test]
    fn later_ones_do_not_overtake_those_that_did_not_fit() {
        let mut schedule = filled(1, 1, 1, WAITING_MAX as u64 + 1);
        let call = schedule.next_call().unwrap();
        schedule.done(call, Went::Well, Instant::now());
        schedule.add((0, 0), due(9_999));
        assert_eq!(schedule.known.len(), WAITING_MAX - 1);
    }

    #[test]
    fn too_many_receivers_wait_their_turn() {
        let many = RECEIVERS_MAX as u64 + 10;
        let mut schedule = filled(1, 1, many, many);
        assert_eq!(schedule.receivers.len(), RECEIVERS_MAX);
        let call = schedule.next_call().unwrap();
        schedule.done(call, Went::Well, Instant::now());
        let first = RECEIVERS_MAX as u64;
        assert_eq!(schedule.take_again(), BTreeMap::from([(0, (first, first))]));
        schedule.add((first, first), due(first));
        assert_eq!(schedule.receivers.len(), RECEIVERS_MAX);
    }

    #[test]
    fn a_tenant_has_at_most_half_of_the_slots_and_others_their_turn() {
        let mut schedule = Schedule::new(8, 4);
        for seq in 0..5_000 {
            schedule.add((1, seq), due(seq));
        }
        assert_eq!(schedule.receivers.len(), TENANT_RECEIVERS_MAX);
        let hanging = all(&mut schedule);
        assert_eq!(hanging.len(), 4);
        for seq in 9_000..9_010 {
            schedule.add((2, 99_999), due(seq));
        }
        let theirs = all(&mut schedule);
        assert_eq!(seqs(&theirs), [9_000, 9_001, 9_002, 9_003]);
        schedule.done(hanging[0], Went::Well, Instant::now());
        schedule.done(theirs[0], Went::Well, Instant::now());
        let next = all(&mut schedule);
        assert_eq!(next.len(), 2);
        assert!(next[0].to.0 != next[1].to.0, "one of each");
        // What did not fit of the first tenant is found when it has room.
        let first = TENANT_RECEIVERS_MAX as u64;
        assert_eq!(schedule.take_again(), BTreeMap::from([(0, (first, first))]));
    }

    #[test]
    fn a_host_has_its_slots_whosoever_calls_it() {
        let mut schedule = Schedule::new(100, 3);
        for seq in 0..40 {
            schedule.add((seq % 4, 7), due(seq));
        }
        let calls = all(&mut schedule);
        assert_eq!(calls.len(), 3);
        schedule.done(calls[0], Went::Well, Instant::now());
        let next = all(&mut schedule);
        assert_eq!((next.len(), next[0].to.0), (1, 3), "the tenant that had none yet");
    }

    #[test]
    fn one_tenants_queue_at_a_host_does_not_hold_up_anothers() {
        let mut schedule = Schedule::new(100, 2);
        for seq in 0..WAITING_MAX as u64 {
            schedule.add((1, 7), due(seq));
        }
        schedule.add((2, 7), due(9_999));
        let calls = all(&mut schedule);
        assert_eq!(seqs(&calls), [0, 9_999]);
    }
}
