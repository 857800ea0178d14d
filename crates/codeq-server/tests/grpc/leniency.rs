//! Inexact input that the original codeQ's clients send, and that is accepted.

use codeq_proto::producer::CreateTask;
use codeq_proto::producer::producer_event::Event as ToProducers;
use codeq_proto::producer::{CreateTaskBatch, ProducerEvent};
use codeq_proto::worker::Ready;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use codeq_server::config::RateLimit;
use serde_json::json;
use tonic::{Code, Request};

use crate::grpc::acks::{batch, outcome};
use crate::grpc::client::{Producer, Worker, channel, new_task, producer_on, worker_on};
use crate::http::harness::{ADMIN, Harness, PRODUCER, UNKNOWN_ID, WORKER};

#[tokio::test]
async fn a_create_without_payload_stores_null() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    for (payload, stored) in [("", "null"), ("null", "null"), (" null\n", " null\n")] {
        let create = CreateTask { payload: payload.into(), ..new_task(1, "c") };
        let alone = producer.make(create.clone()).await;
        let acks = producer.create_all(vec![create]).await;
        assert!(acks[0].ok, "{acks:?}");
        for id in [&alone, &acks[0].task_id] {
            let task = worker.take("c").await;
            assert_eq!((&task.id, &*task.payload), (id, stored.as_bytes()));
            let shown = server.get(PRODUCER, &format!("tasks/{id}")).await.expect(200).json();
            assert_eq!(shown["payload"], stored);
        }
    }
}

#[tokio::test]
async fn blanks_around_a_command_are_not_part_of_it() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let ready = |commands: &[&str]| {
        let commands = commands.iter().map(|command| (*command).to_owned()).collect();
        ToWorkers::Ready(Ready { commands, lease_seconds: 60, count: 1 })
    };
    let other = producer.make(new_task(1, "other")).await;
    for commands in [&["resize"][..], &[" resize"], &["", "resize\n", " "], &["\tRESIZE "]] {
        let id = producer.make(new_task(2, " resize\r\n")).await;
        worker.say(ready(commands)).await;
        let task = worker.task().await;
        assert_eq!((&*task.id, &*task.command), (&*id, "resize"), "{commands:?}");
        // Over HTTP too.
        let body = json!({"command": "\u{a0}resize ", "payload": {}});
        let id = server.enqueue(PRODUCER, body).await;
        let claimed = server.post(WORKER, "tasks/claim", json!({"commands": commands})).await;
        let claimed = claimed.expect(200).json();
        assert_eq!((&claimed["id"], &claimed["command"]), (&json!(id), &json!("resize")));
    }
    // A list of nothing but blank names is refused: it does not mean every queue.
    for commands in [&[""][..], &[" ", "\t"]] {
        worker.say(ready(commands)).await;
        let error = worker.error().await;
        assert_eq!((&*error.code, &*error.message), ("InvalidArgument", "invalid command"));
        let reply = server.post(WORKER, "tasks/claim", json!({"commands": commands})).await;
        reply.refused(400, "invalid command");
    }
    server
        .post(PRODUCER, "tasks", json!({"command": " ", "payload": {}}))
        .await
        .refused(400, "invalid command");
    worker.say(ready(&[])).await;
    assert_eq!(worker.task().await.id, other);
}

#[tokio::test]
async fn blanks_around_a_token_are_not_part_of_it() {
    let server = Harness::start().await;
    for token in [format!("{PRODUCER}\n"), format!(" {PRODUCER}\r\n")] {
        Producer::open(server.producer_addr(), &token).await.make(new_task(1, "c")).await;
    }
    Worker::open(server.worker_addr(), &format!("{WORKER}\n")).await.take("c").await;
    let with = |token: &str| {
        let mut call = Request::new(());
        call.metadata_mut().insert("authorization", format!("Bearer  {token} ").parse().unwrap());
        call
    };
    let mut producer = producer_on(channel(server.producer_addr()).await, with(PRODUCER)).await;
    producer.hello(" \n").await;
    producer.event().await;
    let mut worker = worker_on(channel(server.worker_addr()).await, with(WORKER)).await;
    worker.hello("", "").await;
    worker.event().await;
    server.get(&format!(" {ADMIN}  "), "admin/queues").await.expect(200);
}

/// Numbers and outcomes of the acknowledgements of a batch.
fn numbers(acks: &[codeq_proto::producer::CreateAck]) -> Vec<(u64, bool)> {
    acks.iter().map(|ack| (ack.seq, ack.ok)).collect()
}

