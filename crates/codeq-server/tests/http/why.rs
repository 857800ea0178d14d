//! `why`: reasons for tasks and queues.

use codeq_proto::worker::Ready;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use serde_json::{Value, json};

use crate::grpc::client::Worker;
use crate::http::harness::{ADMIN, ADMIN_B, Harness, PRODUCER, PRODUCER_B, UNKNOWN_ID, WORKER};

async fn why(h: &Harness, id: &str) -> Value {
    h.get(PRODUCER, &format!("tasks/{id}/why")).await.expect(200).json()
}

async fn queue_why(h: &Harness, command: &str) -> Value {
    h.get(ADMIN, &format!("admin/queues/{command}/why")).await.expect(200).json()
}

fn codes(why: &Value) -> Vec<&str> {
    let reasons = why["reasons"].as_array().unwrap();
    for reason in reasons {
        let text = reason["text"].as_str().unwrap();
        assert!(why["summary"].as_str().unwrap().contains(text), "{why}");
    }
    reasons.iter().map(|reason| reason["code"].as_str().unwrap()).collect()
}

#[track_caller]
fn reason<'a>(why: &'a Value, code: &str) -> &'a Value {
    let mut reasons = why["reasons"].as_array().unwrap().iter();
    reasons.find(|reason| reason["code"] == code).unwrap_or_else(|| panic!("no {code}: {why}"))
}

#[tokio::test]
async fn a_pending_task_waits_for_others_and_for_workers() {
    let h = Harness::start().await;
    let first = h.task("mail").await;
    h.task("mail").await;
    h.enqueue(PRODUCER, json!({"command": "mail", "payload": 1, "priority": 7})).await;
    h.enqueue(PRODUCER, json!({"command": "other", "payload": 1, "priority": 9})).await;
    let last = h.task("Mail").await;
    let told = why(&h, &last).await;
    assert_eq!(codes(&told), ["tasks_ahead", "no_worker"]);
    let ahead = reason(&told, "tasks_ahead");
    assert_eq!(
        (&ahead["higherPriority"], &ahead["older"], &ahead["exact"]),
        (&json!(1), &json!(2), &json!(true))
    );
    let text = "3 tasks are claimed before it: 1 of higher priority, 2 older";
    assert_eq!(ahead["text"], text);
    let nobody = reason(&told, "no_worker");
    assert!(nobody["since"].is_string() && nobody.get("lastClaimAt").is_none(), "{nobody}");
    assert_eq!((&told["taskId"], &told["command"]), (&json!(last), &json!("Mail")));
    assert_eq!(
        (&told["status"], &told["lastKnownLocation"]),
        (&json!("PENDING"), &json!("PENDING_LIST"))
    );
    for _ in 0..3 {
        h.claim(WORKER, "MAIL").await;
    }
    let told = why(&h, &last).await;
    assert_eq!(codes(&told), ["next", "workers"]);
    let workers = reason(&told, "workers");
    assert!(workers["lastClaimAt"].is_string() && workers["waitingWorkers"] == 0, "{workers}");
    let told = why(&h, &first).await;
    assert_eq!(codes(&told), ["leased"]);
    let leased = reason(&told, "leased");
    assert_eq!(leased["workerId"], "worker");
    assert!(leased["until"].is_string() && leased["heartbeatAt"].is_string(), "{leased}");
    assert!(leased["heartbeatAgeSeconds"].as_u64().unwrap() < 60, "{leased}");
    h.act(PRODUCER, &format!("tasks/{first}/cancel")).await.expect(202);
    let told = why(&h, &first).await;
    assert_eq!(codes(&told), ["leased", "cancel_requested"]);
    let heard = &reason(&told, "leased")["heartbeatAt"];
    assert_eq!(*heard, leased["heartbeatAt"], "a cancel is no word of the worker");
}

