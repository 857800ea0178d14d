//! Accounts for the bytes held for clients: requests being read, answers not yet sent, waits for work. Anything beyond
//! a bound is slowed down or refused before it takes memory.
//!
//! ```text
//! process ─┬─ tenant: half of the process's bytes at most ─┬─ connection: three quarters of that ─┬─ a request, an
//!          └─ strangers: callers without a token yet       └─ …                                   │  answer, a stream
//!                                                                                                 └─ …
//! ```
//!
//! Producers leave an eighth free, both of a tenant's share and of the whole, so that claims,
//! heartbeats and results get through when producers send more than the server can take.
//!
//! Strangers are not limited per connection: a stream has 16 KiB for its Hello, and the HTTP/2 settings
//! allow 256 streams per connection, so one connection is bounded by 4 MiB. Accounting costs a few
//! additions and no lock. A stream accounts in steps, so most of its messages cost nothing here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::Instant;

/// Number of tenants at which idle ones are forgotten.
const TENANTS_MAX: usize = 1_024;
/// Interval between checks while waiting for room.
const PAUSE: Duration = Duration::from_millis(10);

/// The purpose of held bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldFor {
    /// HTTP requests, from their heads to their answers.
    Requests,
    /// Answers not yet sent, and pages being assembled.
    Answers,
    /// Streams: messages being read, events awaiting answers, waits for work.
    Streams,
}

/// All kinds with their metric labels.
pub const KINDS: [(HeldFor, &str); 3] =
    [(HeldFor::Requests, "requests"), (HeldFor::Answers, "answers"), (HeldFor::Streams, "streams")];

#[derive(Debug, Default)]
struct Count {
    bytes: AtomicUsize,
    refused: AtomicU64,
}

/// Counters of the whole process.
#[derive(Debug)]
struct Totals {
    limit: usize,
    kinds: [Count; KINDS.len()],
}

impl Totals {
    fn of(&self, kind: HeldFor) -> Option<&Count> {
        self.kinds.get(kind as usize)
    }

    fn bytes(&self) -> usize {
        self.kinds.iter().map(|count| count.bytes.load(Relaxed)).sum()
    }
}

/// The process-wide budget and its owners.
#[derive(Debug)]
pub struct Budget {
    totals: Arc<Totals>,
    strangers: Arc<Owner>,
    tenants: RwLock<HashMap<Arc<str>, Arc<Owner>>>,
}

/// The bytes of one tenant, or of all callers without a token.
#[derive(Debug)]
struct Owner {
    totals: Arc<Totals>,
    limit: usize,
    bytes: AtomicUsize,
}

impl Owner {
    fn new(totals: &Arc<Totals>, limit: usize) -> Arc<Owner> {
        Arc::new(Owner { totals: Arc::clone(totals), limit, bytes: AtomicUsize::new(0) })
    }

    /// The limit of one connection: a quarter of the share stays for other connections, and the rest still fits one
    /// body of the largest size.
    fn connection_limit(&self) -> usize {
        self.limit / 4 * 3
    }
}

/// The bytes held for one connection, across its tenants.
pub type ConnectionBytes = AtomicUsize;

/// The share of one tenant, or of all callers without a token; narrowed to one connection if that is known.
#[derive(Debug, Clone)]
pub struct Share {
    owner: Arc<Owner>,
    /// The bytes held for its connection, if that is known.
    connection: Option<Arc<ConnectionBytes>>,
}

/// Held bytes, released on drop.
#[derive(Debug)]
pub struct Hold {
    share: Share,
    kind: HeldFor,
    bytes: usize,
    /// The part of `bytes` for which there was room. The rest was added by [`Hold::grow_anyway`].
    granted: usize,
    /// Whether the hold is a producer's, which must leave the workers' reserve free.
    of_producer: bool,
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Budget {
        let totals = Arc::new(Totals { limit, kinds: Default::default() });
        // Callers without a token need no more than a Hello.
        let strangers = Owner::new(&totals, limit / 8);
        Budget { totals, strangers, tenants: RwLock::default() }
    }

    /// The share of callers without a token.
    pub fn strangers(&self) -> Share {
        Share { owner: Arc::clone(&self.strangers), connection: None }
    }

