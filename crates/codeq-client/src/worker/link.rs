//! Opens a worker stream.

use codeq_proto::worker::worker_event::Event;
use codeq_proto::worker::worker_stream_client::WorkerStreamClient;
use codeq_proto::worker::{Hello, ServerEvent, WorkerEvent, server_event};
use tonic::transport::Endpoint;

use crate::error::Error;
use crate::options::Options;
use crate::transport;

/// Longest message with tasks: 2 MiB of payloads, one more of 16 MiB, and room for the other fields.
const ASSIGNED_BYTES_MAX: usize = 24 << 20;

pub(super) type Link = transport::Link<WorkerEvent, ServerEvent>;

pub(super) async fn open(
    endpoint: Endpoint,
    options: Options,
    worker_id: String,
) -> Result<Link, Error> {
    let hello = Hello { token: options.token.clone(), worker_id };
    let hello = WorkerEvent { event: Some(Event::Hello(hello)) };
    let stream = async move |channel, events| {
        let client = WorkerStreamClient::new(channel);
        client.max_decoding_message_size(ASSIGNED_BYTES_MAX).stream(events).await
    };
    let answered = |first: ServerEvent| match first.event? {
        server_event::Event::HelloAck(_) => Some(Ok(())),
        server_event::Event::Error(error) => Some(Err(Error::of_stream(error.code, error.message))),
        _ => None,
    };
    transport::open(&endpoint, &options, hello, stream, answered).await
}
