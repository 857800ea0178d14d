//! Fields and query parameters that a route does not know: a typo must never widen what a call does.

use codeq_server::config::UnknownFields;
use codeq_server::http::openapi::document;
use codeq_server::http::routes::{Access, ROUTES, Route, Verb};
use reqwest::Method;
use serde_json::{Value, json};

use crate::http::harness::{
    ADMIN, Harness, LATER, OPERATOR, PRODUCER, Reply, UNKNOWN_ID, WORKER, send,
};

/// A name that no route knows, and that resembles none.
const UNKNOWN: &str = "zzz";

fn token(route: &Route) -> &'static str {
    match route.access {
        Access::Open => "",
        Access::Worker(_) => WORKER,
        Access::Any | Access::Producer => PRODUCER,
        Access::Admin => ADMIN,
        Access::Operator => OPERATOR,
    }
}

/// The path of a route with everything filled in, and what its query needs.
fn address(route: &Route) -> String {
    let path = route.path.replace("{id}", UNKNOWN_ID);
    let path = ["command", "name", "artifact", "subscription"]
        .iter()
        .fold(path, |path, name| path.replace(&format!("{{{name}}}"), "none"));
    assert!(!path.contains('{'), "{path}: how is this filled in?");
    let query = if route.operation == "deleteTopic" { "?deletionPolicy=Delete" } else { "" };
    format!("{path}{query}")
}

fn method(route: &Route) -> Method {
    Method::from_bytes(route.verb.name().as_bytes()).unwrap()
}

/// The body that the documentation shows, or an empty one.
fn example(route: &Route) -> Value {
    let verb = route.verb.name().to_lowercase();
    let operation = &document()["paths"][route.path][verb];
    assert_eq!(operation["operationId"], route.operation);
    match operation.pointer("/requestBody/content/application~1json/example") {
        Some(example) => example.clone(),
        None => json!({}),
    }
}

/// The head of the response, and its body unless it is endless.
async fn ask(h: &Harness, route: &Route, address: &str, body: Option<&Value>) -> (u16, Value) {
    let request = h.request(method(route), token(route), address);
    let request = match body {
        Some(body) => request.body(body.to_string()),
        None => request,
    };
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let media = answer.headers().get("content-type");
    let problem = media.is_some_and(|media| media == "application/problem+json");
    let body = if problem { answer.json().await.unwrap() } else { Value::Null };
    (status, body)
}

fn with_unknown(mut body: Value) -> Value {
    body[UNKNOWN] = json!(null);
    body
}

#[tokio::test]
async fn every_route_refuses_an_unknown_field_and_an_unknown_parameter() {
    let h = Harness::start().await;
    let task = h.task("kept").await;
    for route in ROUTES {
        let address = address(route);
        let unknown =
            format!("{address}{}{UNKNOWN}=1", if address.contains('?') { '&' } else { '?' });
        let body = Some(example(route)).filter(|_| route.verb != Verb::Get);
        let refused = ask(&h, route, &unknown, body.as_ref()).await;
        expect_unknown(route, refused, "unknown query parameter");
        let body = with_unknown(example(route));
        expect_unknown(route, ask(&h, route, &address, Some(&body)).await, "unknown field");
    }
    let listed = h.get(PRODUCER, "tasks").await.expect(200).json();
    let items = listed["items"].as_array().unwrap();
    assert!(items.len() == 1 && items[0]["id"] == *task, "nothing was done: {listed}");
    assert_eq!(items[0]["status"], "PENDING");
}

#[track_caller]
fn expect_unknown(route: &Route, (status, body): (u16, Value), error: &str) {
    let context = format!("{}: {status} {body}", route.operation);
    let got = (status, &body["code"], &body["error"], &body["field"]);
    assert_eq!(got, (400, &json!("unknown_field"), &json!(error), &json!(UNKNOWN)), "{context}");
    assert!(body["detail"].as_str().unwrap().contains("'zzz'"), "{context}");
}

