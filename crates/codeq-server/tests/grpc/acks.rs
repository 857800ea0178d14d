//! Every event of a worker about a task has its acknowledgement.

use codeq_proto::worker::server_event::Event as FromWorkers;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use codeq_proto::worker::{Abandon, Heartbeat, Nack, Result as Outcome, ResultAck, ResultBatch};
use codeq_server::config::BackoffPolicy;
use serde_json::{Value, json};

use crate::grpc::client::Worker;
use crate::http::harness::{ADMIN, Harness, PRODUCER, UNKNOWN_ID, WORKER, WORKER_2};

/// A result with this status and nothing else.
pub fn result(id: &str, status: &str) -> ToWorkers {
    ToWorkers::Result(outcome(id, status, "", ""))
}

pub fn outcome(id: &str, status: &str, json: &str, error: &str) -> Outcome {
    Outcome {
        task_id: id.into(),
        status: status.into(),
        result_json: json.to_owned().into(),
        error: error.into(),
        fence: 0,
    }
}

pub fn heartbeat(id: &str, extend_seconds: i32) -> ToWorkers {
    ToWorkers::Heartbeat(Heartbeat { task_id: id.into(), extend_seconds, fence: 0 })
}

pub fn nack(id: &str, delay_seconds: i32) -> ToWorkers {
    let reason = "because".into();
    ToWorkers::Nack(Nack { task_id: id.into(), delay_seconds, reason, fence: 0 })
}

pub fn abandon(id: &str, no_penalty: bool) -> ToWorkers {
    ToWorkers::Abandon(Abandon { task_id: id.into(), no_penalty, fence: 0 })
}

/// What all acknowledgements have in common.
#[derive(Debug, PartialEq)]
pub struct Ack {
    pub kind: &'static str,
    pub id: String,
    pub ok: bool,
    pub error: String,
    pub code: String,
}

pub fn ack(event: FromWorkers) -> Ack {
    let (kind, id, ok, error, code) = match event {
        FromWorkers::ResultAck(a) => ("result", a.task_id, a.ok, a.error_message, a.code),
        FromWorkers::HeartbeatAck(a) => ("heartbeat", a.task_id, a.ok, a.error_message, a.code),
        FromWorkers::NackAck(a) => ("nack", a.task_id, a.ok, a.error_message, a.code),
        FromWorkers::AbandonAck(a) => ("abandon", a.task_id, a.ok, a.error_message, a.code),
        other => panic!("{other:?}"),
    };
    Ack { kind, id, ok, error, code }
}

