//! Which secrets of a tenant are live: made by its admins, or set in the configuration.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use codeq_core::command::Millis;
use codeq_core::record::RecordKind;
use codeq_engine::{Engine, EngineError};
use serde::{Deserialize, Serialize};

use crate::signing::Secret;

/// The record's name: a tenant has one.
pub const RECORD: &str = "secrets";
/// Secrets that are live at once: usually one, two while it is replaced, more if that is done again meanwhile.
pub const LIVE_MAX: usize = 4;

/// The secrets of all tenants.
pub struct Secrets {
    engine: Arc<Engine>,
    configured: ArcSwap<HashMap<String, Vec<Secret>>>,
}

/// What a tenant's admins have made, as it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Oldest first.
    pub secrets: Vec<KeptSecret>,
}

/// A secret that is kept.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptSecret {
    /// The secret itself.
    pub secret: String,
    /// The date at which it was made; none if it was in the configuration before.
    pub created_at: Option<Millis>,
    /// When it ceases to be live, by engine time; none while it is the latest.
    pub until: Option<Millis>,
}

impl std::fmt::Debug for KeptSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let KeptSecret { created_at, until, .. } = self;
        write!(f, "KeptSecret {{ created_at: {created_at:?}, until: {until:?} }}")
    }
}

impl Secrets {
    /// Without any from the configuration.
    pub fn new(engine: Arc<Engine>) -> Secrets {
        Secrets { engine, configured: ArcSwap::default() }
    }

    /// Replaces the secrets from the configuration: those of each tenant, oldest first.
    pub fn set(&self, configured: HashMap<String, Vec<Secret>>) {
        self.configured.store(Arc::new(configured));
    }

    /// The secrets to sign with, oldest first; none if the tenant has none.
    pub async fn live(&self, tenant: &Arc<str>) -> Result<Vec<Secret>, EngineError> {
        let (kept, _) = self.kept(tenant).await?;
        if kept.secrets.is_empty() {
            return Ok(self.configured(tenant));
        }
        Ok(kept.secrets.iter().filter_map(|kept| Secret::read(&kept.secret).ok()).collect())
    }

    /// What the tenant's admins have made and is live, and its revision: 0 if there is nothing.
    pub async fn kept(&self, tenant: &Arc<str>) -> Result<(Kept, u64), EngineError> {
        let record = self.engine.record(tenant, RecordKind::WebhookSecret, RECORD).await?;
        let Some(record) = record else { return Ok((Kept::default(), 0)) };
        let mut kept: Kept = serde_json::from_slice(&record.value).unwrap_or_default();
        let now = self.engine.now().now;
        kept.secrets.retain(|secret| secret.until.is_none_or(|until| until > now));
        Ok((kept, record.revision))
    }

    /// Those of the configuration, oldest first.
    pub fn configured(&self, tenant: &str) -> Vec<Secret> {
        self.configured.load().get(tenant).cloned().unwrap_or_default()
    }
}
