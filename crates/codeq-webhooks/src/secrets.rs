//! Which secrets a tenant's webhooks are signed with: those that its admins created, otherwise those of the
//! configuration.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use codeq_core::command::Millis;
use codeq_core::record::RecordKind;
use codeq_engine::{Engine, EngineError};
use serde::{Deserialize, Serialize};

use crate::signing::Secret;

/// The name of the record that holds a tenant's secrets.
pub const RECORD: &str = "secrets";
/// Maximum number of live secrets. Usually there is one; two while it is being replaced; more if it is replaced again
/// meanwhile.
pub const LIVE_MAX: usize = 4;

/// The secrets of all tenants.
pub struct Secrets {
    engine: Arc<Engine>,
    configured: ArcSwap<HashMap<String, Vec<Secret>>>,
}

/// The secrets that a tenant's admins made, as the engine stores them. Fields may be added, none is ever renamed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSecrets {
    /// Oldest first.
    pub secrets: Vec<StoredSecret>,
}

/// One stored secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredSecret {
    /// The secret itself.
    pub secret: String,
    /// The date at which it was made; none if it came from the configuration.
    pub created_at: Option<Millis>,
    /// When it stops being live, by engine time; none for the latest.
    pub until: Option<Millis>,
}

impl std::fmt::Debug for StoredSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StoredSecret { created_at, until, .. } = self;
        write!(f, "StoredSecret {{ created_at: {created_at:?}, until: {until:?} }}")
    }
}

impl Secrets {
    /// Starts without secrets from the configuration.
    pub fn new(engine: Arc<Engine>) -> Secrets {
        Secrets { engine, configured: ArcSwap::default() }
    }

    /// Replaces the secrets from the configuration: by tenant, oldest first.
    pub fn set_configured(&self, configured: HashMap<String, Vec<Secret>>) {
        self.configured.store(Arc::new(configured));
    }

    /// The secrets to sign with, oldest first; empty if the tenant has none.
    pub async fn live(&self, tenant: &Arc<str>) -> Result<Vec<Secret>, EngineError> {
        let (stored, _) = self.stored(tenant).await?;
        if stored.secrets.is_empty() {
            return Ok(self.configured(tenant));
        }
        Ok(stored.secrets.iter().filter_map(|stored| Secret::read(&stored.secret).ok()).collect())
    }

    /// The live secrets that the tenant's admins made, and the revision of their record: 0 if there is none.
    pub async fn stored(&self, tenant: &Arc<str>) -> Result<(StoredSecrets, u64), EngineError> {
        let record = self.engine.record(tenant, RecordKind::WebhookSecret, RECORD).await?;
        let Some(record) = record else { return Ok((StoredSecrets::default(), 0)) };
        let mut stored: StoredSecrets = serde_json::from_slice(&record.value).unwrap_or_default();
        let now = self.engine.now().now;
        stored.secrets.retain(|secret| secret.until.is_none_or(|until| until > now));
        Ok((stored, record.revision))
    }

    /// The secrets from the configuration, oldest first.
    pub fn configured(&self, tenant: &str) -> Vec<Secret> {
        self.configured.load().get(tenant).cloned().unwrap_or_default()
    }
}
