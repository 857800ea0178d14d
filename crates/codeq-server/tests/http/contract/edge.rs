//! What is common to every request: ids, tokens, unknown routes and methods.

use reqwest::Method;
use serde_json::json;

use crate::http::harness::{Harness, PRODUCER, WORKER, send};
use crate::http::raw::{exchange, post_head};
use crate::http::shape::assert_shape;

#[tokio::test]
async fn request_ids_are_echoed_if_sane_and_minted_if_not() {
    let h = Harness::start().await;
    let longest = "x".repeat(128);
    for (method, path) in [
        (Method::GET, "/livez"),
        (Method::GET, "tasks"),
        (Method::GET, "nowhere"),
        (Method::PUT, "tasks"),
        (Method::POST, "tasks/claim"),
    ] {
        let ask = async |id: &str| {
            let request = h.request(method.clone(), PRODUCER, path).header("X-Request-Id", id);
            send(request).await.header("x-request-id").unwrap().to_owned()
        };
        for sane in ["a", "trace-1:{x}/~!", longest.as_str()] {
            assert_eq!(ask(sane).await, sane, "{path}");
        }
        for bad in ["", "two words", "tab\there", &"x".repeat(129)] {
            let minted = ask(bad).await;
            assert!(minted != bad && minted.len() == 32, "{path}: {bad:?} {minted:?}");
        }
        let one = send(h.request(method.clone(), PRODUCER, path)).await;
        let two = send(h.request(method.clone(), PRODUCER, path)).await;
        assert_ne!(one.header("x-request-id"), two.header("x-request-id"));
    }
}

#[tokio::test]
async fn a_problem_has_every_member_and_no_other() {
    let h = Harness::start().await;
    let request = h.request(Method::GET, PRODUCER, "tasks/x").header("x-request-id", "r-1");
    let reply = send(request).await;
    let problem = json!({
        "type": "<text>", "title": "Not Found", "status": 404, "detail": "<text>",
        "error": "not found", "code": "not_found", "requestId": "r-1",
    });
    assert_shape(&reply.refused(404, "not found"), &problem);
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
}

#[tokio::test]
async fn unknown_routes_and_methods_are_problems() {
    let h = Harness::start().await;
    for path in
        ["//", "/v1/codeq", "/v1/codeq/", "nope", "tasks//", "tasks/a/b/c", "/v2/codeq/tasks"]
    {
        for token in ["", PRODUCER] {
            h.get(token, path).await.refused(404, "not found");
        }
    }
    let cases = [
        (Method::PUT, "tasks", vec!["GET", "HEAD", "POST"]),
        (Method::DELETE, "tasks/claim", vec!["POST"]),
        (Method::PUT, "tasks/x", vec!["GET", "HEAD", "PATCH"]),
        (Method::POST, "admin/topics/x", vec!["DELETE", "GET", "HEAD", "PUT"]),
        (Method::POST, "/livez", vec!["GET", "HEAD"]),
    ];
    for (method, path, allowed) in cases {
        let reply = send(h.request(method, PRODUCER, path)).await;
        reply.refused(405, "method not allowed");
        let allow = reply.header("allow").expect("an Allow header");
        let mut named: Vec<_> = allow.split(',').map(str::trim).collect();
        named.sort_unstable();
        assert_eq!(named, allowed, "{path}");
    }
}

#[tokio::test]
async fn a_trailing_slash_is_ignored() {
    let h = Harness::start().await;
    let made = h.post(PRODUCER, "tasks/", json!({"command": "c", "payload": 1})).await.expect(202);
    let id = made.id();
    assert_eq!(h.get(PRODUCER, &format!("tasks/{id}/")).await.expect(200).id(), id);
    let list = h.get(PRODUCER, "tasks/?command=c").await.expect(200).json();
    assert_eq!(list["items"][0]["id"], *id);
    assert_eq!(h.act(WORKER, "tasks/claim/").await.expect(200).id(), id);
    h.get("", "/livez/").await.expect(200);
    // Requests that are refused without the slash are refused with it.
    h.get("", "tasks/").await.refused(401, "missing bearer token");
    send(h.request(Method::PUT, PRODUCER, "tasks/")).await.refused(405, "method not allowed");
    h.get(PRODUCER, "tasks/?comand=c").await.refused(400, "unknown query parameter");
}

