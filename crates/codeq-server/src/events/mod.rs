//! Task transitions as a resumable stream.
//!
//! Every transition has a permanent number within its shard. The bus keeps the latest transitions
//! of all tenants; after a restart, those since the last checkpoint. A reader that resumes from an
//! older position learns that it missed some and must list tasks again.
//!
//! The engine's commit thread publishes transitions, so it must never wait for readers. The bus
//! stores them in segments that are immutable once full: a reader takes a segment under the lock
//! and scans it after releasing the lock. A separate task, not the commit thread, wakes readers.

pub mod rates;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use codeq_core::effect::{Effect, Transition};
use codeq_core::id::ShardId;
use codeq_engine::Observer;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Transitions kept per shard for readers that resume.
pub const KEPT: usize = 65_536;
/// Transitions per segment. A reader takes one segment of each shard at a time and keeps what it has not passed on.
const SEGMENT: usize = 256;
/// Maximum number of readers.
pub const READERS_MAX: usize = 1_000;
/// Maximum number of readers per tenant: half of all.
pub const READERS_PER_TENANT_MAX: usize = READERS_MAX / 2;

/// The latest transitions, and the readers waiting for more.
#[derive(Default)]
pub struct EventBus {
    state: Mutex<State>,
    /// Signals the waker task that `woken` has entries.
    wake: Notify,
    /// Transition rates of queues.
    pub rates: rates::Rates,
}

#[derive(Default)]
struct State {
    /// Indexed by shard.
    shards: Vec<ShardTransitions>,
    /// Only tenants with readers.
    live: HashMap<Arc<str>, Listeners>,
    /// Readers across all tenants.
    readers: usize,
    /// Tenants' notifiers for the waker task to fire.
    woken: Vec<Arc<Notify>>,
    /// Whether the waker task is running.
    waker: bool,
}

struct Listeners {
    readers: usize,
    news: Arc<Notify>,
    /// By shard, the number after the tenant's last transition. Readers who have scanned up to there miss nothing, even if
    /// later transitions of others are no longer kept.
    ends: Position,
    /// Whether this tenant is already in [`State::woken`].
    woken: bool,
}

impl Listeners {
    /// Notes where the tenant's transitions of a shard end now, and has its readers woken.
    fn moved_to(&mut self, shard: ShardId, end: u64, woken: &mut Vec<Arc<Notify>>) {
        if let Some(known) = self.ends.get_mut(usize::from(shard)) {
            *known = end;
        }
        if !std::mem::replace(&mut self.woken, true) {
            woken.push(Arc::clone(&self.news));
        }
    }
}

/// The transitions of one shard, in order.
#[derive(Default)]
struct ShardTransitions {
    full: VecDeque<Segment>,
    /// The segment being filled.
    open: Vec<Arc<Transition>>,
    /// The number of the next transition.
    next: u64,
}

type Segment = Arc<[Arc<Transition>]>;

impl ShardTransitions {
    fn push(&mut self, transition: Arc<Transition>) {
        self.next = transition.number + 1;
        self.open.push(transition);
        if self.open.len() == SEGMENT {
            let full = std::mem::replace(&mut self.open, Vec::with_capacity(SEGMENT));
            self.full.push_back(full.into());
            if self.full.len() > KEPT / SEGMENT {
                self.full.pop_front();
            }
        }
    }

    /// The number of the oldest kept transition, or `next` if there is none.
    fn first(&self) -> u64 {
        let full = self.full.front().and_then(|segment| segment.first());
        full.or(self.open.first()).map_or(self.next, |transition| transition.number)
    }

    /// The segment that contains `at`; of the segment being filled, only the tenant's transitions.
    fn segment(&self, at: u64, tenant: &Arc<str>) -> Part {
        let ends_before = |segment: &Segment| segment.last().is_some_and(|last| last.number < at);
        let index = self.full.partition_point(ends_before);
        if let Some(segment) = self.full.get(index) {
            return Part::Full(Arc::clone(segment));
        }
        let from = self.open.partition_point(|transition| transition.number < at);
        let rest = self.open.iter().skip(from);
        Part::Rest(rest.filter(|transition| transition.tenant == *tenant).cloned().collect())
    }
}

enum Part {
    Full(Segment),
    Rest(Vec<Arc<Transition>>),
}

/// The number of the next transition, by shard.
pub type Position = Vec<u64>;

/// One tenant's subscription to the bus.
pub struct Reader {
    bus: Arc<EventBus>,
    tenant: Arc<str>,
    news: Arc<Notify>,
    /// After the last transition taken.
    position: Position,
    /// After the last transition scanned.
    scanned: Position,
    /// Scanned transitions not yet taken.
    backlog: VecDeque<(ShardId, Arc<Transition>)>,
}

