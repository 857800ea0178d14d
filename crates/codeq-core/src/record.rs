//! What a record is: small durable data that the server keeps for a tenant and the rules do not interpret.
//!
//! A record has a name that is unique within its tenant and kind, a revision that grows with every put, and
//! optionally an expiry. An expired record is invisible at once, whether or not a sweep has removed it yet.
//!
//! `change_record` changes records, `read/records` reads them, and `record_index` finds them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::moment::Millis;

/// What a record is for. The order is part of the on-disk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RecordKind {
    /// A worker's registration for notifications about new tasks.
    Subscription,
    /// The secret that signs the tenant's webhooks.
    WebhookSecret,
    /// Who paused a queue: the record's name is the queue's, its value the subject of the token.
    QueuePause,
}

/// A record as stored now.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The tenant that owns it.
    pub tenant: Arc<str>,
    /// Unique within the tenant and kind.
    pub name: Arc<str>,
    /// The record's content, opaque to the rules.
    pub value: Bytes,
    /// Starts at 1 and grows by one with every put.
    pub revision: u64,
    /// Wall-clock time of its creation.
    pub created_at: Millis,
    /// Wall-clock time of the last put.
    pub updated_at: Millis,
    /// When it expires, by engine time.
    pub expires_at: Option<Millis>,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("tenant", &self.tenant)
            .field("name", &self.name)
            .field("value", &Hidden(&self.value))
            .field("revision", &self.revision)
            .field("created_at", &self.created_at)
            .field("updated_at", &self.updated_at)
            .field("expires_at", &self.expires_at)
            .finish()
    }
}

/// A value that may be a secret: only its length is shown.
pub(crate) struct Hidden<'a>(pub &'a Bytes);

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes)", self.0.len())
    }
}
