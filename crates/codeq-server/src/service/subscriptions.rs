//! Worker subscriptions: notify workers when a queue has work.

use std::sync::Arc;

use bytes::Bytes;
use codeq_auth::{EventTypes, Principal, is_group};
use codeq_core::command::{Command, DeleteRecord, PutRecord};
use codeq_core::limits::{COMMAND_BYTES_MAX, RECORD_VALUE_BYTES_MAX};
use codeq_core::names::{check_command, cut};
use codeq_core::record::{Record, RecordKind};
use codeq_core::reply::{Rejection, Reply};
use codeq_webhooks::availability::{Mode, Subscription, SubscriptionSpec};

use super::permission::{MayAdminister, MaySubscribe};
use super::{Code, Service, ServiceError, seconds, trimmed};

/// Default lifetime of a subscription, in seconds.
pub const TTL_SECONDS_DEFAULT: u32 = 300;
/// Longest lifetime without a renewal, in seconds.
pub const TTL_SECONDS_MAX: u32 = 86_400;
/// Default minimum interval between two notifications, in seconds.
pub const INTERVAL_SECONDS_DEFAULT: u32 = 5;
/// Longest minimum interval, in seconds.
pub const INTERVAL_SECONDS_MAX: u32 = 3_600;

const KIND: RecordKind = RecordKind::Subscription;
/// How many times to try a renewal that conflicts with another change.
const TRIES: usize = 4;

/// A subscription as a worker requests it. Empty strings count as absent.
#[derive(Debug, Clone, Default)]
pub struct SubscribeRequest {
    /// URL that receives notifications.
    pub callback_url: String,
    /// Commands to watch; empty means all the token allows.
    pub event_types: Vec<Arc<str>>,
    /// Lifetime without a renewal.
    pub ttl_seconds: Option<i64>,
    /// `fanout`, `group` or `hash`.
    pub delivery_mode: Option<String>,
    /// Required by the mode `group`.
    pub group_id: Option<String>,
    /// Minimum interval between two notifications.
    pub min_interval_seconds: Option<i64>,
}

impl Service {
    /// Subscribes the caller, or renews an identical subscription.
    pub async fn subscribe(
        &self,
        caller: MaySubscribe<'_>,
        request: SubscribeRequest,
    ) -> Result<Subscription, ServiceError> {
        let spec = self.spec(&caller, request)?;
        let put = PutRecord {
            tenant: Arc::clone(&caller.tenant),
            kind: KIND,
            name: spec.id(&caller.tenant).into(),
            value: encode(&spec)?,
            ttl: Some(seconds(spec.ttl_seconds.into())),
            expected: None,
        };
        self.put_subscription(put).await
    }

    /// Extends the lifetime of one of the caller's subscriptions.
    pub async fn renew_subscription(
        &self,
        caller: MaySubscribe<'_>,
        id: &str,
        ttl_seconds: Option<i64>,
    ) -> Result<Subscription, ServiceError> {
        let ttl = ttl(ttl_seconds)?;
        let mut tries = 0;
        loop {
            tries += 1;
            let (record, known) = self.known_subscription(&caller, id).await?;
            if known.spec.owner != caller.subject {
                return Err(not_found());
            }
            let put = PutRecord {
                tenant: Arc::clone(&caller.tenant),
                kind: KIND,
                name: known.id,
                value: record.value,
                ttl: Some(seconds(ttl.unwrap_or(known.spec.ttl_seconds).into())),
                // A concurrent removal must win over the renewal.
                expected: Some(known.revision),
            };
            match self.put_subscription(put).await {
                Err(error) if is_worth_another_try(&error, tries) => {}
                done => return done,
            }
        }
    }

    /// Lists the caller's subscriptions; an admin sees the whole tenant's.
    pub async fn subscriptions(
        &self,
        caller: &Principal,
    ) -> Result<Vec<Subscription>, ServiceError> {
        let records = self.engine.records(&caller.tenant, KIND).await?;
        let mut found: Vec<Subscription> = records.iter().filter_map(Subscription::read).collect();
        found.retain(|subscription| sees(caller, subscription));
        found.sort_by_key(|subscription| (subscription.created_at, Arc::clone(&subscription.id)));
        Ok(found)
    }

