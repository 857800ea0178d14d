//! Chooses which subscribers are notified of a queue now, and which later.
//!
//! A subscription is not notified more often than its minimum interval allows; notifications that come sooner are
//! deferred. Pure: callers pass the time in.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use codeq_core::id::{fnv1a64, split_mix64};
use tokio::time::Instant;

use super::subscriptions::{Mode, Subscriber, Subscription};

/// Maximum number of commands deferred for one subscription; more are dropped.
const DEFERRED_MAX: usize = 256;

/// What each subscription was notified of, and what is deferred.
#[derive(Default)]
pub(super) struct Recipients {
    by_id: HashMap<Arc<str>, Recipient>,
    /// Subscriptions with something deferred, by when they may be notified again.
    schedule: BTreeSet<(Instant, Arc<str>)>,
    /// Counts notifications, to find who in a group was notified longest ago.
    sent: u64,
    dropped: u64,
}

struct Recipient {
    tenant: Arc<str>,
    interval: Duration,
    /// When it may be notified again.
    free_at: Instant,
    /// The number of its last notification.
    last: u64,
    /// Commands that it has to be notified of.
    deferred: VecDeque<Arc<str>>,
}

/// Tells a subscription that a queue has work.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Notification {
    pub tenant: Arc<str>,
    /// The subscription.
    pub id: Arc<str>,
    pub command: Arc<str>,
}

impl Recipients {
    /// Chooses which of the interested subscribers are notified now that a queue has work. If a subscriber that its mode
    /// selects may not be notified yet, its notification is deferred, except in a group for which one is already
    /// deferred.
    pub fn choose(
        &mut self,
        now: Instant,
        command: &Arc<str>,
        interested: &[Arc<Subscriber>],
    ) -> Vec<Arc<Subscriber>> {
        let mut groups: BTreeMap<&str, Vec<&Arc<Subscriber>>> = BTreeMap::new();
        let mut hashed: Vec<&Arc<Subscriber>> = Vec::new();
        let mut chosen = Vec::new();
        for subscriber in interested {
            let spec = &subscriber.subscription.spec;
            match spec.mode {
                Mode::Fanout => chosen.extend(self.notify(now, command, subscriber)),
                Mode::Group => {
                    let group = spec.group.as_deref().unwrap_or("");
                    groups.entry(group).or_default().push(subscriber);
                }
                Mode::Hash => hashed.push(subscriber),
            }
        }
        for members in groups.into_values() {
            chosen.extend(self.notify_one(now, command, &members));
        }
        if let Some(heaviest) = hashed.into_iter().max_by_key(|one| weight(one, command)) {
            chosen.extend(self.notify(now, command, heaviest));
        }
        chosen
    }

    /// How many notifications were dropped for lack of room, since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// When the next deferred notification may be sent.
    pub fn next_deferred(&self) -> Option<Instant> {
        self.schedule.first().map(|(at, _)| *at)
    }

    /// Takes the deferred notifications that may be sent now, one for each subscription.
    pub fn take_due(&mut self, now: Instant) -> Vec<Notification> {
        let ready = self.schedule.iter().take_while(|(at, _)| *at <= now);
        let ids: Vec<Arc<str>> = ready.map(|(_, id)| Arc::clone(id)).collect();
        let mut due = Vec::new();
        for id in ids {
            self.sent += 1;
            let number = self.sent;
            self.change(&id, |recipient| {
                if let Some(command) = recipient.deferred.pop_front() {
                    let tenant = Arc::clone(&recipient.tenant);
                    due.push(Notification { tenant, id: Arc::clone(&id), command });
                    recipient.notified(now, number);
                }
            });
        }
        due
    }

    /// Records that a notification was not sent after all, so that the next one may follow at once.
    pub fn not_sent(&mut self, id: &Arc<str>, now: Instant) {
        self.change(id, |recipient| recipient.free_at = recipient.free_at.min(now));
    }

