//! The OpenAPI 3.1 document, generated from the list of routes.
//!
//! [`ROUTES`] provides method, path, access and the errors that follow from the body's limit. The
//! rest, such as the body itself, comes from tables by operation id. A test fails if the operations
//! of the two differ, or if `docs/openapi.json` is out of date.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use codeq_auth::{ADMIN, OPERATOR};
use codeq_webhooks::availability::NotificationBody;
use codeq_webhooks::results::CallbackBody;
use serde_json::{Map, Value, json};

use super::problem::ProblemBody;
use super::routes::{Access, BodyLimit, ROUTES, Route, Verb};
use crate::service::Code;
use operation::{Operation, set};
use schemas::Schemas;

pub mod operation;
pub mod page;

mod admin;
mod components;
mod insight;
mod leases;
mod operator;
mod probes;
mod schemas;
mod subscriptions;
mod tasks;
mod webhooks;

static DOCUMENT: LazyLock<Value> = LazyLock::new(build);
static TEXT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", *DOCUMENT));

/// The document as JSON.
pub fn document() -> &'static Value {
    &DOCUMENT
}

/// The document as served and committed.
pub fn text() -> &'static str {
    &TEXT
}

/// The documentation of each operation, by operation id.
pub fn operations() -> BTreeMap<&'static str, Operation> {
    let groups = [
        tasks::operations(),
        leases::operations(),
        subscriptions::operations(),
        admin::operations(),
        insight::operations(),
        operator::operations(),
        webhooks::operations(),
        probes::operations(),
    ];
    groups.into_iter().flatten().collect()
}

fn build() -> Value {
    let mut documented = operations();
    let mut schemas = Schemas::new();
    schemas.response::<ProblemBody>();
    schemas.response::<CallbackBody>();
    schemas.response::<NotificationBody>();
    documented.values().flat_map(|about| &about.schemas).for_each(|add| add(&mut schemas));
    let mut paths = Map::new();
    for route in ROUTES {
        let path =
            paths.entry(route.path).or_insert_with(|| json!({ "parameters": shared(route.path) }));
        let about = documented.remove(route.operation);
        let about = about.unwrap_or_else(|| Operation::new("server", route.operation, ""));
        set(path, verb(route.verb), operation(route, about));
    }
    json!({
        "openapi": "3.1.1",
        "info": info(),
        "servers": [{ "url": "/", "description": "This server." }],
        "tags": tags(),
        "security": [],
        "paths": paths,
        "webhooks": {
            "taskFinished": { "post": components::result_callback() },
            "taskAvailable": { "post": components::notification() },
        },
        "components": components::components(schemas.finish()),
    })
}

fn info() -> Value {
    json!({
        "title": "codeQ",
        "version": env!("CARGO_PKG_VERSION"),
        "summary": "A durable task queue for many tenants.",
        "description": "JSON in and out. The server refuses fields and query parameters that a route does not know \
            (`unknown_field`), unless it is configured with `http.unknownFields: ignore`. `null` counts as absent. Where \
            the request body is not required, it may be empty or `null`. A route without fields accepts an empty body, \
            `null` or `{}`. A path may end with a slash. If the path or the query of a request names a queue that has no \
            tasks, policy or pause, the response header `X-CodeQ-Hint` suggests a similar queue. Integers must be \
            written without a fraction or an exponent. Dates and times are in RFC 3339. The tenant and the worker's \
            identity come from the token, never from the request. Errors are problem documents (RFC 9457) with a stable \
            `code`. An unknown path gets 404 (`no_such_route`), and a method that a path does not support gets 405 \
            (`method_not_allowed`).",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    })
}

fn tags() -> Value {
    json!([
        { "name": "task", "description": "Enqueue, claim, finish and find tasks." },
        { "name": "queue", "description": "Inspect, pause and purge queues." },
        { "name": "dlq", "description": "Dead letters: tasks that have used all their attempts." },
        { "name": "topic", "description": "Queue policies." },
        { "name": "webhook", "description": "Result callbacks: deliveries and signing secrets." },
        { "name": "subscription", "description": "Notifications to workers when there is work." },
        { "name": "event", "description": "Task transitions as they happen." },
        { "name": "server", "description": "The server itself." },
    ])
}

/// The parameters common to all operations of a path: path parameters and common headers.
fn shared(path: &str) -> Vec<Value> {
    let named = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let named = named.map(|name| match name {
        "id" => "TaskId",
        "command" => "Command",
        "artifact" => "ArtifactName",
        "subscription" => "SubscriptionId",
        _ => "TopicName",
    });
    let parameters = named.chain(["RequestId", "TraceParent", "TraceState"]);
    parameters.map(|name| json!({ "$ref": format!("#/components/parameters/{name}") })).collect()
}

fn operation(route: &Route, about: Operation) -> Value {
    let mut answers: Map<String, Value> = Map::new();
    for (status, mut answer) in about.answers {
        if route.access != Access::Open
            && let Some(headers) = answer.get_mut("headers")
        {
            components::rate_headers(headers);
        }
        answers.insert(status.to_string(), answer);
    }
    let mut codes = about.codes;
    codes.extend(shared_codes(route, about.body.is_some()));
    answers.extend(components::problems(&codes));
    // Sent before the request is parsed, so without a body or request id.
    let head = "The request line and headers are larger than 24 KiB. The response has no body.";
    answers.insert("431".to_owned(), json!({ "description": head }));
    let mut document = json!({
        "tags": [about.tag],
        "operationId": route.operation,
        "summary": about.summary,
        "description": about.description,
        "x-codeq-access": access(route.access),
        "security": security(route.access),
        "responses": answers,
    });
    if let Access::Worker(needed) = route.access {
        set(&mut document, "x-codeq-scope", json!(needed.name()));
    }
    if !about.parameters.is_empty() {
        set(&mut document, "parameters", Value::Array(about.parameters));
    }
    if let Some(body) = about.body {
        set(&mut document, "requestBody", body);
    }
    document
}

/// The error codes that every route of this kind can return.
fn shared_codes(route: &Route, has_body: bool) -> Vec<Code> {
    let mut codes = vec![Code::Internal, Code::UnknownField, Code::InvalidBody];
    if route.path.contains('{') {
        codes.push(Code::InvalidPath);
    }
    if route.access != Access::Open {
        codes.extend(components::CALLER);
    }
    if route.body != BodyLimit::None {
        codes.extend([
            Code::BodyTooLarge,
            Code::BodyTimeout,
            Code::UnsupportedEncoding,
            Code::TooLarge,
        ]);
    }
    if route.verb != Verb::Get {
        codes.push(Code::DiskFull);
    }
    if has_body {
        codes.push(Code::TooDeep);
    }
    codes
}

fn verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "get",
        Verb::Post => "post",
        Verb::Put => "put",
        Verb::Delete => "delete",
        Verb::Patch => "patch",
    }
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Open => "open",
        Access::Any => "any",
        Access::Producer => "producer",
        Access::Worker(_) => "worker",
        Access::Admin => "admin",
        Access::Operator => "operator",
    }
}

fn security(access: Access) -> Value {
    let either = |role: &[&str]| json!([{ "producer": role }, { "worker": role }]);
    match access {
        Access::Open => json!([]),
        Access::Any => either(&[]),
        Access::Admin => either(&[ADMIN]),
        Access::Operator => either(&[OPERATOR]),
        Access::Producer => json!([{ "producer": [] }]),
        Access::Worker(needed) => json!([{ "worker": [needed.name()] }]),
    }
}