    /// Returns one of the caller's subscriptions; an admin sees the whole tenant's.
    pub async fn subscription(
        &self,
        caller: &Principal,
        id: &str,
    ) -> Result<Subscription, ServiceError> {
        Ok(self.known_subscription(caller, id).await?.1)
    }

    /// Removes one of the caller's subscriptions; an admin may remove any in the tenant.
    pub async fn unsubscribe(&self, caller: &Principal, id: &str) -> Result<(), ServiceError> {
        let (_, known) = self.known_subscription(caller, id).await?;
        let tenant = Arc::clone(&caller.tenant);
        let delete = DeleteRecord { tenant, kind: KIND, name: known.id, expected: None };
        match self.propose(Command::DeleteRecord(delete)).await? {
            Reply::Done => Ok(()),
            Reply::Rejected(Rejection::NotFound) => Err(not_found()),
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Err(ServiceError::unexpected()),
        }
    }

    async fn put_subscription(&self, put: PutRecord) -> Result<Subscription, ServiceError> {
        // Listen until `self.subscriptions` includes the subscription, so that no task enqueued after the answer is
        // missed.
        let _listening = self.subscriptions.work_available().listen();
        match self.propose(Command::PutRecord(put)).await? {
            Reply::Record(record) => {
                self.subscriptions.put(&record);
                Subscription::read(&record).ok_or_else(ServiceError::unexpected)
            }
            Reply::Rejected(Rejection::TooManyRecords { max }) => {
                let detail = format!("a tenant can have at most {max} subscriptions");
                let error = Rejection::TooManyRecords { max };
                Err(ServiceError::from(error).detail(detail))
            }
            Reply::Rejected(rejection) => Err(rejection.into()),
            _ => Err(ServiceError::unexpected()),
        }
    }

    async fn known_subscription(
        &self,
        caller: &Principal,
        id: &str,
    ) -> Result<(Record, Subscription), ServiceError> {
        let record = self.engine.record(&caller.tenant, KIND, id).await?;
        let known = record.and_then(|record| Some((Subscription::read(&record)?, record)));
        let (subscription, record) = known.ok_or_else(not_found)?;
        if sees(caller, &subscription) { Ok((record, subscription)) } else { Err(not_found()) }
    }

    fn spec(
        &self,
        caller: &Principal,
        request: SubscribeRequest,
    ) -> Result<SubscriptionSpec, ServiceError> {
        if let Err(why) = self.destinations.read(&request.callback_url) {
            let error = ServiceError::new(Code::InvalidCallbackUrl, "invalid callback url");
            return Err(error.field("callbackUrl").detail(why.to_string()));
        }
        let (mode, group) = mode(caller, request.delivery_mode, request.group_id)?;
        let interval = request.min_interval_seconds.unwrap_or(INTERVAL_SECONDS_DEFAULT.into());
        let interval = u32::try_from(interval).ok().filter(|n| *n <= INTERVAL_SECONDS_MAX);
        Ok(SubscriptionSpec {
            owner: Arc::clone(&caller.subject),
            callback_url: request.callback_url.into(),
            event_types: event_types(caller, &request.event_types)?,
            mode,
            group,
            min_interval_seconds: interval.ok_or_else(|| {
                invalid("minIntervalSeconds", "invalid 'minIntervalSeconds' (0 to 3600)")
            })?,
            ttl_seconds: ttl(request.ttl_seconds)?.unwrap_or(TTL_SECONDS_DEFAULT),
        })
    }
}

fn sees(caller: &Principal, subscription: &Subscription) -> bool {
    let owns = subscription.spec.owner == caller.subject && MaySubscribe::of(caller).is_ok();
    owns || MayAdminister::of(caller).is_ok()
}

/// Whether to try a refused renewal again: a conflict rarely recurs. After the last try, the client learns of it.
fn is_worth_another_try(refused: &ServiceError, tries: usize) -> bool {
    refused.code == Code::RecordChanged && tries < TRIES
}

fn not_found() -> ServiceError {
    ServiceError::not_found("subscription not found")
}

fn invalid(field: &'static str, text: &'static str) -> ServiceError {
    ServiceError::new(Code::InvalidSubscription, text).field(field)
}