#[tokio::test]
async fn long_batches_are_split_and_acknowledged_as_one() {
    for (shards, limit) in [(1, None), (2, None), (1, Some(1_000))] {
        let server = Harness::with(|config| {
            config.max_batch_size = 5;
            config.shards = Some(shards);
            config.tenant_limits.max_pending_tasks = limit;
        })
        .await;
        let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
        let command = |seq: u64| if seq % 7 == 3 { "" } else { "c" };
        for len in [4, 5, 6, 23] {
            let tasks = (0..len).map(|seq| new_task(seq, command(seq))).collect();
            let acks = producer.create_all(tasks).await;
            let want: Vec<_> = (0..len).map(|seq| (seq, seq % 7 != 3)).collect();
            assert_eq!(numbers(&acks), want, "{shards} {limit:?}");
            let refused = acks.iter().filter(|ack| !ack.ok);
            assert!(refused.into_iter().all(|ack| ack.error_message == "invalid command"));
        }
        let mut worker = Worker::open(server.worker_addr(), WORKER).await;
        let mut ids = Vec::new();
        while ids.len() < 30 {
            worker.ready("c", 50).await;
            ids.extend(worker.tasks().await.into_iter().map(|task| task.id));
        }
        let mut said: Vec<_> = ids.iter().map(|id| outcome(id, "COMPLETED", "{}", "")).collect();
        said[7] = outcome(UNKNOWN_ID, "COMPLETED", "", "");
        said[19] = outcome(&ids[19], "NONSENSE", "", "");
        let acks = batch(&mut worker, said.clone()).await;
        assert_eq!(acks.len(), said.len());
        for (at, (ack, said)) in acks.iter().zip(&said).enumerate() {
            let code = [(7, "not_found"), (19, "invalid_status")];
            let code = code.iter().find(|(bad, _)| *bad == at).map_or("", |(_, code)| code);
            assert_eq!((&ack.task_id, &*ack.code), (&said.task_id, code), "{at}");
        }
        producer.closes().await;
        worker.closes().await;
    }
}

#[tokio::test]
async fn a_long_batch_gets_past_no_limit_of_its_tenant() {
    for shards in [1, 2] {
        let server = Harness::with(|config| {
            config.max_batch_size = 5;
            config.shards = Some(shards);
            config.tenant_limits.max_pending_tasks = Some(12);
        })
        .await;
        let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
        let acks = producer.create_all((0..20).map(|n| new_task(n, "c")).collect()).await;
        let codes: Vec<_> = acks.iter().map(|ack| (ack.seq, ack.ok, &*ack.code)).collect();
        let want = |n| if n < 10 { (n, true, "") } else { (n, false, "quota_exceeded") };
        assert_eq!(codes, (0..20).map(want).collect::<Vec<_>>());
        producer.make(new_task(20, "c")).await;
        producer.make(new_task(21, "c")).await;
        assert_eq!(producer.create(new_task(22, "c")).await.code, "quota_exceeded");
    }
}

#[tokio::test]
async fn a_batch_has_at_most_ten_thousand_items() {
    let server = Harness::start().await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let tasks = |len: u64| (0..len).map(|seq| new_task(seq, "c")).collect::<Vec<_>>();
    let acks = producer.create_all(tasks(10_000)).await;
    assert_eq!(numbers(&acks), (0..10_000).map(|seq| (seq, true)).collect::<Vec<_>>());
    let batch = CreateTaskBatch { tasks: tasks(10_001) };
    producer.send(ProducerEvent { event: Some(ToProducers::CreateBatch(batch)) }).await;
    let text = "a message has more than 10000 items: send several messages";
    assert_eq!(producer.ended().await, (Code::InvalidArgument, text.to_owned()));
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let said = vec![outcome(UNKNOWN_ID, "COMPLETED", "", ""); 10_000];
    let acks = crate::grpc::acks::batch(&mut worker, said).await;
    assert!(acks.len() == 10_000 && acks.iter().all(|ack| ack.code == "not_found"));
    let queue = server.get(ADMIN, "admin/queues/c").await.expect(200).json();
    assert_eq!(queue["ready"], 10_000);
}

#[tokio::test]
async fn every_part_of_a_long_batch_draws_one_token() {
    let limit = Some(RateLimit { requests_per_minute: 1, burst: 2 });
    let server = Harness::with(|config| {
        config.max_batch_size = 5;
        config.rate_limit.producer = limit;
        config.rate_limit.worker = limit;
    })
    .await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let acks = producer.create_all((0..12).map(|seq| new_task(seq, "c")).collect()).await;
    assert_eq!(numbers(&acks), (0..12).map(|seq| (seq, seq < 10)).collect::<Vec<_>>());
    assert!(acks[10..].iter().all(|ack| ack.code == "rate_limited"), "{acks:?}");
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let acks = batch(&mut worker, vec![outcome(UNKNOWN_ID, "COMPLETED", "", ""); 12]).await;
    let codes: Vec<_> = acks.iter().map(|ack| &*ack.code).collect();
    assert_eq!(codes, [["not_found"; 10].as_slice(), &["rate_limited"; 2]].concat());
}
