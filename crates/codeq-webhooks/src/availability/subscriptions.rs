//! Worker subscriptions: who wants to know that a queue has work.
//!
//! They are records in the engine. [`Subscriptions`] is a copy in memory, for the one question that is asked often: who
//! is interested in this queue?

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

use super::work_available::{Listening, WorkAvailable};
use crate::policy::{AddressPolicy, Destination};

/// Which of several subscriptions get a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All of them.
    Fanout,
    /// One of each group, in turn.
    Group,
    /// One of all that have this mode, chosen by the command.
    Hash,
}

impl Mode {
    /// The mode as clients write it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Fanout => "fanout",
            Mode::Group => "group",
            Mode::Hash => "hash",
        }
    }

    /// Reads a mode as clients write it.
    pub fn of(text: &str) -> Option<Mode> {
        [Mode::Fanout, Mode::Group, Mode::Hash].into_iter().find(|mode| mode.name() == text)
    }
}

/// What a worker asked for. Its record holds this as JSON: fields may be added, none is ever renamed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionSpec {
    /// The subject of the token that made it.
    pub owner: Arc<str>,
    /// Where notifications go.
    pub callback_url: Arc<str>,
    /// The commands, as the worker spells them; `None` means all.
    pub event_types: Option<Vec<Arc<str>>>,
    /// Which of several subscriptions get a notification.
    pub mode: Mode,
    /// The group, in group mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Arc<str>>,
    /// The shortest time between two notifications.
    pub min_interval_seconds: u32,
    /// How long the subscription lives unless it is renewed.
    pub ttl_seconds: u32,
}

// The URL may contain a secret of the receiver.
impl fmt::Debug for SubscriptionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, mode) = (&self.owner, self.mode);
        let mut debug = f.debug_struct("SubscriptionSpec");
        debug.field("owner", owner).field("mode", &mode).finish_non_exhaustive()
    }
}

impl SubscriptionSpec {
    /// The id of the subscription. Equal requests of a worker have equal ids, so a worker that subscribes again after a
    /// restart renews its subscription instead of adding another.
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
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// How the worker spells this command, if it is interested in it.
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

/// A subscription, as its record holds it.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// The name of its record.
    pub id: Arc<str>,
    /// The tenant that it belongs to.
    pub tenant: Arc<str>,
    /// What the worker asked for.
    pub spec: SubscriptionSpec,
    /// The revision of its record.
    pub revision: u64,
    /// When it was made.
    pub created_at: Millis,
    /// When it ends by engine time, unless it is renewed.
    pub expires_at: Millis,
}

impl Subscription {
    /// Reads a record. If it is not a subscription, logs that and returns `None`.
    pub fn read(record: &Record) -> Option<Subscription> {
        let spec = match serde_json::from_slice(&record.value) {
            Ok(spec) => spec,
            Err(error) => {
                let id = &*record.name;
                tracing::warn!(target: "codeq::webhooks", id, %error, "a subscription cannot be read");
                return None;
            }
        };
        Some(Subscription {
            id: Arc::clone(&record.name),
            tenant: Arc::clone(&record.tenant),
            spec,
            revision: record.revision,
            created_at: record.created_at,
            expires_at: record.expires_at.unwrap_or(Millis::MAX),
        })
    }
}

/// A subscription that can be notified.
pub(crate) struct Subscriber {
    pub subscription: Subscription,
    pub to: Destination,
    /// While there is a subscriber, the engine's threads record queues that get work.
    _listening: Listening,
}

type ByTenant = HashMap<Arc<str>, HashMap<Arc<str>, Arc<Subscriber>>>;

/// All subscriptions, in memory.
pub struct Subscriptions {
    by_tenant: RwLock<ByTenant>,
    policy: Arc<AddressPolicy>,
    work_available: Arc<WorkAvailable>,
}

impl Subscriptions {
    /// Empty until [`Subscriptions::load`].
    pub fn new(policy: Arc<AddressPolicy>, work_available: Arc<WorkAvailable>) -> Subscriptions {
        Subscriptions { by_tenant: RwLock::default(), policy, work_available }
    }

    /// Where the engine's threads record queues that get work.
    pub fn work_available(&self) -> &Arc<WorkAvailable> {
        &self.work_available
    }

    /// Reads all subscriptions from the engine.
    pub async fn load(&self, engine: &Engine) -> Result<(), EngineError> {
        let mut found = ByTenant::default();
        let mut next = Some(RecordCursor::default());
        while let Some(from) = next {
            let page = engine.all_records(RecordKind::Subscription, from).await?;
            for subscriber in page.records.iter().filter_map(|record| self.subscriber(record)) {
                let Subscription { tenant, id, .. } = &subscriber.subscription;
                let of_tenant = found.entry(Arc::clone(tenant)).or_default();
                of_tenant.insert(Arc::clone(id), Arc::new(subscriber));
            }
            next = page.next;
        }
        *self.by_tenant.write() = found;
        Ok(())
    }

