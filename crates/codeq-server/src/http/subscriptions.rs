//! `/workers/subscriptions`.

use std::sync::Arc;

use axum::http::StatusCode;
use codeq_auth::{GROUP_BYTES_MAX, display_identity};
use codeq_core::limits::WEBHOOK_BYTES_MAX;
use codeq_webhooks::availability::Subscription;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::endpoint::no_content;
use super::request_context::{Answer, RequestContext};
use super::schema::URL;
use super::{json, response};
use crate::service::permission::MaySubscribe;
use crate::service::subscriptions::{INTERVAL_SECONDS_MAX, SubscribeRequest, TTL_SECONDS_MAX};
use crate::times::Timestamp;

/// What to notify a worker of, and where.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SubscribeRequest")]
pub struct Request {
    /// Where codeQ posts notifications: an http or https URL.
    #[schemars(length(max = WEBHOOK_BYTES_MAX), regex(pattern = URL))]
    callback_url: String,
    /// Notify only of work for these commands. Empty or absent: all commands that the token allows.
    event_types: Option<Vec<Arc<str>>>,
    /// Seconds until the subscription ends, unless it is renewed. Default 300.
    #[schemars(range(min = 1, max = TTL_SECONDS_MAX))]
    ttl_seconds: Option<i64>,
    /// `fanout` notifies every subscription. `group` notifies the members of a group in turn. `hash` notifies one of
    /// all `hash` subscriptions, chosen by the command. Default: `group` if the request or the token names a group,
    /// otherwise `fanout`.
    #[schemars(extend("enum" = ["fanout", "group", "hash", "", null]))]
    delivery_mode: Option<String>,
    /// The group. Required in group mode.
    #[schemars(length(max = GROUP_BYTES_MAX))]
    group_id: Option<String>,
    /// Minimum seconds between two notifications. Default 5.
    #[schemars(range(min = 0, max = INTERVAL_SECONDS_MAX))]
    min_interval_seconds: Option<i64>,
}

/// How long to renew a subscription.
#[derive(Deserialize, Default, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "RenewSubscriptionRequest")]
pub struct Renewal {
    /// Seconds from now until the subscription ends. Absent: as when it was created.
    #[schemars(range(min = 1, max = TTL_SECONDS_MAX))]
    ttl_seconds: Option<i64>,
}

/// A subscription that was created or renewed.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subscribed<'a> {
    /// The subscription's id.
    subscription_id: &'a str,
    /// When the subscription ends, unless it is renewed.
    expires_at: Timestamp,
}

/// A subscription.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Subscription")]
pub struct Body<'a> {
    /// The subscription's id.
    subscription_id: &'a str,
    /// The owner: the subject of the token that created the subscription.
    worker_id: String,
    /// Where codeQ posts notifications.
    callback_url: &'a str,
    /// The commands; `*` means all.
    event_types: Vec<&'a str>,
    /// Which of several matching subscriptions are notified.
    #[schemars(extend("enum" = ["fanout", "group", "hash"]))]
    delivery_mode: &'static str,
    /// The group, in group mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    group_id: Option<&'a str>,
    /// Minimum seconds between two notifications.
    min_interval_seconds: u32,
    /// Seconds until the subscription ends if it is not renewed.
    ttl_seconds: u32,
    /// When the subscription was created.
    created_at: Timestamp,
    /// When the subscription ends, unless it is renewed.
    expires_at: Timestamp,
}

/// Subscriptions.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SubscriptionList")]
pub struct List<'a> {
    /// The subscriptions, oldest first.
    items: Vec<Body<'a>>,
}

pub async fn create(context: RequestContext) -> Answer {
    let request: Request = json::parse(&context.body)?;
    let request = SubscribeRequest {
        callback_url: request.callback_url,
        event_types: request.event_types.unwrap_or_default(),
        ttl_seconds: request.ttl_seconds,
        delivery_mode: request.delivery_mode,
        group_id: request.group_id,
        min_interval_seconds: request.min_interval_seconds,
    };
    let done = context.service().subscribe(MaySubscribe::of(&context.caller)?, request).await?;
    Ok(subscribed(&context, &done))
}

pub async fn heartbeat(context: RequestContext) -> Answer {
    let Renewal { ttl_seconds } = json::parse_or_default(&context.body)?;
    let done = context
        .service()
        .renew_subscription(
            MaySubscribe::of(&context.caller)?,
            context.path("subscription"),
            ttl_seconds,
        )
        .await?;
    Ok(subscribed(&context, &done))
}

pub async fn list(context: RequestContext) -> Answer {
    let found = context.service().subscriptions(&context.caller).await?;
    let items = found.iter().map(|one| body(&context, one)).collect();
    Ok(response::json(StatusCode::OK, &List { items }))
}

pub async fn get(context: RequestContext) -> Answer {
    let found =
        context.service().subscription(&context.caller, context.path("subscription")).await?;
    Ok(response::json(StatusCode::OK, &body(&context, &found)))
}

pub async fn delete(context: RequestContext) -> Answer {
    context.service().unsubscribe(&context.caller, context.path("subscription")).await?;
    Ok(no_content())
}

fn subscribed(context: &RequestContext, subscription: &Subscription) -> axum::response::Response {
    let expires_at = context.date_of(subscription.expires_at);
    let body = Subscribed { subscription_id: &subscription.id, expires_at };
    response::json(StatusCode::OK, &body)
}

fn body<'a>(context: &RequestContext, subscription: &'a Subscription) -> Body<'a> {
    let spec = &subscription.spec;
    let names = spec.event_types.as_ref();
    Body {
        subscription_id: &subscription.id,
        worker_id: display_identity(&spec.owner).into_owned(),
        callback_url: &spec.callback_url,
        event_types: names.map_or(vec!["*"], |names| names.iter().map(|name| &**name).collect()),
        delivery_mode: spec.mode.name(),
        group_id: spec.group.as_deref(),
        min_interval_seconds: spec.min_interval_seconds,
        ttl_seconds: spec.ttl_seconds,
        created_at: context.times().timestamp(subscription.created_at),
        expires_at: context.date_of(subscription.expires_at),
    }
}
