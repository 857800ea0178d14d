//! Which workers asked for which queues lately, for people to look at. It is in memory and bounded, and nothing else
//! depends on it.
//!
//! A repeated claim is recorded at most once a second. Streams check that by themselves, so most of their claims do not
//! come here. The locks are divided by name, and no claim allocates unless it names something new.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use codeq_core::command::{Claim, Millis, Selector};
use codeq_core::id::fnv1a64;
use codeq_core::names::{cut, queue_name};
use parking_lot::Mutex;

/// Maximum number of workers of one tenant. The one that has not asked for the longest time is forgotten first.
pub const WORKERS_PER_TENANT_MAX: usize = 2_048;
/// Maximum number of workers of all tenants.
const WORKERS_MAX: usize = 16_384;
/// Maximum number of queues of one tenant whose last claim is known, and of all tenants.
const QUEUES_PER_TENANT_MAX: usize = 10_240;
const QUEUES_MAX: usize = 65_536;
/// Queue names kept of a worker's last claim.
const QUEUES_SHOWN: usize = 16;
/// Bytes kept of a worker's last error.
const ERROR_BYTES_MAX: usize = 256;
/// Repeated claims are recorded this often.
pub const RESOLUTION: Duration = Duration::from_secs(1);
/// A worker counts as active for this long after a claim. A claim waits for 30 seconds at most, and then comes again.
pub const ACTIVE: Millis = 60_000;
/// A worker without a stream is listed for this long after its last claim.
const LISTED: Millis = 3_600_000;
const STRIPES: usize = 16;

/// The name under which claims of all queues are recorded. No queue has it.
const ANY: &str = "";

/// Recent claims of all tenants.
pub struct Activity {
    stripes: [Mutex<Stripe>; STRIPES],
    since: Millis,
}

#[derive(Default)]
struct Stripe {
    workers: PerTenant<Worker>,
    /// When each queue was last asked for.
    queues: PerTenant<Millis>,
}

#[derive(Default)]
struct Worker {
    last_claim: Option<Millis>,
    named: NamedQueues,
    last_error: Option<(Millis, Box<str>)>,
    streams: Arc<Streams>,
}

/// The queues that a worker's last claim named.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NamedQueues {
    /// The first of them; empty means all queues.
    pub queues: Vec<Arc<str>>,
    /// How many there were.
    pub count: usize,
    /// Tells apart lists that begin with the same names.
    hash: u64,
}

impl NamedQueues {
    fn is(&self, from: &Selector) -> bool {
        (self.count, self.hash) == (named(from).len(), hash(from))
    }

    fn new(from: &Selector) -> NamedQueues {
        let names = named(from);
        let queues = names.iter().take(QUEUES_SHOWN).map(Arc::clone).collect();
        NamedQueues { queues, count: names.len(), hash: hash(from) }
    }
}

fn named(from: &Selector) -> &[Arc<str>] {
    match from {
        Selector::Any => &[],
        Selector::Commands(names) => names,
    }
}

fn hash(from: &Selector) -> u64 {
    let add = |hash: u64, name: &Arc<str>| hash.rotate_left(5) ^ fnv1a64(name.as_bytes());
    named(from).iter().fold(0, add)
}

/// The open streams of a worker.
#[derive(Default)]
struct Streams {
    open: AtomicU32,
    slots: AtomicU32,
    /// Not all slots wait for what the last claim named.
    mixed: AtomicBool,
}

impl Streams {
    fn remove(&self, slots: u32) {
        if self.slots.fetch_sub(slots, Ordering::Relaxed) == slots {
            self.mixed.store(false, Ordering::Relaxed);
        }
    }
}

/// A worker as it was seen.
#[derive(Debug, Clone)]
pub struct WorkerSeen {
    /// Its identity: the token's subject, and the instance if it names one.
    pub id: Arc<str>,
    /// When it last asked for tasks, by engine time.
    pub last_claim: Option<Millis>,
    /// The queues that its last claim named.
    pub named: NamedQueues,
    /// Its open streams.
    pub streams: u32,
    /// Tasks that its streams could take now.
    pub slots: u32,
    /// Whether some of the slots wait for other queues than `named`.
    pub mixed: bool,
    /// The last failure it reported or refusal it got, and when, by engine time.
    pub last_error: Option<(Millis, Box<str>)>,
}

