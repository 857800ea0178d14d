//! The gRPC channels below the streams.

use futures_util::Stream;
use tokio::sync::mpsc;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::error::Error;
use crate::options::{self, Options};

/// Messages buffered for the connection; each stream has its own, more relevant limit.
pub(crate) const OUTBOUND: usize = 64;

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
    // A container without system certificates is fine if it was given one.
    let both = plain.clone().tls_config(own.clone().with_native_roots());
    both.or_else(|_| plain.tls_config(own)).map_err(config)
}

/// Turns a channel into the outgoing half of a stream; dropping the sender half-closes the stream.
pub(crate) fn outbound<T: Send + 'static>(
    receiver: mpsc::Receiver<T>,
) -> impl Stream<Item = T> + Send + 'static {
    futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|message| (message, receiver))
    })
}
