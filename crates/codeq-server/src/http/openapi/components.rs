//! Components shared by operations: parameters, headers, errors, security and the result callback.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::kinds::{command, label, text};
use super::operation::{headers, reference, set};
use super::{answers, insight, operator, requests, subscriptions, webhooks};
use crate::http::problem::status;
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
pub fn components() -> Value {
    let schemas: Map<String, Value> = requests::schemas()
        .into_iter()
        .chain(answers::schemas())
        .chain(insight::schemas())
        .chain(operator::schemas())
        .chain(webhooks::schemas())
        .chain(subscriptions::schemas())
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
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
                "description": "A token that a validator of producers accepts. The role `codeq:admin` is that scope, or the claim `role` with the value `ADMIN`.",
            },
            "worker": {
                "type": "http", "scheme": "bearer",
                "description": "A token that a validator of workers accepts. Its claims `eventTypes` and `scope` say what it may claim and call.",
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
    let mut schema = reference("Problem");
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
        "TaskId": path("id", "The task. A text that is no id names no task.", id),
        "Command": path("command", "The queue: a command in any ASCII case.", command()),
        "ArtifactName": path("artifact", "The name of the artifact.", json!({ "type": "string", "minLength": 1 })),
        "SubscriptionId": path("subscription", "The subscription.", json!({ "type": "string", "minLength": 1 })),
        "TopicName": path("name", "The topic: a DNS label.", label()),
        "RequestId": header("X-Request-Id",
            "Echoed if it is 1 to 128 visible ASCII characters; otherwise a new one is made."),
        "TraceParent": header("traceparent", "W3C trace context; kept with the task on enqueue."),
        "TraceState": header("tracestate", "W3C trace state; kept with the task on enqueue."),
    })
}

fn response_headers() -> Value {
    let header = |description: &str, required: bool, schema: Value| json!({ "description": description, "required": required, "schema": schema });
    let seconds = json!({ "type": "integer", "minimum": 1 });
    let yes = json!({ "type": "string", "const": "true" });
    json!({
        "RequestId": header("The request's id.", true, json!({ "type": "string", "minLength": 1, "maxLength": 128 })),
        "WwwAuthenticate": header("How to authenticate, and what is wrong with the token (RFC 6750).", true, text("")),
        "InsufficientScope": header("The scope that the token lacks (RFC 6750), if that is what it lacks.", false, text("")),
        "Allow": header("Methods of this path.", true, text("")),
        "RetryAfter": header("Seconds until it is worth trying again.", true, seconds),
        "RateLimit": header("What is left: `\"producer\";r=9;t=30`. With a limit only.", false, text("")),
        "RateLimitPolicy": header("The limit: `\"producer\";q=600;w=60`. With a limit only.", false, text("")),
        "IdempotentReplayed": header("The key was used before: nothing was made now.", false, yes),
    })
}

/// The headers of every webhook.
pub fn webhook_headers() -> Value {
    let header = |name: &str, description: &str| {
        json!({
            "name": name, "in": "header", "required": true, "description": description,
            "schema": { "type": "string" },
        })
    };
    json!([
        header("X-CodeQ-Timestamp", "Unix seconds."),
        header("X-CodeQ-Signature", "Lower-case hex HMAC-SHA256 of `timestamp + \".\" + body`."),
        header("webhook-id", "Stable over retries (Standard Webhooks)."),
        header("webhook-timestamp", "Unix seconds (Standard Webhooks)."),
        header("webhook-signature", "`v1,<base64>` (Standard Webhooks)."),
    ])
}

/// The result callback, as its receiver sees it.
pub fn result_callback() -> Value {
    json!({
        "operationId": "taskFinished",
        "tags": ["task"],
        "summary": "A task with a `webhook` is finished",
        "description": "Sent for every way in which a task ends, at least once, with retries. Redirects are \
            not followed, 10 seconds are allowed for the answer, and `Retry-After` is honoured.",
        "parameters": webhook_headers(),
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": reference("ResultCallback") } },
        },
        "responses": {
            "2XX": { "description": "Received. Anything else is tried again." },
        },
    })
}
