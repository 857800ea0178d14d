//! Who may do what: scopes, event types, instances of a subject, tenants.

use codeq_proto::worker::server_event::Event as FromWorkers;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use codeq_proto::worker::{Ready, Result as Outcome, ResultBatch};
use codeq_server::config::StaticToken;
use serde_json::json;

use crate::grpc::acks::{ack, each, heartbeat, result};
use crate::grpc::client::{Producer, Worker, new_task};
use crate::http::harness::{
    Harness, PRODUCER, PRODUCER_B, RESTRICTED, UNKNOWN_ID, WORKER, WORKER_2, WORKER_B,
};

const SCOPES: [&str; 5] =
    ["codeq:claim", "codeq:result", "codeq:heartbeat", "codeq:nack", "codeq:abandon"];

fn token(name: &str, subject: &str, scopes: &[&str]) -> StaticToken {
    StaticToken {
        token: Some(name.to_owned()),
        token_sha256: None,
        subject: subject.to_owned(),
        tenant: "a".to_owned(),
        scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
        event_types: vec!["*".to_owned()],
        worker_group: None,
    }
}

#[tokio::test]
async fn a_missing_scope_is_an_error_and_the_stream_goes_on() {
    let server = Harness::with(|config| {
        for missing in SCOPES {
            let scopes: Vec<_> = SCOPES.into_iter().filter(|scope| *scope != missing).collect();
            config.worker_auth.static_tokens.push(token(missing, "worker", &scopes));
        }
    })
    .await;
    let id = server.running("held").await;
    for missing in SCOPES {
        // The subject is that of the worker that holds the task, so nothing but the scope is missing.
        let mut worker = Worker::open(server.worker_addr(), missing).await;
        let mut refused = Vec::new();
        let ready = Ready { commands: vec!["c".into()], ..Ready::default() };
        let outcome = Outcome { task_id: id.clone(), status: "NO".into(), ..Outcome::default() };
        match missing {
            "codeq:claim" => refused.push(ToWorkers::Ready(ready)),
            "codeq:result" => {
                refused.push(result(&id, "COMPLETED"));
                refused.push(ToWorkers::ResultBatch(ResultBatch { results: vec![outcome] }));
            }
            _ => {
                let kind = missing.trim_start_matches("codeq:");
                let (_, event) = each(&id).into_iter().find(|(name, _)| *name == kind).unwrap();
                refused.push(event);
            }
        }
        for event in refused {
            worker.say(event).await;
            let error = worker.error().await;
            assert_eq!(error.code, "PermissionDenied");
            assert_eq!(error.message, format!("missing scope {missing}"));
        }
        // The rest is allowed.
        let (event, kind) = match missing {
            "codeq:heartbeat" => (result(&id, "NO"), "result"),
            _ => (heartbeat(&id, 60), "heartbeat"),
        };
        let got = ack(worker.ask(event).await);
        assert_eq!((got.kind, got.ok), (kind, missing != "codeq:heartbeat"));
        // The refused Ready is gone, so the task goes to another worker.
        if missing == "codeq:claim" {
            let id = server.task("c").await;
            worker.settle().await;
            let mut other = Worker::open(server.worker_addr(), WORKER_2).await;
            assert_eq!(other.take("c").await.id, id);
        }
        worker.closes().await;
    }
}

#[tokio::test]
async fn a_scope_allows_its_own_events_and_no_other() {
    let server = Harness::with(|config| {
        for scope in SCOPES {
            config.worker_auth.static_tokens.push(token(scope, "worker", &[scope]));
        }
        let subscriber = token("codeq:subscribe", "worker", &["codeq:subscribe"]);
        config.worker_auth.static_tokens.push(subscriber);
    })
    .await;
    for scope in [&SCOPES[..], &["codeq:subscribe"]].concat() {
        let mut worker = Worker::open(server.worker_addr(), scope).await;
        let results = vec![Outcome { task_id: UNKNOWN_ID.into(), ..Outcome::default() }];
        let events = [
            ("codeq:claim", ToWorkers::Ready(Ready::default())),
            ("codeq:result", ToWorkers::ResultBatch(ResultBatch { results })),
        ];
        let of_tasks = each(UNKNOWN_ID).map(|(kind, event)| match kind {
            "result" => ("codeq:result", event),
            "heartbeat" => ("codeq:heartbeat", event),
            "nack" => ("codeq:nack", event),
            _ => ("codeq:abandon", event),
        });
        for (needed, event) in events.into_iter().chain(of_tasks) {
            worker.say(event).await;
            if needed != scope {
                let error = worker.error().await;
                let want = ("PermissionDenied", format!("missing scope {needed}"));
                assert_eq!((&*error.code, error.message), want, "with {scope}");
            } else if needed != "codeq:claim" {
                let answer = worker.event().await;
                assert!(!matches!(answer, FromWorkers::Error(_)), "with {scope}: {answer:?}");
            }
        }
        worker.closes().await;
    }
}

