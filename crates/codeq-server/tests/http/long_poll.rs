//! Waiting for tasks and results: woken by the event, cheap to give up, answered when the server stops.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::http::harness::{ADMIN, Harness, PRODUCER, Reply, WORKER, WORKER_2, send};
use crate::http::raw::{Sse, post_head, send_only};

/// Far below the waits that are asked for, far above what a busy machine needs.
const PROMPT: Duration = Duration::from_secs(10);
const CLAIMS: &str = "codeq_claims_waiting ";
const CONNECTIONS: &str = "codeq_http_connections ";
const RESULTS: &str = "codeq_result_waiters ";

/// Waits until one of the server's own gauges is as wanted.
async fn until(h: &Harness, gauge: &str, wanted: impl Fn(u64) -> bool) {
    let deadline = Instant::now() + PROMPT;
    loop {
        let metrics = h.get("", "/metrics").await.expect(200).text();
        let line = metrics.lines().find_map(|line| line.strip_prefix(gauge));
        let count = line.expect("the gauge is there").parse().unwrap();
        if wanted(count) {
            return;
        }
        assert!(Instant::now() < deadline, "{gauge}{count}");
    }
}

fn claim(h: &Harness, command: &str, wait: u64) -> RequestBuilder {
    let body = json!({"commands": [command], "waitSeconds": wait});
    h.request(Method::POST, WORKER, "tasks/claim").body(body.to_string())
}

fn result(h: &Harness, id: &str, wait: u64) -> RequestBuilder {
    h.request(Method::GET, PRODUCER, &format!("tasks/{id}/result?waitSeconds={wait}"))
}

/// Sends a request in the background.
fn begin(request: RequestBuilder) -> JoinHandle<(Reply, Duration)> {
    let start = Instant::now();
    tokio::spawn(async move { (send(request).await, start.elapsed()) })
}

#[tokio::test]
async fn a_waiting_claim_wakes_on_enqueue() {
    let h = Harness::start().await;
    let mut quickest = PROMPT;
    for _ in 0..8 {
        let waiting = begin(claim(&h, "c", 30));
        until(&h, CLAIMS, |n| n == 1).await;
        let start = Instant::now();
        let id = h.task("c").await;
        let (reply, _) = waiting.await.unwrap();
        assert_eq!(reply.expect(200).id(), id);
        quickest = quickest.min(start.elapsed());
    }
    // A server that polled for tasks would hardly be this quick in any of the rounds.
    assert!(quickest < Duration::from_millis(100), "{quickest:?}");
}

#[tokio::test]
async fn a_waiting_claim_wakes_on_whatever_makes_a_task_claimable() {
    let h = Harness::start().await;
    // A nack, an abandon, a replay, a resumed queue, a task told to run now, the end of a delay.
    let id = h.running("c").await;
    for (verb, body) in [("nack", json!({"delaySeconds": 0})), ("abandon", json!({}))] {
        let waiting = begin(claim(&h, "c", 30));
        until(&h, CLAIMS, |n| n == 1).await;
        h.post(WORKER, &format!("tasks/{id}/{verb}"), body).await.expect(200);
        assert_eq!(waiting.await.unwrap().0.expect(200).id(), id);
    }
    let dead = h.dead("d", "x").await;
    let waiting = begin(claim(&h, "d", 30));
    until(&h, CLAIMS, |n| n == 1).await;
    h.act(ADMIN, &format!("tasks/{dead}/replay")).await.expect(200);
    assert_eq!(waiting.await.unwrap().0.expect(200).id(), dead);
    h.act(ADMIN, "admin/queues/p/pause").await.expect(200);
    let paused = h.task("p").await;
    let waiting = begin(claim(&h, "p", 30));
    until(&h, CLAIMS, |n| n == 1).await;
    h.act(ADMIN, "admin/queues/p/resume").await.expect(200);
    assert_eq!(waiting.await.unwrap().0.expect(200).id(), paused);
    let soon = json!({"command": "n", "payload": 1, "delaySeconds": 600});
    let soon = h.enqueue(PRODUCER, soon).await;
    let waiting = begin(claim(&h, "n", 30));
    until(&h, CLAIMS, |n| n == 1).await;
    let now = json!({"delaySeconds": 0}).to_string();
    send(h.request(Method::PATCH, PRODUCER, &format!("tasks/{soon}")).body(now)).await.expect(200);
    assert_eq!(waiting.await.unwrap().0.expect(200).id(), soon);
    let delayed = json!({"command": "w", "payload": 1, "delaySeconds": 1});
    let start = Instant::now();
    let delayed = h.enqueue(PRODUCER, delayed).await;
    let (reply, _) = begin(claim(&h, "w", 30)).await.unwrap();
    assert_eq!(reply.expect(200).id(), delayed);
    let took = start.elapsed();
    // The delay counts from the commit, which came after `start`. The server's moments are cut to whole milliseconds, and
    // its clock is slewed towards the wall clock by up to a thousandth.
    let earliest = Duration::from_millis(997);
    assert!((earliest..PROMPT).contains(&took), "{took:?}");
}