fn encode(spec: &SubscriptionSpec) -> Result<Bytes, ServiceError> {
    let value = serde_json::to_vec(spec).map_err(|_| ServiceError::unexpected())?;
    if value.len() > RECORD_VALUE_BYTES_MAX {
        let detail = "the names of all event types are too long together: name fewer";
        return Err(invalid("eventTypes", "too many event types").detail(detail));
    }
    Ok(Bytes::from(value))
}

fn ttl(wanted: Option<i64>) -> Result<Option<u32>, ServiceError> {
    let Some(wanted) = wanted else {
        return Ok(None);
    };
    let ttl = u32::try_from(wanted).ok().filter(|n| (1..=TTL_SECONDS_MAX).contains(n));
    ttl.map(Some).ok_or_else(|| invalid("ttlSeconds", "invalid 'ttlSeconds' (1 to 86400)"))
}

/// The commands to watch; `None` means all.
fn event_types(
    caller: &Principal,
    named: &[Arc<str>],
) -> Result<Option<Vec<Arc<str>>>, ServiceError> {
    let wanted: Vec<Arc<str>> = named.iter().filter_map(trimmed).collect();
    if wanted.is_empty() && !named.is_empty() {
        let detail = "eventTypes contains only blank names; omit it to subscribe to all that the token allows";
        return Err(ServiceError::from(Rejection::InvalidCommand)
            .field("eventTypes")
            .detail(detail));
    }
    let refused = |detail: String| {
        ServiceError::forbidden("event type not allowed").field("eventTypes").detail(detail)
    };
    if let Some(command) = wanted.iter().find(|command| !caller.event_types.allows(command)) {
        let command = cut(command, COMMAND_BYTES_MAX);
        return Err(refused(format!("the token's eventTypes do not include '{command}'")));
    }
    if wanted.iter().any(|command| &**command == "*") {
        return Ok(None);
    }
    for command in &wanted {
        check_command(command)?;
    }
    match (&caller.event_types, wanted.is_empty()) {
        (_, false) => Ok(Some(wanted)),
        (EventTypes::Any, true) => Ok(None),
        (EventTypes::Only(allowed), true) if allowed.is_empty() => Err(refused(
            "the token has no eventTypes, so there is nothing to subscribe to".to_owned(),
        )),
        (EventTypes::Only(allowed), true) => Ok(Some(allowed.clone())),
    }
}

/// The delivery mode with its group, if it needs one. A token bound to a group allows only that group.
fn mode(
    caller: &Principal,
    mode: Option<String>,
    group: Option<String>,
) -> Result<(Mode, Option<Arc<str>>), ServiceError> {
    let group = group.filter(|group| !group.is_empty());
    if let (Some(own), Some(group)) = (&caller.worker_group, &group)
        && **own != **group
    {
        let detail = format!("the token is for the group '{own}'");
        return Err(ServiceError::forbidden("worker group not allowed")
            .field("groupId")
            .detail(detail));
    }
    let mode = match mode.as_deref().filter(|mode| !mode.is_empty()) {
        Some(text) => Mode::of(text).ok_or_else(|| {
            invalid("deliveryMode", "invalid 'deliveryMode' (fanout, group or hash)")
        })?,
        None if caller.worker_group.is_some() || group.is_some() => Mode::Group,
        None => Mode::Fanout,
    };
    if mode != Mode::Group {
        return Ok((mode, None));
    }
    let group = caller.worker_group.clone().or_else(|| group.map(Arc::from));
    let group = group.ok_or_else(|| invalid("groupId", "'groupId' required in group mode"))?;
    if !is_group(&group) {
        return Err(invalid("groupId", "invalid 'groupId' (1 to 128 bytes)"));
    }
    Ok((mode, Some(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_retried_and_then_reported() {
        let conflict = ServiceError::from(Rejection::RecordChanged);
        assert_eq!(conflict.code, Code::RecordChanged);
        assert!((1..TRIES).all(|tries| is_worth_another_try(&conflict, tries)));
        assert!(!is_worth_another_try(&conflict, TRIES), "the client learns of it");
        assert!(!is_worth_another_try(&not_found(), 1));
    }
}
