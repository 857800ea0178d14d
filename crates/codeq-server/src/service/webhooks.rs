//! Undelivered result callbacks, and the secrets that sign calls.

use codeq_core::command::{BulkFrom, Callback, Command, DeleteRecord, Delivery, Millis, PutRecord};
use codeq_core::limits::{BULK_MAX, LIST_MAX};
use codeq_core::moment::Moment;
use codeq_core::read::PendingCallback;
use codeq_core::record::RecordKind;
use codeq_core::reply::{Rejection, Reply};
use codeq_engine::read::ShardReader;
use codeq_webhooks::secrets::{LIVE_MAX, RECORD, StoredSecret, StoredSecrets};
use codeq_webhooks::signing::Secret;
use futures_util::StreamExt;
use tokio::time::Instant;

use super::permission::MayAdminister;
use super::scan::CALL_TIME;
use super::tasks::PAGE_DEFAULT;
use super::{Code, Kind, Service, ServiceError, cursor, seconds, task_id};

/// Default time the previous secret stays valid, in seconds: one day.
pub const OVERLAP_DEFAULT: u64 = 86_400;
/// Longest such time: thirty days.
pub const OVERLAP_MAX: u64 = 2_592_000;
/// Callbacks to resend concurrently.
const RESENDS_AT_ONCE: usize = 64;

/// One page of undelivered callbacks.
pub struct DeliveryPage {
    /// Shard by shard, and within a shard sorted by queue; within a queue, pending before failed, oldest task first.
    pub items: Vec<PendingCallback>,
    /// Cursor for the next page; `None` on the last one.
    pub next: Option<String>,
}

/// The outcome of a bulk resend.
pub struct Resent {
    /// Number of callbacks scheduled again.
    pub resent: u64,
    /// Cursor to continue from; `None` when none are left.
    pub next: Option<String>,
}

/// The origin of a tenant's secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretSource {
    /// Created by the tenant's admins.
    Api,
    /// Set in the configuration.
    Setting,
    /// No secrets: calls are not signed.
    None,
}

/// A tenant's secrets, without their values.
pub struct SecretList {
    /// Origin of the secrets.
    pub source: SecretSource,
    /// Valid secrets, oldest first.
    pub secrets: Vec<StoredSecret>,
}

/// A newly created secret. Its value is shown only this once.
pub struct NewSecret {
    /// The value to verify signatures with.
    pub secret: Secret,
    /// Creation time.
    pub created_at: Millis,
    /// When the previous secret expires, if there is one.
    pub previous_until: Option<Millis>,
}

impl Service {
    /// Lists the caller's undelivered callbacks: all, only failed ones, or only pending ones.
    pub async fn deliveries(
        &self,
        caller: MayAdminister<'_>,
        failed: Option<bool>,
        limit: Option<u64>,
        cursor: Option<&str>,
    ) -> Result<DeliveryPage, ServiceError> {
        let limit = match limit {
            None => PAGE_DEFAULT,
            Some(n) => {
                usize::try_from(n).ok().filter(|n| (1..=LIST_MAX).contains(n)).ok_or_else(|| {
                    let text = format!("invalid limit (1 to {LIST_MAX})");
                    ServiceError::new(Code::InvalidLimit, text).field("limit")
                })?
            }
        };
        // Binds the cursor to the tenant and the filter. It names only the tenant's own tasks and queues.
        let about = [
            Some(caller.tenant.to_string()),
            Some("deliveries".to_owned()),
            failed.map(|failed| failed.to_string()),
        ];
        let start = cursor.map_or(Ok(Default::default()), |text| cursor::decode_from(text, &about));
        let (mut shard, mut from) = start?;
        let began = Instant::now();
        let mut items = Vec::new();
        while shard.0 < self.engine.shards() {
            if items.len() >= limit || began.elapsed() >= CALL_TIME {
                let next = cursor::encode_from(shard, &from, &about);
                return Ok(DeliveryPage { items, next: Some(next) });
            }
            let (tenant, at, wanted) = (caller.tenant.clone(), from.clone(), limit - items.len());
            let look =
                move |reader: &ShardReader<'_>| reader.callbacks(&tenant, failed, &at, wanted);
            let page = self.scan(&caller.tenant, shard, look).await?;
            items.extend(page.items);
            match page.next {
                Some(next) => from = next,
                None => (shard, from) = (shard.next(), BulkFrom::default()),
            }
        }
        Ok(DeliveryPage { items, next: None })
    }

    /// Resends a task's callback, with its attempts reset.
    pub async fn resend(&self, caller: MayAdminister<'_>, id: &str) -> Result<(), ServiceError> {
        let command = Command::Callback(Callback {
            tenant: caller.tenant.clone(),
            id: task_id(id, "delivery not found")?,
            completed_at: None,
            delivery: Delivery::Resend,
        });
        match self.propose(command).await? {
            Reply::Rejected(Rejection::NoCallback) => {
                Err(ServiceError::new(Code::NoCallback, "delivery not found"))
            }
            Reply::Rejected(Rejection::NotFound) => {
                Err(ServiceError::not_found("delivery not found"))
            }
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Ok(()),
        }
    }