/// What a reader takes from the bus.
#[derive(Debug, Clone)]
pub enum BusItem {
    /// A transition, and the position after it.
    Transition(Arc<Transition>, Position),
    /// Some transitions are no longer kept: the reader should list its tasks again.
    Missed(Position),
}

/// The result of scanning the bus.
#[derive(Debug, PartialEq, Eq)]
enum Scanned {
    /// Any matches are in the backlog.
    Found,
    /// Some transitions are no longer kept.
    Missed,
}

impl EventBus {
    /// Creates a bus for `shards` shards.
    pub fn new(shards: u16) -> Arc<EventBus> {
        let bus = EventBus::default();
        bus.state.lock().shards.resize_with(usize::from(shards), ShardTransitions::default);
        Arc::new(bus)
    }

    /// Sets the number of a shard's next transition, unless the bus has already seen later ones.
    pub fn start_at(&self, shard: ShardId, next: u64) {
        if let Some(kept) = self.state.lock().shards.get_mut(usize::from(shard)) {
            kept.next = kept.next.max(next);
        }
    }

    /// Drops shards beyond the engine's count, which is known only once the data is open.
    pub fn limit_to(&self, shards: u16) {
        self.state.lock().shards.truncate(usize::from(shards));
    }

    /// Subscribes to a tenant's transitions, from a position or from now. Also returns whether
    /// transitions after that position are no longer kept. `None` if there are too many readers
    /// overall or for this tenant.
    pub fn listen(
        self: &Arc<EventBus>,
        tenant: &Arc<str>,
        from: Option<Position>,
    ) -> Option<(Reader, bool)> {
        let mut state = self.state.lock();
        let mine = state.live.get(tenant).map_or(0, |listeners| listeners.readers);
        if state.readers >= READERS_MAX || mine >= READERS_PER_TENANT_MAX {
            return None;
        }
        state.readers += 1;
        let now: Position = state.shards.iter().map(|kept| kept.next).collect();
        let listeners = state.live.entry(Arc::clone(tenant)).or_insert_with(|| Listeners {
            readers: 0,
            news: Arc::default(),
            // Earlier transitions may be the tenant's.
            ends: now.clone(),
            woken: false,
        });
        listeners.readers += 1;
        let news = Arc::clone(&listeners.news);
        if !std::mem::replace(&mut state.waker, true) {
            tokio::spawn(wake_readers(Arc::downgrade(self)));
        }
        let (position, missed) = match from {
            Some(from) if from.len() == now.len() => (from, false),
            Some(_) => (now, true),
            None => (now, false),
        };
        let (bus, tenant) = (Arc::clone(self), Arc::clone(tenant));
        let (scanned, backlog) = (position.clone(), VecDeque::new());
        let mut reader = Reader { bus, tenant, news, position, scanned, backlog };
        let missed = missed | reader.skip_to_kept(&state);
        Some((reader, missed))
    }

    /// Forgets a shard's transitions if the next one does not follow the last: those in between are missing.
    fn restart(&self, shard: ShardId, next: u64) {
        let mut state = self.state.lock();
        let State { shards, live, woken, .. } = &mut *state;
        let Some(kept) = shards.get_mut(usize::from(shard)) else {
            return;
        };
        if kept.next == next {
            return;
        }
        *kept = ShardTransitions { next, ..ShardTransitions::default() };
        for listeners in live.values_mut() {
            listeners.moved_to(shard, next, woken);
        }
        drop(state);
        self.wake.notify_one();
    }

    fn push(&self, shard: ShardId, transitions: impl Iterator<Item = Transition>) {
        let mut state = self.state.lock();
        let State { shards, live, woken, .. } = &mut *state;
        let Some(kept) = shards.get_mut(usize::from(shard)) else {
            return;
        };
        let before = woken.len();
        for transition in transitions {
            if let Some(listeners) = live.get_mut(&transition.tenant) {
                listeners.moved_to(shard, transition.number + 1, woken);
            }
            kept.push(Arc::new(transition));
        }
        let more = woken.len() > before;
        drop(state);
        if more {
            self.wake.notify_one();
        }
    }
}

/// The waker task: wakes readers of tenants with new transitions, as long as there are readers.
async fn wake_readers(bus: Weak<EventBus>) {
    while let Some(bus) = bus.upgrade() {
        bus.wake.notified().await;
        let woken = {
            let mut state = bus.state.lock();
            if state.live.is_empty() {
                state.waker = false;
                state.woken.clear();
                return;
            }
            state.live.values_mut().for_each(|listeners| listeners.woken = false);
            std::mem::take(&mut state.woken)
        };
        for news in woken {
            news.notify_waiters();
        }
    }
}

