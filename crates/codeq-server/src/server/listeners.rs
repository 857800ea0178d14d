//! The listeners: bound before the data is opened, served once the service is built; webhooks and artifact cleanup start
//! right after.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use codeq_net::{Hosts, NetLimits, NetStats, TlsFiles};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::StartError;
use crate::app::App;
use crate::config::Config;
use crate::descriptors::METRICS_CONNECTIONS;
use crate::grpc::Streams;
use crate::http::{metrics_router, router};

/// Accept backlog: after a restart, all workers reconnect at once.
const BACKLOG: u32 = 4_096;

/// The bound addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    pub(super) http: SocketAddr,
    pub(super) producer: SocketAddr,
    pub(super) worker: SocketAddr,
    pub(super) metrics: Option<SocketAddr>,
}

impl Addresses {
    pub(super) fn all(&self) -> Vec<SocketAddr> {
        [self.http, self.producer, self.worker].into_iter().chain(self.metrics).collect()
    }
}

/// Listeners that are bound but not served yet.
pub(super) struct Listeners {
    http: TcpListener,
    producer: TcpListener,
    /// `None` if producers and workers share a port.
    worker: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

impl Listeners {
    pub(super) fn bind(config: &Config) -> Result<Listeners, StartError> {
        let (producer, worker) = config.stream_addrs();
        let shared = producer == worker && producer.port() != 0;
        Ok(Listeners {
            http: bind(config.http_addr)?,
            producer: bind(producer)?,
            worker: (!shared).then(|| bind(worker)).transpose()?,
            metrics: config.metrics.addr.map(bind).transpose()?,
        })
    }

    pub(super) fn addresses(&self) -> Result<Addresses, StartError> {
        Ok(Addresses {
            http: self.http.local_addr()?,
            producer: self.producer.local_addr()?,
            worker: self.worker.as_ref().unwrap_or(&self.producer).local_addr()?,
            metrics: self.metrics.as_ref().map(TcpListener::local_addr).transpose()?,
        })
    }

    /// Serves each listener in its own task until `stop` turns true.
    pub(super) fn serve(
        self,
        app: &Arc<App>,
        streams: &Streams,
        tls: Option<&TlsFiles>,
        limits: &NetLimits,
        grace: Duration,
        stop: &watch::Receiver<bool>,
    ) -> Vec<JoinHandle<()>> {
        let serve = |listener, router, tls: Option<&TlsFiles>, limits: &NetLimits, stats| {
            let (tls, limits, stop) = (tls.cloned(), limits.clone(), stop.clone());
            tokio::spawn(codeq_net::serve(listener, router, tls, limits, stats, stop, grace))
        };
        let public = |listener, router| serve(listener, router, tls, limits, Arc::clone(&app.net));
        let mut tasks = vec![public(self.http, router(Arc::clone(app)))];
        for listener in [Some(self.producer), self.worker].into_iter().flatten() {
            tasks.push(public(listener, streams.router()));
        }
        if let Some(listener) = self.metrics {
            let router = metrics_router(Arc::clone(app));
            let alone = NetLimits { max_connections: METRICS_CONNECTIONS, ..limits.clone() };
            tasks.push(serve(listener, router, None, &alone, Arc::new(NetStats::default())));
        }
        tasks
    }
}

/// Limits for clients of the public ports.
pub(super) fn limits(config: &Config, max_connections: usize) -> NetLimits {
    NetLimits {
        max_connections,
        header_timeout: Duration::from_secs(config.http.header_timeout_seconds),
        idle_timeout: Duration::from_secs(config.http.idle_timeout_seconds),
        hosts: hosts(config),
    }
}

fn bind(addr: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = || {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        socket.listen(BACKLOG)
    };
    bound().map_err(|source| StartError::Listen { addr, source })
}

/// Guards the well-known development token against DNS rebinding: a web page could send a browser
/// here under the page's own host name. Other tokens are unknown to such a page, so any host is
/// fine.
fn hosts(config: &Config) -> Hosts {
    if !config.has_dev_token() {
        return Hosts::default();
    }
    let public = config.public_url.as_deref().and_then(|url| url::Url::parse(url).ok());
    let public = public.and_then(|url| url.host_str().map(str::to_owned));
    let (producer, worker) = config.stream_addrs();
    let own = [config.http_addr, producer, worker].map(|addr| addr.ip().to_string());
    Hosts::local(own.into_iter().chain(public))
}
