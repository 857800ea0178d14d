//! Worker subscriptions: who wants to be told that there is work.
//!
//! The truth is in the engine's records. [`Subscriptions`] is the server's view of it, for the one question
//! that is asked often: who wants to hear of this queue?

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use codeq_core::command::Millis;
use codeq_core::record::{Record, RecordKind};
use codeq_engine::records::RecordCursor;
use codeq_engine::{Engine, EngineError};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::work_available::{Bell, Interest};
use crate::hex::hex;
use crate::policy::{Destination, Policy};

/// To whom of several subscriptions a notification goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// To each.
    Fanout,
    /// To one of each group, in turn.
    Group,
    /// To one of all that have this mode, by the command.
    Hash,
}

impl Mode {
    /// The client's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Fanout => "fanout",
            Mode::Group => "group",
            Mode::Hash => "hash",
        }
    }

    /// What a client's word means.
    pub fn of(text: &str) -> Option<Mode> {
        [Mode::Fanout, Mode::Group, Mode::Hash].into_iter().find(|mode| mode.name() == text)
    }
}

/// What a worker asked for. This is what its record holds, as JSON: fields may be added, none is renamed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wish {
    /// The subject of the token that made it.
    pub owner: Arc<str>,
    /// Where notifications go.
    pub callback_url: Arc<str>,
    /// Of which commands, as the worker spells them; none means all.
    pub event_types: Option<Vec<Arc<str>>>,
    /// To whom of several.
    pub mode: Mode,
    /// The group, in group mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Arc<str>>,
    /// At least so long between two notifications.
    pub min_interval_seconds: u32,
    /// How long it lives without being renewed.
    pub ttl_seconds: u32,
}

// The address may hold a secret of the receiver's.
impl fmt::Debug for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, mode) = (&self.owner, self.mode);
        f.debug_struct("Wish").field("owner", owner).field("mode", &mode).finish_non_exhaustive()
    }
}

impl Wish {
    /// The id of the subscription: the same for the same wish of the same worker, so that a worker that
    /// subscribes again after a restart has one subscription and not two.
    pub fn id(&self, tenant: &str) -> String {
        let mut hasher = Sha256::new();
        let mut feed = |text: &str| {
            hasher.update((text.len() as u64).to_be_bytes());
            hasher.update(text);
        };
        feed(tenant);
        feed(&self.owner);
        feed(&self.callback_url);
        feed(self.mode.name());
        feed(self.group.as_deref().unwrap_or(""));
        match &self.event_types {
            None => feed("*"),
            Some(names) => {
                let mut names: Vec<String> =
                    names.iter().map(|name| name.to_ascii_lowercase()).collect();
                names.sort_unstable();
                names.dedup();
                feed(&names.len().to_string());
                names.iter().for_each(|name| feed(name));
            }
        }
        let digest = hasher.finalize();
        hex(digest.first_chunk::<16>().map_or(&[][..], |half| half))
    }

    /// How the worker spells this command, if it wants to hear of it.
    pub fn spelling<'a>(&'a self, command: &'a str) -> Option<&'a str> {
        match &self.event_types {
            None => Some(command),
            Some(names) => {
                let found = names.iter().find(|name| name.eq_ignore_ascii_case(command));
                found.map(|name| &**name)
            }
        }
    }
}

/// A subscription as its record has it.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// Its id.
    pub id: Arc<str>,
    /// Whose.
    pub tenant: Arc<str>,
    /// What the worker asked for.
    pub wish: Wish,
    /// The revision of its record.
    pub revision: u64,
    /// When it was made.
    pub created_at: Millis,
    /// When it ends by engine time, unless it is renewed.
    pub expires_at: Millis,
}

impl Subscription {
    /// Reads a record. None if it is not one of ours, which is told in the log.
    pub fn read(record: &Record) -> Option<Subscription> {
        let wish = match serde_json::from_slice(&record.value) {
            Ok(wish) => wish,
            Err(error) => {
                let id = &*record.name;
                tracing::warn!(target: "codeq::push", id, %error, "a subscription cannot be read");
                return None;
            }
        };
        Some(Subscription {
            id: Arc::clone(&record.name),
            tenant: Arc::clone(&record.tenant),
            wish,
            revision: record.revision,
            created_at: record.created_at,
            expires_at: record.expires_at.unwrap_or(Millis::MAX),
        })
    }
}

/// A subscription that can be notified.
pub struct Receiver {
    /// The subscription.
    pub subscription: Subscription,
    /// Where it goes.
    pub to: Destination,
    /// As long as somebody wants to hear, the bell listens.
    _interest: Interest,
}

type ByTenant = HashMap<Arc<str>, HashMap<Arc<str>, Arc<Receiver>>>;

/// The server's view of all subscriptions.
pub struct Subscriptions {
    by_tenant: RwLock<ByTenant>,
    policy: Arc<Policy>,
    bell: Arc<Bell>,
}

impl Subscriptions {
    /// None, so far.
    pub fn new(policy: Arc<Policy>, bell: Arc<Bell>) -> Subscriptions {
        Subscriptions { by_tenant: RwLock::default(), policy, bell }
    }

