//! Decides which call is made next.
//!
//! Tenants take turns, and so do the receivers of one tenant. Calls in flight are limited in total, per tenant and, for
//! all tenants together, per host, so a receiver that hangs delays only calls to the same host. A receiver that keeps
//! failing is paused after each call, a little longer every time, and failing receivers together get at most half of the
//! calls.
//!
//! Pure: callers pass the time in, and make the calls.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// A receiver is failing after this many failures in a row.
const FAILING_AFTER: u32 = 3;
/// How long a failing receiver is paused after a call: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a receiver is paused after a call that has to be made again.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Divisor. A limit that several receivers share (a tenant's, or the total) has room again once a sixteenth of it is
/// free; for a tenant's callbacks that is as many as one receiver's queue holds. The part must be below half, because
/// remembered failing receivers may fill half of the receivers' limit.
const SHARED_ROOM: usize = 16;

/// A receiver: a host and port that one tenant calls. Both fields are hashes, see
/// [`name_hash`](codeq_core::callback_retry::name_hash).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Receiver {
    pub tenant: u64,
    pub host: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum number of calls in flight.
    pub calls: usize,
    pub calls_per_tenant: usize,
    pub calls_per_host: usize,
    /// Maximum number of waiting items.
    pub waiting: usize,
    pub waiting_per_tenant: usize,
    pub waiting_per_receiver: usize,
    /// Maximum number of receivers in memory.
    pub receivers: usize,
    pub receivers_per_tenant: usize,
}

/// Which limit left no room for an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Full {
    All,
    Tenant(u64),
    Receiver(Receiver),
}

/// A call to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call<T> {
    pub to: Receiver,
    pub item: T,
    /// The receiver was failing when the call was handed out.
    failing: bool,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The receiver accepted it.
    Delivered,
    /// The receiver did not accept it.
    Failed,
    /// There was nothing to send.
    Skipped,
    /// It could not be tried, through no fault of the receiver, or it is unknown whether its outcome was recorded. The item
    /// waits again, ahead of the others.
    Busy,
}

/// Items that wait to be sent, and calls in flight.
#[derive(Debug)]
pub(crate) struct Dispatcher<T> {
    limits: Limits,
    tenants: HashMap<u64, Tenant>,
    receivers: HashMap<Receiver, State<T>>,
    /// Tenants with a callable receiver, next one first.
    ready: VecDeque<u64>,
    /// Waiting items, each of which waits only once.
    waiting: HashSet<T>,
    /// Calls in flight to each host, by any tenant.
    hosts: HashMap<u64, usize>,
    paused: BinaryHeap<Reverse<(Instant, Receiver)>>,
    running: usize,
    running_failing: usize,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Hosts of its callable receivers, next one first.
    ready: VecDeque<u64>,
    /// Whether the tenant is in the dispatcher's `ready`.
    is_ready: bool,
    waiting: usize,
    receivers: usize,
    running: usize,
}

/// What is known of a receiver.
#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    /// Calls in flight, and pauses.
    busy: usize,
    /// Failures in a row.
    failures: u32,
    /// Whether the receiver is in its tenant's `ready`.
    is_ready: bool,
}

impl<T> Default for State<T> {
    fn default() -> State<T> {
        State { waiting: VecDeque::new(), busy: 0, failures: 0, is_ready: false }
    }
}

impl<T> State<T> {
    fn is_failing(&self) -> bool {
        self.failures >= FAILING_AFTER
    }

    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(FAILING_AFTER).min(16);
        PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX)
    }
}

impl<T: Clone + Eq + Hash> Dispatcher<T> {
    pub fn new(limits: Limits) -> Dispatcher<T> {
        Dispatcher {
            limits,
            tenants: HashMap::new(),
            receivers: HashMap::new(),
            ready: VecDeque::new(),
            waiting: HashSet::new(),
            hosts: HashMap::new(),
            paused: BinaryHeap::new(),
            running: 0,
            running_failing: 0,
        }
    }