#[tokio::test]
async fn a_cancel_that_its_worker_carries_out_is_a_cancel() {
    let h = Harness::start().await;
    let acts = [("nack", json!({"reason": "stopped"})), ("abandon", json!({"penalty": false}))];
    for (act, body) in acts {
        let id = h.running("mail").await;
        h.act(PRODUCER, &format!("tasks/{id}/cancel")).await.expect(202);
        let ended = h.post(WORKER, &format!("tasks/{id}/{act}"), body).await.expect(200).json();
        assert_eq!(ended["status"], "cancelled");
        let task = h.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
        assert_eq!((&task["status"], &task["error"]), (&json!("FAILED"), &json!("CANCELLED")));
        let told = why(&h, &id).await;
        assert_eq!(codes(&told), ["cancelled"], "{act}");
        assert_eq!(reason(&told, "cancelled")["by"], "producer", "{act}");
    }
    let id = h.running("mail").await;
    h.act(PRODUCER, &format!("tasks/{id}/cancel")).await.expect(202);
    let result = json!({"status": "FAILED", "error": "CANCELLED"});
    h.post(WORKER, &format!("tasks/{id}/result"), result).await.expect(200);
    assert_eq!(codes(&why(&h, &id).await), ["failed"], "the worker says how it ended");
}

#[tokio::test]
async fn a_paused_queue_says_who_paused_it_even_after_a_restart() {
    let h = Harness::start().await;
    let id = h.task("Mail").await;
    h.act(ADMIN, "admin/queues/MAIL/pause").await.expect(200);
    let first = why(&h, &id).await;
    assert_eq!(codes(&first), ["queue_paused", "next", "no_worker"]);
    let paused = reason(&first, "queue_paused").clone();
    assert!(paused["by"] == "admin" && paused["since"].is_string(), "{paused}");
    let h = h.restart().await;
    h.act(crate::http::harness::OPERATOR, "admin/queues/mail/pause").await.expect(200);
    assert_eq!(*reason(&why(&h, &id).await, "queue_paused"), paused, "the first pause counts");
    let queue = queue_why(&h, "mail").await;
    assert_eq!(codes(&queue), ["queue_paused", "ready_tasks", "no_worker"]);
    assert_eq!((&queue["paused"], &queue["ready"]), (&json!(true), &json!(1)));
    assert_eq!(*reason(&queue, "queue_paused"), paused);
    h.act(ADMIN, "admin/queues/mail/resume").await.expect(200);
    assert_eq!(codes(&why(&h, &id).await), ["next", "no_worker"]);
    let delayed = json!({"command": "mail", "payload": 1, "delaySeconds": 600});
    let delayed = h.enqueue(PRODUCER, delayed).await;
    h.act(crate::http::harness::OPERATOR, "admin/queues/mail/pause").await.expect(200);
    let told = why(&h, &delayed).await;
    assert_eq!(codes(&told), ["queue_paused", "delayed"]);
    assert_eq!(reason(&told, "queue_paused")["by"], "operator");
    let task = h.get(PRODUCER, &format!("tasks/{delayed}")).await.expect(200).json();
    assert_eq!(reason(&told, "delayed")["until"], task["visibleAt"]);
}

#[tokio::test]
async fn a_full_queue_names_its_limit() {
    let h = Harness::with(|config| config.shards = Some(1)).await;
    h.put(ADMIN, "admin/topics/mail", json!({"maxConsumers": 1})).await.expect(201);
    h.running("mail").await;
    let id = h.task("mail").await;
    let told = why(&h, &id).await;
    assert_eq!(codes(&told), ["max_consumers_reached", "next", "workers"]);
    let full = reason(&told, "max_consumers_reached");
    assert_eq!((&full["inProgress"], &full["maxConsumers"]), (&json!(1), &json!(1)));
    let queue = queue_why(&h, "mail").await;
    assert_eq!(codes(&queue), ["max_consumers_reached", "ready_tasks", "leased_tasks", "workers"]);
}

