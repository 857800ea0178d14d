//! Operations about the server itself.

use serde_json::json;

use super::operation::{JSON, Operation, text};
use crate::http::docs::Index;
use crate::http::probes::RaftStatus;
use crate::service::Code;

const PLAIN: &str = "text/plain";
const OPEN_METRICS: &str = "application/openmetrics-text";

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![
        ("raftStatus", raft()),
        ("index", index()),
        ("livez", live()),
        ("readyz", ready("Check whether the server is ready")),
        ("healthz", ready("Same as `/readyz`")),
        ("metrics", metrics()),
        ("openapi", openapi()),
        ("docs", docs()),
    ]
}

fn raft() -> Operation {
    let about = "There is no replication yet, so `enabled` is false and `groups` is empty.";
    Operation::new("server", "Get the state of replication", about)
        .answers::<RaftStatus>(200, "The state of replication.")
}

fn index() -> Operation {
    let about = "Links to the API and its documentation.";
    Operation::new("server", "Find the documentation", about).answers::<Index>(200, "The links.")
}

fn live() -> Operation {
    Operation::new("server", "Check whether the server is running", "For a liveness probe.")
        .query("verbose", "Ignored.", text())
        .answers_as(200, "The server is running: `ok`.", PLAIN, text())
}

fn ready(summary: &'static str) -> Operation {
    Operation::new(
        "server",
        summary,
        "The server is ready if its store is open and working, it accepts writes, and it is not shutting down.",
    )
    .query("verbose", "If present, the response has one line per check.", text())
    .answers_as(200, "The server is ready: `ok`.", PLAIN, text())
    .answers_as(503, "The server is not ready: `not ready`.", PLAIN, text())
    .with_header(503, "Retry-After", "RetryAfter")
}

fn metrics() -> Operation {
    Operation::new(
        "server",
        "Get the metrics",
        "Prometheus text 0.0.4, or OpenMetrics 1.0 if `Accept` asks for it. On this port, only clients on the same \
         machine can get them, unless `metrics.public` is set; others get 404.",
    )
    .answers_as(200, "The metrics.", PLAIN, text())
    .or_as(200, OPEN_METRICS, text())
    .refuses(&[Code::NoSuchRoute])
}

fn openapi() -> Operation {
    Operation::new("server", "Get this document", "OpenAPI 3.1.").answers_as(
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
        text(),
    )
}
