//! Clients of the two streams that do exactly what a test says.

use std::net::SocketAddr;
use std::time::Duration;

use codeq_proto::producer::producer_event::Event as ToProducers;
use codeq_proto::producer::producer_stream_client::ProducerStreamClient;
use codeq_proto::producer::server_event::Event as FromProducers;
use codeq_proto::producer::{CreateAck, CreateTask, CreateTaskBatch};
use codeq_proto::worker::server_event::Event as FromWorkers;
use codeq_proto::worker::worker_event::Event as ToWorkers;
use codeq_proto::worker::worker_stream_client::WorkerStreamClient;
use codeq_proto::worker::{Ready, ResultBatch, ServerError};
use codeq_proto::{producer, worker};
use futures_util::stream::{Stream, unfold};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

/// How long to wait for an answer: much longer than it takes, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A stream: `In` is what this side sends.
pub struct Session<In, Out> {
    send: Option<mpsc::Sender<In>>,
    answers: Streaming<Out>,
}

pub type Producer = Session<producer::ProducerEvent, producer::ServerEvent>;
pub type Worker = Session<worker::WorkerEvent, worker::ServerEvent>;

impl<In, Out> Session<In, Out> {
    pub async fn send(&self, event: In) {
        self.send.as_ref().unwrap().send(event).await.ok().unwrap();
    }

    /// The sending half, for another task.
    pub fn sender(&self) -> mpsc::Sender<In> {
        self.send.clone().unwrap()
    }

    /// The next answer; `None` if the stream has ended with OK.
    pub async fn answer(&mut self) -> Result<Option<Out>, Status> {
        timeout(PATIENCE, self.answers.message()).await.expect("an answer in time")
    }

    /// The stream must end next, with an error: its code and message.
    pub async fn ended(&mut self) -> (Code, String) {
        match self.answer().await {
            Err(status) => (status.code(), status.message().to_owned()),
            Ok(answer) => {
                panic!("{} instead of a bad end", if answer.is_some() { "an answer" } else { "OK" })
            }
        }
    }

    /// Half-closes the stream: nothing more will be sent.
    pub fn half_close(&mut self) {
        self.send = None;
    }

    /// Half-closes the stream, which must then end with OK.
    pub async fn closes(mut self) {
        self.half_close();
        assert!(self.answer().await.unwrap().is_none(), "an answer instead of OK");
    }
}

pub fn endpoint(addr: SocketAddr) -> Endpoint {
    Endpoint::from_shared(format!("http://{addr}")).unwrap()
}

pub async fn channel(addr: SocketAddr) -> Channel {
    endpoint(addr).connect().await.unwrap()
}

/// A producer's stream without a Hello.
pub async fn producer(addr: SocketAddr) -> Producer {
    producer_on(channel(addr).await, Request::new(())).await
}

/// The same on a connection that is there, with the metadata of `call`.
pub async fn producer_on(channel: Channel, call: Request<()>) -> Producer {
    let (send, events) = events();
    let call = call.map(|()| events);
    let answers = ProducerStreamClient::new(channel).stream(call).await.unwrap().into_inner();
    Session { send: Some(send), answers }
}

/// A worker's stream without a Hello.
pub async fn worker(addr: SocketAddr) -> Worker {
    worker_on(channel(addr).await, Request::new(())).await
}

/// The same on a connection that is there, with the metadata of `call`.
pub async fn worker_on(channel: Channel, call: Request<()>) -> Worker {
    let (send, events) = events();
    let call = call.map(|()| events);
    let answers = WorkerStreamClient::new(channel)
        .max_decoding_message_size(24 << 20)
        .stream(call)
        .await
        .unwrap()
        .into_inner();
    Session { send: Some(send), answers }
}

fn events<In: Send + 'static>() -> (mpsc::Sender<In>, impl Stream<Item = In> + Send + 'static) {
    let (send, receive) = mpsc::channel(64);
    let events = unfold(receive, |mut receive: mpsc::Receiver<In>| async move {
        receive.recv().await.map(|event| (event, receive))
    });
    (send, events)
}

impl Producer {
    /// A stream whose Hello has been answered.
    pub async fn open(addr: SocketAddr, token: &str) -> Producer {
        Producer::open_on(channel(addr).await, token).await
    }

    /// The same on a connection that is there.
    pub async fn open_on(channel: Channel, token: &str) -> Producer {
        let mut session = producer_on(channel, Request::new(())).await;
        session.hello(token).await;
        assert!(matches!(session.event().await, FromProducers::HelloAck(_)));
        session
    }

