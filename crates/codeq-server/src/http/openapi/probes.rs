//! Operations about the server itself.

use serde_json::json;

use super::kinds::text;
use super::operation::{JSON, Operation};
use crate::service::Code;

const PLAIN: &str = "text/plain";
const OPEN_METRICS: &str = "application/openmetrics-text";

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![
        ("raftStatus", raft()),
        ("index", index()),
        ("livez", live()),
        ("readyz", ready("Whether the server is ready")),
        ("healthz", ready("The same as `/readyz`")),
        ("metrics", metrics()),
        ("openapi", openapi()),
        ("docs", docs()),
    ]
}

fn raft() -> Operation {
    Operation::new("server", "Read the cluster's state", "A single node has no groups.").answers(
        200,
        "Where this node stands.",
        "RaftStatus",
    )
}

fn index() -> Operation {
    Operation::new("server", "Find the documentation", "For whoever comes without a path.").answers(
        200,
        "Where to go from here.",
        "Index",
    )
}

fn live() -> Operation {
    Operation::new("server", "Whether the server runs", "For a liveness probe.")
        .query("verbose", "Changes nothing.", json!({ "type": "string" }))
        .answers_as(200, "It does.", PLAIN, text("`ok`."))
}

fn ready(summary: &'static str) -> Operation {
    Operation::new(
        "server",
        summary,
        "Ready means: the store is open and works, writes are taken, and the server is not about to stop.",
    )
    .query("verbose", "If present, one line for each check.", json!({ "type": "string" }))
    .answers_as(200, "It is.", PLAIN, text("`ok`."))
    .answers_as(503, "It is not, or not any more.", PLAIN, text("`not ready`."))
    .with_header(503, "Retry-After", "RetryAfter")
}

fn metrics() -> Operation {
    Operation::new(
        "server",
        "Read the metrics",
        "Prometheus text 0.0.4, or OpenMetrics 1.0 if `Accept` asks for it. On this port for clients on the same machine only, unless `metrics.public` is \
         set; for others there is nothing here.",
    )
    .answers_as(200, "The metrics.", PLAIN, text("Prometheus text."))
    .or_as(200, OPEN_METRICS, text("OpenMetrics text."))
    .refuses(&[Code::NoSuchRoute])
}

fn openapi() -> Operation {
    Operation::new("server", "Read this document", "OpenAPI 3.1.").answers_as(
        200,
        "The document.",
        JSON,
        json!({ "type": "object" }),
    )
}

fn docs() -> Operation {
    Operation::new("server", "Read the documentation", "This document as a page.").answers_as(
        200,
        "The page.",
        "text/html",
        text("HTML."),
    )
}
