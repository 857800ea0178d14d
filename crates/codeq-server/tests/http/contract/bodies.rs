//! Bodies: how large, how deep, how broken they may be.

use serde_json::json;

use crate::http::harness::{Harness, PRODUCER, WORKER, send};
use crate::http::raw::{exchange, post_head};

const MIB: usize = 1 << 20;

#[tokio::test]
async fn a_body_that_says_that_it_is_too_large_is_not_read() {
    let h = Harness::start().await;
    let cases = [
        (PRODUCER, "tasks", MIB),
        (PRODUCER, "tasks/batch", 16 * MIB),
        (WORKER, "tasks/claim", MIB),
        (WORKER, "tasks/batch/results", 16 * MIB),
    ];
    for (token, path, limit) in cases {
        let head = post_head(token, path, &format!("Content-Length: {}\r\n", limit + 1));
        let (status, text) = exchange(h.addr(), head.as_bytes()).await;
        assert_eq!(status, 413, "{path}: {text}");
        assert!(text.contains("application/problem+json") && text.contains("body too large"));
    }
    // Without a token nothing is said about bodies.
    let head = post_head("nobody", "tasks", "Content-Length: 99999999\r\n");
    assert_eq!(exchange(h.addr(), head.as_bytes()).await.0, 401);
}

#[tokio::test]
async fn a_body_that_turns_out_too_large_is_cut_off() {
    let h = Harness::with(|config| {
        config.http.max_body_bytes = 2_000;
        config.http.max_batch_body_bytes = 4_000;
    })
    .await;
    let chunked = |path: &str, len: usize| {
        let fill = "x".repeat(len - 30);
        let body = format!(r#"{{"command":"c","payload":"{fill}"}}"#);
        let head = post_head(PRODUCER, path, "Transfer-Encoding: chunked\r\n");
        format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
    };
    for (path, len, expected) in [
        ("tasks", 2_000, 202),
        ("tasks", 2_010, 413),
        ("tasks/batch", 2_010, 400),
        ("tasks/batch", 4_010, 413),
    ] {
        let (status, text) = exchange(h.addr(), chunked(path, len).as_bytes()).await;
        assert_eq!(status, expected, "{path} {len}: {text}");
    }
    let large = json!({"command": "c", "payload": "x".repeat(2_000)});
    h.post(PRODUCER, "tasks", large).await.refused(413, "body too large");
}

#[tokio::test]
async fn a_batch_may_be_larger_than_a_task() {
    let h = Harness::start().await;
    let task = json!({"command": "c", "payload": "x".repeat(MIB - 100)});
    let made = h.post(PRODUCER, "tasks/batch", json!({"tasks": vec![task; 3]})).await.expect(200);
    assert!(made.json()["results"].as_array().unwrap().iter().all(|item| item["task"].is_object()));
    // One that is too large is refused alone.
    let large = json!({"command": "c", "payload": "x".repeat(MIB)});
    let small = json!({"command": "c", "payload": 1});
    let made = h.post(PRODUCER, "tasks/batch", json!({"tasks": [large, small]})).await.expect(200);
    let results = &made.json()["results"];
    assert!(results[0]["error"].as_str().is_some_and(|text| text.starts_with("invalid payload")));
    assert!(results[1]["task"].is_object());
}

#[tokio::test]
async fn nesting_is_bounded() {
    let h = Harness::start().await;
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"command":"c","payload":{open}{close}}}"#)
    };
    h.post_text(PRODUCER, "tasks", nested(99)).await.expect(202);
    for depth in [100, 1_000, 400_000] {
        h.post_text(PRODUCER, "tasks", nested(depth)).await.refused(400, "invalid body");
    }
    let ignored = format!(r#"{{"commands":[],"x":{}"#, "[".repeat(200_000));
    h.post_text(WORKER, "tasks/claim", ignored).await.refused(400, "invalid body");
}

#[tokio::test]
async fn what_is_not_json_is_refused() {
    let h = Harness::start().await;
    let bad: [&[u8]; 14] = [
        b"",
        b" ",
        b"null",
        b"[]",
        b"1",
        b"\"text\"",
        b"{",
        b"{\"command\":\"c\",\"payload\":1",
        b"{\"command\":\"c\",\"payload\":1}}",
        b"{\"command\":\"c\",\"payload\":1} x",
        b"{'command':'c','payload':1}",
        b"{\"command\":\"c\",\"payload\":NaN}",
        b"{\"command\":\"c\",\"payload\":\"\xff\"}",
        b"\xef\xbb\xbf{\"command\":\"c\",\"payload\":1}",
    ];
    for body in bad {
        let reply = h.post_text(PRODUCER, "tasks", body).await;
        assert_eq!(reply.status, 400, "{}", body.escape_ascii());
        reply.refused(400, "invalid body");
    }
    // It would not be clear which of the two counts: a proxy in front may have taken the other.
    let twice = r#"{"command":"c","payload":1,"command":"d"}"#;
    h.post_text(PRODUCER, "tasks", twice).await.refused(400, "invalid body");
    let twice = r#"{"command":"c","payload":1,"payload":2}"#;
    h.post_text(PRODUCER, "tasks", twice).await.refused(400, "invalid body");
    let all = h.get(PRODUCER, "tasks").await.expect(200).json();
    assert_eq!(all, json!({"items": []}), "nothing was made");
}

