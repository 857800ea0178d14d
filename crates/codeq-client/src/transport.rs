//! The gRPC channels below the streams.

use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Response, Status, Streaming};

use crate::error::Error;
use crate::options::{self, Options};

/// Messages buffered for the connection. The drivers limit what is in flight: by `max_in_flight` or by credits.
const OUTBOUND: usize = 64;

/// Prepares an address for connecting.
pub(crate) fn endpoint(address: &str, options: &Options) -> Result<Endpoint, Error> {
    let url = options::parse(address)?;
    let config = |error: tonic::transport::Error| match Error::unavailable(&error) {
        Error::Unavailable(text) => Error::Config(text),
        other => other,
    };
    let plain = Endpoint::from_shared(url.to_string())
        .and_then(|endpoint| {
            endpoint.user_agent(concat!("codeq-client/", env!("CARGO_PKG_VERSION")))
        })
        .map_err(config)?
        .connect_timeout(options.connect_timeout)
        .http2_keep_alive_interval(options.keep_alive)
        .keep_alive_timeout(options.keep_alive)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    if url.scheme() != "https" {
        return Ok(plain);
    }
    let Some(pem) = &options.ca_pem else {
        return plain.tls_config(ClientTlsConfig::new().with_native_roots()).map_err(config);
    };
    let own = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    // In a container without system certificates, the given one is enough.
    let both = plain.clone().tls_config(own.clone().with_native_roots());
    both.or_else(|_| plain.tls_config(own)).map_err(config)
}

/// A stream on which the hello has been acknowledged. Dropping `out` half-closes it.
pub(crate) struct Link<Out, In> {
    pub(crate) out: mpsc::Sender<Out>,
    pub(crate) inbound: Streaming<In>,
}

/// Opens a stream and says hello. `answered` reads the server's first message, and returns `None` if that does not
/// answer a hello.
pub(crate) async fn open<Out, In, Opening>(
    endpoint: &Endpoint,
    options: &Options,
    hello: Out,
    stream: impl FnOnce(Channel, ReceiverStream<Out>) -> Opening,
    answered: fn(In) -> Option<Result<(), Error>>,
) -> Result<Link<Out, In>, Error>
where
    Opening: Future<Output = Result<Response<Streaming<In>>, Status>>,
{
    let of_status = |status: Status| Error::of_status(&status);
    let unavailable = |text: &str| Err(Error::Unavailable(text.to_owned()));
    let greeting = async {
        let channel = endpoint.connect().await.map_err(|error| Error::unavailable(&error))?;
        let (out, receiver) = mpsc::channel(OUTBOUND);
        out.send(hello).await.map_err(|_| Error::Closed)?;
        let opened = stream(channel, ReceiverStream::new(receiver)).await;
        let mut inbound = opened.map_err(of_status)?.into_inner();
        match inbound.message().await.map_err(of_status)?.and_then(answered) {
            Some(answer) => answer.map(|()| Link { out, inbound }),
            None => unavailable("the server ended the stream before answering the hello"),
        }
    };
    let greeted = tokio::time::timeout(options.connect_timeout, greeting).await;
    greeted.unwrap_or_else(|_| unavailable("the server did not answer the hello in time"))
}

/// Why a stream is over.
pub(crate) fn stream_error<In>(last: Result<Option<In>, Status>) -> Error {
    match last {
        Err(status) => Error::of_status(&status),
        Ok(_) => Error::Unavailable("the stream ended".to_owned()),
    }
}
