//! Clients of the two streams that do exactly what a test says.

use std::net::SocketAddr;

use codeq_proto::producer::producer_stream_client::ProducerStreamClient;
use codeq_proto::worker::worker_stream_client::WorkerStreamClient;
use codeq_proto::{producer, worker};
use futures_util::stream::{Stream, unfold};
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

/// A stream: `In` is what this side sends.
pub struct Session<In, Out> {
    send: Option<mpsc::Sender<In>>,
    answers: Streaming<Out>,
}

pub type Producer = Session<producer::ProducerEvent, producer::ServerEvent>;
pub type Worker = Session<worker::WorkerEvent, worker::ServerEvent>;

impl<In, Out> Session<In, Out> {
    pub async fn send(&self, event: impl Into<In>) {
        self.send.as_ref().unwrap().send(event.into()).await.ok().unwrap();
    }

    /// The next answer; none at the good end of the stream.
    pub async fn answer(&mut self) -> Result<Option<Out>, Status> {
        self.answers.message().await
    }

    /// Says that nothing more will be sent.
    pub fn half_close(&mut self) {
        self.send = None;
    }
}

pub async fn channel(addr: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap()
}

/// A producer's stream on which nothing has been said.
pub async fn producer(addr: SocketAddr) -> Producer {
    let (send, events) = events();
    let mut client = ProducerStreamClient::new(channel(addr).await);
    let answers = client.stream(Request::new(events)).await.unwrap().into_inner();
    Session { send: Some(send), answers }
}

/// A worker's stream on which nothing has been said.
pub async fn worker(addr: SocketAddr) -> Worker {
    let (send, events) = events();
    let mut client = WorkerStreamClient::new(channel(addr).await);
    let answers = client.stream(Request::new(events)).await.unwrap().into_inner();
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
        let mut session = producer(addr).await;
        session
            .say(producer::producer_event::Event::Hello(producer::Hello { token: token.into() }))
            .await;
        assert!(matches!(session.event().await, producer::server_event::Event::HelloAck(_)));
        session
    }

    pub async fn say(&self, event: producer::producer_event::Event) {
        self.send(producer::ProducerEvent { event: Some(event) }).await;
    }

    /// The next answer, which must come.
    pub async fn event(&mut self) -> producer::server_event::Event {
        self.answer().await.unwrap().unwrap().event.unwrap()
    }
}

impl Worker {
    /// A stream whose Hello has been answered.
    pub async fn open(addr: SocketAddr, token: &str) -> Worker {
        Worker::open_as(addr, token, "").await
    }

    /// The same for a named instance.
    pub async fn open_as(addr: SocketAddr, token: &str, worker_id: &str) -> Worker {
        let mut session = worker(addr).await;
        let hello = worker::Hello { token: token.into(), worker_id: worker_id.into() };
        session.say(worker::worker_event::Event::Hello(hello)).await;
        assert!(matches!(session.event().await, worker::server_event::Event::HelloAck(_)));
        session
    }

    pub async fn say(&self, event: worker::worker_event::Event) {
        self.send(worker::WorkerEvent { event: Some(event) }).await;
    }

    /// The next answer, which must come.
    pub async fn event(&mut self) -> worker::server_event::Event {
        self.answer().await.unwrap().unwrap().event.unwrap()
    }
}
