//! Receivers that do not accept callbacks, and the retries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::callbacks::receiver::{Act, PATIENCE, Received, Receiver, answer, server, server_with};
use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER};

/// Makes tasks with a webhook and completes them.
async fn finish(server: &Harness, url: &str, count: usize) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for _ in 0..count {
        let task = json!({"command": "c", "payload": {}, "webhook": url});
        let id = server.enqueue(PRODUCER, task).await;
        server.claim(WORKER, "c").await;
        let done = json!({"status": "COMPLETED"});
        server.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
        ids.insert(id);
    }
    ids
}

/// The deliveries that are kept, once they are as they should be.
async fn deliveries(server: &Harness, fine: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let list =
            server.get(ADMIN, "admin/webhooks/deliveries?limit=1000").await.expect(200).json();
        let items = list["items"].as_array().unwrap().clone();
        if fine(&items) {
            return items;
        }
        assert!(tokio::time::Instant::now() < until, "{items:?}");
        tokio::task::yield_now().await;
    }
}

/// Each receiver misbehaves once for each of its callbacks, in its own way, and then takes it.
#[tokio::test]
async fn every_callback_arrives_with_the_same_id_whatever_receivers_do() {
    let server = server().await;
    let inside = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let location = format!("location: http://{}/\r\n", inside.local_addr().unwrap());
    let lines = |status, lines: &str| Act::Answer(status, lines.to_owned());
    let mishaps = vec![
        answer(500),
        answer(404),
        lines(302, &location),
        lines(308, &location),
        lines(429, "retry-after: 1\r\n"),
        lines(503, "retry-after: Mon, 01 Jan 2001 00:00:00 GMT\r\n"),
        lines(503, "retry-after: nonsense\r\n"),
        Act::Close,
        Act::Babble,
        Act::Hang,
        Act::Drip,
    ];
    let mut checks = tokio::task::JoinSet::new();
    for mishap in mishaps {
        let act = mishap.clone();
        let mut receiver =
            Receiver::start(move |_, nth| if nth == 0 { act.clone() } else { answer(204) }).await;
        let ids = finish(&server, &receiver.url("/"), 3).await;
        checks.spawn(async move {
            let mut calls: BTreeMap<String, Vec<Received>> = BTreeMap::new();
            for call in receiver.take(6).await {
                calls.entry(call.task()).or_default().push(call);
            }
            assert_eq!(calls.keys().cloned().collect::<BTreeSet<_>>(), ids, "{mishap:?}");
            for calls in calls.values() {
                assert_eq!(calls.len(), 2, "{mishap:?}");
                assert_eq!(calls[0].id(), calls[1].id(), "{mishap:?}");
                assert_eq!(calls[0].body, calls[1].body, "{mishap:?}");
            }
        });
    }
    // A 200 with an endless body counts as accepted, and a receiver that answers 410 is not called again.
    let mut flood = Receiver::start(|_, _| Act::Flood).await;
    finish(&server, &flood.url("/"), 2).await;
    assert_eq!(flood.take(2).await.len(), 2);
    let mut gone = Receiver::start(|_, nth| answer(if nth == 0 { 410 } else { 200 })).await;
    let ids = finish(&server, &gone.url("/"), 2).await;
    let first = gone.take(2).await;
    while let Some(checked) = checks.join_next().await {
        checked.unwrap();
    }
    let kept = deliveries(&server, |items| items.iter().all(|it| it["status"] == "failed")).await;
    let kept: BTreeSet<String> =
        kept.iter().map(|it| it["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kept, ids);
    assert!(gone.rest().is_empty() && flood.rest().is_empty());
    let resent = server.act(ADMIN, "admin/webhooks/deliveries/resend").await.expect(200).json();
    assert_eq!(resent, json!({"resent": 2}));
    let again = gone.take(2).await;
    let webhook_ids = |calls: &[Received]| calls.iter().map(Received::id).collect::<BTreeSet<_>>();
    assert_eq!(webhook_ids(&first), webhook_ids(&again));
    deliveries(&server, <[Value]>::is_empty).await;
    let nobody = tokio::time::timeout(std::time::Duration::ZERO, inside.accept()).await;
    assert!(nobody.is_err(), "a redirect was followed");
}

#[tokio::test]
async fn attempts_end_and_what_failed_is_kept_and_can_be_sent_again() {
    let server = server_with(|config| config.result_webhook_max_attempts = 2).await;
    let better = Arc::new(AtomicBool::new(false));
    let is_better = Arc::clone(&better);
    let status = move || if is_better.load(Ordering::SeqCst) { 200 } else { 500 };
    let mut receiver = Receiver::start(move |_, _| answer(status())).await;
    let id = finish(&server, &receiver.url("/h"), 1).await.pop_first().unwrap();
    receiver.take(2).await;
    let kept = deliveries(&server, |items| items[0]["status"] == "failed").await;
    let completed = kept[0]["completedAt"].clone();
    let expected = json!([{
        "id": id, "webhookId": kept[0]["webhookId"], "url": receiver.url("/h"), "eventType": "c",
        "taskStatus": "COMPLETED", "status": "failed", "attempts": 2, "lastStatus": 500,
        "lastError": "answered 500", "completedAt": completed,
    }]);
    assert_eq!(Value::from(kept), expected);
    better.store(true, Ordering::SeqCst);
    let resend = format!("admin/webhooks/deliveries/{id}/resend");
    let answer = server.act(ADMIN, &resend).await.expect(202).json();
    assert_eq!(answer, json!({"id": id, "status": "pending"}));
    assert_eq!(receiver.next().await.task(), id);
    deliveries(&server, <[Value]>::is_empty).await;
    let refused = server.act(ADMIN, &resend).await.refused(404, "delivery not found");
    assert_eq!(refused["code"], "no_callback", "the task is there");
}

#[tokio::test]
async fn a_receiver_may_ask_for_a_pause() {
    let server = server().await;
    let later = |_: &Received, _| Act::Answer(503, "retry-after: 3600\r\n".to_owned());
    let mut receiver = Receiver::start(later).await;
    finish(&server, &receiver.url("/"), 1).await;
    receiver.next().await;
    let kept = deliveries(&server, |items| items[0]["attempts"] == 1).await;
    let moment = |key: &str| kept[0][key].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let pause = moment("nextAttemptAt").duration_since(moment("completedAt")).as_secs();
    assert!((3_600..3_660).contains(&pause), "{pause}");
}

#[tokio::test]
async fn a_hanging_receiver_delays_no_other() {
    let server = server_with(|config| config.webhooks.max_concurrent = 32).await;
    let hanging = Receiver::start(|_, _| Act::Hang).await;
    finish(&server, &hanging.url("/"), 60).await;
    let mut good = Receiver::willing().await;
    let ids = finish(&server, &good.url("/"), 40).await;
    // Less than the ten seconds after which a call that hangs is given up.
    let calls = tokio::time::timeout(std::time::Duration::from_secs(8), good.take(40)).await;
    let calls: BTreeSet<String> = calls.unwrap().iter().map(Received::task).collect();
    assert_eq!(calls, ids);
}

#[tokio::test]
async fn what_was_not_delivered_is_delivered_after_a_restart() {
    let server = server().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let ids = finish(&server, &format!("http://{addr}/"), 5).await;
    deliveries(&server, |items| items.len() == 5 && items.iter().all(|it| it["attempts"] == 1))
        .await;
    let server = server.restart().await;
    let listener = TcpListener::bind(addr).await.unwrap();
    let mut receiver = Receiver::on(listener, |_, _| answer(200));
    let calls: BTreeSet<String> = receiver.take(5).await.iter().map(Received::task).collect();
    assert_eq!(calls, ids);
    deliveries(&server, <[Value]>::is_empty).await;
    assert!(receiver.rest().is_empty());
}

#[tokio::test]
async fn deliveries_are_counted_by_outcome() {
    let server = server_with(|config| config.result_webhook_max_attempts = 2).await;
    let mut receiver =
        Receiver::start(|call, _| answer(if call.path == "/bad" { 500 } else { 200 })).await;
    finish(&server, &receiver.url("/bad"), 1).await;
    finish(&server, &receiver.url("/good"), 2).await;
    receiver.take(4).await;
    deliveries(&server, |items| items.len() == 1 && items[0]["status"] == "failed").await;
    let text = server.get("", "/metrics").await.expect(200).text();
    for line in [
        r#"codeq_webhook_deliveries_total{kind="result",outcome="delivered",command="c"} 2"#,
        r#"codeq_webhook_deliveries_total{kind="result",outcome="retried",command="c"} 1"#,
        r#"codeq_webhook_deliveries_total{kind="result",outcome="failed",command="c"} 1"#,
        r#"codeq_webhook_outbox{state="pending"} 0"#,
        r#"codeq_webhook_outbox{state="failed"} 1"#,
    ] {
        assert!(text.lines().any(|known| known == line), "{line}\n{text}");
    }
}