    /// Queues an item, unless it is waiting already.
    pub fn add(&mut self, to: Receiver, item: T) -> Result<(), Full> {
        if self.waiting.contains(&item) {
            return Ok(());
        }
        let limits = self.limits;
        let is_new = !self.receivers.contains_key(&to);
        if self.waiting.len() >= limits.waiting
            || (is_new && self.receivers.len() >= limits.receivers)
        {
            return Err(Full::All);
        }
        let tenant = self.tenants.entry(to.tenant).or_default();
        if tenant.waiting >= limits.waiting_per_tenant
            || (is_new && tenant.receivers >= limits.receivers_per_tenant)
        {
            return Err(Full::Tenant(to.tenant));
        }
        let receiver = self.receivers.entry(to).or_default();
        if receiver.waiting.len() >= limits.waiting_per_receiver {
            return Err(Full::Receiver(to));
        }
        tenant.receivers += usize::from(is_new);
        tenant.waiting += 1;
        receiver.waiting.push_back(item.clone());
        self.waiting.insert(item);
        self.mark_ready(to);
        Ok(())
    }

    /// Whether to offer again the items that this limit refused. Callers read them from disk, so there must be room for
    /// many: three quarters of a receiver's queue. For a limit that receivers share, a small part is enough
    /// ([`SHARED_ROOM`]): hanging receivers free it slowly, and the others must not wait for them.
    pub fn has_room(&self, limit: Full) -> bool {
        let limits = &self.limits;
        let has_room = |used: usize, max: usize| used + (max / SHARED_ROOM).max(1) <= max;
        match limit {
            Full::All => {
                has_room(self.waiting.len(), limits.waiting)
                    && has_room(self.receivers.len(), limits.receivers)
            }
            Full::Tenant(id) => self.tenants.get(&id).is_none_or(|tenant| {
                has_room(tenant.waiting, limits.waiting_per_tenant)
                    && has_room(tenant.receivers, limits.receivers_per_tenant)
            }),
            Full::Receiver(to) => self
                .receivers
                .get(&to)
                .is_none_or(|receiver| receiver.waiting.len() <= limits.waiting_per_receiver / 4),
        }
    }