#[tokio::test]
async fn an_operator_may_have_them_ignored() {
    let h = Harness::with(|config| config.http.unknown_fields = UnknownFields::Ignore).await;
    for route in ROUTES {
        let address = address(route);
        let unknown =
            format!("{address}{}{UNKNOWN}=1", if address.contains('?') { '&' } else { '?' });
        let mut body = with_unknown(example(route));
        if route.operation == "putTopic" {
            // The original codeQ refuses them here, too.
            let refused = ask(&h, route, &address, Some(&body)).await;
            expect_unknown(route, refused, "unknown field");
            body = example(route);
        }
        let (status, problem) = ask(&h, route, &unknown, Some(&body)).await;
        let context = format!("{}: {status} {problem}", route.operation);
        assert!(status != 400 && problem["code"] != "unknown_field", "{context}");
    }
}

/// Checks that the name is refused, with the likely one or all known ones in the detail.
#[track_caller]
fn refused(reply: &Reply, field: &str, instead: &str) {
    let problem = reply.json();
    let got = (reply.status, &problem["code"], &problem["field"]);
    assert_eq!(got, (400, &json!("unknown_field"), &json!(field)), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains(instead), "{problem}");
}

#[tokio::test]
async fn a_typo_destroys_nothing() {
    let h = Harness::start().await;
    for n in 0..3 {
        h.dead("x", &format!("error {n}")).await;
        h.completed("x").await;
    }
    h.task("x").await;
    let running = h.running("other").await;
    let before = h.get(ADMIN, "admin/queues").await.expect(200).json();
    let post = async |token: &str, path: &str, body: Value| h.post(token, path, body).await;
    let cases = [
        (
            "admin/dlq/x/replay",
            json!({"errorContian": "0"}),
            "errorContian",
            "did you mean 'errorContains'?",
        ),
        ("admin/dlq/x/purge", json!({"limt": 1}), "limt", "did you mean 'limit'?"),
        ("admin/queues/x/purge", json!({"Limit": 1}), "Limit", "did you mean 'limit'?"),
        ("admin/tasks/cleanup", json!({"befor": LATER}), "befor", "did you mean 'before'?"),
        ("admin/queues/x/pause", json!({"for": 60}), "for", "expected none"),
    ];
    for (path, body, field, instead) in cases {
        refused(&post(ADMIN, path, body).await, field, instead);
    }
    refused(
        &post(ADMIN, "admin/dlq/x/purge", json!({"errorContian": "0"})).await,
        "errorContian",
        "",
    );
    let claim = post(WORKER, "tasks/claim", json!({"command": "resize"})).await;
    refused(&claim, "command", "did you mean 'commands'?");
    let claim = post(WORKER, "tasks/claim/batch", json!({"count": 1, "command": "resize"})).await;
    refused(&claim, "command", "did you mean 'commands'?");
    let claim = post(WORKER, "tasks/claim", json!({"count": 5})).await;
    refused(&claim, "count", "POST /v1/codeq/tasks/claim/batch");
    let nack = post(WORKER, &format!("tasks/{running}/nack"), json!({"error": "broken"})).await;
    refused(&nack, "error", "reason");
    let done = json!({"status": "COMPLETED", "taskId": running});
    let done = post(WORKER, &format!("tasks/{running}/result"), done).await;
    refused(&done, "taskId", "the path already names the task");
    refused(&h.get(PRODUCER, "tasks?comand=x").await, "comand", "did you mean 'command'?");
    refused(&h.delete(ADMIN, "admin/topics/x?deletionpolicy=Delete").await, "deletionpolicy", "");
    let atomic = post(PRODUCER, "tasks/batch?Atomic=true", json!({"tasks": []})).await;
    refused(&atomic, "Atomic", "did you mean 'atomic'?");
    assert_eq!(
        h.get(ADMIN, "admin/queues").await.expect(200).json(),
        before,
        "nothing was touched"
    );
    let task = h.get(PRODUCER, &format!("tasks/{running}")).await.expect(200).json();
    assert_eq!((&task["status"], &task["attempts"]), (&json!("IN_PROGRESS"), &Value::Null));
}

