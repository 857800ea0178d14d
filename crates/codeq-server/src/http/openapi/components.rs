//! Components shared by operations: parameters, headers, errors, security and the result callback.

use std::collections::{BTreeMap, BTreeSet};

use codeq_webhooks::availability::NotificationBody;
use codeq_webhooks::results::CallbackBody;
use serde_json::{Map, Value, json};

use super::operation::{headers, reference, set, text};
use crate::http::problem::{ProblemBody, status};
use crate::http::schema::{command, label};
use crate::service::Code;

/// Error codes of every route that requires a token.
pub const CALLER: [Code; 8] = [
    Code::MissingToken,
    Code::InvalidToken,
    Code::Forbidden,
    Code::RateLimited,
    Code::IdentityUnavailable,
    Code::Overloaded,
    Code::ShuttingDown,
    Code::Failed,
];

/// Error responses that many operations share, by name.
const SHARED: &[(&str, &[Code])] = &[
    ("Unauthorized", &[Code::MissingToken, Code::InvalidToken]),
    ("Forbidden", &[Code::Forbidden]),
    ("NotFound", &[Code::NotFound]),
    ("NoSuchRoute", &[Code::NoSuchRoute]),
    ("MethodNotAllowed", &[Code::MethodNotAllowed]),
    ("BodyTimeout", &[Code::BodyTimeout]),
    ("TooLarge", &[Code::BodyTooLarge, Code::TooLarge]),
    ("UnsupportedEncoding", &[Code::UnsupportedEncoding]),
    ("RateLimited", &[Code::RateLimited]),
    ("InternalError", &[Code::Internal]),
    (
        "UnavailableToRead",
        &[Code::IdentityUnavailable, Code::Overloaded, Code::ShuttingDown, Code::Failed],
    ),
    (
        "Unavailable",
        &[
            Code::IdentityUnavailable,
            Code::Overloaded,
            Code::ShuttingDown,
            Code::Failed,
            Code::DiskFull,
        ],
    ),
];

/// The `components` of the document.
pub fn components(schemas: Map<String, Value>) -> Value {
    let shared = SHARED.iter().flat_map(|(name, codes)| {
        let by_status = by_status(codes).into_iter();
        by_status.map(|(status, codes)| ((*name).to_owned(), problem(status, &codes)))
    });
    json!({
        "schemas": schemas,
        "parameters": parameters(),
        "headers": response_headers(),
        "responses": shared.collect::<Map<String, Value>>(),
        "securitySchemes": {
            "producer": {
                "type": "http", "scheme": "bearer",
                "description": "A token accepted by a producer validator. The admin role is the scope `codeq:admin`, or the claim `role` with the value `ADMIN`.",
            },
            "worker": {
                "type": "http", "scheme": "bearer",
                "description": "A token accepted by a worker validator. Its claims `eventTypes` and `scope` determine what it may claim and call.",
            },
        },
    })
}

/// The error responses for these codes, by status. Shared ones are references.
pub fn problems(codes: &[Code]) -> BTreeMap<String, Value> {
    let answers = by_status(codes).into_iter();
    answers.map(|(status, codes)| (status.to_string(), answer(status, &codes))).collect()
}

fn by_status(codes: &[Code]) -> BTreeMap<u16, BTreeSet<&'static str>> {
    let mut by_status: BTreeMap<u16, BTreeSet<&'static str>> = BTreeMap::new();
    for code in codes {
        by_status.entry(status(*code).as_u16()).or_default().insert(code.text());
    }
    by_status
}

fn answer(status: u16, codes: &BTreeSet<&'static str>) -> Value {
    let same = |known: &[Code]| by_status(known).get(&status) == Some(codes);
    match SHARED.iter().find(|(_, known)| same(known)) {
        Some((name, _)) => json!({ "$ref": format!("#/components/responses/{name}") }),
        None => problem(status, codes),
    }
}

fn problem(status: u16, codes: &BTreeSet<&'static str>) -> Value {
    let mut headers = headers();
    let mut add = |name: &str, component: &str| {
        set(&mut headers, name, json!({ "$ref": format!("#/components/headers/{component}") }));
    };
    match status {
        401 => add("WWW-Authenticate", "WwwAuthenticate"),
        403 => add("WWW-Authenticate", "InsufficientScope"),
        405 => add("Allow", "Allow"),
        429 | 503 => add("Retry-After", "RetryAfter"),
        _ => {}
    }
    if status == 429 {
        rate_headers(&mut headers);
    }
    let named: Vec<String> = codes.iter().map(|code| format!("`{code}`")).collect();
    let mut schema = reference::<ProblemBody>();
    let narrowed = json!({ "status": { "const": status }, "code": { "enum": codes } });
    set(&mut schema, "properties", narrowed);
    json!({
        "description": format!("{}.", named.join(", ")),
        "headers": headers,
        "content": { "application/problem+json": { "schema": schema } },
    })
}