#[tokio::test]
async fn failures_are_explained_attempt_by_attempt() {
    let h = Harness::start().await;
    let task = json!({"command": "mail", "payload": {}, "maxAttempts": 2});
    let id = h.enqueue(PRODUCER, task).await;
    h.claim(WORKER, "mail").await;
    let nack = json!({"reason": "no route to host", "delaySeconds": 600});
    h.post(WORKER, &format!("tasks/{id}/nack"), nack).await.expect(200);
    let told = why(&h, &id).await;
    assert_eq!(codes(&told), ["waits_for_retry"]);
    let retry = reason(&told, "waits_for_retry");
    assert_eq!((&retry["attempts"], &retry["maxAttempts"]), (&json!(1), &json!(2)));
    assert!(retry["error"] == "no route to host" && retry["until"].is_string(), "{retry}");
    let dead = h.dead("poison", "bad payload").await;
    let told = why(&h, &dead).await;
    assert_eq!(codes(&told), ["dead_lettered"]);
    let lettered = reason(&told, "dead_lettered");
    assert_eq!((&lettered["attempts"], &lettered["maxAttempts"]), (&json!(1), &json!(1)));
    let failures = lettered["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 1);
    let failure = &failures[0];
    assert_eq!(
        (&failure["event"], &failure["who"], &failure["why"]),
        (&json!("nacked"), &json!("worker"), &json!("bad payload"))
    );
    assert!(told["summary"].as_str().unwrap().ends_with("the last attempt: nacked (bad payload)"));
    assert_eq!(codes(&queue_why(&h, "poison").await), ["empty", "workers", "dead_letters"]);
    h.act(ADMIN, &format!("tasks/{dead}/replay")).await.expect(200);
    assert_eq!(codes(&why(&h, &dead).await), ["next", "workers"]);

    let done = h.completed("done").await;
    assert_eq!(codes(&why(&h, &done).await), ["completed"]);
    let failed = h.running("fails").await;
    let result = json!({"status": "FAILED", "error": "boom"});
    h.post(WORKER, &format!("tasks/{failed}/result"), result).await.expect(200);
    let told = why(&h, &failed).await;
    let failed = reason(&told, "failed");
    assert_eq!((&failed["error"], &failed["by"]), (&json!("boom"), &json!("worker")));
    let cancelled = h.task("cancelled").await;
    h.act(PRODUCER, &format!("tasks/{cancelled}/cancel")).await.expect(200);
    let told = why(&h, &cancelled).await;
    assert_eq!(codes(&told), ["cancelled"]);
    assert_eq!(reason(&told, "cancelled")["by"], "producer");
}

#[tokio::test]
async fn a_worker_that_waits_on_a_stream_is_seen() {
    let h = Harness::start().await;
    let nothing = queue_why(&h, "mail").await;
    assert_eq!(codes(&nothing), ["empty", "no_worker"]);
    let mut worker = Worker::open(h.worker_addr(), WORKER).await;
    let ready =
        |command: &str| Ready { commands: vec![command.into()], lease_seconds: 30, count: 1 };
    worker.say(ToWorkers::Ready(ready("mail"))).await;
    while queue_why(&h, "mail").await["reasons"][1]["waitingWorkers"] != 1 {
        tokio::task::yield_now().await;
    }
    worker.say(ToWorkers::Ready(ready("other"))).await;
    let id = h.task("other").await;
    worker.event().await;
    assert_eq!(codes(&why(&h, &id).await), ["leased"]);
    h.act(ADMIN, "admin/queues/mail/pause").await.expect(200);
    let told = queue_why(&h, "mail").await;
    assert_eq!(codes(&told), ["queue_paused", "empty", "workers"]);
    assert!(reason(&told, "workers")["lastClaimAt"].is_string());
    let told = queue_why(&h, "other").await;
    assert_eq!(reason(&told, "workers")["waitingWorkers"], 0, "its slot is for mail");
}

#[tokio::test]
async fn explanations_are_for_the_tasks_tenant_only() {
    let h = Harness::start().await;
    let id = h.task("mail").await;
    h.get(PRODUCER_B, &format!("tasks/{id}/why")).await.refused(404, "not found");
    h.get(PRODUCER, &format!("tasks/{UNKNOWN_ID}/why")).await.refused(404, "not found");
    h.get(PRODUCER, "admin/queues/mail/why").await.refused(403, "admin required");
    h.claim(WORKER, "mail").await;
    let theirs = h.get(ADMIN_B, "admin/queues/mail/why").await.expect(200).json();
    assert_eq!((codes(&theirs), &theirs["inProgress"]), (vec!["empty", "no_worker"], &json!(0)));
}