/// Counts one open stream, and the tasks that it could take, as long as it exists.
pub struct StreamSeen {
    streams: Arc<Streams>,
    slots: u32,
}

impl StreamSeen {
    /// The worker can take this many more tasks.
    pub fn ready(&mut self, slots: u32) {
        self.slots = self.slots.saturating_add(slots);
        self.streams.slots.fetch_add(slots, Ordering::Relaxed);
    }

    /// It was sent tasks for this many slots, or no longer waits for them.
    pub fn served(&mut self, slots: u32) {
        let slots = slots.min(self.slots);
        self.slots -= slots;
        self.streams.remove(slots);
    }
}

impl Drop for StreamSeen {
    fn drop(&mut self) {
        self.streams.remove(self.slots);
        self.streams.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Worker {
    /// When it was last active, to evict the oldest; `None` while it has a stream.
    fn last_active(&self) -> Option<Millis> {
        let streams = self.streams.open.load(Ordering::Relaxed);
        let error = self.last_error.as_ref().map(|(at, _)| *at);
        (streams == 0).then(|| self.last_claim.into_iter().chain(error).max().unwrap_or(0))
    }
}

impl Activity {
    /// Begins to record claims at `now`, by engine time.
    pub fn new(now: Millis) -> Activity {
        Activity { stripes: Default::default(), since: now }
    }

    /// When recording began, by engine time.
    pub fn since(&self) -> Millis {
        self.since
    }

    /// Records a claim that waits in this many slots of a stream.
    pub fn claimed(&self, claim: &Claim, slots: u32, now: Millis) {
        let Claim { tenant, worker, from, .. } = claim;
        if !self.record(tenant, worker, from, slots, now) {
            return;
        }
        match from {
            Selector::Any => self.record_queue(tenant, ANY, now),
            Selector::Commands(commands) => {
                commands.iter().for_each(|name| self.record_queue(tenant, &queue_name(name), now));
            }
        }
    }

    /// Records the claim of a worker; false if that was done within the last second.
    fn record(
        &self,
        tenant: &Arc<str>,
        id: &Arc<str>,
        from: &Selector,
        slots: u32,
        now: Millis,
    ) -> bool {
        let mut stripe = self.stripe(tenant, id).lock();
        let Some(worker) = stripe.worker(tenant, id) else {
            return true;
        };
        let recent = |at| now.saturating_sub(at) < RESOLUTION.as_millis() as Millis;
        let repeated = worker.last_claim.is_some() && worker.named.is(from);
        if repeated && worker.last_claim.is_some_and(recent) {
            return false;
        }
        worker.last_claim = Some(now);
        if !repeated {
            worker.named = NamedQueues::new(from);
            // The other slots wait for what an earlier claim named.
            let mixed = worker.streams.slots.load(Ordering::Relaxed) > slots;
            worker.streams.mixed.fetch_or(mixed, Ordering::Relaxed);
        }
        true
    }

    fn record_queue(&self, tenant: &Arc<str>, queue: &str, now: Millis) {
        let mut stripe = self.stripe(tenant, queue).lock();
        let (mine, all) = (QUEUES_PER_TENANT_MAX / STRIPES, QUEUES_MAX / STRIPES);
        if let Some(at) = stripe.queues.entry(tenant, queue, mine, all, |at| Some(*at)) {
            *at = now;
        }
    }

    /// Records a failure that a worker reported, or the refusal of its claim.
    pub fn failed(&self, tenant: &Arc<str>, id: &str, error: &str, now: Millis) {
        let mut stripe = self.stripe(tenant, id).lock();
        if let Some(worker) = stripe.worker(tenant, id) {
            worker.last_error = Some((now, cut(error, ERROR_BYTES_MAX).into()));
        }
    }

    /// Counts a stream of a worker until the result is dropped.
    pub fn stream(&self, tenant: &Arc<str>, id: &str) -> StreamSeen {
        let mut stripe = self.stripe(tenant, id).lock();
        let streams = stripe.worker(tenant, id).map(|worker| Arc::clone(&worker.streams));
        // Without room for another worker, the stream is counted nowhere.
        let streams = streams.unwrap_or_default();
        streams.open.fetch_add(1, Ordering::Relaxed);
        StreamSeen { streams, slots: 0 }
    }

    /// When a worker last asked for a queue, by engine time; `None` if that is not known.
    pub fn last_claim(&self, tenant: &str, queue: &str) -> Option<Millis> {
        let at = |name: &str| self.stripe(tenant, name).lock().queues.get(tenant, name).copied();
        at(queue).into_iter().chain(at(ANY)).max()
    }

    /// The tenant's workers with a stream, or a claim or an error within the last hour; the latest claim first.
    pub fn workers(&self, tenant: &str, now: Millis) -> Vec<WorkerSeen> {
        let mut all = Vec::new();
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            for (id, worker) in stripe.workers.tenants.get(tenant).into_iter().flatten() {
                if worker.last_active().is_some_and(|at| now.saturating_sub(at) > LISTED) {
                    continue;
                }
                all.push(WorkerSeen {
                    id: Arc::clone(id),
                    last_claim: worker.last_claim,
                    named: worker.named.clone(),
                    streams: worker.streams.open.load(Ordering::Relaxed),
                    slots: worker.streams.slots.load(Ordering::Relaxed),
                    mixed: worker.streams.mixed.load(Ordering::Relaxed),
                    last_error: worker.last_error.clone(),
                });
            }
        }
        all.sort_by(|a, b| b.last_claim.cmp(&a.last_claim).then_with(|| a.id.cmp(&b.id)));
        all
    }

    /// The workers of all tenants that have a stream or asked for tasks within the last minute.
    pub fn active(&self, now: Millis) -> u64 {
        let active = |worker: &&Worker| {
            let claimed = worker.last_claim.is_some_and(|at| now.saturating_sub(at) <= ACTIVE);
            claimed || worker.streams.open.load(Ordering::Relaxed) > 0
        };
        let count = |stripe: &Mutex<Stripe>| {
            let stripe = stripe.lock();
            stripe.workers.tenants.values().flat_map(HashMap::values).filter(active).count()
        };
        self.stripes.iter().map(count).sum::<usize>() as u64
    }

    #[allow(clippy::indexing_slicing, reason = "the index is below the number of stripes")]
    fn stripe(&self, tenant: &str, name: &str) -> &Mutex<Stripe> {
        let hash = fnv1a64(tenant.as_bytes()) ^ fnv1a64(name.as_bytes()).rotate_left(32);
        &self.stripes[(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % STRIPES]
    }
}

impl WorkerSeen {
    /// A worker that is known only because it holds tasks.
    pub fn unseen(id: Arc<str>) -> WorkerSeen {
        let named = NamedQueues::default();
        WorkerSeen {
            id,
            last_claim: None,
            named,
            streams: 0,
            slots: 0,
            mixed: false,
            last_error: None,
        }
    }

    /// Whether it could take a task of this queue now; `None` if not all queues that it waits for are remembered.
    pub fn waits_for(&self, queue: &str) -> Option<bool> {
        let NamedQueues { queues, count, .. } = &self.named;
        let named = |name: &Arc<str>| *queue_name(name) == *queue;
        match self.slots {
            0 => Some(false),
            _ if self.mixed => None,
            _ if *count == 0 || queues.iter().any(named) => Some(true),
            _ => (*count == queues.len()).then_some(false),
        }
    }
}

impl Stripe {
    fn worker(&mut self, tenant: &Arc<str>, id: &str) -> Option<&mut Worker> {
        let (mine, all) = (WORKERS_PER_TENANT_MAX / STRIPES, WORKERS_MAX / STRIPES);
        self.workers.entry(tenant, id, mine, all, Worker::last_active)
    }
}

/// Values by tenant and name, bounded for each tenant and in total.
struct PerTenant<V> {
    tenants: HashMap<Arc<str>, HashMap<Arc<str>, V>>,
    len: usize,
}

impl<V> Default for PerTenant<V> {
    fn default() -> PerTenant<V> {
        PerTenant { tenants: HashMap::new(), len: 0 }
    }
}

impl<V: Default> PerTenant<V> {
    fn get(&self, tenant: &str, name: &str) -> Option<&V> {
        self.tenants.get(tenant)?.get(name)
    }

    /// The value, created if it is new. If there is no room, evicts the value that was active the longest time ago: of
    /// this tenant if the tenant is full, otherwise of all. Never evicts a value for which `last_active` is `None`;
    /// returns `None` if nothing can be evicted.
    fn entry(
        &mut self,
        tenant: &Arc<str>,
        name: &str,
        tenant_max: usize,
        max: usize,
        last_active: impl Fn(&V) -> Option<Millis>,
    ) -> Option<&mut V> {
        if self.get(tenant, name).is_none() {
            let ours = self.tenants.get(tenant).map_or(0, HashMap::len);
            let full = ours >= tenant_max;
            if (full && !self.evict(Some(tenant), &last_active))
                || (self.len >= max && !self.evict(None, &last_active))
            {
                return None;
            }
            self.tenants.entry(Arc::clone(tenant)).or_default().insert(name.into(), V::default());
            self.len += 1;
        }
        self.tenants.get_mut(tenant)?.get_mut(name)
    }

    /// Removes the value that was active the longest time ago, of one tenant or of all; false if all must be kept.
    fn evict(
        &mut self,
        of: Option<&Arc<str>>,
        last_active: &impl Fn(&V) -> Option<Millis>,
    ) -> bool {
        let tenants = self.tenants.iter().filter(|(tenant, _)| of.is_none_or(|of| of == *tenant));
        let values =
            tenants.flat_map(|(tenant, names)| names.iter().map(move |(n, v)| (tenant, n, v)));
        let times =
            values.filter_map(|(tenant, name, value)| Some((last_active(value)?, tenant, name)));
        let Some((_, tenant, name)) = times.min_by_key(|(at, _, _)| *at) else {
            return false;
        };
        let (tenant, name) = (Arc::clone(tenant), Arc::clone(name));
        if let Some(names) = self.tenants.get_mut(&tenant) {
            names.remove(&name);
            self.len -= 1;
            if names.is_empty() {
                self.tenants.remove(&tenant);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(tenant: &str, worker: &str, commands: &[&str]) -> Claim {
        let names = commands.iter().map(|name| Arc::from(*name)).collect();
        let from = if commands.is_empty() { Selector::Any } else { Selector::Commands(names) };
        Claim { tenant: tenant.into(), worker: worker.into(), lease: 1, count: 1, from }
    }

    #[test]
    fn claims_are_recorded_by_worker_and_by_queue() {
        let activity = Activity::new(5);
        activity.claimed(&claim("t", "w", &["Mail", "b"]), 0, 1_000);
        activity.claimed(&claim("t", "w", &["c"]), 0, 1_001);
        assert_eq!(activity.last_claim("t", "mail"), Some(1_000));
        assert_eq!(activity.last_claim("t", "c"), Some(1_001));
        assert_eq!(activity.last_claim("t", "d"), None);
        assert_eq!(activity.last_claim("u", "c"), None);
        activity.claimed(&claim("t", "w", &["c"]), 0, 1_900);
        assert_eq!(activity.last_claim("t", "c"), Some(1_001), "once a second is enough");
        activity.claimed(&claim("t", "w", &["c"]), 0, 2_001);
        assert_eq!(activity.last_claim("t", "c"), Some(2_001));
        activity.claimed(&claim("t", "v", &[]), 0, 3_000);
        assert_eq!(activity.last_claim("t", "d"), Some(3_000), "a claim of all queues");
        activity.failed(&"t".into(), "w", &"é".repeat(1_000), 3_001);
        let [v, w] = &activity.workers("t", 3_001)[..] else { panic!("two workers") };
        assert_eq!((&*v.id, v.last_claim, v.named.count), ("v", Some(3_000), 0));
        assert_eq!((&*w.id, w.last_claim, &*w.named.queues), ("w", Some(2_001), &["c".into()][..]));
        assert!(w.last_error.as_ref().is_some_and(|(at, text)| *at == 3_001 && text.len() <= 256));
        assert!(activity.workers("u", 3_001).is_empty());
        assert_eq!((activity.active(3_001), activity.active(62_500)), (2, 1));
        assert!(activity.workers("t", 3_700_000).is_empty());
    }

    #[test]
    fn streams_are_counted_while_they_are_open() {
        let (activity, tenant) = (Activity::new(0), Arc::from("t"));
        let mut stream = activity.stream(&tenant, "w");
        stream.ready(3);
        stream.served(1);
        stream.served(9);
        stream.ready(4);
        let only = |now| activity.workers("t", now).into_iter().next();
        let seen = only(9_000_000).expect("open streams are always listed");
        assert_eq!((seen.streams, seen.slots), (1, 4));
        assert_eq!((seen.waits_for("anything"), activity.active(9_000_000)), (Some(true), 1));
        drop(stream);
        assert!(only(9_000_000).is_none());
        let seen = only(1).expect("it was seen just now");
        assert_eq!((seen.streams, seen.slots), (0, 0));
    }

    #[test]
    fn what_a_stream_waits_for_is_known_or_said_to_be_unknown() {
        let (activity, tenant) = (Activity::new(0), Arc::from("t"));
        let mut stream = activity.stream(&tenant, "w");
        let waits = |queue: &str| activity.workers("t", 1)[0].waits_for(queue);
        let names: Vec<String> = (0..=QUEUES_SHOWN).map(|n| format!("Q{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (all_but_one, last) = (&names[..QUEUES_SHOWN], format!("q{QUEUES_SHOWN}"));
        stream.ready(1);
        activity.claimed(&claim("t", "w", all_but_one), 1, 0);
        assert_eq!((waits("q0"), waits(&last)), (Some(true), Some(false)));
        stream.served(1);
        assert_eq!(waits("q0"), Some(false), "it has a task");
        stream.ready(1);
        activity.claimed(&claim("t", "w", &names), 1, 0);
        assert_eq!((waits("q0"), waits(&last), waits("x")), (Some(true), None, None));
        let mut second = activity.stream(&tenant, "w");
        second.ready(1);
        activity.claimed(&claim("t", "w", &names), 1, 0);
        assert_eq!((waits("q0"), waits(&last)), (Some(true), None), "both wait for the same");
        second.served(1);
        second.ready(1);
        activity.claimed(&claim("t", "w", &["x"]), 1, 0);
        assert_eq!((waits("q0"), waits("x")), (None, None), "one slot waits for each");
        drop(second);
        assert_eq!(waits("q0"), None);
        stream.served(1);
        stream.ready(1);
        activity.claimed(&claim("t", "w", &["x"]), 1, 0);
        assert_eq!((waits("q0"), waits("x")), (Some(false), Some(true)));
        activity.claimed(&claim("t", "w", &["y"]), 0, 0);
        assert_eq!((waits("x"), waits("y")), (None, None), "a request without a stream");
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_is_forgotten() {
        let (activity, tenant) = (Activity::new(0), Arc::from("t"));
        let _stream = activity.stream(&tenant, "open");
        activity.claimed(&claim("u", "other", &["a"]), 0, 0);
        for n in 0..2 * WORKERS_PER_TENANT_MAX {
            let names = [&*n.to_string()];
            activity.claimed(&claim("t", &format!("w{n}"), &names), 0, 1 + n as Millis);
        }
        let workers = activity.workers("t", 1);
        assert!(
            workers.len() <= WORKERS_PER_TENANT_MAX && workers.len() > WORKERS_PER_TENANT_MAX / 2
        );
        assert!(workers.iter().any(|worker| &*worker.id == "open"));
        assert_eq!(&*workers[0].id, format!("w{}", 2 * WORKERS_PER_TENANT_MAX - 1));
        assert_eq!(activity.workers("u", 1).len(), 1, "a tenant evicts its own workers");
    }
}
