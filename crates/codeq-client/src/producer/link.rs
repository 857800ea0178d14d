//! Opens a producer stream.

use codeq_proto::producer::producer_event::Event;
use codeq_proto::producer::producer_stream_client::ProducerStreamClient;
use codeq_proto::producer::{Hello, ProducerEvent, ServerEvent, server_event};
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::transport::Endpoint;

use crate::error::Error;
use crate::options::Options;
use crate::transport::{OUTBOUND, outbound};

/// A stream on which the hello has been acknowledged.
pub(super) struct Link {
    pub(super) out: mpsc::Sender<ProducerEvent>,
    pub(super) inbound: Streaming<ServerEvent>,
}

pub(super) async fn open(endpoint: Endpoint, options: Options) -> Result<Link, Error> {
    let greeted = tokio::time::timeout(options.connect_timeout, greet(&endpoint, &options)).await;
    greeted.unwrap_or_else(|_| {
        Err(Error::Unavailable("the server did not answer the hello in time".to_owned()))
    })
}

async fn greet(endpoint: &Endpoint, options: &Options) -> Result<Link, Error> {
    let channel = endpoint.connect().await.map_err(|error| Error::unavailable(&error))?;
    let (out, receiver) = mpsc::channel(OUTBOUND);
    let hello = Hello { token: options.token.clone() };
    let hello = ProducerEvent { event: Some(Event::Hello(hello)) };
    out.send(hello).await.map_err(|_| Error::Closed)?;
    let opened = ProducerStreamClient::new(channel).stream(outbound(receiver)).await;
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