    /// What hears of queues that have work.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Reads all of them from the engine.
    pub async fn load(&self, engine: &Engine) -> Result<(), EngineError> {
        let mut found = ByTenant::default();
        let mut next = Some(RecordCursor::default());
        while let Some(from) = next {
            let page = engine.all_records(RecordKind::Subscription, from).await?;
            for receiver in page.records.iter().filter_map(|record| self.receiver(record)) {
                let Subscription { tenant, id, .. } = &receiver.subscription;
                let of_tenant = found.entry(Arc::clone(tenant)).or_default();
                of_tenant.insert(Arc::clone(id), Arc::new(receiver));
            }
            next = page.next;
        }
        *self.by_tenant.write() = found;
        Ok(())
    }

    /// Reads one of them from the engine. False if it is gone.
    pub async fn refresh(
        &self,
        engine: &Engine,
        tenant: &Arc<str>,
        id: &Arc<str>,
    ) -> Result<bool, EngineError> {
        let record = engine.record(tenant, RecordKind::Subscription, id).await?;
        let set = record.is_some_and(|record| self.set(&record));
        if !set {
            self.remove(tenant, id);
        }
        Ok(set)
    }

    /// A record that was put just now. The bell will have it read again, should it have changed meanwhile.
    pub fn put(&self, record: &Record) {
        self.set(record);
        self.bell.changed(&record.tenant, &record.name);
    }

    fn set(&self, record: &Record) -> bool {
        let Some(receiver) = self.receiver(record) else {
            return false;
        };
        let Subscription { tenant, id, .. } = &receiver.subscription;
        let (tenant, id) = (Arc::clone(tenant), Arc::clone(id));
        self.by_tenant.write().entry(tenant).or_default().insert(id, Arc::new(receiver));
        true
    }

    fn remove(&self, tenant: &Arc<str>, id: &Arc<str>) {
        let mut by_tenant = self.by_tenant.write();
        if let Some(of_tenant) = by_tenant.get_mut(tenant) {
            of_tenant.remove(id);
            if of_tenant.is_empty() {
                by_tenant.remove(tenant);
            }
        }
    }

    fn receiver(&self, record: &Record) -> Option<Receiver> {
        let subscription = Subscription::read(record)?;
        match self.policy.read(&subscription.wish.callback_url) {
            Ok(to) => Some(Receiver { subscription, to, _interest: self.bell.interest() }),
            Err(why) => {
                let id = &*subscription.id;
                tracing::warn!(target: "codeq::push", id, %why, "a subscription's address is refused");
                None
            }
        }
    }

    /// Who of a tenant wants to hear of a command now.
    pub fn wanting(&self, tenant: &str, command: &str, now: Millis) -> Vec<Arc<Receiver>> {
        let by_tenant = self.by_tenant.read();
        let all = by_tenant.get(tenant).into_iter().flat_map(HashMap::values);
        all.filter(|receiver| {
            let Subscription { wish, expires_at, .. } = &receiver.subscription;
            *expires_at > now && wish.spelling(command).is_some()
        })
        .cloned()
        .collect()
    }

    /// The one of that id, if it still counts.
    pub fn get(&self, tenant: &str, id: &str, now: Millis) -> Option<Arc<Receiver>> {
        let by_tenant = self.by_tenant.read();
        let found = by_tenant.get(tenant)?.get(id)?;
        (found.subscription.expires_at > now).then(|| Arc::clone(found))
    }

    /// Whether a tenant has some.
    pub fn has_any(&self, tenant: &str) -> bool {
        self.by_tenant.read().get(tenant).is_some_and(|known| !known.is_empty())
    }

    /// The tenants that have some.
    pub fn tenants(&self) -> Vec<Arc<str>> {
        self.by_tenant.read().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> Wish {
        Wish {
            owner: "w".into(),
            callback_url: "https://example.com/hook?key=hush".into(),
            event_types: Some(vec!["A".into(), "b".into()]),
            mode: Mode::Fanout,
            group: None,
            min_interval_seconds: 5,
            ttl_seconds: 300,
        }
    }

    #[test]
    fn the_same_wish_has_the_same_id() {
        let id = wish().id("t");
        assert_eq!(id.len(), 32);
        let order = Wish { event_types: Some(vec!["B".into(), "a".into()]), ..wish() };
        let pace = Wish { min_interval_seconds: 9, ttl_seconds: 9, ..wish() };
        assert_eq!((order.id("t"), pace.id("t")), (id.clone(), id.clone()));
        let group = Wish { mode: Mode::Group, group: Some("g".into()), ..wish() };
        let others = [
            wish().id("u"),
            Wish { owner: "v".into(), ..wish() }.id("t"),
            Wish { callback_url: "https://example.com/".into(), ..wish() }.id("t"),
            Wish { event_types: None, ..wish() }.id("t"),
            Wish { event_types: Some(vec!["ab".into()]), ..wish() }.id("t"),
            Wish { mode: Mode::Hash, ..wish() }.id("t"),
            group.id("t"),
            Wish { group: Some("h".into()), ..group }.id("t"),
        ];
        let all: std::collections::BTreeSet<&String> = others.iter().chain([&id]).collect();
        assert_eq!(all.len(), others.len() + 1);
    }

    #[test]
    fn a_command_is_spelt_as_the_worker_spells_it() {
        assert_eq!(wish().spelling("a"), Some("A"));
        assert_eq!(wish().spelling("c"), None);
        assert_eq!(Wish { event_types: None, ..wish() }.spelling("c"), Some("c"));
    }

    #[test]
    fn the_address_is_not_printed() {
        let printed = format!("{:?}", wish());
        assert!(!printed.contains("hush") && printed.contains("Fanout"), "{printed}");
    }
}
