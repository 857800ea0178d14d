//! Claims that found nothing and wait. A new task wakes exactly one of them, the one that has waited longest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use codeq_core::command::{Millis, Selector};
use codeq_core::names::queue_name;

use crate::request::{ClientNumber, WaitingClaim};

/// Number of a waiting claim; smaller numbers have waited longer.
pub type ClaimNumber = u64;

/// The waiting claims of a shard.
#[derive(Default)]
pub struct WaitingClaims {
    next: ClaimNumber,
    claims: BTreeMap<ClaimNumber, WaitingClaim>,
    /// Claims by queue, longest wait first. A claim for several commands is listed several times.
    by_queue: BTreeMap<(Arc<str>, Arc<str>), VecDeque<ClaimNumber>>,
    /// Claims for any queue of a tenant.
    by_tenant: BTreeMap<Arc<str>, VecDeque<ClaimNumber>>,
    deadlines: BTreeSet<(Millis, ClaimNumber)>,
    /// Claims by client, to find those of a client that leaves.
    by_client: BTreeSet<(ClientNumber, ClaimNumber)>,
    /// Number of waiting claims per tenant.
    tenants: BTreeMap<Arc<str>, usize>,
}

impl WaitingClaims {
    /// Number of waiting claims.
    pub fn len(&self) -> usize {
        self.claims.len()
    }

    /// Number of a tenant's waiting claims.
    pub fn of(&self, tenant: &str) -> usize {
        self.tenants.get(tenant).copied().unwrap_or(0)
    }

    /// Whether no claim waits.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Adds a claim at the end of its lists.
    pub fn add(&mut self, claim: WaitingClaim) {
        let id = self.next;
        self.next += 1;
        self.put(id, claim);
    }

    /// Puts back a claim that was taken but not served. It keeps its position.
    pub fn put(&mut self, id: ClaimNumber, waiting: WaitingClaim) {
        let tenant = Arc::clone(&waiting.claim.tenant);
        match &waiting.claim.from {
            Selector::Any => enter(self.by_tenant.entry(tenant).or_default(), id),
            Selector::Commands(commands) => {
                for command in commands {
                    let key = (Arc::clone(&tenant), Arc::from(&*queue_name(command)));
                    enter(self.by_queue.entry(key).or_default(), id);
                }
            }
        }
        self.deadlines.insert((waiting.deadline, id));
        self.by_client.extend(waiting.reply.clients().map(|client| (client, id)));
        *self.tenants.entry(Arc::clone(&waiting.claim.tenant)).or_default() += 1;
        self.claims.insert(id, waiting);
    }

    /// Takes the claim that has waited longest for this queue and whose client is still there.
    pub fn take(
        &mut self,
        tenant: &Arc<str>,
        queue: &Arc<str>,
    ) -> Option<(ClaimNumber, WaitingClaim)> {
        loop {
            let key = (Arc::clone(tenant), Arc::clone(queue));
            let named = self.by_queue.get(&key).and_then(|list| list.front().copied());
            let any = self.by_tenant.get(tenant).and_then(|list| list.front().copied());
            let id = named.into_iter().chain(any).min()?;
            let waiting = self.remove(id)?;
            if !waiting.reply.is_closed() {
                return Some((id, waiting));
            }
        }
    }

    /// Takes a claim whose wait has timed out.
    pub fn take_due(&mut self, now: Millis) -> Option<WaitingClaim> {
        let (deadline, id) = self.deadlines.first().copied()?;
        if deadline <= now { self.remove(id) } else { None }
    }

    /// When the next wait times out.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Takes all claims, at shutdown.
    pub fn take_all(&mut self) -> Vec<WaitingClaim> {
        let all = std::mem::take(self);
        self.next = all.next;
        all.claims.into_values().collect()
    }

    /// Drops the claims of a client that is gone.
    pub fn forget(&mut self, client: ClientNumber) {
        let of_client = self.by_client.range((client, 0)..=(client, ClaimNumber::MAX));
        // The number may already belong to a new client, and another shard may be trying to serve a claim.
        let is_gone =
            |id: &ClaimNumber| self.claims.get(id).is_none_or(|waiting| waiting.reply.is_closed());
        let gone: Vec<ClaimNumber> = of_client.map(|(_, id)| *id).filter(is_gone).collect();
        for id in gone {
            if self.remove(id).is_none() {
                self.by_client.remove(&(client, id));
            }
        }
    }

    fn remove(&mut self, id: ClaimNumber) -> Option<WaitingClaim> {
        let waiting = self.claims.remove(&id)?;
        self.deadlines.remove(&(waiting.deadline, id));
        for client in waiting.reply.clients() {
            self.by_client.remove(&(client, id));
        }
        let tenant = &waiting.claim.tenant;
        if let Some(count) = self.tenants.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.tenants.remove(tenant);
            }
        }
        match &waiting.claim.from {
            Selector::Any => {
                if let Some(list) = self.by_tenant.get_mut(tenant) {
                    leave(list, id);
                    if list.is_empty() {
                        self.by_tenant.remove(tenant);
                    }
                }
            }
            Selector::Commands(commands) => {
                for command in commands {
                    let key = (Arc::clone(tenant), Arc::from(&*queue_name(command)));
                    if let Some(list) = self.by_queue.get_mut(&key) {
                        leave(list, id);
                        if list.is_empty() {
                            self.by_queue.remove(&key);
                        }
                    }
                }
            }
        }
        Some(waiting)
    }
}

/// Keeps the list sorted by number, so that a claim that is put back returns to its position.
fn enter(list: &mut VecDeque<ClaimNumber>, id: ClaimNumber) {
    if let Err(at) = list.binary_search(&id) {
        list.insert(at, id);
    }
}

fn leave(list: &mut VecDeque<ClaimNumber>, id: ClaimNumber) {
    if let Ok(at) = list.binary_search(&id) {
        list.remove(at);
    }
}
