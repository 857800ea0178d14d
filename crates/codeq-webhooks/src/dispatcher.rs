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
/// The rest of a slot whose call could not be tried.
const BUSY_REST: Duration = Duration::from_millis(100);

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
    /// It could not be tried yet.
    Busy,
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
        let busy = went == Went::Busy;
        if !busy {
            self.known.remove(&(due.shard, due.seq));
        }
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
            tenant.known = tenant.known.saturating_sub(usize::from(!busy));
        }
        let Some(receiver) = self.receivers.get_mut(&to) else { return };
        match went {
            Went::Well => receiver.failures = 0,
            Went::Badly => receiver.failures = receiver.failures.saturating_add(1),
            Went::Nowhere => {}
            // First in line again, once the slot has rested.
            Went::Busy => receiver.waiting.push_front(due),
        }
        if busy {
            self.resting.push(Reverse((now + BUSY_REST, to)));
        } else if went == Went::Badly && receiver.is_failing() {
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
pub(crate) fn note(positions: &mut BTreeMap<u16, Position>, shard: u16, position: Position) {
    positions.entry(shard).and_modify(|first| *first = position.min(*first)).or_insert(position);
}

#[cfg(test)]
mod tests;
