//! Transition rates: per second over the last minute, by tenant and queue.

use std::collections::HashMap;
use std::sync::Arc;

use codeq_core::command::Millis;
use codeq_core::effect::{Effect, Transition};
use codeq_core::history::Event;
use codeq_core::place::Place;
use parking_lot::Mutex;

/// Maximum number of queues with rates; others report none. Queues idle for a minute are evicted.
pub const QUEUES_MAX: usize = 10_000;
const SLOTS: usize = 12;
const SLOT_MS: Millis = 5_000;

/// Transitions per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    /// Tasks created.
    pub enqueued: f64,
    /// Tasks claimed.
    pub claimed: f64,
    /// Tasks finished, in any state.
    pub finished: f64,
}

/// The rates of all queues.
#[derive(Default)]
pub struct Rates {
    tenants: Mutex<Tenants>,
}

#[derive(Default)]
struct Tenants {
    queues: usize,
    by_tenant: HashMap<Arc<str>, HashMap<Arc<str>, Ring>>,
}

/// Counts per time slot: the current slot and those of the last minute.
#[derive(Default)]
struct Ring {
    /// The slot counted last.
    slot: Millis,
    counts: [[u32; 3]; SLOTS],
}

impl Ring {
    /// Clears the slots between the last one and `slot`.
    fn advance(&mut self, slot: Millis) {
        if slot <= self.slot {
            return;
        }
        let steps = (slot - self.slot).min(SLOTS as Millis);
        for step in 0..steps {
            if let Some(counts) = self.counts.get_mut(((slot - step) % SLOTS as Millis) as usize) {
                *counts = [0; 3];
            }
        }
        self.slot = slot;
    }

    fn count(&mut self, at: Millis, kind: usize) {
        self.advance(at / SLOT_MS);
        let current = self.counts.get_mut((self.slot % SLOTS as Millis) as usize);
        if let Some(count) = current.and_then(|counts| counts.get_mut(kind)) {
            *count = count.saturating_add(1);
        }
    }

    fn rate(&mut self, now: Millis) -> Rate {
        self.advance(now / SLOT_MS);
        // The current slot is not over, so the slots cover slightly less than a minute.
        let past = (SLOTS as Millis - 1) * SLOT_MS + now % SLOT_MS;
        let sum = |kind: usize| {
            let counts = self.counts.iter().filter_map(|counts| counts.get(kind));
            counts.map(|count| f64::from(*count)).sum::<f64>() * 1_000.0 / past.max(1) as f64
        };
        Rate { enqueued: sum(0), claimed: sum(1), finished: sum(2) }
    }
}

impl Rates {
    /// Counts durable transitions.
    pub fn count(&self, effects: &[Effect]) {
        let mut tenants = self.tenants.lock();
        for effect in effects {
            let Effect::Moved(transition) = effect else {
                continue;
            };
            if let (Some(kind), Some(ring)) = (kind_of(transition), tenants.ring(transition)) {
                ring.count(transition.at.now, kind);
            }
        }
    }

    /// The rate of a queue at `now`, in engine time.
    pub fn of(&self, tenant: &str, queue: &str, now: Millis) -> Rate {
        let mut tenants = self.tenants.lock();
        let ring = tenants.by_tenant.get_mut(tenant).and_then(|queues| queues.get_mut(queue));
        ring.map_or(Rate::default(), |ring| ring.rate(now))
    }
}

impl Tenants {
    fn ring(&mut self, transition: &Transition) -> Option<&mut Ring> {
        let known = self
            .by_tenant
            .get(&transition.tenant)
            .is_some_and(|q| q.contains_key(&transition.queue));
        if !known {
            if self.queues >= QUEUES_MAX {
                self.forget_idle(transition.at.now / SLOT_MS);
            }
            if self.queues >= QUEUES_MAX {
                return None;
            }
            self.queues += 1;
        }
        if known {
            // Common case: no names to clone.
            return self.by_tenant.get_mut(&transition.tenant)?.get_mut(&transition.queue);
        }
        let queues = self.by_tenant.entry(Arc::clone(&transition.tenant)).or_default();
        Some(queues.entry(Arc::clone(&transition.queue)).or_default())
    }

    fn forget_idle(&mut self, slot: Millis) {
        for queues in self.by_tenant.values_mut() {
            queues.retain(|_, ring| ring.slot + SLOTS as Millis > slot);
        }
        self.by_tenant.retain(|_, queues| !queues.is_empty());
        self.queues = self.by_tenant.values().map(HashMap::len).sum();
    }
}

fn kind_of(transition: &Transition) -> Option<usize> {
    match (transition.event, transition.to) {
        (Event::Created, _) => Some(0),
        (Event::Claimed, _) => Some(1),
        (_, Some(Place::Completed | Place::Failed | Place::Dead)) => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codeq_core::id::TaskId;
    use codeq_core::keys::Seq;
    use codeq_core::moment::Moment;

    fn transition(queue: &str, at: Millis, event: Event, to: Place) -> Effect {
        Effect::Moved(Transition {
            number: 1,
            id: TaskId::new(Seq(1), 1),
            tenant: "t".into(),
            queue: queue.into(),
            from: None,
            to: Some(to),
            event,
            at: Moment::agreed(at),
            age: 0,
            attempts: 0,
        })
    }

    #[test]
    fn a_minute_is_counted_and_then_forgotten() {
        let rates = Rates::default();
        let start = 1_000 * SLOT_MS;
        for second in 0..60 {
            let at = start + second * 1_000;
            rates.count(&[
                transition("a", at, Event::Created, Place::Pending),
                transition("a", at, Event::Created, Place::Delayed),
                transition("a", at, Event::Claimed, Place::InProgress),
                transition("a", at, Event::Nacked, Place::Delayed),
                transition("a", at, Event::Nacked, Place::Dead),
            ]);
        }
        let rate = rates.of("t", "a", start + 59_999);
        assert!((rate.enqueued - 2.0).abs() < 0.1, "{rate:?}");
        assert!((rate.claimed - 1.0).abs() < 0.1 && (rate.finished - 1.0).abs() < 0.1, "{rate:?}");
        assert_eq!(rates.of("t", "b", start), Rate::default());
        assert_eq!(rates.of("u", "a", start), Rate::default());
        assert_eq!(rates.of("t", "a", start + 200_000), Rate::default());
    }

    #[test]
    fn queues_are_bounded_and_idle_ones_make_room() {
        let rates = Rates::default();
        let made = |n: usize, at| transition(&n.to_string(), at, Event::Created, Place::Pending);
        let all: Vec<_> = (0..QUEUES_MAX + 5).map(|n| made(n, SLOT_MS)).collect();
        rates.count(&all);
        assert_eq!(rates.tenants.lock().queues, QUEUES_MAX);
        rates.count(&[made(QUEUES_MAX + 9, 100 * SLOT_MS)]);
        assert_eq!(rates.tenants.lock().queues, 1);
    }
}
