//! Probes, metrics and node status.

use axum::http::{HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::Serialize;

use super::request_context::{Answer, RequestContext};
use super::response;
use crate::observe::Format;
use crate::service::{Code, ServiceError};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// The state of replication.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RaftStatus {
    /// Whether this server is part of a cluster. Always false: there is no replication yet.
    enabled: bool,
    /// The number of replicated shards.
    num_groups: u16,
    /// One item per replicated shard. Always empty.
    #[schemars(with = "Vec<RaftGroup>")]
    groups: [(); 0],
}

/// A replicated shard.
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "camelCase")]
#[expect(dead_code, reason = "a single node has no groups")]
struct RaftGroup {
    /// The shard's number.
    shard_idx: u64,
    /// Whether this node is the leader.
    is_leader: bool,
    /// This node's id.
    self_id: String,
    /// This node's address.
    self_addr: String,
    /// The leader's id.
    leader_id: String,
    /// The leader's address.
    leader_addr: String,
    /// The leader's HTTP address.
    #[schemars(rename = "leaderHTTPAddr")]
    leader_http_addr: String,
    /// Whether a leader is known.
    has_leader: bool,
}

pub async fn live(_context: RequestContext) -> Answer {
    Ok(response::bytes_as(StatusCode::OK, "ok\n", TEXT))
}

pub async fn ready(context: RequestContext) -> Answer {
    let engine = context.service().engine();
    let stopped = engine.failure().is_some();
    // A stopped engine needs no further reason. Everyone can read this text, so it must not contain
    // paths.
    let refusing = engine.refusing().filter(|_| !stopped).map(|why| why.to_string());
    let draining = context.service().is_draining();
    let checks = [
        ("store", stopped.then(|| "stopped after a failure; see the server's log".to_owned())),
        ("writes", refusing),
        ("serving", draining.then(|| "draining".to_owned())),
    ];
    let ready = checks.iter().all(|(_, wrong)| wrong.is_none());
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose =
        url::form_urlencoded::parse(context.query.as_bytes()).any(|(key, _)| key == "verbose");
    let mut text = String::new();
    if verbose {
        for (name, wrong) in checks {
            match wrong {
                None => text.push_str(&format!("[+] {name}\n")),
                Some(why) => text.push_str(&format!("[-] {name}: {why}\n")),
            }
        }
    }
    text.push_str(if ready { "ok\n" } else { "not ready\n" });
    let mut response = response::bytes_as(status, text, TEXT);
    if !ready {
        response.headers_mut().insert(axum::http::header::RETRY_AFTER, HeaderValue::from(1));
    }
    Ok(response)
}

pub async fn metrics(context: RequestContext) -> Answer {
    let near = context.peer.is_some_and(|peer| peer.to_canonical().is_loopback());
    if !near && !context.app.request_options.metrics_public {
        // Answer 404: the metrics are not for others, though the API documentation lists the route.
        return Err(ServiceError::new(Code::NoSuchRoute, "not found").into());
    }
    render_metrics(context).await
}

/// Renders the metrics for every caller, as on their separate port.
pub async fn render_metrics(context: RequestContext) -> Answer {
    let (app, service) = (&context.app, context.service());
    let workers = service.activity.active(service.now().now);
    let leads = service.leads();
    let text = app.metrics.render(service.engine(), &app.net, &app.budget, workers, leads).await;
    let accept = context.headers.get_all(header::ACCEPT).iter();
    let format = Format::accepted(accept.filter_map(|value| value.to_str().ok()));
    let media = HeaderValue::from_static(format.content_type());
    let mut response = response::bytes_as(StatusCode::OK, format.of(text), media);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

/// Always a single node: there are no Raft groups.
pub async fn raft(_context: RequestContext) -> Answer {
    let body = RaftStatus { enabled: false, num_groups: 0, groups: [] };
    Ok(response::json(StatusCode::OK, &body))
}