#[tokio::test]
async fn ten_tasks_answer_ten_of_fifty_claims() {
    let h = Harness::start().await;
    let claims: Vec<_> = (0..50).map(|_| begin(claim(&h, "c", 2))).collect();
    until(&h, CLAIMS, |n| n >= 20).await;
    let tasks = vec![json!({"command": "c", "payload": 1}); 10];
    let made = h.post(PRODUCER, "tasks/batch", json!({"tasks": tasks})).await.expect(200).json();
    let ids = made["results"].as_array().unwrap().iter().map(|item| text(&item["task"]["id"]));
    let ids: BTreeSet<String> = ids.collect();
    let (mut got, mut none) = (Vec::new(), 0);
    for (reply, took) in join_all(claims).await.into_iter().map(Result::unwrap) {
        match reply.status {
            200 => got.push(reply.id()),
            204 if took >= Duration::from_millis(1_900) => none += 1,
            other => panic!("{other} after {took:?}"),
        }
    }
    assert_eq!((got.len(), none), (10, 40));
    assert_eq!(got.into_iter().collect::<BTreeSet<_>>(), ids);
    let flat = h.get(ADMIN, "admin/queues").await.expect(200).json();
    assert_eq!(flat, json!({"codeq:q:c:a:inprog": 10}));
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_client_that_hangs_up_takes_no_task() {
    let h = Harness::start().await;
    let body = r#"{"commands":["c"],"waitSeconds":30}"#;
    let head = post_head(WORKER, "tasks/claim", &format!("Content-Length: {}\r\n", body.len()));
    let gone = send_only(h.addr(), format!("{head}{body}").as_bytes()).await;
    until(&h, CLAIMS, |n| n == 1).await;
    until(&h, CONNECTIONS, |n| n == 2).await;
    drop(gone);
    until(&h, CONNECTIONS, |n| n == 1).await;
    let id = h.task("c").await;
    let claimed = h.claim(WORKER_2, "c").await;
    assert_eq!((text(&claimed["id"]), &claimed["fence"]), (id, &json!(1)));
}

#[tokio::test]
async fn a_client_that_hangs_up_no_longer_waits() {
    let h = Harness::start().await;
    let id = h.task("other").await;
    let body = r#"{"commands":["c"],"waitSeconds":30}"#;
    let claim = post_head(WORKER, "tasks/claim", &format!("Content-Length: {}\r\n", body.len()));
    let claim = format!("{claim}{body}");
    let result = format!(
        "GET /v1/codeq/tasks/{id}/result?waitSeconds=60 HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {PRODUCER}\r\n\r\n"
    );
    let stays = begin(self::claim(&h, "c", 30));
    until(&h, CLAIMS, |n| n == 1).await;
    let mut gone = Vec::new();
    for _ in 0..20 {
        gone.push(send_only(h.addr(), claim.as_bytes()).await);
        gone.push(send_only(h.addr(), result.as_bytes()).await);
    }
    until(&h, CLAIMS, |n| n == 21).await;
    until(&h, RESULTS, |n| n == 20).await;
    drop(gone);
    until(&h, CLAIMS, |n| n == 1).await;
    until(&h, RESULTS, |n| n == 0).await;
    h.task("c").await;
    stays.await.unwrap().0.expect(200);
    until(&h, CLAIMS, |n| n == 0).await;
}

#[tokio::test]
async fn an_existing_result_is_returned_without_waiting() {
    let h = Harness::start().await;
    let id = h.running("c").await;
    let end = json!({"status": "COMPLETED", "result": {}});
    h.post(WORKER, &format!("tasks/{id}/result"), end).await.expect(200);
    for _ in 0..10 {
        send(result(&h, &id, 60)).await.expect(200);
    }
    until(&h, RESULTS, |n| n == 0).await;
}

#[tokio::test]
async fn a_waiting_result_wakes_on_its_end() {
    let h = Harness::start().await;
    let ends = [
        ("COMPLETED", json!({"status": "COMPLETED", "result": {"n": 1}}), "result"),
        ("FAILED", json!({"status": "FAILED", "error": "no"}), "result"),
        ("FAILED", json!({}), "cancel"),
    ];
    for (status, body, verb) in ends {
        let id = if verb == "cancel" { h.task("c").await } else { h.running("c").await };
        let waiting = [begin(result(&h, &id, 60)), begin(result(&h, &id, 60))];
        until(&h, RESULTS, |n| n == 2).await;
        let token = if verb == "cancel" { PRODUCER } else { WORKER };
        h.post(token, &format!("tasks/{id}/{verb}"), body).await.expect(200);
        for waiting in waiting {
            let (reply, took) = waiting.await.unwrap();
            assert_eq!(reply.expect(200).json()["result"]["status"], status);
            assert!(took < PROMPT, "{took:?}");
        }
    }
    let id = h.task("c").await;
    let (reply, took) = begin(result(&h, &id, 1)).await.unwrap();
    reply.refused(404, "result not found");
    assert!(took >= Duration::from_millis(900), "{took:?}");
    // Nobody waits for a task that does not exist.
    let (reply, took) = begin(result(&h, crate::http::harness::UNKNOWN_ID, 60)).await.unwrap();
    reply.refused(404, "task not found");
    assert!(took < PROMPT, "{took:?}");
}

#[tokio::test]
async fn whoever_waits_is_answered_when_the_server_stops() {
    let h = Harness::start().await;
    let id = h.task("other").await;
    let claims = [begin(claim(&h, "c", 30)), begin(claim(&h, "d", 30))];
    let results = [begin(result(&h, &id, 60)), begin(result(&h, &id, 60))];
    let events = h.request(Method::GET, PRODUCER, "events");
    let mut events = Sse::open(events).await;
    until(&h, CLAIMS, |n| n == 2).await;
    until(&h, RESULTS, |n| n == 2).await;
    let start = Instant::now();
    let answers = async {
        for claim in claims {
            assert!(claim.await.unwrap().0.expect(204).body.is_empty());
        }
        for result in results {
            result.await.unwrap().0.refused(404, "result not found");
        }
        // Event streams end, perhaps after transitions from just before they were opened.
        while events.next().await.is_some() {}
        start.elapsed()
    };
    let (answered, _dir) = join(answers, h.stop()).await;
    // Well before the grace of five seconds is over, which only stuck requests need.
    assert!(answered < Duration::from_secs(4), "{answered:?}");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}