    /// Resends failed callbacks, up to `limit`.
    pub async fn resend_failed(
        &self,
        caller: MayAdminister<'_>,
        limit: Option<u32>,
        cursor: Option<&str>,
    ) -> Result<Resent, ServiceError> {
        let limit = limit.filter(|n| *n > 0).unwrap_or(BULK_MAX).into();
        let page = self.deliveries(caller, Some(true), Some(limit), cursor).await?;
        let ids: Vec<String> = page.items.iter().map(|item| item.task.id.to_string()).collect();
        let resends: Vec<_> = ids.iter().map(|id| self.resend(caller, id)).collect();
        let mut resends = futures_util::stream::iter(resends).buffer_unordered(RESENDS_AT_ONCE);
        let mut resent = 0;
        while let Some(done) = resends.next().await {
            match done {
                Ok(()) => resent += 1,
                // Delivered or removed in the meantime.
                Err(error) if error.code.kind() == Kind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Resent { resent, next: page.next })
    }

    /// Lists the secrets of the caller's tenant, without their values.
    pub async fn webhook_secrets(
        &self,
        caller: MayAdminister<'_>,
    ) -> Result<SecretList, ServiceError> {
        let (stored, _) = self.secrets.stored(&caller.tenant).await?;
        if !stored.secrets.is_empty() {
            return Ok(SecretList { source: SecretSource::Api, secrets: stored.secrets });
        }
        let configured = self.secrets.configured(&caller.tenant);
        let source = if configured.is_empty() { SecretSource::None } else { SecretSource::Setting };
        Ok(SecretList { source, secrets: configured.iter().map(from_setting).collect() })
    }

    /// Creates a secret, or stores the given one. The previous secret stays valid for the overlap.
    pub async fn rotate_webhook_secret(
        &self,
        caller: MayAdminister<'_>,
        given: Option<&str>,
        overlap_seconds: Option<u64>,
    ) -> Result<NewSecret, ServiceError> {
        let secret = match given {
            None => Secret::random(),
            Some(text) => Secret::read(text).map_err(|bad| {
                let refused = ServiceError::new(Code::InvalidSecret, "invalid secret");
                refused.field("secret").detail(bad.to_string())
            })?,
        };
        let overlap = overlap_seconds.unwrap_or(OVERLAP_DEFAULT);
        if overlap > OVERLAP_MAX {
            let text = format!("invalid 'overlapSeconds' (0 to {OVERLAP_MAX})");
            return Err(ServiceError::new(Code::InvalidOverlap, text).field("overlapSeconds"));
        }
        let (stored, revision) = self.secrets.stored(&caller.tenant).await?;
        let before = if stored.secrets.is_empty() {
            self.secrets.configured(&caller.tenant).iter().map(from_setting).collect()
        } else {
            stored.secrets
        };
        let Moment { now, wall } = self.engine.now();
        let until = now.saturating_add(seconds(overlap));
        let mut secrets = before;
        let latest = match secrets.pop_if(|last| last.secret == secret.reveal()) {
            // A retry after a lost answer: replace nothing.
            Some(same) => StoredSecret { created_at: same.created_at.or(Some(wall)), ..same },
            None => {
                let secret = secret.reveal().to_owned();
                StoredSecret { secret, created_at: Some(wall), until: None }
            }
        };
        for live in &mut secrets {
            live.until = Some(live.until.map_or(until, |own| own.min(until)));
        }
        secrets.retain(|live| live.until.is_some_and(|until| until > now));
        // After many rotations, keep only the newest secrets that receivers may still use.
        let surplus = (secrets.len() + 1).saturating_sub(LIVE_MAX);
        secrets.drain(..surplus);
        let previous_until = secrets.iter().filter_map(|live| live.until).max();
        let created_at = latest.created_at.unwrap_or(wall);
        secrets.push(latest);
        self.store(caller, &StoredSecrets { secrets }, revision).await?;
        Ok(NewSecret { secret, created_at, previous_until })
    }

    /// Deletes the secrets created by the tenant's admins; those of the configuration apply again.
    pub async fn delete_webhook_secrets(
        &self,
        caller: MayAdminister<'_>,
    ) -> Result<(), ServiceError> {
        let command = Command::DeleteRecord(DeleteRecord {
            tenant: caller.tenant.clone(),
            kind: RecordKind::WebhookSecret,
            name: RECORD.into(),
            expected: None,
        });
        match self.propose(command).await? {
            Reply::Rejected(Rejection::NotFound) => {
                Err(ServiceError::not_found("secret not found"))
            }
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Ok(()),
        }
    }

    async fn store(
        &self,
        caller: MayAdminister<'_>,
        stored: &StoredSecrets,
        revision: u64,
    ) -> Result<(), ServiceError> {
        let value = serde_json::to_vec(stored).map_err(|_| ServiceError::unexpected())?;
        let command = Command::PutRecord(PutRecord {
            tenant: caller.tenant.clone(),
            kind: RecordKind::WebhookSecret,
            name: RECORD.into(),
            value: value.into(),
            ttl: None,
            expected: Some(revision),
        });
        match self.propose(command).await? {
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Ok(()),
        }
    }
}

fn from_setting(secret: &Secret) -> StoredSecret {
    StoredSecret { secret: secret.reveal().to_owned(), created_at: None, until: None }
}