    /// Forgets all subscriptions except those for which `keep` returns true.
    pub fn retain(&mut self, keep: impl Fn(&str, &str) -> bool) {
        let gone = self.by_id.iter().filter(|(id, recipient)| !keep(&recipient.tenant, id));
        let gone: Vec<Arc<str>> = gone.map(|(id, _)| Arc::clone(id)).collect();
        gone.iter().for_each(|id| self.forget(id));
    }

    pub fn forget(&mut self, id: &Arc<str>) {
        self.change(id, |recipient| recipient.deferred.clear());
        self.by_id.remove(id);
    }

    /// Notifies one member of a group: of those that may be notified now, the one notified longest ago.
    fn notify_one(
        &mut self,
        now: Instant,
        command: &Arc<str>,
        members: &[&Arc<Subscriber>],
    ) -> Option<Arc<Subscriber>> {
        let rank = |member: &Arc<Subscriber>| {
            let id = &member.subscription.id;
            let known = self.by_id.get(id);
            let free_at = known.map_or(now, |recipient| recipient.free_at.max(now));
            (free_at, known.map_or(0, |recipient| recipient.last), Arc::clone(id))
        };
        let chosen = members.iter().min_by_key(|member| rank(member))?;
        let is_deferred = |member: &&&Arc<Subscriber>| {
            let known = self.by_id.get(&member.subscription.id);
            known.is_some_and(|recipient| recipient.deferred.contains(command))
        };
        let deferred: Vec<Arc<str>> = members
            .iter()
            .filter(is_deferred)
            .map(|one| Arc::clone(&one.subscription.id))
            .collect();
        if rank(chosen).0 > now && !deferred.is_empty() {
            return None;
        }
        // One member is notified now, so no other needs to be later.
        for id in deferred {
            self.change(&id, |recipient| recipient.deferred.retain(|other| other != command));
        }
        self.notify(now, command, chosen)
    }

    /// Returns the subscriber if it may be notified now; otherwise the notification is deferred.
    fn notify(
        &mut self,
        now: Instant,
        command: &Arc<str>,
        subscriber: &Arc<Subscriber>,
    ) -> Option<Arc<Subscriber>> {
        let Subscription { id, tenant, spec, .. } = &subscriber.subscription;
        self.sent += 1;
        let number = self.sent;
        self.by_id.entry(Arc::clone(id)).or_insert_with(|| Recipient {
            tenant: Arc::clone(tenant),
            interval: Duration::ZERO,
            free_at: now,
            last: 0,
            deferred: VecDeque::new(),
        });
        let (mut notify_now, mut dropped) = (false, false);
        self.change(id, |recipient| {
            recipient.interval = Duration::from_secs(spec.min_interval_seconds.into());
            if recipient.free_at <= now {
                recipient.deferred.retain(|other| other != command);
                recipient.notified(now, number);
                notify_now = true;
            } else if !recipient.deferred.contains(command) {
                dropped = recipient.deferred.len() >= DEFERRED_MAX;
                if !dropped {
                    recipient.deferred.push_back(Arc::clone(command));
                }
            }
        });
        self.dropped += u64::from(dropped);
        notify_now.then(|| Arc::clone(subscriber))
    }

    /// Changes a recipient, and the schedule with it.
    fn change(&mut self, id: &Arc<str>, change: impl FnOnce(&mut Recipient)) {
        let Some(recipient) = self.by_id.get_mut(id) else { return };
        self.schedule.remove(&(recipient.free_at, Arc::clone(id)));
        change(recipient);
        if !recipient.deferred.is_empty() {
            self.schedule.insert((recipient.free_at, Arc::clone(id)));
        }
    }
}

impl Recipient {
    fn notified(&mut self, now: Instant, number: u64) {
        self.free_at = now + self.interval;
        self.last = number;
    }
}

/// The heaviest subscription is chosen ("rendezvous hashing"): a subscription that comes or goes moves only the
/// commands that it wins or has won.
fn weight<'a>(subscriber: &'a Arc<Subscriber>, command: &str) -> (u64, &'a str) {
    let id = &*subscriber.subscription.id;
    let mixed = split_mix64(fnv1a64(id.as_bytes()) ^ split_mix64(fnv1a64(command.as_bytes())));
    (mixed, id)
}

#[cfg(test)]
mod tests;
