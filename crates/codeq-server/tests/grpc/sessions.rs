//! A task from its create to its result, over both streams.

use codeq_proto::producer::CreateTask;
use codeq_proto::producer::producer_event::Event as ToProducers;
use codeq_proto::producer::server_event::Event as FromProducers;
use codeq_proto::worker::server_event::Event as FromWorkers;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use codeq_proto::worker::{Ready, Result as Outcome};

use crate::grpc::client::{Producer, Worker};
use crate::http::harness::{Harness, PRODUCER, WORKER};

#[tokio::test]
async fn a_task_travels_over_both_streams() {
    let server = Harness::start().await;
    let mut worker = Worker::open(server.worker_addr(), WORKER).await;
    let ready = Ready { commands: vec!["echo".into()], lease_seconds: 30, count: 1 };
    worker.say(ToWorkers::Ready(ready)).await;
    let mut producer = Producer::open(server.producer_addr(), PRODUCER).await;
    let payload = br#"{"n": 1}"#.as_slice();
    let create = CreateTask {
        seq: 7,
        command: "echo".into(),
        payload: payload.into(),
        ..Default::default()
    };
    producer.say(ToProducers::Create(create)).await;
    let FromProducers::CreateAck(ack) = producer.event().await else { panic!("no ack") };
    assert!(ack.ok && ack.seq == 7, "{ack:?}");
    let FromWorkers::Task(assignment) = worker.event().await else { panic!("no task") };
    let task = assignment.task.unwrap();
    assert_eq!((&task.id, &*task.payload), (&ack.task_id, payload));
    assert_eq!((&*task.status, &*task.worker_id, task.fence), ("IN_PROGRESS", "worker", 1));
    let result = Outcome { task_id: task.id, status: "COMPLETED".into(), ..Default::default() };
    worker.say(ToWorkers::Result(result)).await;
    let FromWorkers::ResultAck(done) = worker.event().await else { panic!("no ack") };
    assert!(done.ok && done.task_id == ack.task_id, "{done:?}");
    let result = server.get(PRODUCER, &format!("tasks/{}/result", ack.task_id)).await;
    assert_eq!(result.expect(200).json()["result"]["status"], "COMPLETED");
    worker.half_close();
    assert!(worker.answer().await.unwrap().is_none());
}
