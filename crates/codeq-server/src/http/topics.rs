//! `/admin/topics`.

use axum::http::StatusCode;
use codeq_core::topic::{Policy, Topic};
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::endpoint::no_content;
use super::{answer, json};
use crate::service::permission::MayAdminister;
use crate::service::{Code, ServiceError};

/// Fields are checked one by one, so that the error can name the field. Unknown fields are refused
/// whatever the server's setting.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyRequest {
    priority_tiers: Option<Vec<i64>>,
    max_attempts: Option<i64>,
    dead_letter_topic_ref: Option<String>,
    retention_seconds: Option<i64>,
    dead_letter_retention_seconds: Option<i64>,
    max_consumers: Option<i64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PolicyBody<'a> {
    #[serde(skip_serializing_if = "<[u8]>::is_empty")]
    priority_tiers: &'a [u8],
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter_topic_ref: Option<&'a str>,
    retention_seconds: u64,
    #[serde(skip_serializing_if = "is_zero")]
    dead_letter_retention_seconds: u64,
    max_consumers: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TopicBody<'a> {
    topic_id: String,
    tenant_id: &'a str,
    topic_name: &'a str,
    policy: PolicyBody<'a>,
    version: u64,
    created_at: String,
    updated_at: String,
}

#[derive(Serialize)]
struct TopicList<'a> {
    items: Vec<TopicBody<'a>>,
}

pub async fn list(call: Call) -> Answer {
    let topics = call.service().topics(MayAdminister::of(&call.caller)?).await?;
    let items = topics.iter().map(|(name, topic)| body(&call, name, topic)).collect();
    Ok(answer::json(StatusCode::OK, &TopicList { items }))
}

pub async fn put(call: Call) -> Answer {
    let policy = policy(json::parse(&call.body)?)?;
    let caller = MayAdminister::of(&call.caller)?;
    let done = call.service().put_topic(caller, call.path("name"), policy).await?;
    let status = if done.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(answer::json(status, &body(&call, call.path("name"), &done.topic)))
}

pub async fn get(call: Call) -> Answer {
    let topic = call.service().topic(MayAdminister::of(&call.caller)?, call.path("name")).await?;
    Ok(answer::json(StatusCode::OK, &body(&call, call.path("name"), &topic)))
}

pub async fn delete(call: Call) -> Answer {
    if call.param("deletionPolicy").as_deref() != Some("Delete") {
        let text = "deletionPolicy=Delete required";
        return Err(ServiceError::new(Code::InvalidParameter, text).field("deletionPolicy").into());
    }
    let caller = MayAdminister::of(&call.caller)?;
    call.service().delete_topic(caller, call.path("name")).await?;
    Ok(no_content())
}

fn policy(request: PolicyRequest) -> Result<Policy, ServiceError> {
    let tiers = request.priority_tiers;
    if tiers.as_ref().is_some_and(Vec::is_empty) {
        return Err(bad("priorityTiers"));
    }
    let tiers = tiers.unwrap_or_default().into_iter().map(u8::try_from);
    Ok(Policy {
        priority_tiers: tiers.collect::<Result<_, _>>().map_err(|_| bad("priorityTiers"))?,
        max_attempts: number(request.max_attempts, "maxAttempts")?,
        dead_letter_topic: request.dead_letter_topic_ref.map(Into::into),
        retention: millis(request.retention_seconds, "retentionSeconds")?,
        max_consumers: number(request.max_consumers, "maxConsumers")?.unwrap_or(0),
        dead_letter_retention: millis(
            request.dead_letter_retention_seconds,
            "deadLetterRetentionSeconds",
        )?,
    })
}

fn number(value: Option<i64>, field: &'static str) -> Result<Option<u32>, ServiceError> {
    value.map(u32::try_from).transpose().map_err(|_| bad(field))
}

fn millis(seconds: Option<i64>, field: &'static str) -> Result<u64, ServiceError> {
    Ok(number(seconds, field)?.map_or(0, |n| u64::from(n) * 1_000))
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn bad(field: &'static str) -> ServiceError {
    let text = format!("invalid topic policy: {field}");
    ServiceError::new(Code::InvalidTopicPolicy, text).field(field)
}

fn body<'a>(call: &'a Call, name: &'a str, topic: &'a Topic) -> TopicBody<'a> {
    TopicBody {
        topic_id: format!("{}.{name}", call.caller.tenant),
        tenant_id: &call.caller.tenant,
        topic_name: name,
        policy: PolicyBody {
            priority_tiers: &topic.policy.priority_tiers,
            max_attempts: topic.policy.max_attempts,
            dead_letter_topic_ref: topic.policy.dead_letter_topic.as_deref(),
            retention_seconds: topic.policy.retention / 1_000,
            dead_letter_retention_seconds: topic.policy.dead_letter_retention / 1_000,
            max_consumers: topic.policy.max_consumers,
        },
        version: topic.version,
        created_at: call.times().text(topic.created_at),
        updated_at: call.times().text(topic.updated_at),
    }
}