    /// The next call to make now. The caller reports its end to [`Dispatcher::done`].
    pub fn next_call(&mut self) -> Option<Call<T>> {
        if self.running >= self.limits.calls {
            return None;
        }
        for _ in 0..self.ready.len() {
            let id = self.ready.pop_front()?;
            let call = self.next_of(id);
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.is_ready = !tenant.ready.is_empty();
                if tenant.is_ready {
                    self.ready.push_back(id);
                }
            }
            if call.is_some() {
                return call;
            }
        }
        None
    }

    /// The next call of a tenant, if it may make one.
    fn next_of(&mut self, id: u64) -> Option<Call<T>> {
        let Limits { calls, calls_per_tenant, calls_per_host, .. } = self.limits;
        let tenant = self.tenants.get_mut(&id)?;
        if tenant.running >= calls_per_tenant {
            return None;
        }
        for _ in 0..tenant.ready.len() {
            let host = tenant.ready.pop_front()?;
            let to = Receiver { tenant: id, host };
            let Some(receiver) = self.receivers.get_mut(&to) else { continue };
            let failing = receiver.is_failing();
            let host_is_full = self.hosts.get(&host).is_some_and(|calls| *calls >= calls_per_host);
            if host_is_full || (failing && self.running_failing >= (calls / 2).max(1)) {
                tenant.ready.push_back(host);
                continue;
            }
            receiver.is_ready = false;
            let Some(item) = receiver.waiting.pop_front() else { continue };
            self.waiting.remove(&item);
            receiver.busy += 1;
            tenant.waiting = tenant.waiting.saturating_sub(1);
            tenant.running += 1;
            self.running += 1;
            self.running_failing += usize::from(failing);
            *self.hosts.entry(host).or_default() += 1;
            self.mark_ready(to);
            return Some(Call { to, item, failing });
        }
        None
    }

    /// Records how a call ended. The receiver can be called again at once, or after a pause.
    pub fn done(&mut self, call: Call<T>, outcome: Outcome, now: Instant) {
        let Call { to, item, failing } = call;
        self.running = self.running.saturating_sub(1);
        self.running_failing = self.running_failing.saturating_sub(usize::from(failing));
        if let Some(running) = self.hosts.get_mut(&to.host) {
            *running = running.saturating_sub(1);
            if *running == 0 {
                self.hosts.remove(&to.host);
            }
        }
        let tenant = self.tenants.entry(to.tenant).or_default();
        tenant.running = tenant.running.saturating_sub(1);
        let Some(receiver) = self.receivers.get_mut(&to) else { return };
        let pause = match outcome {
            Outcome::Skipped => None,
            Outcome::Delivered => {
                receiver.failures = 0;
                None
            }
            Outcome::Failed => {
                receiver.failures = receiver.failures.saturating_add(1);
                receiver.is_failing().then(|| receiver.pause())
            }
            Outcome::Busy => {
                // Unless it was queued again meanwhile.
                if self.waiting.insert(item.clone()) {
                    tenant.waiting += 1;
                    receiver.waiting.push_front(item);
                }
                Some(BUSY_PAUSE)
            }
        };
        match pause {
            Some(pause) => self.paused.push(Reverse((now + pause, to))),
            None => self.free(to),
        }
    }

    /// Ends the pauses that are over, and returns their receivers.
    pub fn wake(&mut self, now: Instant) -> Vec<Receiver> {
        let mut woken = Vec::new();
        while let Some(Reverse((at, to))) = self.paused.peek().copied()
            && at <= now
        {
            self.paused.pop();
            self.free(to);
            woken.push(to);
        }
        woken
    }

    /// When the next pause is over.
    pub fn next_wake(&self) -> Option<Instant> {
        self.paused.peek().map(|Reverse((at, _))| *at)
    }

    /// Frees the slot of a call or a pause of this receiver that is over.
    fn free(&mut self, to: Receiver) {
        let Limits { receivers, receivers_per_tenant, .. } = self.limits;
        let crowded = self.receivers.len() > receivers / 2;
        let Some(receiver) = self.receivers.get_mut(&to) else { return };
        receiver.busy = receiver.busy.saturating_sub(1);
        let idle = receiver.waiting.is_empty() && receiver.busy == 0;
        if let Some(tenant) = self.tenants.get_mut(&to.tenant) {
            let crowded = crowded || tenant.receivers > receivers_per_tenant / 2;
            // A failing receiver is remembered as long as there is room.
            if idle && (receiver.failures == 0 || crowded) {
                self.receivers.remove(&to);
                tenant.receivers = tenant.receivers.saturating_sub(1);
            }
            if tenant.receivers == 0 && tenant.running == 0 {
                self.tenants.remove(&to.tenant);
            }
        }
        self.mark_ready(to);
    }

    /// Puts a receiver in line for a call, if it has something to send and may be called.
    fn mark_ready(&mut self, to: Receiver) {
        let Some(receiver) = self.receivers.get_mut(&to) else { return };
        let may_call = receiver.busy < self.limits.calls_per_host;
        if receiver.is_ready || receiver.waiting.is_empty() || !may_call {
            return;
        }
        receiver.is_ready = true;
        let tenant = self.tenants.entry(to.tenant).or_default();
        tenant.ready.push_back(to.host);
        if !tenant.is_ready {
            tenant.is_ready = true;
            self.ready.push_back(to.tenant);
        }
    }

    pub fn is_waiting(&self, item: &T) -> bool {
        self.waiting.contains(item)
    }

    /// How many items wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests;
