//! Transitions of tasks as a stream that can be taken up again where it broke off.
//!
//! Every transition has a number in its shard that it keeps for ever. The bus holds the latest ones of all
//! tenants, after a restart those since the last checkpoint. Whoever comes back with a position that is older
//! is told so, and lists anew.

pub mod rates;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use codeq_core::effect::{Effect, Move};
use codeq_engine::Observer;
use parking_lot::Mutex;
use tokio::sync::broadcast;

/// Transitions that a shard keeps for those who come back.
pub const KEPT: usize = 65_536;
/// Transitions that a slow reader may be behind before it has to take them from those that are kept.
const BEHIND_MAX: usize = 1_024;
/// Most readers at once.
pub const READERS_MAX: usize = 1_000;

/// The latest transitions, and those who wait for the next.
#[derive(Default)]
pub struct EventBus {
    state: Mutex<State>,
    /// How fast queues move.
    pub rates: rates::Rates,
}

#[derive(Default)]
struct State {
    /// By shard.
    shards: Vec<Kept>,
    /// By tenant; only tenants that somebody listens to.
    live: HashMap<Arc<str>, broadcast::Sender<(u16, Arc<Move>)>>,
}

#[derive(Default)]
struct Kept {
    /// In the order of their numbers, without gaps.
    moves: VecDeque<Arc<Move>>,
    /// The number of the next one.
    next: u64,
}

/// A position: by shard, the number of the next transition.
pub type Position = Vec<u64>;

/// Somebody who listens.
pub struct Reader {
    bus: Arc<EventBus>,
    tenant: Arc<str>,
    position: Position,
    backlog: VecDeque<(u16, Arc<Move>)>,
    live: broadcast::Receiver<(u16, Arc<Move>)>,
}

/// What a reader hears.
#[derive(Debug, Clone)]
pub enum Heard {
    /// A transition, and the position after it.
    Move(Arc<Move>, Position),
    /// Some transitions are no longer kept: the reader should look at the tasks anew.
    Missed(Position),
}

impl EventBus {
    /// A bus for an engine with so many shards.
    pub fn new(shards: u16) -> Arc<EventBus> {
        let bus = EventBus::default();
        bus.state.lock().shards.resize_with(usize::from(shards), Kept::default);
        Arc::new(bus)
    }

    /// The number of a shard's next transition, from the engine: the bus knows those that it has seen.
    pub fn resume(&self, shard: u16, next: u64) {
        if let Some(kept) = self.state.lock().shards.get_mut(usize::from(shard)) {
            kept.next = kept.next.max(next);
        }
    }

    /// Forgets shards beyond the engine's: their number is known only once the data is open.
    pub fn limit_to(&self, shards: u16) {
        self.state.lock().shards.truncate(usize::from(shards));
    }

    /// Listens to a tenant from a position on, or from now on. None if too many listen.
    pub fn listen(
        self: &Arc<EventBus>,
        tenant: &Arc<str>,
        from: Option<Position>,
    ) -> Option<(Reader, bool)> {
        let mut state = self.state.lock();
        state.live.retain(|_, sender| sender.receiver_count() > 0);
        let readers: usize = state.live.values().map(broadcast::Sender::receiver_count).sum();
        if readers >= READERS_MAX {
            return None;
        }
        let live = state
            .live
            .entry(Arc::clone(tenant))
            .or_insert_with(|| broadcast::channel(BEHIND_MAX).0)
            .subscribe();
        let now: Position = state.shards.iter().map(|kept| kept.next).collect();
        let (position, missed) = match from {
            Some(from) if from.len() == now.len() => (from, false),
            Some(_) => (now, true),
            None => (now, false),
        };
        let (bus, tenant) = (Arc::clone(self), Arc::clone(tenant));
        let mut reader = Reader { bus, tenant, position, backlog: VecDeque::new(), live };
        let missed = missed | reader.catch_up(&state);
        Some((reader, missed))
    }

    fn push(&self, shard: u16, moves: impl Iterator<Item = Move>) {
        let mut state = self.state.lock();
        let State { shards, live } = &mut *state;
        let Some(kept) = shards.get_mut(usize::from(shard)) else {
            return;
        };
        for moved in moves {
            let moved = Arc::new(moved);
            if kept.moves.len() == KEPT {
                kept.moves.pop_front();
            }
            if let Some(live) = live.get(&moved.tenant) {
                // Nobody listens any more: the channel goes with the next listener.
                let _ = live.send((shard, Arc::clone(&moved)));
            }
            kept.next = moved.number + 1;
            kept.moves.push_back(moved);
        }
    }
}

fn moves(effects: &[Effect]) -> impl Iterator<Item = Move> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Moved(moved) => Some(moved.clone()),
        _ => None,
    })
}

