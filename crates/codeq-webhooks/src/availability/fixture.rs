//! Subscribers for tests.

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::record::Record;

use super::subscriptions::{Mode, Subscriber, SubscriptionSpec, Subscriptions};
use super::work_available::WorkAvailable;
use crate::policy::AddressPolicy;

/// A subscriber whose request is changed by the test.
pub(super) fn subscriber(
    tenant: &str,
    change: impl FnOnce(&mut SubscriptionSpec),
) -> Arc<Subscriber> {
    let record = record(tenant, change);
    let view =
        Subscriptions::new(Arc::new(AddressPolicy::new(&[])), Arc::new(WorkAvailable::default()));
    view.put(&record);
    view.get(tenant, &record.name, 2).unwrap()
}

/// The record of such a subscription.
pub(super) fn record(tenant: &str, change: impl FnOnce(&mut SubscriptionSpec)) -> Record {
    let mut spec = SubscriptionSpec {
        owner: "w".into(),
        callback_url: "http://h.test/".into(),
        event_types: None,
        mode: Mode::Fanout,
        group: None,
        min_interval_seconds: 5,
        ttl_seconds: 300,
    };
    change(&mut spec);
    Record {
        tenant: tenant.into(),
        name: spec.id(tenant).into(),
        value: Bytes::from(serde_json::to_vec(&spec).unwrap()),
        revision: 1,
        created_at: 1,
        updated_at: 1,
        expires_at: Some(u64::MAX),
    }
}