fn transitions(effects: &[Effect]) -> impl Iterator<Item = Transition> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Moved(transition) => Some(transition.clone()),
        _ => None,
    })
}

impl Observer for EventBus {
    fn committed(&self, shard: ShardId, effects: &[Effect]) {
        self.rates.count(effects);
        self.push(shard, transitions(effects));
    }

    fn recovered(&self, shard: ShardId, effects: &[Effect]) {
        self.push(shard, transitions(effects));
    }

    fn resumed(&self, shard: ShardId, next: u64) {
        self.restart(shard, next);
    }
}

impl Reader {
    /// The position after the last transition taken.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Waits until there may be something to take. Cheap and cancel-safe.
    pub async fn wait(&self) {
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            // Register before looking, so that no transition in between is missed.
            news.as_mut().enable();
            if !self.backlog.is_empty() || self.is_behind() {
                return;
            }
            news.await;
        }
    }

    fn is_behind(&self) -> bool {
        let state = self.bus.state.lock();
        state.shards.iter().zip(&self.scanned).any(|(kept, scanned)| *scanned < kept.next)
    }

    /// Returns the tenant's next transition, scanning at most one segment of each shard.
    pub fn take(&mut self) -> Option<BusItem> {
        if self.backlog.is_empty() && self.scan() == Scanned::Missed {
            return Some(BusItem::Missed(self.position.clone()));
        }
        let (shard, transition) = self.backlog.pop_front()?;
        if let Some(at) = self.position.get_mut(usize::from(shard)) {
            *at = transition.number + 1;
        }
        Some(BusItem::Transition(transition, self.position.clone()))
    }

    /// Scans the next segment of every shard for the tenant's transitions.
    fn scan(&mut self) -> Scanned {
        let parts: Vec<Option<Part>> = {
            let bus = Arc::clone(&self.bus);
            let state = bus.state.lock();
            if self.skip_to_kept(&state) {
                return Scanned::Missed;
            }
            let shards = state.shards.iter().zip(&mut self.scanned);
            let part = |(kept, at): (&ShardTransitions, &mut u64)| {
                let part = (*at < kept.next).then(|| kept.segment(*at, &self.tenant));
                if let Some(Part::Rest(_)) = part {
                    *at = kept.next;
                }
                part
            };
            shards.map(part).collect()
        };
        for ((shard, part), at) in (0..).map(ShardId).zip(parts).zip(&mut self.scanned) {
            match part {
                None => continue,
                Some(Part::Rest(rest)) => {
                    self.backlog.extend(rest.into_iter().map(|transition| (shard, transition)));
                }
                Some(Part::Full(segment)) => {
                    let ours = |transition: &&Arc<Transition>| {
                        transition.number >= *at && transition.tenant == self.tenant
                    };
                    let mine = segment.iter().filter(ours);
                    self.backlog.extend(mine.map(|transition| (shard, Arc::clone(transition))));
                    *at = segment.last().map_or(*at, |last| last.number + 1);
                }
            }
        }
        Scanned::Found
    }

    /// Moves positions past transitions that are all of other tenants. Moves a position that the bus does not keep to
    /// the nearest that it keeps, and then returns true: transitions may be missing. The backlog must be empty.
    fn skip_to_kept(&mut self, state: &State) -> bool {
        let mut missed = false;
        let ends = state.live.get(&self.tenant).map(|listeners| &listeners.ends);
        let positions = self.position.iter_mut().zip(&mut self.scanned);
        let shards = state.shards.iter().zip(ends.into_iter().flatten());
        for ((kept, end), (position, scanned)) in shards.zip(positions) {
            let first = kept.first();
            if (*end..=kept.next).contains(scanned) {
                *scanned = kept.next;
                *position = *scanned;
            } else if !(first..=kept.next).contains(scanned) {
                missed = true;
                *scanned = (*scanned).clamp(first, kept.next);
                *position = *scanned;
            }
        }
        missed
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.bus.state.lock();
        state.readers -= 1;
        if let Some(listeners) = state.live.get_mut(&self.tenant) {
            listeners.readers -= 1;
            if listeners.readers == 0 {
                state.live.remove(&self.tenant);
            }
        }
        if state.live.is_empty() {
            // Let the waker task exit: it has no readers left.
            self.bus.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codeq_core::history::Event;
    use codeq_core::id::TaskId;
    use codeq_core::keys::Seq;
    use codeq_core::moment::Moment;
    use codeq_core::place::Place;

    fn transition(tenant: &str, number: u64) -> Effect {
        Effect::Moved(Transition {
            number,
            id: TaskId::new(Seq(number), 1),
            tenant: tenant.into(),
            queue: "c".into(),
            from: None,
            to: Some(Place::Pending),
            event: Event::Created,
            at: Moment::agreed(1),
            age: 0,
            attempts: 0,
        })
    }

    async fn next(reader: &mut Reader) -> BusItem {
        loop {
            reader.wait().await;
            if let Some(heard) = reader.take() {
                return heard;
            }
        }
    }

    async fn numbers(reader: &mut Reader, count: usize) -> Vec<u64> {
        let mut got = Vec::new();
        while got.len() < count {
            match next(reader).await {
                BusItem::Transition(transition, _) => got.push(transition.number),
                other => panic!("{other:?}"),
            }
        }
        got
    }

    #[tokio::test]
    async fn reads_only_its_tenant_and_resumes_where_it_stopped() {
        let bus = EventBus::new(1);
        bus.committed(ShardId(0), &[transition("a", 1), transition("b", 2), transition("a", 3)]);
        let tenant: Arc<str> = "a".into();
        let (mut reader, missed) = bus.listen(&tenant, None).unwrap();
        assert!(!missed);
        bus.committed(ShardId(0), &[transition("b", 4), transition("a", 5)]);
        assert_eq!(numbers(&mut reader, 1).await, [5]);
        let (mut again, missed) = bus.listen(&tenant, Some(vec![2])).unwrap();
        assert!(!missed);
        bus.committed(ShardId(0), &[transition("a", 6)]);
        assert_eq!(numbers(&mut again, 3).await, [3, 5, 6]);
        assert_eq!(again.position(), &vec![7]);
    }

    #[tokio::test]
    async fn reports_missed_transitions() {
        let bus = EventBus::new(1);
        let effects: Vec<_> = (10..10 + KEPT as u64 + 5).map(|n| transition("a", n)).collect();
        bus.recovered(ShardId(0), &effects);
        let tenant: Arc<str> = "a".into();
        assert!(bus.listen(&tenant, Some(vec![3])).unwrap().1);
        assert!(bus.listen(&tenant, Some(vec![1, 2])).unwrap().1, "of other shards");
        assert!(bus.listen(&tenant, Some(vec![u64::MAX])).unwrap().1, "of another directory");
        assert!(!bus.listen(&tenant, Some(vec![20 + KEPT as u64 / 2])).unwrap().1);
    }

    #[tokio::test]
    async fn a_reader_learns_that_rows_of_another_node_have_replaced_these() {
        let bus = EventBus::new(1);
        bus.resumed(ShardId(0), 1);
        let tenant: Arc<str> = "a".into();
        let (mut reader, missed) = bus.listen(&tenant, None).unwrap();
        assert!(!missed);
        bus.committed(ShardId(0), &[transition("a", 1), transition("a", 2)]);
        assert_eq!(numbers(&mut reader, 2).await, [1, 2]);
        // Rows as of the same transition: nothing is missing.
        bus.resumed(ShardId(0), 3);
        bus.committed(ShardId(0), &[transition("a", 3)]);
        assert_eq!(numbers(&mut reader, 1).await, [3]);
        let waiting = next(&mut reader);
        let install = async {
            tokio::task::yield_now().await;
            bus.resumed(ShardId(0), 90);
        };
        let (BusItem::Missed(position), ()) = tokio::join!(waiting, install) else {
            panic!("not missed")
        };
        assert_eq!(position, [90]);
        bus.committed(ShardId(0), &[transition("a", 90)]);
        assert_eq!(numbers(&mut reader, 1).await, [90]);
        assert!(bus.listen(&tenant, Some(vec![3])).unwrap().1);
        assert!(!bus.listen(&tenant, Some(vec![90])).unwrap().1);
    }

    #[tokio::test]
    async fn a_slow_reader_misses_nothing_that_is_kept() {
        let bus = EventBus::new(1);
        let tenant: Arc<str> = "a".into();
        bus.committed(ShardId(0), &[transition("a", 1)]);
        let (mut reader, _) = bus.listen(&tenant, None).unwrap();
        let last = 2 + SEGMENT as u64 * 9;
        let effects: Vec<_> = (2..last).map(|n| transition("a", n)).collect();
        bus.committed(ShardId(0), &effects);
        let got = numbers(&mut reader, effects.len()).await;
        assert_eq!(got, (2..last).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_catch_up_takes_one_segment_at_a_time() {
        let bus = EventBus::new(1);
        let effects: Vec<_> = (0..KEPT as u64).map(|n| transition("a", n)).collect();
        bus.committed(ShardId(0), &effects);
        let tenant: Arc<str> = "a".into();
        let (mut reader, _) = bus.listen(&tenant, Some(vec![0])).unwrap();
        assert!(reader.backlog.is_empty(), "nothing is copied while the bus is locked");
        for number in 0..KEPT as u64 {
            assert_eq!(numbers(&mut reader, 1).await, [number]);
            assert!(reader.backlog.len() < SEGMENT);
        }
        bus.committed(ShardId(0), &[transition("a", KEPT as u64)]);
        assert_eq!(numbers(&mut reader, 1).await, [KEPT as u64]);
    }

    #[tokio::test]
    async fn a_reader_that_falls_behind_learns_of_it() {
        let bus = EventBus::new(2);
        let tenant: Arc<str> = "a".into();
        let (mut reader, _) = bus.listen(&tenant, Some(vec![0, 0])).unwrap();
        let others = (1..2 * KEPT as u64).map(|n| transition("b", n));
        let effects: Vec<_> = std::iter::once(transition("a", 0)).chain(others).collect();
        bus.committed(ShardId(1), &effects);
        let BusItem::Missed(position) = next(&mut reader).await else { panic!("not missed") };
        assert_eq!(position[0], 0);
        assert!((KEPT as u64..=(KEPT + SEGMENT) as u64).contains(&position[1]), "{position:?}");
        bus.committed(ShardId(0), &[transition("a", 0)]);
        assert_eq!(numbers(&mut reader, 1).await, [0]);
    }

    #[tokio::test]
    async fn a_quiet_tenant_misses_nothing_while_others_are_busy() {
        let bus = EventBus::new(2);
        let tenant: Arc<str> = "a".into();
        let (mut reader, _) = bus.listen(&tenant, None).unwrap();
        bus.committed(ShardId(1), &[transition("b", 0), transition("a", 1)]);
        assert_eq!(numbers(&mut reader, 1).await, [1]);
        let end = 2 * KEPT as u64;
        let effects: Vec<_> = (2..end).map(|n| transition("b", n)).collect();
        bus.committed(ShardId(1), &effects);
        assert!(reader.take().is_none(), "nothing is missing");
        assert_eq!(reader.position(), &vec![0, end], "a client that resumes there misses nothing");
        bus.committed(ShardId(1), &[transition("a", end)]);
        assert_eq!(numbers(&mut reader, 1).await, [end]);
    }

    #[tokio::test]
    async fn no_tenant_has_more_than_half_of_the_readers() {
        let bus = EventBus::new(1);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let one = |tenant| bus.listen(tenant, None).map(|(reader, _)| reader);
        let mut of_a: Vec<Reader> = std::iter::from_fn(|| one(&a)).collect();
        assert_eq!(of_a.len(), READERS_PER_TENANT_MAX);
        let of_b: Vec<Reader> = std::iter::from_fn(|| one(&b)).take(10).collect();
        assert_eq!(of_b.len(), 10);
        of_a.pop();
        assert!(bus.listen(&a, None).is_some());
        drop((of_a, of_b));
        let state = bus.state.lock();
        assert_eq!((state.readers, state.live.len()), (0, 0));
    }

    #[tokio::test]
    async fn all_readers_of_a_tenant_are_woken() {
        let bus = EventBus::new(1);
        let tenant: Arc<str> = "a".into();
        let mut readers: Vec<Reader> =
            (0..20).map(|_| bus.listen(&tenant, None).unwrap().0).collect();
        for number in 0..3 {
            let hear = readers.iter_mut().map(|reader| numbers(reader, 1));
            let hear = futures_util::future::join_all(hear);
            let tell = async {
                tokio::task::yield_now().await;
                bus.committed(
                    ShardId(0),
                    &[transition("b", 2 * number), transition("a", 2 * number + 1)],
                );
            };
            let (heard, ()) = tokio::join!(hear, tell);
            assert!(heard.iter().all(|got| *got == [2 * number + 1]), "{heard:?}");
        }
        drop(readers);
        // Listening again after the last reader left: a new waker task runs.
        tokio::task::yield_now().await;
        let (mut again, _) = bus.listen(&tenant, None).unwrap();
        bus.committed(ShardId(0), &[transition("a", 99)]);
        assert_eq!(numbers(&mut again, 1).await, [99]);
    }
}
