//! `GET /events`: transitions of the caller's tenant, in order and resumable.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::json;

use crate::http::harness::{Harness, PRODUCER, PRODUCER_B, WORKER, pass, send};
use crate::http::raw::{Event, Sse};
use crate::http::shape::assert_shape;

fn stream(h: &Harness, token: &str, query: &str) -> RequestBuilder {
    h.request(Method::GET, token, &format!("events{query}"))
}

fn after(h: &Harness, id: &str) -> RequestBuilder {
    stream(h, PRODUCER, "").header("Last-Event-ID", id)
}

fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.data["event"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn every_transition_with_what_there_is_to_know() {
    let h = Harness::start().await;
    let mut events = Sse::open(stream(&h, PRODUCER, "")).await;
    let id = h.completed("C").await;
    let got = events.take(3).await;
    assert_eq!(names(&got), ["created", "claimed", "submitted"]);
    assert!(got.iter().all(|event| event.kind == "task" && !event.id.is_empty()));
    let created = json!({
        "taskId": id, "command": "c", "event": "created", "to": "PENDING_LIST",
        "status": "PENDING", "attempts": 0, "at": "<time>",
    });
    let claimed = json!({
        "taskId": id, "command": "c", "event": "claimed", "from": "PENDING_LIST",
        "to": "INPROG_SET", "status": "IN_PROGRESS", "attempts": 0, "at": "<time>",
    });
    assert_shape(&got[0].data, &created);
    assert_shape(&got[1].data, &claimed);
    assert_eq!((&got[2].data["to"], &got[2].data["status"]), (&json!("NONE"), &json!("COMPLETED")));
}

#[tokio::test]
async fn a_tenant_hears_of_its_own_tasks_only() {
    let h = Harness::start().await;
    let mut a = Sse::open(stream(&h, PRODUCER, "")).await;
    let mut b = Sse::open(stream(&h, PRODUCER_B, "")).await;
    let mut ids = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        for (ids, token) in ids.iter_mut().zip([PRODUCER, PRODUCER_B]) {
            ids.push(h.enqueue(token, json!({"command": "c", "payload": 1})).await);
        }
    }
    for (ids, events) in ids.iter().zip([&mut a, &mut b]) {
        let got = events.take(3).await;
        let got: Vec<_> = got.iter().map(|event| event.data["taskId"].as_str().unwrap()).collect();
        assert_eq!(got, *ids);
    }
    // Also from the very beginning: all tenants' transitions are kept, but only the caller's are sent.
    let got = Sse::open(after(&h, "0")).await.take(3).await;
    let mine = |event: &Event| ids[0].iter().any(|id| event.data["taskId"] == **id);
    assert!(got.iter().filter(|event| event.kind == "task").all(mine), "{got:?}");
}

#[tokio::test]
async fn a_stream_goes_on_after_its_last_event() {
    let h = Harness::start().await;
    let mut events = Sse::open(stream(&h, PRODUCER, "")).await;
    h.completed("c").await;
    let all = events.take(3).await;
    drop(events);
    let missed = h.completed("c").await;
    let mut again = Sse::open(after(&h, &all[1].id)).await;
    let got = again.take(4).await;
    assert_eq!(got[0], all[2]);
    assert_eq!(names(&got[1..]), ["created", "claimed", "submitted"]);
    assert!(got[1..].iter().all(|event| event.data["taskId"] == *missed));
    // From there on the stream is live, and nothing comes twice.
    let next = h.task("c").await;
    assert_eq!(again.next().await.unwrap().data["taskId"], *next);
}

#[tokio::test]
async fn a_stream_goes_on_after_a_restart() {
    let h = Harness::start().await;
    let mut events = Sse::open(stream(&h, PRODUCER, "")).await;
    h.completed("c").await;
    let before = events.take(3).await;
    drop(events);
    let h = h.restart().await;
    let mut again = Sse::open(after(&h, &before[2].id)).await;
    let id = h.task("c").await;
    let next = again.next().await.unwrap();
    assert_eq!((next.kind.as_str(), &next.data["taskId"]), ("task", &json!(id)));
    // Earlier transitions are sent again, or reported as missed.
    let mut old = Sse::open(after(&h, &before[0].id)).await;
    let first = old.next().await.unwrap();
    if first.kind == "missed" {
        assert!(first.data["detail"].is_string());
        assert_eq!(old.next().await.unwrap(), next);
    } else {
        assert_eq!(first, before[1]);
    }
}

#[tokio::test]
async fn positions_that_are_not_kept_are_reported_as_missed() {
    let h = Harness::start().await;
    h.task("c").await;
    // Positions of a server with more shards, and of one with more transitions.
    for id in ["1-2-3", "18446744073709551615"] {
        let mut events = Sse::open(after(&h, id)).await;
        let first = events.next().await.unwrap();
        assert_eq!(first.kind, "missed", "{id}");
        // The stream goes on. It may begin with transitions that were acknowledged before it was opened.
        let made = h.task("c").await;
        while events.next().await.unwrap().data["taskId"] != *made {}
    }
    for id in ["x", "-1", "1--2", "1.5", &"1-".repeat(100), "99999999999999999999999"] {
        send(after(&h, id)).await.refused(400, "invalid Last-Event-ID");
    }
}

#[tokio::test]
async fn a_stream_can_be_limited_to_one_command() {
    let h = Harness::start().await;
    let mut events = Sse::open(stream(&h, WORKER, "?command=ONE")).await;
    h.task("two").await;
    let first = h.task("one").await;
    h.task("two").await;
    let second = h.task("One").await;
    let got = events.take(2).await;
    assert_eq!(got[0].data["taskId"], *first);
    assert_eq!(got[1].data["taskId"], *second);
}

#[tokio::test]
async fn a_quiet_stream_is_kept_alive_while_other_commands_are_busy() {
    let h = Harness::start().await;
    let mut quiet = Sse::open(stream(&h, PRODUCER, "?command=one")).await;
    let mut busy = Sse::open(stream(&h, PRODUCER, "?command=two")).await;
    // Something happens more often than a comment is due, but nothing that this stream shows.
    for _ in 0..2 {
        pass(Duration::from_secs(10)).await;
        let id = h.task("two").await;
        assert_eq!(busy.next().await.unwrap().data["taskId"], *id);
    }
    h.task("one").await;
    let mut blocks = Vec::new();
    while blocks.last().is_none_or(|block: &String| !block.starts_with("id: ")) {
        blocks.push(quiet.block().await.unwrap());
    }
    assert!(blocks.iter().any(|block| block == ": quiet"), "{blocks:?}");
}