#[tokio::test]
async fn the_root_says_where_the_documentation_is() {
    let h = Harness::start().await;
    let root = h.get("", "/").await.expect(200);
    let index = json!({
        "name": "codeQ", "version": env!("CARGO_PKG_VERSION"), "api": "/v1/codeq", "docs": "/docs",
        "openapi": "/openapi.json",
    });
    assert_eq!(root.json(), index);
    for name in ["docs", "openapi"] {
        h.get("", index[name].as_str().unwrap()).await.expect(200);
    }
    send(h.request(Method::POST, "", "/")).await.refused(405, "method not allowed");
}

#[tokio::test]
async fn missing_invalid_and_insufficient_tokens_are_refused() {
    let h = Harness::start().await;
    let missing = h.get("", "tasks").await;
    missing.refused(401, "missing bearer token");
    assert_eq!(missing.header("www-authenticate"), Some("Bearer realm=\"codeq\""));
    let bad = h.get("a-nobody", "tasks").await;
    bad.refused(401, "invalid token");
    let challenge = bad.header("www-authenticate").unwrap();
    assert!(challenge.starts_with("Bearer ") && challenge.contains("error=\"invalid_token\""));
    let basic = h.request(Method::GET, "", "tasks").header("authorization", "Basic YTpi");
    send(basic).await.refused(401, "missing bearer token");
    let twice = h.request(Method::GET, PRODUCER, "tasks").header("authorization", "Bearer x");
    send(twice).await.refused(401, "invalid token");
    // A good token of the wrong kind is known, and not allowed.
    h.post(WORKER, "tasks", json!({"command": "c", "payload": 1})).await.expect(403);
    h.act(PRODUCER, "tasks/claim").await.expect(403);
    // Tokens are not read from anywhere else.
    h.get("", &format!("tasks?access_token={PRODUCER}&token={PRODUCER}")).await.expect(401);
}

#[tokio::test]
async fn a_producer_may_work_where_that_is_allowed() {
    let h = Harness::with(|config| config.allow_producer_as_worker = true).await;
    let id = h.task("c").await;
    let claimed = h.claim(PRODUCER, "c").await;
    assert_eq!((claimed["id"].as_str(), &claimed["workerId"]), (Some(&*id), &json!("producer")));
    let done = json!({"status": "COMPLETED"});
    h.post(PRODUCER, &format!("tasks/{id}/result"), done).await.expect(200);
}

#[tokio::test]
async fn paths_are_decoded_once() {
    let h = Harness::start().await;
    h.task("a/b c%2F").await;
    let queue =
        h.get(crate::http::harness::ADMIN, "admin/queues/a%2Fb%20c%252F").await.expect(200).json();
    assert_eq!((&queue["command"], &queue["ready"]), (&json!("a/b c%2F"), &json!(1)));
    h.get(PRODUCER, "tasks/%ff").await.refused(400, "invalid path");
}

#[tokio::test]
async fn header_values_that_are_no_text() {
    let h = Harness::start().await;
    let body = r#"{"command":"c","payload":1}"#;
    let headers = |extra: &[u8]| {
        let length = format!("Content-Length: {}\r\n", body.len());
        let head = post_head(PRODUCER, "tasks", &length);
        let (head, end) = head.split_at(head.len() - 2);
        [head.as_bytes(), extra, b"\r\n", end.as_bytes(), body.as_bytes()].concat()
    };
    let (status, text) = exchange(h.addr(), &headers(b"X-Request-Id: \xff\xfe")).await;
    assert_eq!(status, 202, "{text}");
    let (status, text) = exchange(h.addr(), &headers(b"Idempotency-Key: \xff")).await;
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("invalid Idempotency-Key header"), "{text}");
}
