//! Whose turn it is: which of several subscriptions hear of a queue now, and which have to wait.
//!
//! No clock and no sockets: moments come in, decisions go out.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use codeq_core::id::{fnv1a64, split_mix64};
use tokio::time::Instant;

use super::subscriptions::{Mode, Receiver, Subscription};

/// Queues that a subscription can be told of later; what comes on top is forgotten.
const OWED_MAX: usize = 256;

/// What each subscription has heard, and what it is still to hear.
#[derive(Default)]
pub struct Turns {
    slots: HashMap<Arc<str>, Slot>,
    /// Those that are owed something, by the moment from which on they may hear it.
    agenda: BTreeSet<(Instant, Arc<str>)>,
    /// Counts notifications: who has waited longest in a group is next.
    turn: u64,
    /// How often there was no room to owe something.
    forgotten: u64,
}

struct Slot {
    tenant: Arc<str>,
    interval: Duration,
    /// Not before this moment again.
    free_at: Instant,
    /// When it was last told of something, as a number.
    last: u64,
    /// Commands that it was not told of.
    owed: VecDeque<Arc<str>>,
}

/// Something that was owed and may be sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Whose subscription.
    pub tenant: Arc<str>,
    /// Which.
    pub id: Arc<str>,
    /// The queue.
    pub command: Arc<str>,
}

impl Turns {
    /// A queue has work: who of those that want to hear of it is told now. The others are owed it, as far as
    /// it concerns them.
    pub fn ready(
        &mut self,
        now: Instant,
        command: &Arc<str>,
        wanting: &[Arc<Receiver>],
    ) -> Vec<Arc<Receiver>> {
        let mut groups: BTreeMap<&str, Vec<&Arc<Receiver>>> = BTreeMap::new();
        let mut hashed: Vec<&Arc<Receiver>> = Vec::new();
        let mut told = Vec::new();
        for receiver in wanting {
            let wish = &receiver.subscription.wish;
            match wish.mode {
                Mode::Fanout => told.extend(self.tell(now, command, receiver)),
                Mode::Group => {
                    groups.entry(wish.group.as_deref().unwrap_or("")).or_default().push(receiver);
                }
                Mode::Hash => hashed.push(receiver),
            }
        }
        for members in groups.into_values() {
            told.extend(self.tell_one(now, command, &members));
        }
        if let Some(chosen) = hashed.into_iter().max_by_key(|one| weight(one, command)) {
            told.extend(self.tell(now, command, chosen));
        }
        told
    }

    /// How often there was no room to owe something, since the last time.
    pub fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// When something that is owed may be sent.
    pub fn next(&self) -> Option<Instant> {
        self.agenda.first().map(|(at, _)| *at)
    }

    /// What is owed and may be sent now, once for each subscription.
    pub fn due(&mut self, now: Instant) -> Vec<Due> {
        let ready = self.agenda.iter().take_while(|(at, _)| *at <= now);
        let ids: Vec<Arc<str>> = ready.map(|(_, id)| Arc::clone(id)).collect();
        let mut due = Vec::new();
        for id in ids {
            self.turn += 1;
            let turn = self.turn;
            self.change(&id, |slot| {
                if let Some(command) = slot.owed.pop_front() {
                    let tenant = Arc::clone(&slot.tenant);
                    due.push(Due { tenant, id: Arc::clone(&id), command });
                    slot.sent(now, turn);
                }
            });
        }
        due
    }

    /// Nothing was sent after all: the next may come at once.
    pub fn unsent(&mut self, id: &Arc<str>, now: Instant) {
        self.change(id, |slot| slot.free_at = slot.free_at.min(now));
    }

    /// Forgets all subscriptions but these.
    pub fn retain(&mut self, keep: impl Fn(&str, &str) -> bool) {
        let gone = self.slots.iter().filter(|(id, slot)| !keep(&slot.tenant, id));
        let gone: Vec<Arc<str>> = gone.map(|(id, _)| Arc::clone(id)).collect();
        gone.iter().for_each(|id| self.forget(id));
    }

    /// The subscription is gone.
    pub fn forget(&mut self, id: &Arc<str>) {
        self.change(id, |slot| slot.owed.clear());
        self.slots.remove(id);
    }

    /// Tells one of a group: who has waited longest of those that may hear now.
    fn tell_one(
        &mut self,
        now: Instant,
        command: &Arc<str>,
        members: &[&Arc<Receiver>],
    ) -> Option<Arc<Receiver>> {
        let of = |receiver: &Arc<Receiver>| {
            let id = &receiver.subscription.id;
            let slot = self.slots.get(id);
            let free_at = slot.map_or(now, |slot| slot.free_at.max(now));
            (free_at, slot.map_or(0, |slot| slot.last), Arc::clone(id))
        };
        let chosen = members.iter().min_by_key(|receiver| of(receiver))?;
        let owes = |receiver: &&&Arc<Receiver>| {
            let slot = self.slots.get(&receiver.subscription.id);
            slot.is_some_and(|slot| slot.owed.contains(command))
        };
        let owing: Vec<Arc<str>> =
            members.iter().filter(owes).map(|one| Arc::clone(&one.subscription.id)).collect();
        if of(chosen).0 > now && !owing.is_empty() {
            return None;
        }
        // One of the group hears of it now, so that nobody else has to later.
        for id in owing {
            self.change(&id, |slot| slot.owed.retain(|owed| owed != command));
        }
        self.tell(now, command, chosen)
    }

    fn tell(
        &mut self,
        now: Instant,
        command: &Arc<str>,
        receiver: &Arc<Receiver>,
    ) -> Option<Arc<Receiver>> {
        let Subscription { id, tenant, wish, .. } = &receiver.subscription;
        self.turn += 1;
        let turn = self.turn;
        self.slots.entry(Arc::clone(id)).or_insert_with(|| Slot {
            tenant: Arc::clone(tenant),
            interval: Duration::ZERO,
            free_at: now,
            last: 0,
            owed: VecDeque::new(),
        });
        let (mut told, mut forgotten) = (false, false);
        self.change(id, |slot| {
            slot.interval = Duration::from_secs(wish.min_interval_seconds.into());
            if slot.free_at <= now {
                slot.owed.retain(|owed| owed != command);
                slot.sent(now, turn);
                told = true;
            } else if !slot.owed.contains(command) {
                forgotten = slot.owed.len() >= OWED_MAX;
                if !forgotten {
                    slot.owed.push_back(Arc::clone(command));
                }
            }
        });
        self.forgotten += u64::from(forgotten);
        told.then(|| Arc::clone(receiver))
    }

    /// Changes a slot and keeps the agenda in step.
    fn change(&mut self, id: &Arc<str>, change: impl FnOnce(&mut Slot)) {
        let Some(slot) = self.slots.get_mut(id) else {
            return;
        };
        self.agenda.remove(&(slot.free_at, Arc::clone(id)));
        change(slot);
        if !slot.owed.is_empty() {
            self.agenda.insert((slot.free_at, Arc::clone(id)));
        }
    }
}

impl Slot {
    fn sent(&mut self, now: Instant, turn: u64) {
        self.free_at = now + self.interval;
        self.last = turn;
    }
}

/// The highest wins ("rendezvous hashing"): a subscription that comes or goes moves only the commands that it
/// wins or has won.
fn weight<'a>(receiver: &'a Arc<Receiver>, command: &str) -> (u64, &'a str) {
    let id = &*receiver.subscription.id;
    let mixed = split_mix64(fnv1a64(id.as_bytes()) ^ split_mix64(fnv1a64(command.as_bytes())));
    (mixed, id)
}

#[cfg(test)]
mod tests;
