//! Opens a producer stream.

use codeq_proto::producer::producer_event::Event;
use codeq_proto::producer::producer_stream_client::ProducerStreamClient;
use codeq_proto::producer::{Hello, ProducerEvent, ServerEvent, server_event};
use tonic::transport::Endpoint;

use crate::error::Error;
use crate::options::Options;
use crate::transport;

pub(super) type Link = transport::Link<ProducerEvent, ServerEvent>;

pub(super) async fn open(endpoint: Endpoint, options: Options) -> Result<Link, Error> {
    let hello = Hello { token: options.token.clone() };
    let hello = ProducerEvent { event: Some(Event::Hello(hello)) };
    let stream =
        async move |channel, events| ProducerStreamClient::new(channel).stream(events).await;
    let answered = |first: ServerEvent| match first.event? {
        server_event::Event::HelloAck(_) => Some(Ok(())),
        server_event::Event::Error(error) => Some(Err(Error::of_stream(error.code, error.message))),
        _ => None,
    };
    transport::open(&endpoint, &options, hello, stream, answered).await
}
