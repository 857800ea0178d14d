//! The stream driver. One thread, no task per message: messages are handled where they are decoded, and replies go into the
//! channel of their stream.

mod producer;
mod worker;

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinHandle;
use tonic::Streaming;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::{Channel, Endpoint};

use super::state::{Failure, RunState};
use producer::Producer;
use worker::Worker;

/// Flow-control windows of a connection and its streams, large enough never to limit a run.
const WINDOW: u32 = 4 << 20;
/// A batch of tasks may be larger than the library's usual 4 MiB.
const MESSAGE: usize = 64 << 20;
const CONNECT: Duration = Duration::from_secs(5);
/// How long results, credits and arrivals wait to form a batch.
const TICK: Duration = Duration::from_millis(1);

/// The addresses of the streams, and the token.
pub struct Addresses<'a> {
    pub producer: &'a str,
    pub worker: &'a str,
    pub token: &'a str,
}

/// The sessions of a run.
pub struct Streams {
    producers: Vec<Producer>,
    workers: Vec<Worker>,
    /// The producer to ask first: round robin.
    turn: usize,
}

/// Shared by the sessions, which are on one thread.
type Shared<T> = Rc<RefCell<T>>;

impl Streams {
    /// Opens all streams and spawns their handlers. The returned handlers end with the streams.
    pub async fn open(
        state: &Shared<RunState>,
        addresses: &Addresses<'_>,
    ) -> anyhow::Result<(Shared<Streams>, Vec<JoinHandle<()>>)> {
        let plan = state.borrow().plan.clone();
        let (mut acks, mut tasks) = (Vec::new(), Vec::new());
        let (mut producers, mut workers) = (Vec::new(), Vec::new());
        for _ in 0..plan.producers {
            let (producer, incoming) = Producer::open(addresses.producer, addresses.token).await?;
            producers.push(producer);
            acks.push(incoming);
        }
        for number in 0..plan.workers {
            let (address, token) = (addresses.worker, addresses.token);
            let (worker, incoming) = Worker::open(address, token, number, &plan).await?;
            workers.push(worker);
            tasks.push(incoming);
        }
        let streams = Rc::new(RefCell::new(Streams { producers, workers, turn: 0 }));
        let mut running = Vec::new();
        for (at, incoming) in acks.into_iter().enumerate() {
            running.push(receive(state, &streams, incoming, move |streams, state, event| {
                streams.producers.get_mut(at).map_or(Ok(()), |it| it.handle(state, event))
            }));
        }
        for (at, incoming) in tasks.into_iter().enumerate() {
            running.push(receive(state, &streams, incoming, move |streams, state, event| {
                streams.workers.get_mut(at).map_or(Ok(()), |it| it.handle(state, event))
            }));
        }
        let batches = plan.ready_batch.max(plan.result_batch) > 1;
        if plan.rate.is_some() || batches {
            tokio::task::spawn_local(tick(Rc::clone(state), Rc::clone(&streams)));
        }
        Ok((streams, running))
    }

    /// Creates as many tasks as allowed.
    pub fn fill(&mut self, state: &mut RunState) {
        let count = self.producers.len().max(1);
        let mut idle = 0;
        while idle < count {
            let producer = self.producers.get_mut(self.turn);
            let sent = producer.is_some_and(|producer| producer.create(state));
            self.turn = (self.turn + 1) % count;
            idle = if sent { 0 } else { idle + 1 };
        }
    }

    /// Ends the streams after the queued messages.
    pub fn close(&mut self) {
        self.producers.clear();
        self.workers.clear();
    }
}

/// Handles the messages of a stream until it ends.
fn receive<T: 'static>(
    state: &Shared<RunState>,
    streams: &Shared<Streams>,
    mut incoming: Streaming<T>,
    handle: impl Fn(&mut Streams, &mut RunState, T) -> Result<(), Failure> + Unpin + 'static,
) -> JoinHandle<()> {
    let (state, streams) = (Rc::clone(state), Rc::clone(streams));
    tokio::task::spawn_local(poll_fn(move |context| {
        let (state, streams) = (&mut *state.borrow_mut(), &mut *streams.borrow_mut());
        let failure = loop {
            let handled = match Pin::new(&mut incoming).poll_next(context) {
                Poll::Ready(Some(Ok(event))) => handle(streams, state, event),
                Poll::Ready(Some(Err(status))) => Err(Failure::Away(describe(&status))),
                Poll::Ready(None) => Err(Failure::Away("it ended a stream".to_owned())),
                Poll::Pending => break None,
            };
            if let Err(failure) = handled {
                break Some(failure);
            }
        };
        let ended = failure.is_some();
        failure.into_iter().for_each(|failure| state.fail(failure));
        // Once per batch of received messages.
        streams.fill(state);
        state.settle();
        if ended { Poll::Ready(()) } else { Poll::Pending }
    }))
}

async fn tick(state: Shared<RunState>, streams: Shared<Streams>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let (state, streams) = (&mut *state.borrow_mut(), &mut *streams.borrow_mut());
        streams.workers.iter_mut().for_each(Worker::flush);
        streams.fill(state);
    }
}

async fn connect(address: &str, what: &str) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .with_context(|| format!("{address} is not an address"))?
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    let channel = endpoint.connect().await;
    channel.with_context(|| format!("cannot reach the {what} stream at {address}"))
}

/// The first message of a stream, with a timeout.
async fn greeting<T>(incoming: &mut Streaming<T>, what: &str) -> anyhow::Result<T> {
    let first = tokio::time::timeout(CONNECT, incoming.message()).await;
    let first = first.with_context(|| format!("no answer to the hello of the {what} stream"))?;
    let first = first.map_err(|status| anyhow::anyhow!(describe(&status)));
    let first = first.with_context(|| format!("the {what} stream was refused"))?;
    first.with_context(|| format!("the {what} stream ended before its first answer"))
}

/// A readable form of a status.
fn describe(status: &tonic::Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}
