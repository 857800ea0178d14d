//! `/workers/subscriptions`.

use std::sync::Arc;

use axum::http::StatusCode;
use codeq_auth::shown;
use codeq_webhooks::availability::Subscription;
use serde::{Deserialize, Serialize};

use super::call::{Answer, Call};
use super::endpoint::no_content;
use super::{answer, json};
use crate::service::permission::MaySubscribe;
use crate::service::subscriptions::SubscribeRequest;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    callback_url: String,
    event_types: Option<Vec<Arc<str>>>,
    ttl_seconds: Option<i64>,
    delivery_mode: Option<String>,
    group_id: Option<String>,
    min_interval_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Renewal {
    ttl_seconds: Option<i64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Subscribed<'a> {
    subscription_id: &'a str,
    expires_at: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    subscription_id: &'a str,
    worker_id: String,
    callback_url: &'a str,
    event_types: Vec<&'a str>,
    delivery_mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_id: Option<&'a str>,
    min_interval_seconds: u32,
    ttl_seconds: u32,
    created_at: String,
    expires_at: String,
}

#[derive(Serialize)]
struct List<'a> {
    items: Vec<Body<'a>>,
}

pub async fn create(call: Call) -> Answer {
    let request: Request = json::parse(&call.body)?;
    let request = SubscribeRequest {
        callback_url: request.callback_url,
        event_types: request.event_types.unwrap_or_default(),
        ttl_seconds: request.ttl_seconds,
        delivery_mode: request.delivery_mode,
        group_id: request.group_id,
        min_interval_seconds: request.min_interval_seconds,
    };
    let done = call.service().subscribe(MaySubscribe::of(&call.caller)?, request).await?;
    Ok(subscribed(&call, &done))
}

pub async fn heartbeat(call: Call) -> Answer {
    let Renewal { ttl_seconds } = json::parse_or_default(&call.body)?;
    let done = call
        .service()
        .renew_subscription(MaySubscribe::of(&call.caller)?, call.path("subscription"), ttl_seconds)
        .await?;
    Ok(subscribed(&call, &done))
}

pub async fn list(call: Call) -> Answer {
    let found = call.service().subscriptions(&call.caller).await?;
    let items = found.iter().map(|one| body(&call, one)).collect();
    Ok(answer::json(StatusCode::OK, &List { items }))
}

pub async fn get(call: Call) -> Answer {
    let found = call.service().subscription(&call.caller, call.path("subscription")).await?;
    Ok(answer::json(StatusCode::OK, &body(&call, &found)))
}

pub async fn delete(call: Call) -> Answer {
    call.service().unsubscribe(&call.caller, call.path("subscription")).await?;
    Ok(no_content())
}

fn subscribed(call: &Call, subscription: &Subscription) -> axum::response::Response {
    let expires_at = call.date_of(subscription.expires_at);
    let body = Subscribed { subscription_id: &subscription.id, expires_at };
    answer::json(StatusCode::OK, &body)
}

fn body<'a>(call: &Call, subscription: &'a Subscription) -> Body<'a> {
    let spec = &subscription.spec;
    let names = spec.event_types.as_ref();
    Body {
        subscription_id: &subscription.id,
        worker_id: shown(&spec.owner).into_owned(),
        callback_url: &spec.callback_url,
        event_types: names.map_or(vec!["*"], |names| names.iter().map(|name| &**name).collect()),
        delivery_mode: spec.mode.name(),
        group_id: spec.group.as_deref(),
        min_interval_seconds: spec.min_interval_seconds,
        ttl_seconds: spec.ttl_seconds,
        created_at: call.times().text(subscription.created_at),
        expires_at: call.date_of(subscription.expires_at),
    }
}