    pub async fn hello(&self, token: &str) {
        self.say(ToProducers::Hello(producer::Hello { token: token.into() })).await;
    }

    pub async fn say(&self, event: ToProducers) {
        self.send(producer::ProducerEvent { event: Some(event) }).await;
    }

    /// The next answer, which must come.
    pub async fn event(&mut self) -> FromProducers {
        self.answer().await.unwrap().unwrap().event.unwrap()
    }

    /// The next answer, which must be to a create.
    pub async fn ack(&mut self) -> CreateAck {
        match self.event().await {
            FromProducers::CreateAck(ack) => ack,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a create and takes its answer.
    pub async fn create(&mut self, task: CreateTask) -> CreateAck {
        let seq = task.seq;
        self.say(ToProducers::Create(task)).await;
        let ack = self.ack().await;
        assert_eq!(ack.seq, seq);
        ack
    }

    /// Makes a task and returns its id.
    pub async fn make(&mut self, task: CreateTask) -> String {
        let ack = self.create(task).await;
        assert!(ack.ok && ack.error_message.is_empty() && ack.code.is_empty(), "{ack:?}");
        ack.task_id
    }

    /// Sends a batch and takes its answer.
    pub async fn create_all(&mut self, tasks: Vec<CreateTask>) -> Vec<CreateAck> {
        self.say(ToProducers::CreateBatch(CreateTaskBatch { tasks })).await;
        match self.event().await {
            FromProducers::CreateAckBatch(batch) => batch.acks,
            other => panic!("{other:?}"),
        }
    }
}

/// A task with an empty object as its payload.
pub fn new_task(seq: u64, command: &str) -> CreateTask {
    CreateTask { seq, command: command.into(), payload: "{}".into(), ..CreateTask::default() }
}

impl Worker {
    /// A stream whose Hello has been answered.
    pub async fn open(addr: SocketAddr, token: &str) -> Worker {
        Worker::open_as(addr, token, "").await
    }

    /// The same for a named instance.
    pub async fn open_as(addr: SocketAddr, token: &str, worker_id: &str) -> Worker {
        Worker::open_on(channel(addr).await, token, worker_id).await
    }

    /// The same on a connection that is there.
    pub async fn open_on(channel: Channel, token: &str, worker_id: &str) -> Worker {
        let mut session = worker_on(channel, Request::new(())).await;
        session.hello(token, worker_id).await;
        assert!(matches!(session.event().await, FromWorkers::HelloAck(_)));
        session
    }

    pub async fn hello(&self, token: &str, worker_id: &str) {
        let hello = worker::Hello { token: token.into(), worker_id: worker_id.into() };
        self.say(ToWorkers::Hello(hello)).await;
    }

    pub async fn say(&self, event: ToWorkers) {
        self.send(worker::WorkerEvent { event: Some(event) }).await;
    }

    /// The next answer, which must come.
    pub async fn event(&mut self) -> FromWorkers {
        self.answer().await.unwrap().unwrap().event.unwrap()
    }

    /// Sends an event and takes the next answer.
    pub async fn ask(&mut self, event: ToWorkers) -> FromWorkers {
        self.say(event).await;
        self.event().await
    }

    /// Sends a Ready for tasks of this command.
    pub async fn ready(&self, command: &str, count: i32) {
        let commands = vec![command.to_owned()];
        self.say(ToWorkers::Ready(Ready { commands, lease_seconds: 60, count })).await;
    }

    /// Returns when everything said before has been read. Nothing else may have been answered meanwhile.
    pub async fn settle(&mut self) {
        match self.ask(ToWorkers::ResultBatch(ResultBatch::default())).await {
            FromWorkers::ResultAckBatch(batch) => assert!(batch.acks.is_empty(), "{batch:?}"),
            other => panic!("{other:?}"),
        }
    }

    /// The next answer, which must be one task.
    pub async fn task(&mut self) -> worker::Task {
        match self.event().await {
            FromWorkers::Task(assignment) => assignment.task.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The next answer, which must be a batch of tasks.
    pub async fn tasks(&mut self) -> Vec<worker::Task> {
        match self.event().await {
            FromWorkers::TaskBatch(batch) => batch.tasks,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for a task of this command, which must come.
    pub async fn take(&mut self, command: &str) -> worker::Task {
        self.ready(command, 1).await;
        self.task().await
    }

    /// The next answer, which must be an error.
    pub async fn error(&mut self) -> ServerError {
        match self.event().await {
            FromWorkers::Error(error) => error,
            other => panic!("{other:?}"),
        }
    }
}