    /// A tenant's share: half of the budget.
    pub fn tenant(&self, tenant: &Arc<str>) -> Share {
        if let Some(owner) = self.tenants.read().get(tenant) {
            return Share { owner: Arc::clone(owner), connection: None };
        }
        let mut tenants = self.tenants.write();
        if tenants.len() >= TENANTS_MAX {
            // A tenant with held bytes also has a reference to its share.
            tenants.retain(|_, owner| Arc::strong_count(owner) > 1);
        }
        let fresh = || Owner::new(&self.totals, self.totals.limit / 2);
        let owner = Arc::clone(tenants.entry(Arc::clone(tenant)).or_insert_with(fresh));
        Share { owner, connection: None }
    }

    /// Bytes of one kind held now.
    pub fn bytes(&self, kind: HeldFor) -> usize {
        self.totals.of(kind).map_or(0, |count| count.bytes.load(Relaxed))
    }

    /// How often bytes of one kind were refused.
    pub fn refused(&self, kind: HeldFor) -> u64 {
        self.totals.of(kind).map_or(0, |count| count.refused.load(Relaxed))
    }

    /// The total budget in bytes.
    pub fn limit(&self) -> usize {
        self.totals.limit
    }
}

impl Share {
    /// Narrows the share to a connection, if there is one.
    pub fn on(self, connection: Option<&Arc<ConnectionBytes>>) -> Share {
        Share { connection: connection.cloned(), ..self }
    }

    /// Whether more than half of the share is held.
    pub fn is_crowded(&self) -> bool {
        self.owner.bytes.load(Relaxed) > self.owner.limit / 2
    }

    /// Holds bytes if there is room.
    pub fn hold(&self, kind: HeldFor, bytes: usize) -> Option<Hold> {
        let mut hold = self.nothing(kind);
        hold.grow_to(bytes).then_some(hold)
    }

    /// Like [`Share::hold`], but waits up to `patience` for room.
    pub async fn hold_within(
        &self,
        kind: HeldFor,
        bytes: usize,
        patience: Duration,
    ) -> Option<Hold> {
        let mut hold = self.nothing(kind);
        hold.grow_within(bytes, patience).await.then_some(hold)
    }

    /// Holds bytes that are already in memory, even without room. For data bounded elsewhere.
    pub fn hold_anyway(&self, kind: HeldFor, bytes: usize) -> Hold {
        let mut hold = self.nothing(kind);
        hold.grow_anyway(bytes);
        hold.granted = bytes;
        hold
    }

    /// An empty hold, to grow later.
    pub fn nothing(&self, kind: HeldFor) -> Hold {
        Hold { share: self.clone(), kind, bytes: 0, granted: 0, of_producer: false }
    }

    /// Adds bytes even without room. Returns whether there was room; a producer must also leave the workers'
    /// reserve free.
    fn add(&self, kind: HeldFor, bytes: usize, of_producer: bool) -> bool {
        let Owner { totals, limit, bytes: mine } = &*self.owner;
        let add = |count: &AtomicUsize| count.fetch_add(bytes, Relaxed).saturating_add(bytes);
        totals.of(kind).map(|count| add(&count.bytes));
        let connection = self.connection.as_ref().map_or(0, |connection| add(connection));
        let (mine, all) = (add(mine), totals.bytes());
        let bound = |limit: usize| if of_producer { limit - limit / 8 } else { limit };
        let connection_fits = connection <= self.owner.connection_limit();
        connection_fits && mine <= bound(*limit) && all <= bound(totals.limit)
    }

    fn give_back(&self, kind: HeldFor, bytes: usize) {
        let totals = &self.owner.totals;
        totals.of(kind).map(|count| count.bytes.fetch_sub(bytes, Relaxed));
        self.connection.as_ref().map(|connection| connection.fetch_sub(bytes, Relaxed));
        self.owner.bytes.fetch_sub(bytes, Relaxed);
    }

    fn take(&self, kind: HeldFor, bytes: usize, of_producer: bool) -> bool {
        let fits = self.add(kind, bytes, of_producer);
        if !fits {
            self.give_back(kind, bytes);
        }
        fits
    }

    fn count_refusal(&self, kind: HeldFor) {
        if let Some(count) = self.owner.totals.of(kind) {
            count.refused.fetch_add(1, Relaxed);
        }
    }
}