#[tokio::test]
async fn event_types_outside_the_token_are_refused() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), RESTRICTED).await;
    let b = server.task("b").await;
    for commands in [&["b"][..], &["a", "b"]] {
        let commands = commands.iter().map(|command| (*command).to_owned()).collect();
        worker.say(ToWorkers::Ready(Ready { commands, ..Ready::default() })).await;
        let error = worker.error().await;
        assert_eq!((&*error.code, &*error.message), ("PermissionDenied", "event type not allowed"));
    }
    // No commands mean all that are allowed. The refused Readys do not wait.
    worker.say(ToWorkers::Ready(Ready::default())).await;
    worker.settle().await;
    let a = server.task("a").await;
    assert_eq!(worker.task().await.id, a);
    server.task("a").await;
    worker.settle().await;
    let mut other = Worker::open(server.worker_addr(), WORKER).await;
    assert_eq!(other.take("b").await.id, b);
}

#[tokio::test]
async fn an_instance_cannot_act_for_another() {
    let all = [&SCOPES[..], &["codeq:subscribe"]].concat();
    let server = Harness::with(|config| {
        config.worker_auth.static_tokens.push(token("slashed", "worker/one", &all));
    })
    .await;
    let addr = server.worker_addr();
    let mut instance = Worker::open_as(addr, WORKER, "one").await;
    let mut namesake = Worker::open(addr, "slashed").await;
    let mut others = [
        Worker::open(addr, WORKER).await,
        Worker::open_as(addr, WORKER, "two").await,
        Worker::open_as(addr, WORKER_2, "one").await,
    ];
    let of_instance = server.task("c").await;
    assert_eq!(instance.take("c").await.worker_id, "worker/one");
    let of_namesake = server.task("c").await;
    assert_eq!(namesake.take("c").await.worker_id, "worker/one");
    for id in [&of_instance, &of_namesake] {
        let task = server.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
        assert_eq!(task["workerId"], "worker/one");
        for other in &mut others {
            for (kind, event) in each(id) {
                let got = ack(other.ask(event).await);
                assert_eq!((got.kind, got.ok, &*got.code), (kind, false, "not_owner"));
            }
        }
    }
    // The two names look alike to people, but differ.
    for (kind, event) in each(&of_namesake) {
        let got = ack(instance.ask(event).await);
        assert_eq!((got.kind, got.ok, &*got.code), (kind, false, "not_owner"));
    }
    for (kind, event) in each(&of_instance) {
        let got = ack(namesake.ask(event).await);
        assert_eq!((got.kind, got.ok, &*got.code), (kind, false, "not_owner"));
    }
    let beat = server.act("slashed", &format!("tasks/{of_instance}/heartbeat")).await;
    beat.refused(403, "not-owner");
    let beat = server.act(WORKER, &format!("tasks/{of_instance}/heartbeat")).await;
    beat.refused(403, "not-owner");
    // Each goes on with its own task; the namesake also over HTTP.
    server.act("slashed", &format!("tasks/{of_namesake}/heartbeat")).await.expect(200);
    assert!(ack(namesake.ask(result(&of_namesake, "COMPLETED")).await).ok);
    assert!(ack(instance.ask(result(&of_instance, "COMPLETED")).await).ok);
    // An instance that is named as its subject is the subject.
    let mut same = Worker::open_as(addr, WORKER, "worker").await;
    let id = server.running("c").await;
    assert!(ack(same.ask(heartbeat(&id, 0)).await).ok);
}

#[tokio::test]
async fn tenants_do_not_see_each_other() {
    let server = Harness::start().await;
    let mut a = Worker::open(server.worker_addr(), WORKER).await;
    let mut b = Worker::open(server.worker_addr(), WORKER_B).await;
    let everything = || ToWorkers::Ready(Ready::default());
    a.say(everything()).await;
    a.settle().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER_B).await;
    let id = producer.make(new_task(1, "c")).await;
    server.get(PRODUCER, &format!("tasks/{id}")).await.refused(404, "not found");
    a.settle().await;
    b.say(everything()).await;
    let task = b.task().await;
    assert_eq!((&*task.id, &*task.tenant_id, &*task.worker_id), (&*id, "b", "worker"));
    // For the same subject of another tenant there is no such task.
    for (kind, event) in each(&id) {
        let got = ack(a.ask(event).await);
        assert_eq!((got.kind, got.ok, &*got.code), (kind, false, "not_found"));
    }
    let results = vec![Outcome { task_id: id.clone(), ..Outcome::default() }];
    let FromWorkers::ResultAckBatch(batch) =
        a.ask(ToWorkers::ResultBatch(ResultBatch { results })).await
    else {
        panic!("no acks")
    };
    assert_eq!(batch.acks[0].code, "not_found");
    // The Ready of tenant A is still there.
    let own = server.enqueue(PRODUCER, json!({"command": "c", "payload": {}})).await;
    assert_eq!(a.task().await.id, own);
    assert!(ack(b.ask(result(&id, "COMPLETED")).await).ok);
    // Keys of one tenant mean nothing in another.
    let keyed =
        codeq_proto::producer::CreateTask { idempotency_key: "k".into(), ..new_task(2, "c") };
    let of_b = producer.create(keyed.clone()).await;
    let of_a = Producer::open(server.producer_addr(), PRODUCER).await.create(keyed).await;
    assert!(of_a.ok && of_b.ok && !of_a.repeated && of_a.task_id != of_b.task_id);
}