    /// Reads one subscription from the engine again. False if it is gone.
    pub(super) async fn refresh(
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

    /// Adds the subscription of a record that was just written. The record is read again later, in case it has changed
    /// meanwhile.
    pub fn put(&self, record: &Record) {
        self.set(record);
        self.work_available.subscription_changed(&record.tenant, &record.name);
    }

    fn set(&self, record: &Record) -> bool {
        let Some(subscriber) = self.subscriber(record) else {
            return false;
        };
        let Subscription { tenant, id, .. } = &subscriber.subscription;
        let (tenant, id) = (Arc::clone(tenant), Arc::clone(id));
        self.by_tenant.write().entry(tenant).or_default().insert(id, Arc::new(subscriber));
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

    fn subscriber(&self, record: &Record) -> Option<Subscriber> {
        let subscription = Subscription::read(record)?;
        match self.policy.read(&subscription.spec.callback_url) {
            Ok(to) => {
                Some(Subscriber { subscription, to, _listening: self.work_available.listen() })
            }
            Err(why) => {
                let id = &*subscription.id;
                tracing::warn!(target: "codeq::webhooks", id, %why, "the callback URL of a subscription is refused");
                None
            }
        }
    }

    /// The subscribers of a tenant that are interested in a command.
    pub(super) fn interested(
        &self,
        tenant: &str,
        command: &str,
        now: Millis,
    ) -> Vec<Arc<Subscriber>> {
        let by_tenant = self.by_tenant.read();
        let all = by_tenant.get(tenant).into_iter().flat_map(HashMap::values);
        all.filter(|subscriber| {
            let Subscription { spec, expires_at, .. } = &subscriber.subscription;
            *expires_at > now && spec.spelling(command).is_some()
        })
        .cloned()
        .collect()
    }

    /// The subscriber with this id, unless it has expired.
    pub(super) fn get(&self, tenant: &str, id: &str, now: Millis) -> Option<Arc<Subscriber>> {
        let by_tenant = self.by_tenant.read();
        let found = by_tenant.get(tenant)?.get(id)?;
        (found.subscription.expires_at > now).then(|| Arc::clone(found))
    }

    pub(super) fn has_any(&self, tenant: &str) -> bool {
        self.by_tenant.read().get(tenant).is_some_and(|known| !known.is_empty())
    }

    /// The tenants that have subscriptions.
    pub(super) fn tenants(&self) -> Vec<Arc<str>> {
        self.by_tenant.read().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> SubscriptionSpec {
        SubscriptionSpec {
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
    fn the_same_request_has_the_same_id() {
        let id = spec().id("t");
        assert_eq!(id.len(), 32);
        let order = SubscriptionSpec { event_types: Some(vec!["B".into(), "a".into()]), ..spec() };
        let pace = SubscriptionSpec { min_interval_seconds: 9, ttl_seconds: 9, ..spec() };
        assert_eq!((order.id("t"), pace.id("t")), (id.clone(), id.clone()));
        let group = SubscriptionSpec { mode: Mode::Group, group: Some("g".into()), ..spec() };
        let others = [
            spec().id("u"),
            SubscriptionSpec { owner: "v".into(), ..spec() }.id("t"),
            SubscriptionSpec { callback_url: "https://example.com/".into(), ..spec() }.id("t"),
            SubscriptionSpec { event_types: None, ..spec() }.id("t"),
            SubscriptionSpec { event_types: Some(vec!["ab".into()]), ..spec() }.id("t"),
            SubscriptionSpec { mode: Mode::Hash, ..spec() }.id("t"),
            group.id("t"),
            SubscriptionSpec { group: Some("h".into()), ..group }.id("t"),
        ];
        let all: std::collections::BTreeSet<&String> = others.iter().chain([&id]).collect();
        assert_eq!(all.len(), others.len() + 1);
    }

    #[test]
    fn a_command_is_spelt_as_the_worker_spells_it() {
        assert_eq!(spec().spelling("a"), Some("A"));
        assert_eq!(spec().spelling("c"), None);
        assert_eq!(SubscriptionSpec { event_types: None, ..spec() }.spelling("c"), Some("c"));
    }

    #[test]
    fn the_address_is_not_printed() {
        let printed = format!("{:?}", spec());
        assert!(!printed.contains("hush") && printed.contains("Fanout"), "{printed}");
    }
}