impl Hold {
    /// Sets whether the hold is a producer's, which grows only as far as it leaves the workers' reserve free.
    pub fn of_producer(mut self, of_producer: bool) -> Hold {
        self.of_producer = of_producer;
        self
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Grows to at least `bytes`. Returns false and changes nothing if there is no room.
    #[must_use]
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let grown = self.try_grow_to(bytes);
        if !grown {
            self.share.count_refusal(self.kind);
        }
        grown
    }

    /// Like [`Hold::grow_to`], but waits up to `patience` for room.
    pub async fn grow_within(&mut self, bytes: usize, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        while !self.try_grow_to(bytes) {
            if Instant::now() >= end {
                self.share.count_refusal(self.kind);
                return false;
            }
            tokio::time::sleep(PAUSE).await;
        }
        true
    }

    /// Grows to at least `bytes`, even without room. [`Hold::resize_to_fit`] takes it back.
    pub fn grow_anyway(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.share.add(self.kind, bytes - self.bytes, self.of_producer);
            self.bytes = bytes;
        }
    }

    /// Holds at least `bytes` and little more, in multiples of `step`, so that small changes cost
    /// nothing. Returns false if there is no room; a caller that retries counts the refusal once, with
    /// [`Hold::refused`].
    #[must_use]
    pub fn resize_to_fit(&mut self, bytes: usize, step: usize) -> bool {
        // Bytes added without room must not pass for granted ones.
        self.shrink_to(self.granted);
        let wanted = bytes.next_multiple_of(step.max(1));
        if bytes > self.bytes {
            return self.try_grow_to(wanted);
        }
        if self.bytes - bytes > 2 * step {
            self.shrink_to(wanted);
        }
        true
    }

    /// Counts one refusal.
    pub fn refused(&self) {
        self.share.count_refusal(self.kind);
    }

    /// Shrinks to at most `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.share.give_back(self.kind, self.bytes - bytes);
            self.bytes = bytes;
            self.granted = self.granted.min(bytes);
        }
    }

    fn try_grow_to(&mut self, bytes: usize) -> bool {
        let missing = bytes.saturating_sub(self.bytes);
        let grown = missing == 0 || self.share.take(self.kind, missing, self.of_producer);
        if grown && missing > 0 {
            self.bytes += missing;
            self.granted = self.bytes;
        }
        grown
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(budget: &Budget) -> usize {
        KINDS.iter().map(|(kind, _)| budget.bytes(*kind)).sum()
    }

    #[test]
    fn no_tenant_has_more_than_half() {
        let budget = Budget::new(1_000);
        let (a, b, c) = (budget.tenant(&"a".into()), budget.tenant(&"b".into()), "c".into());
        let mut first = a.hold(HeldFor::Requests, 300).unwrap();
        let second = a.hold(HeldFor::Answers, 200).unwrap();
        assert!(a.hold(HeldFor::Requests, 1).is_none() && !first.grow_to(301));
        assert!(Arc::ptr_eq(&a.owner, &budget.tenant(&"a".into()).owner));
        let other = b.hold(HeldFor::Streams, 500).unwrap();
        assert!(budget.tenant(&c).hold(HeldFor::Streams, 1).is_none(), "the process is full");
        drop(second);
        assert!(budget.tenant(&c).hold(HeldFor::Streams, 200).is_some());
        assert_eq!((budget.bytes(HeldFor::Requests), budget.refused(HeldFor::Requests)), (300, 2));
        drop((first, other));
        assert_eq!(held(&budget), 0);
    }

    #[test]
    fn producers_leave_room_for_workers() {
        let budget = Budget::new(800);
        let share = |tenant: &str| budget.tenant(&tenant.into());
        let nothing = |tenant, kind| share(tenant).nothing(kind).of_producer(true);
        let mut first = nothing("a", HeldFor::Requests);
        assert!(first.grow_to(350) && !first.grow_to(351));
        assert!(!nothing("a", HeldFor::Streams).grow_to(1));
        assert!(share("a").hold(HeldFor::Requests, 50).is_some());
        let mut second = nothing("b", HeldFor::Streams);
        assert!(second.grow_to(350));
        assert!(!nothing("c", HeldFor::Streams).grow_to(1), "of all together");
        assert!(share("c").hold(HeldFor::Streams, 100).is_some());
        drop((first, second));
        assert_eq!(held(&budget), 0);
    }

    #[test]
    fn no_connection_has_more_than_three_quarters_of_its_tenants() {
        let budget = Budget::new(8_000);
        let (first, second) = (Arc::default(), Arc::default());
        let a = |connection| budget.tenant(&"a".into()).on(Some(connection));
        let mut streams: Vec<_> = (0..512).map(|_| a(&first).nothing(HeldFor::Streams)).collect();
        let taken = streams.iter_mut().map(|stream| stream.grow_to(10)).filter(|grown| *grown);
        assert_eq!(taken.count(), 300, "of 512 streams with 10 bytes each");
        let rest = a(&second).hold(HeldFor::Requests, 1_000).unwrap();
        assert!(a(&second).hold(HeldFor::Requests, 1).is_none(), "the tenant has its half");
        // One connection may carry requests of several tenants.
        let b = budget.tenant(&"b".into()).on(Some(&first));
        assert!(b.hold(HeldFor::Answers, 1).is_none());
        streams.clear();
        assert!(b.hold(HeldFor::Answers, 3_000).is_some());
        drop(rest);
        assert_eq!((held(&budget), first.load(Relaxed), second.load(Relaxed)), (0, 0, 0));
    }

    #[test]
    fn callers_without_a_token_get_an_eighth() {
        let budget = Budget::new(8_000);
        let held = budget.strangers().hold(HeldFor::Streams, 1_000);
        assert!(held.is_some() && budget.strangers().hold(HeldFor::Streams, 1).is_none());
        assert!(budget.tenant(&"a".into()).hold(HeldFor::Streams, 4_000).is_some());
    }

    #[test]
    fn a_hold_grows_and_shrinks_in_steps() {
        let budget = Budget::new(1_000);
        let mut hold = budget.tenant(&"a".into()).nothing(HeldFor::Streams);
        for (bytes, fits, then) in [
            (1, true, 100),
            (100, true, 100),
            (450, true, 500),
            (501, false, 500),
            (350, true, 500),
        ] {
            assert_eq!((hold.resize_to_fit(bytes, 100), hold.bytes()), (fits, then), "{bytes}");
        }
        assert!(hold.resize_to_fit(120, 100));
        assert_eq!(held(&budget), 200);
        hold.grow_anyway(5_000);
        assert_eq!(held(&budget), 5_000);
        drop(hold);
        assert_eq!(held(&budget), 0);
    }

    #[test]
    fn bytes_added_without_room_admit_nothing() {
        let budget = Budget::new(1_000);
        let share = budget.tenant(&"a".into());
        let mut hold = share.nothing(HeldFor::Streams);
        assert!(hold.resize_to_fit(100, 100));
        let other = share.hold(HeldFor::Streams, 400).unwrap();
        for _ in 0..3 {
            assert!(!hold.resize_to_fit(101, 100), "the share is full");
            hold.grow_anyway(101 + 300);
        }
        assert!(hold.resize_to_fit(100, 100), "that much was granted");
        assert_eq!(held(&budget), 500);
        hold.grow_anyway(401);
        drop(other);
        assert!(hold.resize_to_fit(101, 100));
        assert_eq!(held(&budget), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_gets_released_bytes() {
        let budget = Budget::new(200);
        let share = budget.tenant(&"a".into());
        let first = share.hold(HeldFor::Requests, 100).unwrap();
        let patience = Duration::from_secs(1);
        assert!(share.hold_within(HeldFor::Requests, 1, patience).await.is_none());
        let waiting = share.hold_within(HeldFor::Requests, 60, patience);
        let (_, second) = tokio::join!(async { drop(first) }, waiting);
        assert_eq!(second.unwrap().bytes(), 60);
    }

    #[test]
    fn tenants_without_anything_are_forgotten() {
        let budget = Budget::new(1 << 20);
        let kept = budget.tenant(&"kept".into()).hold(HeldFor::Requests, 7).unwrap();
        for n in 0..TENANTS_MAX * 2 {
            budget.tenant(&n.to_string().into());
        }
        assert!(budget.tenants.read().len() <= TENANTS_MAX);
        assert_eq!(budget.tenant(&"kept".into()).owner.bytes.load(Relaxed), 7);
        drop(kept);
    }
}