/// Adds the rate-limit headers.
pub fn rate_headers(headers: &mut Value) {
    set(headers, "RateLimit", json!({ "$ref": "#/components/headers/RateLimit" }));
    set(headers, "RateLimit-Policy", json!({ "$ref": "#/components/headers/RateLimitPolicy" }));
}

fn parameters() -> Value {
    let header = |name: &str, description: &str| json!({ "name": name, "in": "header", "description": description, "schema": { "type": "string" } });
    let path = |name: &str, description: &str, schema: Value| json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema });
    let id = json!({ "type": "string", "minLength": 1, "examples": ["01890f3e-7b4c-7cc0-98c4-dc0c0c07398f"] });
    json!({
        "TaskId": path("id", "The task's id. A malformed id matches no task.", id),
        "Command": path("command", "The queue's command. ASCII case does not matter.", command()),
        "ArtifactName": path("artifact", "The artifact's name.", json!({ "type": "string", "minLength": 1 })),
        "SubscriptionId": path("subscription", "The subscription's id.", json!({ "type": "string", "minLength": 1 })),
        "TopicName": path("name", "The topic's name: a DNS label.", label()),
        "RequestId": header("X-Request-Id",
            "Echoed if it has 1 to 128 visible ASCII characters; otherwise the server creates one."),
        "TraceParent": header("traceparent", "W3C trace context; stored with the task on enqueue."),
        "TraceState": header("tracestate", "W3C trace state; stored with the task on enqueue."),
    })
}

fn response_headers() -> Value {
    let header = |description: &str, required: bool, schema: Value| json!({ "description": description, "required": required, "schema": schema });
    let seconds = json!({ "type": "integer", "minimum": 1 });
    let yes = json!({ "type": "string", "const": "true" });
    json!({
        "RequestId": header("The request's id.", true, json!({ "type": "string", "minLength": 1, "maxLength": 128 })),
        "WwwAuthenticate": header("How to authenticate, and what is wrong with the token (RFC 6750).", true, text()),
        "InsufficientScope": header("The scope that the token lacks (RFC 6750), if a scope is missing.", false, text()),
        "Allow": header("The methods that this path supports.", true, text()),
        "RetryAfter": header("Seconds to wait before retrying.", true, seconds),
        "RateLimit": header("The requests that are left: `\"producer\";r=9;t=30`. Present only if a rate limit applies.", false, text()),
        "RateLimitPolicy": header("The rate limit: `\"producer\";q=600;w=60`. Present only if one applies.", false, text()),
        "IdempotentReplayed": header("The idempotency key was used before: this request created nothing.", false, yes),
    })
}

/// The headers of webhooks.
fn webhook_headers() -> Value {
    let header = |name: &str, required: bool, description: &str| {
        json!({
            "name": name, "in": "header", "required": required, "description": description,
            "schema": { "type": "string" },
        })
    };
    json!([
        header("X-CodeQ-Timestamp", true, "Unix time in seconds."),
        header(
            "X-CodeQ-Signature",
            false,
            "Lower-case hex HMAC-SHA256 of `timestamp + \".\" + body`, if the tenant has a secret.",
        ),
        header("webhook-id", true, "The same for every attempt (Standard Webhooks)."),
        header("webhook-timestamp", true, "Unix time in seconds (Standard Webhooks)."),
        header(
            "webhook-signature",
            false,
            "`v1,<base64>` (Standard Webhooks), if the tenant has a secret.",
        ),
    ])
}

/// The result callback, as its receiver sees it.
pub fn result_callback() -> Value {
    json!({
        "operationId": "taskFinished",
        "tags": ["task"],
        "summary": "A task with a `webhook` is finished",
        "description": "Sent when a task with a `webhook` finishes, however it ends, at least once and with \
            retries. Redirects are not followed. The receiver has 10 seconds to respond; `Retry-After` is honoured.",
        "parameters": webhook_headers(),
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": reference::<CallbackBody>() } },
        },
        "responses": {
            "2XX": { "description": "Received. codeQ retries after any other response except 410." },
        },
    })
}

/// The availability notification, as its receiver sees it.
pub fn notification() -> Value {
    json!({
        "operationId": "taskAvailable",
        "tags": ["subscription"],
        "summary": "A queue has work",
        "description": "Sent to subscriptions when a queue that had nothing to claim gets work: by an enqueue, by a \
            delayed task that becomes due, or by a task that returns to the queue. Notifications are advisory and \
            sent once: they assign nothing, and failed ones are not retried. Redirects are not followed. The \
            receiver has 10 seconds to respond.",
        "parameters": webhook_headers(),
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": reference::<NotificationBody>() } },
        },
        "responses": {
            "2XX": { "description": "Received." },
            "410": { "description": "codeQ removes the subscription." },
        },
    })
}
