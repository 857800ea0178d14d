//! A configuration that changes while the server runs.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use codeq_server::app::ReloadInputs;
use codeq_server::config::RateLimit;
use codeq_server::{Config, Server};
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::json;
use tokio::sync::Notify;

use crate::http::harness::{
    ADMIN, Harness, OPERATOR, PRODUCER, PRODUCER_B, WORKER, WORKER_2, send,
};

/// The server's configuration without the fixed token.
fn without(h: &Harness, token: &str) -> Config {
    let mut config = h.config().clone();
    for auth in [&mut config.producer_auth, &mut config.worker_auth] {
        auth.static_tokens.retain(|known| known.token.as_deref() != Some(token));
    }
    config
}

#[tokio::test]
async fn a_removed_token_is_refused_at_once_and_its_event_streams_end() {
    let h = Harness::start().await;
    let open = async |token: &str| {
        let response = h.request(Method::GET, token, "events").send().await.unwrap();
        assert_eq!(response.status(), 200);
        response.bytes_stream()
    };
    let mut gone = open(PRODUCER).await;
    let mut stays = open(PRODUCER_B).await;
    assert!(gone.next().await.is_some() && stays.next().await.is_some());
    // A request under way with another token is not cut.
    let poll = h.request(Method::POST, WORKER, "tasks/claim");
    let poll = poll.body(json!({"commands": ["c"], "waitSeconds": 20}).to_string());
    let poll = tokio::spawn(poll.send());
    while !h.get("", "/metrics").await.text().contains("\ncodeq_claims_waiting 1\n") {
        tokio::task::yield_now().await;
    }
    let changes = h.server().reload_to(&without(&h, PRODUCER)).await.unwrap();
    assert_eq!(changes.changed.len(), 1, "{changes:?}");
    assert_eq!(changes.changed[0].key, "producerAuth.staticTokens");
    assert!(changes.needs_restart.is_empty());
    let end = tokio::time::timeout(Duration::from_secs(10), gone.next()).await;
    assert!(end.expect("it ends at once, not with its keep-alive").is_none());
    let task = json!({"command": "c", "payload": 1});
    h.post(PRODUCER, "tasks", task.clone()).await.refused(401, "invalid token");
    // The tenant's other token still works, and so does the other tenant's stream.
    h.post(ADMIN, "tasks", task.clone()).await.expect(202);
    assert_eq!(poll.await.unwrap().unwrap().status(), 200);
    h.post(PRODUCER_B, "tasks", task.clone()).await.expect(202);
    assert!(stays.next().await.is_some());
    // Back again.
    h.server().reload_to(h.config()).await.unwrap();
    h.post(PRODUCER, "tasks", task).await.expect(202);
}

#[tokio::test]
async fn whoever_waits_with_a_removed_token_gets_nothing_more() {
    let h = Harness::start().await;
    let id = h.running("slow").await;
    let claim = h.request(Method::POST, WORKER, "tasks/claim");
    let claim = claim.body(json!({"commands": ["c"], "waitSeconds": 30}).to_string());
    let result = h.request(Method::GET, WORKER, &format!("tasks/{id}/result?waitSeconds=60"));
    let (claim, result) = (tokio::spawn(send(claim)), tokio::spawn(send(result)));
    let mut metrics = String::new();
    let waiting = ["\ncodeq_claims_waiting 1\n", "\ncodeq_result_waiters 1\n"];
    while !waiting.iter().all(|line| metrics.contains(line)) {
        metrics = h.get("", "/metrics").await.text();
    }
    h.server().reload_to(&without(&h, WORKER)).await.unwrap();
    let task = h.task("c").await;
    for waited in [claim, result] {
        waited.await.unwrap().refused(401, "invalid token");
    }
    let other = h.post(WORKER_2, "tasks/claim", json!({"commands": ["c"]})).await.expect(200);
    assert_eq!(other.id(), task, "the task is still there");
}

#[tokio::test]
async fn a_reload_without_any_token_is_refused() {
    let h = Harness::start().await;
    let mut config = h.config().clone();
    for auth in [&mut config.producer_auth, &mut config.worker_auth] {
        auth.static_tokens.clear();
    }
    let refused = h.server().reload_to(&config).await.unwrap_err().to_string();
    assert!(refused.contains("accepts no tokens"), "{refused}");
    h.get(OPERATOR, "admin/queues").await.expect(200);
}