/// One event of each kind about a task.
pub fn each(id: &str) -> [(&'static str, ToWorkers); 4] {
    [
        ("result", result(id, "COMPLETED")),
        ("heartbeat", heartbeat(id, 30)),
        ("nack", nack(id, 0)),
        ("abandon", abandon(id, false)),
    ]
}

async fn shown(server: &Harness, id: &str) -> Value {
    server.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json()
}

pub async fn batch(worker: &mut Worker, results: Vec<Outcome>) -> Vec<ResultAck> {
    match worker.ask(ToWorkers::ResultBatch(ResultBatch { results })).await {
        FromWorkers::ResultAckBatch(batch) => batch.acks,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_kind_of_event_is_acknowledged_as_its_kind() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    for i in 0..4 {
        let id = server.task("c").await;
        assert_eq!(worker.take("c").await.id, id);
        let (kind, event) = each(&id).into_iter().nth(i).unwrap();
        let got = ack(worker.ask(event).await);
        let want =
            Ack { kind, id: id.clone(), ok: true, error: String::new(), code: String::new() };
        assert_eq!(got, want);
        let status = shown(&server, &id).await["status"].clone();
        assert_eq!(status, ["COMPLETED", "IN_PROGRESS", "PENDING", "PENDING"][i], "{kind}");
        // Leaves the next task as the only one.
        server.post(ADMIN, "admin/queues/c/purge", json!({})).await;
    }
}

#[tokio::test]
async fn events_on_tasks_the_worker_does_not_hold_are_refused() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let mut other = Worker::open(server.worker_addr(), WORKER_2).await;
    let pending = server.task("pending").await;
    let foreign = server.task("foreign").await;
    assert_eq!(other.take("foreign").await.id, foreign);
    let dead = server.dead("dead", "why").await;
    for (id, error, code) in [
        (UNKNOWN_ID, "not-found", "not_found"),
        ("", "not-found", "not_found"),
        ("no id", "not-found", "not_found"),
        (&*pending, "not-in-progress", "not_in_progress"),
        (&*dead, "not-in-progress", "not_in_progress"),
        (&*foreign, "not-owner", "not_owner"),
    ] {
        for (kind, event) in each(id) {
            let got = ack(worker.ask(event).await);
            // A result has its own error text for this, as over HTTP.
            let error =
                if kind == "result" && code == "not_found" { "task not found" } else { error };
            let (error, code) = (error.to_owned(), code.to_owned());
            assert_eq!(got, Ack { kind, id: id.to_owned(), ok: false, error, code });
        }
        // The texts are those of HTTP.
        if !id.is_empty() && !id.contains(' ') {
            for (kind, body) in [
                ("result", json!({"status": "COMPLETED"})),
                ("heartbeat", json!({})),
                ("nack", json!({})),
                ("abandon", json!({})),
            ] {
                let reply = server.post(WORKER, &format!("tasks/{id}/{kind}"), body).await.json();
                let missing = kind == "result" && code == "not_found";
                let error = if missing { "task not found" } else { error };
                assert_eq!((&reply["error"], &reply["code"]), (&json!(error), &json!(code)));
            }
        }
        let got = batch(&mut worker, vec![outcome(id, "COMPLETED", "", "")]).await;
        assert_eq!((got.len(), got[0].ok, &*got[0].code, &*got[0].task_id), (1, false, code, id));
    }
    assert!(ack(other.ask(result(&foreign, "COMPLETED")).await).ok);
}

#[tokio::test]
async fn results_are_stored_as_submitted() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let rows = [
        ("COMPLETED", "", "", json!({})),
        ("COMPLETED", r#"{"n": 1.0}"#, "", json!({"n": 1.0})),
        ("FAILED", "", "out of luck", Value::Null),
    ];
    for (status, text, error, want) in rows {
        let id = server.running("c").await;
        let said = ToWorkers::Result(outcome(&id, status, text, error));
        assert!(ack(worker.ask(said.clone()).await).ok);
        let kept = server.get(PRODUCER, &format!("tasks/{id}/result")).await.expect(200).json();
        let kept = &kept["result"];
        assert_eq!((&kept["status"], &kept["result"]), (&json!(status), &want), "{kept}");
        assert_eq!(kept["error"].as_str().unwrap_or_default(), error);
        // The same result again, as after a lost answer, and then another one.
        assert!(ack(worker.ask(said).await).ok, "{status}");
        let otherwise = ToWorkers::Result(outcome(&id, "COMPLETED", r#"{"other":1}"#, ""));
        assert_eq!(ack(worker.ask(otherwise).await).code, "not_in_progress");
    }
}

#[tokio::test]
async fn results_that_are_refused_leave_the_task_as_it_is() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let id = server.running("c").await;
    let object = "invalid result (must be an object)";
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(1 << 20));
    let rows = [
        ("DONE", "", "", "invalid_status", "invalid status"),
        ("", "", "", "invalid_status", "invalid status"),
        ("completed", "", "", "invalid_status", "invalid status"),
        ("FAILED", "", "", "error_required", "error required when status=FAILED"),
        ("COMPLETED", "[1]", "", "invalid_result", object),
        ("COMPLETED", "{", "", "invalid_result", object),
        ("COMPLETED", "null", "", "invalid_result", object),
        ("COMPLETED", &long, "", "invalid_result", "invalid result (at most 1048576 bytes)"),
    ];
    for (status, text, error, code, message) in rows {
        let got = ack(worker.ask(ToWorkers::Result(outcome(&id, status, text, error))).await);
        assert_eq!((got.ok, &*got.code, &*got.error), (false, code, message), "{status}");
        let got = &batch(&mut worker, vec![outcome(&id, status, text, error)]).await[0];
        assert_eq!((got.ok, &*got.code, &*got.error_message), (false, code, message), "{status}");
    }
    assert_eq!(shown(&server, &id).await["status"], "IN_PROGRESS");
    assert!(ack(worker.ask(result(&id, "COMPLETED")).await).ok);
}

#[tokio::test]
async fn batches_of_results_are_acknowledged_in_their_order() {
    let server = Harness::with(|config| config.max_batch_size = 5).await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    assert!(batch(&mut worker, Vec::new()).await.is_empty());
    let (one, two, three) =
        (server.running("c").await, server.running("c").await, server.running("c").await);
    let said = vec![
        outcome(&two, "COMPLETED", r#"{"n":2}"#, ""),
        outcome(UNKNOWN_ID, "COMPLETED", "", ""),
        outcome(&three, "NONSENSE", "", ""),
        outcome(&one, "FAILED", "", "bad"),
        outcome(&two, "COMPLETED", r#"{"n":2}"#, ""),
    ];
    let acks = batch(&mut worker, said).await;
    let got: Vec<_> = acks.iter().map(|a| (&*a.task_id, a.ok, &*a.code)).collect();
    let want = [
        (&*two, true, ""),
        (UNKNOWN_ID, false, "not_found"),
        (&*three, false, "invalid_status"),
        (&*one, true, ""),
        (&*two, true, ""),
    ];
    assert_eq!(got, want);
    for (id, status) in [(one, "FAILED"), (two, "COMPLETED"), (three.clone(), "IN_PROGRESS")] {
        assert_eq!(shown(&server, &id).await["status"], status);
    }
}

#[tokio::test]
async fn heartbeats_extend_and_tell_of_a_cancel() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let id = server.running("c").await;
    for (extend, want) in [(0, 300), (5_000, 5_000), (-1, 300), (43_200, 43_200)] {
        let now = jiff::Timestamp::now().as_second();
        let FromWorkers::HeartbeatAck(got) = worker.ask(heartbeat(&id, extend)).await else {
            panic!("no ack")
        };
        assert!(got.ok && !got.cancel_requested);
        let left = got.lease_until.parse::<jiff::Timestamp>().unwrap().as_second() - now;
        assert!((want - 1..=want + 30).contains(&left), "{extend}: {left}");
        assert_eq!(shown(&server, &id).await["leaseUntil"], got.lease_until);
    }
    let got = ack(worker.ask(heartbeat(&id, 43_201)).await);
    assert_eq!((got.ok, &*got.code), (false, "invalid_lease"));
    server.act(PRODUCER, &format!("tasks/{id}/cancel")).await;
    let FromWorkers::HeartbeatAck(got) = worker.ask(heartbeat(&id, 0)).await else {
        panic!("no ack")
    };
    assert!(got.ok && got.cancel_requested, "{got:?}");
}

#[tokio::test]
async fn a_nack_applies_its_delay_or_the_backoff() {
    let server = Harness::with(|config| {
        config.backoff_policy = BackoffPolicy::Fixed;
        config.backoff_base_seconds = 7;
    })
    .await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    // A delay beyond the longest backoff is cut to it.
    for (said, applied) in [(0, 7), (20, 20), (5_000, 900), (-1, 0), (-2, 7), (i32::MIN, 7)] {
        let id = server.running(&format!("c{said}")).await;
        let FromWorkers::NackAck(got) = worker.ask(nack(&id, said)).await else { panic!("no ack") };
        let applied_delay = got.applied_delay_seconds;
        assert_eq!((got.ok, applied_delay, got.dlq, &*got.task_id), (true, applied, false, &*id));
        let task = shown(&server, &id).await;
        assert_eq!((&task["attempts"], &task["error"]), (&json!(1), &json!("because")), "{task}");
    }
    // After -1 the task is claimable at once, with an attempt spent and a new fence.
    let again = worker.take("c-1").await;
    assert_eq!((again.attempts, again.fence), (1, 2));
}

#[tokio::test]
async fn the_last_attempt_is_a_dead_letter() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    for said in [0, -1, 30] {
        let task = json!({"command": "c", "payload": {}, "maxAttempts": 1});
        let id = server.enqueue(PRODUCER, task).await;
        assert_eq!(worker.take("c").await.id, id);
        let FromWorkers::NackAck(got) = worker.ask(nack(&id, said)).await else { panic!("no ack") };
        assert_eq!((got.ok, got.applied_delay_seconds, got.dlq), (true, 0, true));
        assert_eq!(shown(&server, &id).await["status"], "FAILED");
    }
    let queue = server.get(ADMIN, "admin/queues/c").await.expect(200).json();
    assert_eq!(queue["dlq"], 3);
}

#[tokio::test]
async fn abandon_spends_an_attempt_unless_it_says_otherwise() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let id = server.task("c").await;
    for (no_penalty, attempts) in [(false, 1), (true, 1), (false, 2)] {
        assert_eq!(worker.take("c").await.id, id);
        let got = ack(worker.ask(abandon(&id, no_penalty)).await);
        assert!(got.ok && got.kind == "abandon", "{got:?}");
        let task = shown(&server, &id).await;
        assert_eq!((&task["status"], &task["attempts"]), (&json!("PENDING"), &json!(attempts)));
    }
}

