//! Opens a worker stream.

use codeq_proto::worker::worker_event::Event;
use codeq_proto::worker::worker_stream_client::WorkerStreamClient;
use codeq_proto::worker::{Hello, ServerEvent, WorkerEvent, server_event};
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::error::Error;
use crate::options::Options;
use crate::transport::{OUTBOUND, outbound};

/// Longest message with tasks: 2 MiB of payloads, plus one of the largest possible.
const ASSIGNED_BYTES_MAX: usize = 24 << 20;

/// A stream on which the hello has been acknowledged.
pub(super) struct Link {
    pub(super) out: mpsc::Sender<WorkerEvent>,
    pub(super) inbound: Streaming<ServerEvent>,
}

pub(super) async fn open(
    endpoint: Endpoint,
    options: Options,
    worker_id: String,
) -> Result<Link, Error> {
    let greeting = greet(&endpoint, &options, worker_id);
    let greeted = tokio::time::timeout(options.connect_timeout, greeting).await;
    greeted.unwrap_or_else(|_| {
        Err(Error::Unavailable("the server did not answer the hello in time".to_owned()))
    })
}

async fn greet(endpoint: &Endpoint, options: &Options, worker_id: String) -> Result<Link, Error> {
    let channel = endpoint.connect().await.map_err(|error| Error::unavailable(&error))?;
    let (out, receiver) = mpsc::channel(OUTBOUND);
    let hello = Hello { token: options.token.clone(), worker_id };
    let hello = WorkerEvent { event: Some(Event::Hello(hello)) };
    out.send(hello).await.map_err(|_| Error::Closed)?;
    let mut client = WorkerStreamClient::new(channel).max_decoding_message_size(ASSIGNED_BYTES_MAX);
    let opened = client.stream(outbound(receiver)).await;
    let mut inbound = opened.map_err(|status| Error::of_status(&status))?.into_inner();
    match inbound.message().await.map_err(|status| Error::of_status(&status))? {
        Some(ServerEvent { event: Some(server_event::Event::HelloAck(_)) }) => {
            Ok(Link { out, inbound })
        }
        Some(ServerEvent { event: Some(server_event::Event::Error(error)) }) => {
            Err(Error::of_stream(error.code, error.message))
        }
        _ => Err(Error::Unavailable(
            "the server ended the stream before answering the hello".to_owned(),
        )),
    }
}
