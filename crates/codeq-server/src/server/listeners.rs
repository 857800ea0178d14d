//! The ports: bound before the data is opened, served when everything is there.

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

/// Connections that the system holds for us until they are accepted: a fleet of workers comes back at once.
const BACKLOG: u32 = 4_096;

/// Where a server listens.
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

/// Bound, and not served yet.
pub(super) struct Listeners {
    http: TcpListener,
    producer: TcpListener,
    /// None: producers and workers share a port.
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

    /// Serves each in a task of its own until `stop` turns true.
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

/// What clients of the public ports may take.
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

/// Whoever knows the development token may be a web page that leads a browser here under a name of its own. Other tokens
/// are nothing that such a page has.
fn hosts(config: &Config) -> Hosts {
    if !config.has_dev_token() {
        return Hosts::default();
    }
    let public = config.public_url.as_deref().and_then(|url| url::Url::parse(url).ok());
    let public = public.and_then(|url| url.host_str().map(str::to_ascii_lowercase));
    Hosts::local([config.http_addr.ip().to_string()].into_iter().chain(public))
}
