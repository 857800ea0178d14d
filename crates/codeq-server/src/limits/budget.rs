//! How many bytes the server holds for its clients: requests that are being read, answers that nobody has taken yet,
//! waits for work. What is beyond a bound is slowed or refused before it takes memory.
//!
//! ```text
//! process ─┬─ tenant: half of the process's bytes at most ─┬─ connection: three quarters of that ─┬─ a request, an
//!          └─ strangers: those without a token yet         └─ …                                   │  answer, a stream
//!                                                                                                 └─ …
//! ```
//!
//! What producers send leaves an eighth of what a tenant, and all of them, may hold: should they send more than can be
//! taken, there is room for claims, heartbeats and results.
//!
//! Strangers are not counted by connection: a stream has 16 KiB for its Hello, and HTTP/2's settings allow 256 streams
//! on a connection, so that is 4 MiB.
//! Counting takes a few additions and no lock. A stream counts in steps, so that most of its messages cost nothing here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::Instant;

/// Tenants that are remembered while nothing is held for them.
const TENANTS_MAX: usize = 1_024;
/// Pause before somebody who waits for room looks again.
const PAUSE: Duration = Duration::from_millis(10);

/// What bytes are held for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldFor {
    /// Requests over HTTP, from their heads to their answers.
    Requests,
    /// Answers that their clients have not taken yet, and pages that are being put together.
    Answers,
    /// Streams: messages that are being read, events whose answers are due, waits for work.
    Streams,
}

/// All of them, with their names in metrics.
pub const KINDS: [(HeldFor, &str); 3] =
    [(HeldFor::Requests, "requests"), (HeldFor::Answers, "answers"), (HeldFor::Streams, "streams")];

#[derive(Debug, Default)]
struct Count {
    bytes: AtomicUsize,
    refused: AtomicU64,
}

/// The bytes of the process.
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

/// The bytes of the process and who has them.
#[derive(Debug)]
pub struct Budget {
    totals: Arc<Totals>,
    strangers: Arc<Owner>,
    tenants: RwLock<HashMap<Arc<str>, Arc<Owner>>>,
}

/// The bytes of one tenant, or of all who have shown no token yet.
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

    /// What one connection may have of it: a quarter stays for the others, and one body of the largest size has
    /// room in the rest.
    fn connection_limit(&self) -> usize {
        self.limit / 4 * 3
    }
}

/// The bytes that are held for one connection, whoever its requests are from.
pub type Connection = AtomicUsize;

/// The bytes that one tenant may have held, or all who have shown no token yet; and of these the part of one
/// connection, if it is known.
#[derive(Debug, Clone)]
pub struct Share {
    owner: Arc<Owner>,
    connection: Option<Arc<Connection>>,
}

/// Bytes that are held. They are free again when this is dropped.
#[derive(Debug)]
pub struct Hold {
    share: Share,
    kind: HeldFor,
    bytes: usize,
    /// Whether it leaves room for others.
    of_producer: bool,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> Budget {
        let totals = Arc::new(Totals { limit, kinds: Default::default() });
        // Nobody without a token has a use for more than a Hello.
        let strangers = Owner::new(&totals, limit / 8);
        Budget { totals, strangers, tenants: RwLock::default() }
    }

    /// The share of those who have shown no token yet.
    pub fn strangers(&self) -> Share {
        Share { owner: Arc::clone(&self.strangers), connection: None }
    }

    /// The share of a tenant: half of all.
    pub fn tenant(&self, tenant: &Arc<str>) -> Share {
        if let Some(owner) = self.tenants.read().get(tenant) {
            return Share { owner: Arc::clone(owner), connection: None };
        }
        let mut tenants = self.tenants.write();
        if tenants.len() >= TENANTS_MAX {
            // Whoever holds something has its share as well.
            tenants.retain(|_, owner| Arc::strong_count(owner) > 1);
        }
        let fresh = || Owner::new(&self.totals, self.totals.limit / 2);
        let owner = Arc::clone(tenants.entry(Arc::clone(tenant)).or_insert_with(fresh));
        Share { owner, connection: None }
    }

    /// Bytes that are held now, of one kind.
    pub fn bytes(&self, kind: HeldFor) -> usize {
        self.totals.of(kind).map_or(0, |count| count.bytes.load(Relaxed))
    }

