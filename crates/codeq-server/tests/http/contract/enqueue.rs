//! `POST /tasks` and `POST /tasks/batch`.

use serde_json::{Value, json};

use crate::http::harness::{Harness, LATER, PRODUCER, send};
use crate::http::shape::{assert_shape, new_task, with};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[tokio::test]
async fn a_task_has_what_was_asked_for_and_nothing_else() {
    let h = Harness::start().await;
    let bare = h.post(PRODUCER, "tasks", json!({"command": "C", "payload": {"n": 1}})).await;
    let bare = bare.expect(202);
    assert_eq!(bare.header("content-type"), Some("application/json"));
    assert_eq!(bare.header("idempotent-replayed"), None);
    assert_shape(&bare.json(), &new_task("C", r#"{"n":1}"#, json!({})));

    let full = json!({
        "command": "c", "payload": [1], "priority": 7, "maxAttempts": 3, "idempotencyKey": "k",
        "webhook": "https://example.com/hook", "delaySeconds": 600,
    });
    let request = h.request(reqwest::Method::POST, PRODUCER, "tasks").body(full.to_string());
    let request = request.header("traceparent", TRACE).header("tracestate", "v=1");
    let full = send(request).await.expect(202).json();
    let more = json!({
        "priority": 7, "maxAttempts": 3, "webhook": "https://example.com/hook",
        "traceParent": TRACE, "traceState": "v=1", "lastKnownLocation": "DELAYED_ZSET",
        "visibleAt": "<time>",
    });
    assert_shape(&full, &new_task("c", "[1]", more));
}

#[tokio::test]
async fn each_invalid_field_has_its_error() {
    let h = Harness::start().await;
    let good = json!({"command": "c", "payload": 1});
    let long = "x".repeat(129);
    let cases = [
        (json!({"payload": null}), "invalid body"),
        (json!({"command": null}), "invalid command"),
        (json!({"command": ""}), "invalid command"),
        (json!({"command": "a\nb"}), "invalid command"),
        (json!({"command": "a\u{0}"}), "invalid command"),
        (json!({"command": long}), "invalid command"),
        (json!({"command": 1}), "invalid body"),
        (json!({"webhook": "ftp://example.com/"}), "invalid webhook url"),
        (json!({"webhook": "example.com"}), "invalid webhook url"),
        (json!({"webhook": "/hook"}), "invalid webhook url"),
        (json!({"webhook": "http://"}), "invalid webhook url"),
        (json!({"webhook": "javascript:alert(1)"}), "invalid webhook url"),
        (json!({"webhook": format!("http://a/{}", "x".repeat(2_048))}), "invalid webhook url"),
        (json!({"webhook": "http://127.0.0.1:8080/"}), "invalid webhook url"),
        (json!({"webhook": "http://2130706433/"}), "invalid webhook url"),
        (json!({"webhook": "http://[::ffff:10.0.0.1]/"}), "invalid webhook url"),
        (json!({"webhook": "https://user:word@example.com/"}), "invalid webhook url"),
        (json!({"webhook": "https://example.com:22/"}), "invalid webhook url"),
        (json!({"delaySeconds": -1}), "invalid 'delaySeconds' (must be >= 0)"),
        (json!({"delaySeconds": "1"}), "invalid body"),
        (json!({"delaySeconds": 1.5}), "invalid body"),
        (json!({"command": " \t"}), "invalid command"),
        (json!({"priority": "9"}), "invalid body"),
        (json!({"priority": 1.5}), "invalid body"),
        (json!({"idempotencyKey": 7}), "invalid body"),
    ];
    for (change, error) in cases {
        let body = with(good.clone(), change);
        let alone = h.post(PRODUCER, "tasks", body.clone()).await.refused(400, error);
        let batch = h.post(PRODUCER, "tasks/batch", json!({"tasks": [good, body]})).await;
        let results = batch.expect(200).json()["results"].clone();
        assert_shape(&results[0], &json!({"task": new_task("c", "1", json!({}))}));
        for member in ["error", "code", "detail", "field"] {
            assert_eq!(results[1].get(member), alone.get(member), "{member}: {alone}");
        }
        assert!(alone["field"].is_string(), "{alone}");
    }
    // An explicit null is no payload either.
    h.post_text(PRODUCER, "tasks", r#"{"command":"c","payload": null }"#)
        .await
        .refused(400, "invalid body");
}

#[tokio::test]
async fn webhooks_must_be_public_or_in_an_allowed_network() {
    let h = Harness::with(|config| {
        config.webhooks.allowed_networks = vec!["10.0.0.0/8".parse().unwrap()];
    })
    .await;
    const NOT_OPENED: &str =
        "the address is not public, and the operator has not allowed it (webhooks.allowedNetworks)";
    let body = |url: &str| json!({"command": "c", "payload": 1, "webhook": url});
    for url in ["http://10.1.2.3:81/", "http://[::ffff:10.1.2.3]/", "https://example.com/hook"] {
        let made = h.post(PRODUCER, "tasks", body(url)).await.expect(202).json();
        assert_eq!(made["webhook"], url);
    }
    for (url, why) in [
        ("http://192.168.0.1/", NOT_OPENED),
        ("https://u:p@example.com/", "has a user or a password"),
        ("https://example.com:25/", "the port is not allowed"),
        ("ftp://example.com/", "not http or https"),
    ] {
        let reply = h.post(PRODUCER, "tasks", body(url)).await;
        let said = reply.expect(400).json();
        let said = [&said["code"], &said["error"], &said["detail"], &said["field"]];
        assert_eq!(said, ["invalid_webhook", "invalid webhook url", why, "webhook"], "{url}");
    }
}

#[tokio::test]
async fn priorities_and_attempts_are_brought_into_range() {
    let h = Harness::start().await;
    let cases = [
        (json!({"priority": -1}), json!({})),
        (json!({"priority": 0}), json!({})),
        (json!({"priority": 9}), json!({"priority": 9})),
        (json!({"priority": 99}), json!({"priority": 9})),
        (json!({"priority": i64::MIN}), json!({})),
        (json!({"priority": i64::MAX}), json!({"priority": 9})),
        (json!({"maxAttempts": 0}), json!({"maxAttempts": 5})),
        (json!({"maxAttempts": -7}), json!({"maxAttempts": 5})),
        (json!({"command": " \tc "}), json!({})),
        (json!({"maxAttempts": 1_000}), json!({"maxAttempts": 1_000})),
        (json!({"maxAttempts": 1_001}), json!({"maxAttempts": 1_000})),
        (json!({"maxAttempts": i64::MAX}), json!({"maxAttempts": 1_000})),
        (json!({"webhook": ""}), json!({})),
        (json!({"idempotencyKey": ""}), json!({})),
        (json!({"runAt": ""}), json!({})),
    ];
    for (change, more) in cases {
        let body = with(json!({"command": "c", "payload": 1}), change);
        let made = h.post(PRODUCER, "tasks", body).await.expect(202).json();
        assert_shape(&made, &new_task("c", "1", more));
    }
    // Numbers that do not fit a 64-bit integer, or are not written as one, are refused.
    for number in ["9223372036854775808", "1e400", "-1e400", "1e2"] {
        let body = format!(r#"{{"command":"c","payload":1,"priority":{number}}}"#);
        h.post_text(PRODUCER, "tasks", body).await.refused(400, "invalid body");
    }
}

#[tokio::test]
async fn run_at_wins_and_is_rfc_3339() {
    let h = Harness::start().await;
    let at = async |run_at: &str, delay: Value| {
        let body = json!({"command": "c", "payload": 1, "runAt": run_at, "delaySeconds": delay});
        h.post(PRODUCER, "tasks", body).await
    };
    let cases = [
        (LATER, "2999-01-01T00:00:00.000Z"),
        ("2999-01-01T02:00:00+02:00", "2999-01-01T00:00:00.000Z"),
        ("2998-12-31T23:30:00-00:30", "2999-01-01T00:00:00.000Z"),
        ("2999-01-01T00:00:00.5Z", "2999-01-01T00:00:00.500Z"),
        ("2999-01-01t00:00:00.123456789z", "2999-01-01T00:00:00.123Z"),
    ];
    // A task may be delayed by ten years at most.
    let near = |text: &str| text.replace("2999", "2030").replace("2998", "2029");
    for (text, visible) in cases {
        let made = at(&near(text), json!(5)).await.expect(202).json();
        assert_eq!(made["visibleAt"], near(visible));
        assert_eq!(made["lastKnownLocation"], "DELAYED_ZSET");
    }
    // A moment in the past means now, whatever the delay.
    for past in ["2001-01-01T00:00:00Z", "1969-12-31T23:59:59Z"] {
        let made = at(past, json!(600)).await.expect(202).json();
        assert_shape(&made, &new_task("c", "1", json!({})));
    }
    let bad = [
        "tomorrow",
        "2030-01-01",
        "2030-01-01T00:00:00",
        "1893456000",
        "2030-13-01T00:00:00Z",
        "2030-02-30T00:00:00Z",
        "2030-01-01T25:00:00Z",
        "2030-01-01T00:00:00Z[UTC]",
        "20300101T000000Z",
        "2030-01-01T00Z",
        "2030-01-01T00:00Z",
        "2030-01-01T00:00:00+0100",
        "+002030-01-01T00:00:00Z",
        " 2030-01-01T00:00:00Z",
    ];
    for text in bad {
        let refused = at(text, Value::Null).await;
        assert_eq!(refused.status, 400, "{text}: {}", refused.text());
        refused.refused(400, "invalid 'runAt' (use RFC3339)");
    }
    for far in [json!({"runAt": LATER}), json!({"delaySeconds": i64::MAX})] {
        let body = with(json!({"command": "c", "payload": 1}), far);
        let refused = h.post(PRODUCER, "tasks", body).await.expect(400).json();
        assert_eq!(refused["code"], "invalid_delay");
    }
}

#[tokio::test]
async fn batches_have_bounds() {
    let h = Harness::with(|config| config.max_batch_size = 3).await;
    let tasks = |n: usize| json!({"tasks": vec![json!({"command": "c", "payload": 1}); n]});
    h.post(PRODUCER, "tasks/batch", tasks(3)).await.expect(200);
    let refused = h.post(PRODUCER, "tasks/batch", tasks(4)).await;
    refused.refused(400, "batch size exceeds maximum of 3");
    h.post(PRODUCER, "tasks/batch", tasks(0)).await.refused(400, "invalid body");
    h.post(PRODUCER, "tasks/batch", json!({})).await.refused(400, "invalid body");
    h.post(PRODUCER, "tasks/batch?atomic=maybe", tasks(1)).await.expect(400);
    let all = h.get(PRODUCER, "tasks").await.expect(200).json();
    assert_eq!(all["items"].as_array().unwrap().len(), 3);
}