#[tokio::test]
async fn a_body_may_be_empty_where_every_field_is_optional() {
    let h = Harness::start().await;
    let admin = crate::http::harness::ADMIN;
    h.dead("c", "x").await;
    let optional = [
        (WORKER, "tasks/claim"),
        (admin, "admin/queues/c/purge"),
        (admin, "admin/dlq/c/replay"),
        (admin, "admin/dlq/c/purge"),
        (admin, "admin/tasks/cleanup"),
    ];
    for (token, path) in optional {
        for body in ["", " \r\n", "{}", "null", " null\n"] {
            let status = h.post_text(token, path, body).await.status;
            assert!((200..300).contains(&status), "{path} {body:?}: {status}");
        }
        h.post_text(token, path, "{").await.refused(400, "invalid body");
    }
    for verb in ["heartbeat", "abandon", "nack"] {
        for body in ["", "{}", "null"] {
            let id = h.running(&format!("{verb}{body}")).await;
            h.post_text(WORKER, &format!("tasks/{id}/{verb}"), body).await.expect(200);
        }
    }
    let required = [
        (PRODUCER, "tasks/batch"),
        (WORKER, "tasks/claim/batch"),
        (WORKER, "tasks/batch/results"),
        (WORKER, "tasks/x/result"),
    ];
    for (token, path) in required {
        h.act(token, path).await.refused(400, "invalid body");
        h.post_text(token, path, "null").await.refused(400, "invalid body");
    }
}

#[tokio::test]
async fn one_bad_item_never_fails_the_others() {
    let h = Harness::start().await;
    let deep = format!(r#"{{"command":"c","payload":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    let bad = [
        ("null", "invalid_body"),
        ("[1]", "invalid_body"),
        ("\"text\"", "invalid_body"),
        ("{}", "invalid_body"),
        (r#"{"command":7,"payload":1}"#, "invalid_body"),
        (r#"{"command":"c","payload":1,"command":"d"}"#, "invalid_body"),
        (r#"{"command":" ","payload":1}"#, "invalid_command"),
        (r#"{"command":"c","payload":1,"extra":1}"#, "unknown_field"),
        (&deep, "too_deep"),
    ];
    let good = r#"{"command":"c","payload":1}"#;
    let items = bad.iter().map(|(text, _)| *text).collect::<Vec<_>>().join(",");
    let body = format!(r#"{{"tasks":[{good},{items},{good}]}}"#);
    let made = h.post_text(PRODUCER, "tasks/batch", body).await.expect(200).json();
    let made = made["results"].as_array().unwrap();
    assert!(made.len() == bad.len() + 2 && made[0]["task"].is_object());
    assert!(made[bad.len() + 1]["task"].is_object());
    for (item, (text, code)) in made[1..].iter().zip(bad) {
        assert_eq!(item["code"], code, "{text}: {item}");
        assert!(item["error"].is_string() && item["detail"].is_string(), "{item}");
    }
}

#[tokio::test]
async fn one_bad_result_never_fails_the_others() {
    let h = Harness::start().await;
    let nested = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
    let deep = format!(r#"{{"taskId":"t","status":"COMPLETED","result":{nested}}}"#);
    let bad = [
        ("null", "", "invalid_body"),
        ("7", "", "invalid_body"),
        (r#"{"status":"COMPLETED"}"#, "", "invalid_body"),
        (r#"{"taskId":7,"status":"COMPLETED"}"#, "", "invalid_body"),
        (r#"{"taskId":"t","status":7}"#, "t", "invalid_body"),
        (r#"{"taskId":"t","stauts":"COMPLETED"}"#, "t", "unknown_field"),
        (r#"{"taskId":"t","status":"COMPLETED"}"#, "t", "not_found"),
        (&deep, "", "too_deep"),
    ];
    let items = bad.iter().map(|(text, ..)| *text).collect::<Vec<_>>().join(",");
    let good = |id: &str| format!(r#"{{"taskId":"{id}","status":"COMPLETED"}}"#);
    let (first, last) = (h.running("c").await, h.running("c").await);
    let body = format!(r#"{{"results":[{},{items},{}]}}"#, good(&first), good(&last));
    let done = h.post_text(WORKER, "tasks/batch/results", body).await.expect(200).json();
    let done = done["results"].as_array().unwrap();
    assert!(done.len() == bad.len() + 2 && done[0]["result"].is_object());
    assert!(done[bad.len() + 1]["result"].is_object());
    for (item, (text, task, code)) in done[1..].iter().zip(bad) {
        assert_eq!(
            (&item["taskId"], &item["code"]),
            (&json!(task), &json!(code)),
            "{text}: {item}"
        );
    }
}

#[tokio::test]
async fn a_failure_needs_more_than_blanks() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let path = format!("tasks/{id}/result");
    for error in [json!(null), json!(""), json!(" \t\n")] {
        let body = json!({"status": "FAILED", "error": error});
        let refused = h.post(WORKER, &path, body).await;
        let refused = refused.refused(400, "error required when status=FAILED");
        assert_eq!(refused["field"], "error");
    }
    h.post(WORKER, &path, json!({"status": "FAILED", "error": " no "})).await.expect(200);
}

#[tokio::test]
async fn compressed_bodies_are_not_understood() {
    let h = Harness::start().await;
    let body = r#"{"command":"c","payload":1}"#;
    let post = || h.request(reqwest::Method::POST, PRODUCER, "tasks").body(body);
    send(post().header("content-encoding", "gzip")).await.expect(415);
    send(post().header("content-encoding", "identity")).await.expect(202);
}