    /// How often bytes were refused, of one kind.
    pub fn refused(&self, kind: HeldFor) -> u64 {
        self.totals.of(kind).map_or(0, |count| count.refused.load(Relaxed))
    }

    /// The bytes of all.
    pub fn limit(&self) -> usize {
        self.totals.limit
    }
}

impl Share {
    /// The part of it that a connection may have; all of it if there is none.
    pub fn on(self, connection: Option<&Arc<Connection>>) -> Share {
        Share { connection: connection.cloned(), ..self }
    }

    /// Whether more than half of it is held.
    pub fn is_crowded(&self) -> bool {
        self.owner.bytes.load(Relaxed) > self.owner.limit / 2
    }

    /// Holds bytes, if there is room for them.
    pub fn hold(&self, kind: HeldFor, bytes: usize) -> Option<Hold> {
        let mut hold = self.nothing(kind);
        hold.grow_to(bytes).then_some(hold)
    }

    /// The same, after waiting for room for a while.
    pub async fn hold_within(
        &self,
        kind: HeldFor,
        bytes: usize,
        patience: Duration,
    ) -> Option<Hold> {
        let mut hold = self.nothing(kind);
        hold.grow_within(bytes, patience).await.then_some(hold)
    }

    /// Holds bytes that are there already, room or not. For what is bounded elsewhere.
    pub fn hold_anyway(&self, kind: HeldFor, bytes: usize) -> Hold {
        let mut hold = self.nothing(kind);
        hold.grow_anyway(bytes);
        hold
    }

    /// Holds nothing yet.
    pub fn nothing(&self, kind: HeldFor) -> Hold {
        Hold { share: self.clone(), kind, bytes: 0, of_producer: false }
    }

    /// Adds bytes, room or not. Whether there was room, and some left if they are a producer's.
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
    /// The same for what a producer sends: it grows only as long as there is room for others.
    pub fn of_producer(mut self, of_producer: bool) -> Hold {
        self.of_producer = of_producer;
        self
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds at least so many bytes. False if there is no room for them: then it holds what it did.
    #[must_use]
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let grown = self.try_grow_to(bytes);
        if !grown {
            self.share.count_refusal(self.kind);
        }
        grown
    }

    /// The same, after waiting for room for a while.
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

    /// Holds at least so many bytes, room or not.
    pub fn grow_anyway(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.share.add(self.kind, bytes - self.bytes, self.of_producer);
            self.bytes = bytes;
        }
    }

    /// Holds at least so many bytes, and not many more: it grows and shrinks in steps, so that small changes cost
    /// nothing. False if there is no room; who then asks again and again counts that once, by [`Hold::refused`].
    #[must_use]
    pub fn fit(&mut self, bytes: usize, step: usize) -> bool {
        let wanted = bytes.next_multiple_of(step.max(1));
        if bytes > self.bytes {
            return self.try_grow_to(wanted);
        }
        if self.bytes - bytes > 2 * step {
            self.shrink_to(wanted);
        }
        true
    }

    /// Counts that there was no room.
    pub fn refused(&self) {
        self.share.count_refusal(self.kind);
    }

    /// Holds so many bytes at most.
    pub fn shrink_to(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.share.give_back(self.kind, self.bytes - bytes);
            self.bytes = bytes;
        }
    }

    fn try_grow_to(&mut self, bytes: usize) -> bool {
        let missing = bytes.saturating_sub(self.bytes);
        let grown = missing == 0 || self.share.take(self.kind, missing, self.of_producer);
        if grown {
            self.bytes += missing;
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
        // Requests of several tenants may come over one connection.
        let b = budget.tenant(&"b".into()).on(Some(&first));
        assert!(b.hold(HeldFor::Answers, 1).is_none());
        streams.clear();
        assert!(b.hold(HeldFor::Answers, 3_000).is_some());
        drop(rest);
        assert_eq!((held(&budget), first.load(Relaxed), second.load(Relaxed)), (0, 0, 0));
    }

    #[test]
    fn strangers_have_little() {
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
            assert_eq!((hold.fit(bytes, 100), hold.bytes()), (fits, then), "{bytes}");
        }
        assert!(hold.fit(120, 100));
        assert_eq!(held(&budget), 200);
        hold.grow_anyway(5_000);
        assert_eq!(held(&budget), 5_000);
        drop(hold);
        assert_eq!(held(&budget), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_gets_what_comes_free() {
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
