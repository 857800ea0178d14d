//! Subscriptions for the tests beside them.

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::record::Record;

use super::subscriptions::{Mode, Receiver, Subscriptions, Wish};
use super::work_available::Bell;
use crate::policy::Policy;

/// A receiver whose wish is changed by the test.
pub fn receiver(tenant: &str, change: impl FnOnce(&mut Wish)) -> Arc<Receiver> {
    let mut wish = Wish {
        owner: "w".into(),
        callback_url: "http://h.test/".into(),
        event_types: None,
        mode: Mode::Fanout,
        group: None,
        min_interval_seconds: 5,
        ttl_seconds: 300,
    };
    change(&mut wish);
    let record = Record {
        tenant: tenant.into(),
        name: wish.id(tenant).into(),
        value: Bytes::from(serde_json::to_vec(&wish).unwrap()),
        revision: 1,
        created_at: 1,
        updated_at: 1,
        expires_at: Some(u64::MAX),
    };
    let view = Subscriptions::new(Arc::new(Policy::new(&[])), Arc::new(Bell::default()));
    view.put(&record);
    view.get(tenant, &record.name, 2).unwrap()
}
