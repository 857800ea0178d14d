//! The OpenAPI 3.1 document, generated from the list of routes.
//!
//! [`ROUTES`] provides method, path, access and whether there is a body. The rest comes from tables
//! by operation id. A test fails if the operations of the two differ, or if `docs/openapi.json` is
//! out of date.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use codeq_auth::{ADMIN, OPERATOR};
use serde_json::{Map, Value, json};

use super::routes::{Access, BodyLimit, ROUTES, Route, Verb};
use crate::service::Code;
use operation::{Operation, set};

pub mod operation;
pub mod page;

mod admin;
mod answers;
mod components;
mod kinds;
mod operator;
mod probes;
mod requests;
mod subscriptions;
mod tasks;
mod webhooks;
mod workers;

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
        workers::operations(),
        subscriptions::operations(),
        admin::operations(),
        operator::operations(),
        webhooks::operations(),
        probes::operations(),
    ];
    groups.into_iter().flatten().collect()
}

fn build() -> Value {
    let mut documented = operations();
    let mut paths = Map::new();
    for route in ROUTES {
        let path =
            paths.entry(route.path).or_insert_with(|| json!({ "parameters": shared(route.path) }));
        let about = documented.remove(route.operation);
        let about = about.unwrap_or_else(|| Operation::new("server", route.operation, ""));
        set(path, verb(route.verb), operation(route, about));
    }
    let mut components = components::components();
    close_requests(&Value::Object(paths.clone()), &mut components);
    json!({
        "openapi": "3.1.1",
        "info": info(),
        "servers": [{ "url": "/", "description": "This server." }],
        "tags": tags(),
        "security": [],
        "paths": paths,
        "webhooks": {
            "taskFinished": { "post": components::result_callback() },
            "taskAvailable": { "post": subscriptions::webhook(components::webhook_headers()) },
        },
        "components": components,
    })
}

/// Closes all request schemas, because the server refuses unknown fields.
fn close_requests(paths: &Value, components: &mut Value) {
    let mut names = Vec::new();
    references(paths, "requestBody", &mut names);
    let mut closed = BTreeSet::new();
    while let Some(name) = names.pop() {
        let Some(schema) = components.pointer_mut(&format!("/schemas/{name}")) else { continue };
        if closed.insert(name) {
            close(schema);
            references(schema, "", &mut names);
        }
    }
}

/// Collects the names of referenced schemas. If `inside` is not empty, only those within members of
/// that name.
fn references(value: &Value, inside: &str, names: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (member, value) in map {
                if let ("$ref", "", Some(at)) = (member.as_str(), inside, value.as_str()) {
                    names.extend(at.strip_prefix("#/components/schemas/").map(str::to_owned));
                }
                references(value, if member == inside { "" } else { inside }, names);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, inside, names)),
        _ => {}
    }
}

/// Closes every object in a schema that lists its members.
fn close(schema: &mut Value) {
    if schema["type"] == "object" && schema.get("properties").is_some() {
        set(schema, "additionalProperties", json!(false));
    }
    match schema {
        Value::Object(map) => map.values_mut().for_each(close),
        Value::Array(list) => list.iter_mut().for_each(close),
        _ => {}
    }
}

fn info() -> Value {
    json!({
        "title": "codeQ",
        "version": env!("CARGO_PKG_VERSION"),
        "summary": "A durable task queue for many tenants.",
        "description": "JSON in and out. A field or query parameter that a route does not know is refused (`unknown_field`), \
            unless the server is set to `http.unknownFields: ignore`; `null` counts as absent, and where every field is \
            optional the body may be empty or `null`. \
            A route without fields takes an empty body, `null` or `{}`. A path may end with a slash. Where no task of a \
            queue is kept that a request names, the header `X-CodeQ-Hint` of the answer says which one may have been meant. \
            Numbers must be written as integers where integers are asked for. \
            Moments are RFC 3339. The tenant and the identity of a worker come from the token, never from \
            the request. Errors are problems (RFC 9457) with a stable `code`; a method that a path does not \
            have is answered 405 (`method_not_allowed`), an unknown path 404 (`no_such_route`).",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    })
}

fn tags() -> Value {
    json!([
        { "name": "task", "description": "Enqueue, claim, finish and find tasks." },
        { "name": "queue", "description": "Look at queues and steer them." },
        { "name": "dlq", "description": "Dead letters: tasks whose attempts are spent." },
        { "name": "topic", "description": "Policies of queues." },
        { "name": "webhook", "description": "What the server posts: deliveries and secrets." },
        { "name": "subscription", "description": "Workers that are told when there is work." },
        { "name": "event", "description": "Transitions of tasks as they happen." },
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
    let head = "The line and the headers of the request are larger than 24 KiB. No body.";
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