#[tokio::test]
async fn items_and_nested_objects_are_looked_at_too() {
    let h = Harness::start().await;
    let tasks = json!({"tasks": [
        {"command": "c", "payload": {"anything": {"goes": 1}}},
        {"command": "c", "payload": 1, "priorty": 9},
    ]});
    let made = h.post(PRODUCER, "tasks/batch", tasks.clone()).await.expect(200).json();
    assert!(made["results"][0]["task"].is_object());
    let item = json!({
        "error": "unknown field", "code": "unknown_field", "field": "priorty",
        "detail": "unknown field 'priorty': did you mean 'priority'?",
    });
    assert_eq!(made["results"][1], item);
    let atomic = h.post(PRODUCER, "tasks/batch?atomic=true", tasks).await;
    let atomic = atomic.refused(400, "item 1: unknown field");
    assert_eq!((&atomic["code"], &atomic["field"]), (&json!("unknown_field"), &json!("priorty")));
    let id = h.claim(WORKER, "c").await["id"].as_str().unwrap().to_owned();
    let artifact = json!({"name": "a", "url": "https://example.com/a", "contenttype": "x"});
    let result = json!({"status": "COMPLETED", "artifacts": [artifact]});
    let refused = h.post(WORKER, &format!("tasks/{id}/result"), result.clone()).await;
    let refused = refused.refused(400, "unknown field");
    assert_eq!(
        refused["detail"],
        "artifact 0: unknown field 'contenttype': did you mean 'contentType'?"
    );
    let item = crate::http::shape::with(result, json!({"taskId": id}));
    let done = h.post(WORKER, "tasks/batch/results", json!({"results": [item]})).await;
    assert_eq!(done.expect(200).json()["results"][0]["field"], "contenttype");
    let item = json!({"taskId": id, "status": "COMPLETED", "results": {}});
    let done = h.post(WORKER, "tasks/batch/results", json!({"results": [item]})).await;
    let done = done.expect(200).json();
    assert_eq!(
        (&done["results"][0]["taskId"], &done["results"][0]["field"]),
        (&json!(id), &json!("results"))
    );
    let task = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
    assert_eq!(task["status"], "IN_PROGRESS");
}

#[tokio::test]
async fn what_clients_of_codeq_send_is_known() {
    let h = Harness::start().await;
    // Options that are not set, as serializers write them.
    let task = json!({
        "command": "c", "payload": 1, "priority": null, "maxAttempts": null, "webhook": null,
        "idempotencyKey": null, "runAt": null, "delaySeconds": null,
    });
    h.post(PRODUCER, "tasks", task.clone()).await.expect(202);
    let made = h.post(PRODUCER, "tasks/batch", json!({"tasks": [task.clone(), task]})).await;
    assert!(made.expect(200).json()["results"][1]["task"].is_object());
    let claim = json!({"commands": null, "leaseSeconds": null, "waitSeconds": null});
    let claimed = h.post(WORKER, "tasks/claim", claim).await.expect(200).json();
    let path = |verb: &str| format!("tasks/{}/{verb}", claimed["id"].as_str().unwrap());
    h.post(WORKER, &path("heartbeat"), json!({"extendSeconds": null})).await.expect(200);
    let result = json!({
        "status": "COMPLETED", "result": {"a": 1}, "error": null, "artifacts": null, "workerId": "w-1",
    });
    h.post(WORKER, &path("result"), result.clone()).await.expect(200);
    let claimed = h.claim(WORKER, "c").await;
    let item = crate::http::shape::with(result, json!({"taskId": claimed["id"]}));
    let done = h.post(WORKER, "tasks/batch/results", json!({"results": [item]})).await;
    assert!(done.expect(200).json()["results"][0]["result"].is_object());
    let id = h.claim(WORKER, "c").await["id"].as_str().unwrap().to_owned();
    let nack = json!({"delaySeconds": null, "reason": null});
    h.post(WORKER, &format!("tasks/{id}/nack"), nack).await.expect(200);
    for (method, path) in
        [(Method::GET, "tasks"), (Method::GET, "/livez"), (Method::POST, "admin/queues/c/pause")]
    {
        for body in ["", "null", "{}", " {} "] {
            send(h.request(method.clone(), ADMIN, path).body(body)).await.expect(200);
        }
        for body in ["[]", "{", "text", &format!("\"{}\"", "x".repeat(5_000))] {
            let reply = send(h.request(method.clone(), ADMIN, path).body(body.to_owned())).await;
            reply.refused(400, "invalid body");
        }
    }
    // Repeated fields are still an error.
    let twice = r#"{"commands":["c"],"commands":["d"]}"#;
    h.post_text(WORKER, "tasks/claim", twice).await.refused(400, "invalid body");
}
