//! `/admin/topics`: the policies of queues. A topic is a queue that has one; see [`codeq_core::topic`].

use axum::http::StatusCode;
use codeq_core::limits::{
    MAX_RUN_MS_MAX, RETENTION_MS_MAX, TOPIC_ATTEMPTS_MAX, TOPIC_CONSUMERS_MAX,
    TOPIC_NAME_BYTES_MAX, TOPIC_TIER_MAX, TOPIC_TIERS_MAX,
};
use codeq_core::reply::Rejection;
use codeq_core::topic::{Policy, Topic};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::endpoint::no_content;
use super::request_context::{Answer, RequestContext};
use super::schema::LABEL;
use super::{json, response};
use crate::service::permission::MayAdminister;
use crate::service::{Code, ServiceError};
use crate::times::Timestamp;

/// A queue's policy.
// Fields are checked one by one, so that the error can name the field. Unknown fields are refused
// whatever the server's setting.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TopicPolicyRequest {
    /// A task's priority is lowered to the highest tier at or below it, or raised to the lowest tier.
    #[schemars(length(min = 1, max = TOPIC_TIERS_MAX), inner(range(min = 0, max = TOPIC_TIER_MAX)))]
    #[schemars(extend("uniqueItems" = true))]
    priority_tiers: Option<Vec<i64>>,
    /// Default and maximum of `maxAttempts` for new tasks.
    #[schemars(range(min = 1, max = TOPIC_ATTEMPTS_MAX))]
    max_attempts: Option<i64>,
    /// Dead letters are also enqueued under this command, which must differ from the topic's name.
    #[schemars(length(min = 1, max = TOPIC_NAME_BYTES_MAX), regex(pattern = LABEL))]
    dead_letter_topic_ref: Option<String>,
    /// How long finished tasks are kept, dead letters included unless `deadLetterRetentionSeconds` is set. 0: the
    /// server's setting.
    #[schemars(range(min = 0, max = RETENTION_MS_MAX / 1_000))]
    retention_seconds: Option<i64>,
    /// How long dead letters are kept. 0: `retentionSeconds` if it is set, otherwise the server's setting.
    #[schemars(range(min = 0, max = RETENTION_MS_MAX / 1_000))]
    dead_letter_retention_seconds: Option<i64>,
    /// The maximum number of tasks in progress at once. 0: no limit.
    #[schemars(range(min = 0, max = TOPIC_CONSUMERS_MAX))]
    max_consumers: Option<i64>,
    /// How long an attempt may run if its task sets no `maxRunSeconds` of its own, decided at the claim. 0: no limit.
    #[schemars(range(min = 0, max = MAX_RUN_MS_MAX / 1_000))]
    max_run_seconds: Option<i64>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
struct PolicyBody<'a> {
    /// Absent if all priorities are allowed.
    #[serde(skip_serializing_if = "<[u8]>::is_empty")]
    #[schemars(inner(range(min = 0, max = TOPIC_TIER_MAX)))]
    priority_tiers: &'a [u8],
    /// Default and maximum of `maxAttempts` for new tasks. Absent if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    /// Dead letters are also enqueued under this command.
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_letter_topic_ref: Option<&'a str>,
    /// How long finished tasks are kept. 0: the server's setting.
    retention_seconds: u64,
    /// How long dead letters are kept. Absent if not set.
    #[serde(skip_serializing_if = "is_zero")]
    dead_letter_retention_seconds: u64,
    /// The maximum number of tasks in progress at once. 0: no limit.
    max_consumers: u32,
    /// How long an attempt may run if its task sets no limit. Absent if not set.
    #[serde(skip_serializing_if = "is_zero")]
    max_run_seconds: u64,
}

/// A topic and its policy.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Topic")]
pub struct TopicBody<'a> {
    /// `<tenant>.<name>`.
    topic_id: String,
    /// The topic's tenant.
    tenant_id: &'a str,
    /// The topic's name, which is the command of its queue.
    topic_name: &'a str,
    /// The policy.
    policy: PolicyBody<'a>,
    /// Increases by one with every change.
    #[schemars(range(min = 1))]
    version: u64,
    /// When the policy was created.
    created_at: Timestamp,
    /// When the policy last changed.
    updated_at: Timestamp,
}

/// The tenant's topics.
#[derive(Serialize, JsonSchema)]
pub struct TopicList<'a> {
    /// The topics, by name.
    items: Vec<TopicBody<'a>>,
}

pub async fn list(context: RequestContext) -> Answer {
    let topics = context.service().topics(MayAdminister::of(&context.caller)?).await?;
    let items = topics.iter().map(|(name, topic)| body(&context, name, topic)).collect();
    Ok(response::json(StatusCode::OK, &TopicList { items }))
}

pub async fn put(context: RequestContext) -> Answer {
    let policy = policy(json::parse(&context.body)?)?;
    let caller = MayAdminister::of(&context.caller)?;
    let done = context.service().put_topic(caller, context.path("name"), policy).await?;
    let status = if done.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(response::json(status, &body(&context, context.path("name"), &done.topic)))
}

pub async fn get(context: RequestContext) -> Answer {
    let topic =
        context.service().topic(MayAdminister::of(&context.caller)?, context.path("name")).await?;
    Ok(response::json(StatusCode::OK, &body(&context, context.path("name"), &topic)))
}

pub async fn delete(context: RequestContext) -> Answer {
    if context.param("deletionPolicy").as_deref() != Some("Delete") {
        let text = "deletionPolicy=Delete required";
        return Err(ServiceError::new(Code::InvalidParameter, text).field("deletionPolicy").into());
    }
    let caller = MayAdminister::of(&context.caller)?;
    context.service().delete_topic(caller, context.path("name")).await?;
    Ok(no_content())
}

fn policy(request: TopicPolicyRequest) -> Result<Policy, ServiceError> {
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
        max_run: millis(request.max_run_seconds, "maxRunSeconds")?,
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
    Rejection::InvalidTopic { field: field.into() }.into()
}

fn body<'a>(context: &'a RequestContext, name: &'a str, topic: &'a Topic) -> TopicBody<'a> {
    TopicBody {
        topic_id: format!("{}.{name}", context.caller.tenant),
        tenant_id: &context.caller.tenant,
        topic_name: name,
        policy: PolicyBody {
            priority_tiers: &topic.policy.priority_tiers,
            max_attempts: topic.policy.max_attempts,
            dead_letter_topic_ref: topic.policy.dead_letter_topic.as_deref(),
            retention_seconds: topic.policy.retention / 1_000,
            dead_letter_retention_seconds: topic.policy.dead_letter_retention / 1_000,
            max_consumers: topic.policy.max_consumers,
            max_run_seconds: topic.policy.max_run / 1_000,
        },
        version: topic.version,
        created_at: context.times().timestamp(topic.created_at),
        updated_at: context.times().timestamp(topic.updated_at),
    }
}