impl Observer for EventBus {
    fn committed(&self, shard: u16, effects: &[Effect]) {
        self.rates.count(effects);
        self.push(shard, moves(effects));
    }

    fn recovered(&self, shard: u16, effects: &[Effect]) {
        self.push(shard, moves(effects));
    }
}

impl Reader {
    /// The position after what was heard so far.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The next transition of the tenant. None when the bus is gone.
    pub async fn next(&mut self) -> Option<Heard> {
        loop {
            let (shard, moved) = match self.backlog.pop_front() {
                Some(next) => next,
                None => match self.live.recv().await {
                    Ok(next) => next,
                    Err(broadcast::error::RecvError::Closed) => return None,
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        let bus = Arc::clone(&self.bus);
                        if self.catch_up(&bus.state.lock()) {
                            return Some(Heard::Missed(self.position.clone()));
                        }
                        continue;
                    }
                },
            };
            let Some(at) = self.position.get_mut(usize::from(shard)) else {
                continue;
            };
            // What was kept and what is live overlap.
            if moved.number >= *at {
                *at = moved.number + 1;
                return Some(Heard::Move(moved, self.position.clone()));
            }
        }
    }

    /// Takes what is kept from the position on. True if something before it is kept no longer.
    fn catch_up(&mut self, state: &State) -> bool {
        let mut missed = false;
        self.backlog.clear();
        for ((shard, kept), at) in (0..).zip(&state.shards).zip(&mut self.position) {
            let first = kept.moves.front().map_or(kept.next, |first| first.number);
            missed |= !(first..=kept.next).contains(at);
            *at = (*at).clamp(first, kept.next);
            let from = kept.moves.partition_point(|moved| moved.number < *at);
            let mine = kept.moves.range(from..).filter(|moved| moved.tenant == self.tenant);
            self.backlog.extend(mine.map(|moved| (shard, Arc::clone(moved))));
        }
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codeq_core::history::Event;
    use codeq_core::id::TaskId;
    use codeq_core::moment::Moment;
    use codeq_core::place::Place;

    fn moved(tenant: &str, number: u64) -> Effect {
        Effect::Moved(Move {
            number,
            id: TaskId::new(number, 1),
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

    async fn numbers(reader: &mut Reader, count: usize) -> Vec<u64> {
        let mut got = Vec::new();
        while got.len() < count {
            match reader.next().await {
                Some(Heard::Move(moved, _)) => got.push(moved.number),
                other => panic!("{other:?}"),
            }
        }
        got
    }

    #[tokio::test]
    async fn hears_only_its_tenant_and_goes_on_where_it_stopped() {
        let bus = EventBus::new(1);
        bus.committed(0, &[moved("a", 1), moved("b", 2), moved("a", 3)]);
        let tenant: Arc<str> = "a".into();
        let (mut reader, missed) = bus.listen(&tenant, None).unwrap();
        assert!(!missed);
        bus.committed(0, &[moved("b", 4), moved("a", 5)]);
        assert_eq!(numbers(&mut reader, 1).await, [5]);
        let (mut again, missed) = bus.listen(&tenant, Some(vec![2])).unwrap();
        assert!(!missed);
        bus.committed(0, &[moved("a", 6)]);
        assert_eq!(numbers(&mut again, 3).await, [3, 5, 6]);
        assert_eq!(again.position(), &vec![7]);
    }

    #[tokio::test]
    async fn says_when_something_is_gone() {
        let bus = EventBus::new(1);
        let effects: Vec<_> = (10..10 + KEPT as u64 + 5).map(|n| moved("a", n)).collect();
        bus.recovered(0, &effects);
        let tenant: Arc<str> = "a".into();
        assert!(bus.listen(&tenant, Some(vec![3])).unwrap().1);
        assert!(bus.listen(&tenant, Some(vec![1, 2])).unwrap().1, "of other shards");
        assert!(bus.listen(&tenant, Some(vec![u64::MAX])).unwrap().1, "of another directory");
        assert!(!bus.listen(&tenant, Some(vec![20 + KEPT as u64 / 2])).unwrap().1);
    }

    #[tokio::test]
    async fn a_slow_reader_misses_nothing_that_is_kept() {
        let bus = EventBus::new(1);
        let tenant: Arc<str> = "a".into();
        bus.committed(0, &[moved("a", 1)]);
        let (mut reader, _) = bus.listen(&tenant, None).unwrap();
        let last = 2 + BEHIND_MAX as u64 * 3;
        let effects: Vec<_> = (2..last).map(|n| moved("a", n)).collect();
        bus.committed(0, &effects);
        let got = numbers(&mut reader, effects.len()).await;
        assert_eq!(got, (2..last).collect::<Vec<_>>());
    }
}