#[tokio::test]
async fn a_task_that_was_given_back_is_acknowledged_before_it_comes_again() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let id = server.task("c").await;
    let mut fence = worker.take("c").await.fence;
    for event in [abandon(&id, true), nack(&id, -1), abandon(&id, false)] {
        // The Ready waits: the commit that takes the task back hands it out again.
        worker.ready("c", 1).await;
        worker.settle().await;
        assert!(ack(worker.ask(event).await).ok);
        let again = worker.task().await;
        assert_eq!((&*again.id, again.fence), (&*id, fence + 1));
        fence = again.fence;
    }
}

#[tokio::test]
async fn an_event_under_an_earlier_claim_is_refused() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let id = server.task("c").await;
    let first = worker.take("c").await;
    assert!(ack(worker.ask(nack(&id, -1)).await).ok);
    let second = worker.take("c").await;
    assert_eq!((&second.id, first.fence, second.fence), (&id, 1, 2));
    let named = |event: ToWorkers, fence| match event {
        ToWorkers::Result(e) => ToWorkers::Result(Outcome { fence, ..e }),
        ToWorkers::Heartbeat(e) => ToWorkers::Heartbeat(Heartbeat { fence, ..e }),
        ToWorkers::Nack(e) => ToWorkers::Nack(Nack { fence, ..e }),
        ToWorkers::Abandon(e) => ToWorkers::Abandon(Abandon { fence, ..e }),
        other => panic!("{other:?}"),
    };
    for (kind, event) in each(&id) {
        let (error, code) = ("lease-lost".to_owned(), "lease_lost".to_owned());
        let want = Ack { kind, id: id.clone(), ok: false, error, code };
        assert_eq!(ack(worker.ask(named(event, 1)).await), want);
    }
    let stale = Outcome { fence: 1, ..outcome(&id, "COMPLETED", "", "") };
    assert_eq!(batch(&mut worker, vec![stale]).await[0].code, "lease_lost");
    assert!(ack(worker.ask(named(heartbeat(&id, 30), 2)).await).ok);
    assert!(ack(worker.ask(named(result(&id, "COMPLETED"), 2)).await).ok);
    assert!(ack(worker.ask(named(result(&id, "COMPLETED"), 2)).await).ok, "a repeat");
}

#[tokio::test]
async fn a_result_and_an_error_are_both_kept() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    for (n, status) in ["COMPLETED", "FAILED"].into_iter().enumerate() {
        let id = server.task("c").await;
        worker.take("c").await;
        let both = || outcome(&id, status, r#"{"half":1}"#, "the rest");
        for _ in 0..2 {
            match n {
                0 => assert!(ack(worker.ask(ToWorkers::Result(both())).await).ok),
                _ => assert!(batch(&mut worker, vec![both()]).await[0].ok),
            }
        }
        let result = server.get(PRODUCER, &format!("tasks/{id}/result")).await.expect(200).json();
        let result = &result["result"];
        assert_eq!(result["status"], status);
        assert_eq!(
            (&result["result"], &result["error"]),
            (&json!({"half": 1}), &json!("the rest"))
        );
    }
}
