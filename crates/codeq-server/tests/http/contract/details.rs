//! What an error says beyond its short text: enough to fix the request without reading the source.

use reqwest::Method;
use serde_json::{Value, json};

use crate::http::harness::{ADMIN, Harness, PRODUCER, RESTRICTED, WORKER, send};

/// The detail and the field of a problem with this short text.
async fn told(h: &Harness, ask: (&str, &str, &str), status: u16, error: &str) -> (String, Value) {
    let (token, path, body) = ask;
    let mut problem = h.post_text(token, path, body).await.refused(status, error);
    (problem["detail"].as_str().unwrap().to_owned(), problem["field"].take())
}

#[tokio::test]
async fn a_body_that_cannot_be_read_says_why_and_where() {
    let h = Harness::start().await;
    let cases = [
        (PRODUCER, "tasks", "", "expected a JSON object, found nothing", None),
        (PRODUCER, "tasks", "[]", "expected a JSON object, found something else", None),
        (PRODUCER, "tasks", "{\"command\":", "EOF while parsing a value at line 1 column 11", None),
        (
            PRODUCER,
            "tasks",
            "{\"command\":\"c\",\n\"payload\":1,\n\"priority\":\"high\"}",
            "'priority': found a string, expected a whole number at line 3 column 17",
            Some("priority"),
        ),
        (PRODUCER, "tasks", "{\"command\":\"c\"}", "payload is missing or null", Some("payload")),
        (PRODUCER, "tasks/batch", "{}", "missing field `tasks` at line 1 column 2", Some("tasks")),
        (PRODUCER, "tasks/batch", "{\"tasks\":[]}", "the batch has no items", None),
        (
            WORKER,
            "tasks/claim",
            "{\"commands\":[\"a\",7]}",
            "'commands': found a whole number, expected a string at line 1 column 18",
            Some("commands"),
        ),
        (WORKER, "tasks/claim/batch", "{}", "count is missing or not 1 to 10", Some("count")),
        (
            ADMIN,
            "admin/tasks/cleanup",
            "{\"limit\":-1}",
            "'limit': found a number out of range, expected a whole number, 0 or more at line 1 column 11",
            Some("limit"),
        ),
    ];
    for (token, path, body, detail, field) in cases {
        let said = told(&h, (token, path, body), 400, "invalid body").await;
        assert_eq!(said, (detail.to_owned(), json!(field)), "{path} {body}");
    }
    let atomic = (PRODUCER, "tasks/batch?atomic=true", r#"{"tasks":[{"command":1}]}"#);
    let (detail, field) = told(&h, atomic, 400, "item 0: invalid body").await;
    assert_eq!(
        detail,
        "item 0: 'command': found a whole number, expected a string at line 1 column 12"
    );
    assert_eq!(field, "command");
    let utf8: &[u8] = b"{\"command\":\"\xff\"}";
    let problem = h.post_text(PRODUCER, "tasks", utf8).await.refused(400, "invalid body");
    assert_eq!(problem["detail"], "not UTF-8 after byte 12");
    let deep = format!("{{\"payload\":{}", "[".repeat(100));
    let (detail, _) = told(&h, (PRODUCER, "tasks", &deep), 400, "invalid body").await;
    assert_eq!(detail, "nested deeper than 100 levels");
}

#[tokio::test]
async fn a_body_is_not_repeated() {
    let h = Harness::start().await;
    for value in [r#""s3cret""#, r#"["s3cret"]"#, r#"{"s3cret":1}"#] {
        let body = format!(r#"{{"command":"c","payload":1,"priority":{value}}}"#);
        let reply = h.post_text(PRODUCER, "tasks", body).await;
        reply.refused(400, "invalid body");
        assert!(!reply.text().contains("s3cret"), "{}", reply.text());
    }
    // An unknown field is named, but a long name is not repeated in full.
    let path = "admin/topics/t";
    let request =
        |name: &str| h.request(Method::PUT, ADMIN, path).body(format!(r#"{{"{name}":1}}"#));
    let named = send(request("maxAttempt")).await.refused(400, "unknown field");
    assert_eq!(named["detail"], "unknown field 'maxAttempt': did you mean 'maxAttempts'?");
    let long = send(request(&"x".repeat(5_000))).await.refused(400, "unknown field");
    assert!(long["detail"].as_str().unwrap().len() < 250, "{long}");
}

#[tokio::test]
async fn who_is_refused_learns_what_is_missing() {
    let h = Harness::start().await;
    let admin = h.get(PRODUCER, "admin/queues").await.refused(403, "admin required");
    assert_eq!(admin["detail"], "the token needs the scope codeq:admin, or the role ADMIN");
    let operator = h.get(ADMIN, "admin/queues?allTenants=true").await;
    let operator = operator.refused(403, "operator required");
    assert!(operator["detail"].as_str().unwrap().contains("codeq:operator"), "{operator}");
    let claim = (RESTRICTED, "tasks/claim", r#"{"commands":["a","mails"]}"#);
    let (detail, field) = told(&h, claim, 403, "event type not allowed").await;
    assert_eq!(detail, "the token's eventTypes do not include 'mails'");
    assert_eq!(field, "commands");
    let long = format!(r#"{{"commands":["{}"]}}"#, "x".repeat(5_000));
    let (detail, _) =
        told(&h, (RESTRICTED, "tasks/claim", &long), 403, "event type not allowed").await;
    assert!(detail.len() < 200, "{detail}");
}

#[tokio::test]
async fn a_worker_without_event_types_is_told_so() {
    let h = Harness::with(|config| {
        config.worker_auth.static_tokens.iter_mut().for_each(|token| token.event_types.clear());
    })
    .await;
    let (detail, _) = told(&h, (WORKER, "tasks/claim", ""), 403, "event type not allowed").await;
    assert_eq!(detail, "the token has no eventTypes, so it cannot claim anything");
}

#[tokio::test]
async fn values_and_limits_are_named() {
    let h = Harness::with(|config| config.http.max_body_bytes = 2_000).await;
    let id = h.running("c").await;
    let result = (WORKER, &*format!("tasks/{id}/result"), r#"{"status":"DONE"}"#);
    let (detail, field) = told(&h, result, 400, "invalid status").await;
    assert_eq!(
        (&*detail, field),
        ("status must be COMPLETED or FAILED, in capitals", json!("status"))
    );
    let large = format!(r#"{{"command":"c","payload":"{}"}}"#, "x".repeat(2_000));
    let (detail, _) = told(&h, (PRODUCER, "tasks", &large), 413, "body too large").await;
    assert_eq!(detail, "the body is larger than 2000 bytes, which is this route's limit");
    let filter = h.get(PRODUCER, "tasks?filter=created%3Eyesterday").await;
    let filter =
        filter.refused(400, "invalid filter: it has a 'created' date that is not RFC 3339");
    let detail = filter["detail"].as_str().unwrap();
    for part in
        ["it has a 'created' date that is not RFC 3339", "worker=NAME", "2026-01-31T08:00:00Z"]
    {
        assert!(detail.contains(part), "{detail}");
    }
}