#[tokio::test]
async fn changing_a_tokens_rights_ends_its_streams() {
    let h = Harness::start().await;
    let response = h.request(Method::GET, ADMIN, "events").send().await.unwrap();
    let mut stream = response.bytes_stream();
    assert!(stream.next().await.is_some());
    let mut config = h.config().clone();
    for token in &mut config.producer_auth.static_tokens {
        token.scopes.retain(|scope| scope != "codeq:admin");
    }
    h.server().reload_to(&config).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(10), stream.next()).await;
    assert!(end.unwrap().is_none());
    h.get(ADMIN, "admin/queues").await.expect(403);
    h.get(OPERATOR, "admin/queues").await.expect(200);
}

#[tokio::test]
async fn limits_and_the_policy_of_webhooks_hold_at_once() {
    let h = Harness::start().await;
    let batch = json!({"tasks": [{"command": "c", "payload": 1}, {"command": "c", "payload": 2}]});
    let hook = json!({"command": "c", "payload": 1, "webhook": "http://10.1.2.3/hook"});
    h.post(PRODUCER, "tasks/batch", batch.clone()).await.expect(200);
    h.post(PRODUCER, "tasks", hook.clone()).await.expect(400);
    let mut config = h.config().clone();
    config.max_batch_size = 1;
    config.tenant_limits.max_pending_tasks = Some(3);
    config.webhooks.allowed_networks = vec!["10.0.0.0/8".parse().unwrap()];
    config.rate_limit.admin = Some(RateLimit { requests_per_minute: 1, burst: 1 });
    config.http.max_connections = 77;
    let changes = h.server().reload_to(&config).await.unwrap();
    assert_eq!(changes.needs_restart, ["http.maxConnections"]);
    h.post(PRODUCER, "tasks/batch", batch).await.expect(400);
    h.post(PRODUCER, "tasks", hook.clone()).await.expect(202);
    h.post(PRODUCER, "tasks", hook).await.expect(429);
    h.get(ADMIN, "admin/queues").await.expect(200);
    h.get(ADMIN, "admin/queues").await.expect(429);
}

#[tokio::test]
async fn an_invalid_reload_changes_nothing() {
    let h = Harness::start().await;
    let mut config = without(&h, PRODUCER);
    config.max_batch_size = 0;
    let refused = h.server().reload_to(&config).await.unwrap_err().to_string();
    assert!(refused.contains("maxBatchSize: found 0, expected 1 to"), "{refused}");
    h.post(PRODUCER, "tasks", json!({"command": "c", "payload": 1})).await.expect(202);
    // This server has no source to reread, so nothing changes. Only operators may reload.
    let nothing = json!({"changed": [], "needsRestart": []});
    assert_eq!(h.act(OPERATOR, "admin/config/reload").await.expect(200).json(), nothing);
    h.act(ADMIN, "admin/config/reload").await.refused(403, "operator required");
}

#[tokio::test]
async fn a_configuration_that_was_read_earlier_does_not_replace_a_later_one() {
    let h = Harness::start().await;
    let dir = tempfile::tempdir().unwrap();
    let older = Config { data_dir: dir.path().join("data"), ..h.config().clone() };
    let newer = Config { data_dir: older.data_dir.clone(), ..without(&h, PRODUCER) };
    let (reading, (go_on, may_go_on)) = (Arc::new(Notify::new()), mpsc::channel());
    let (begun, file, may_go_on) =
        (Arc::clone(&reading), older.clone(), parking_lot::Mutex::new(may_go_on));
    let source = move || {
        begun.notify_one();
        may_go_on.lock().recv().unwrap();
        Ok(file.clone())
    };
    let inputs = ReloadInputs { source: Some(Arc::new(source)), log_level: None };
    let server = Server::start_reloading(older, inputs).await.unwrap();
    let slow = async {
        let changes = server.reload().await.unwrap();
        assert!(changes.changed.is_empty(), "{changes:?}");
    };
    let later = async {
        reading.notified().await;
        let mut later = std::pin::pin!(server.reload_to(&newer));
        let early = futures_util::poll!(&mut later);
        go_on.send(()).unwrap();
        assert!(early.is_pending(), "it must wait for the reload that is reading");
        assert_eq!(later.await.unwrap().changed.len(), 1);
    };
    tokio::join!(slow, later);
    server.stop().await;
}
