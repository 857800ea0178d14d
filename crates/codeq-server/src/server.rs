//! A running server: engine, service, listeners, and their end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use codeq_engine::OpenError;
use codeq_net::{TlsError, TlsFiles};
use codeq_webhooks::dns::{DnsResolver, Resolve};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::{App, Reloading};
use crate::artifacts::sweep::{self, Swept};
use crate::config::{Changes, Config, ConfigError};
use crate::grpc::Streams;
use listeners::Addresses;

mod background;
mod listeners;
mod observers;
mod start;
mod stop;

/// A running server.
pub struct Server {
    app: Arc<App>,
    addresses: Addresses,
    streams: Streams,
    /// No new claims wait, those that do are answered; probes say so.
    draining: watch::Sender<bool>,
    /// The listeners close.
    stopping: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    /// What is done in the background: webhooks are called, artifacts are cleared away.
    background: Vec<JoinHandle<()>>,
    tls: Option<TlsFiles>,
    ready_after: Duration,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration does not allow it.
    #[error("{0}")]
    Config(String),
    /// The data could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The certificate or its key is no good.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address is not to be had.
    #[error("cannot listen on {addr}")]
    Listen {
        /// Which address.
        addr: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Something else of the operating system's.
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
}

impl Server {
    /// Opens the data, binds the listeners and serves.
    pub async fn start(config: Config) -> Result<Server, StartError> {
        Server::start_with(config, Arc::new(DnsResolver::system())).await
    }

    /// The same, with the hosts of webhooks looked up in another way.
    pub async fn start_with(
        config: Config,
        resolve: Arc<dyn Resolve>,
    ) -> Result<Server, StartError> {
        Server::launch(config, resolve, Reloading::default()).await
    }

    /// The same as [`Server::start`], with a configuration that can be read again.
    pub async fn start_reloading(
        config: Config,
        reloading: Reloading,
    ) -> Result<Server, StartError> {
        Server::launch(config, Arc::new(DnsResolver::system()), reloading).await
    }

    /// Where HTTP is served.
    pub fn http_addr(&self) -> SocketAddr {
        self.addresses.http
    }

    /// Where producers' streams are served.
    pub fn producer_addr(&self) -> SocketAddr {
        self.addresses.producer
    }

    /// Where workers' streams are served.
    pub fn worker_addr(&self) -> SocketAddr {
        self.addresses.worker
    }

    /// Where metrics have a port of their own.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.addresses.metrics
    }

    /// How long the start took.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Reads the certificate and its key again now; otherwise that is done when the files change. A bad pair
    /// is refused and the one in use stays, which the log says.
    pub async fn reload_certificate(&self) -> Result<(), TlsError> {
        let Some(tls) = self.tls.clone() else { return Ok(()) };
        let done = tokio::task::spawn_blocking(move || tls.reload()).await.unwrap_or(Ok(()));
        done.inspect_err(|error| {
            tracing::warn!(target: "codeq::server", %error, "the certificate stays as it was");
        })
    }

    /// Reads the configuration again, and the certificate; says what is in force from now on and what needs a restart,
    /// and so does the log.
    pub async fn reload(&self) -> Result<Changes, ConfigError> {
        self.app.reload().await
    }

    /// Takes over what a running server can from another configuration.
    pub async fn reload_to(&self, config: &Config) -> Result<Changes, ConfigError> {
        self.app.take_over(config).await
    }

    /// Looks now for artifacts that no result names and that are older than this, and removes them; otherwise
    /// that is done at the start and every few hours, for those older than an hour.
    pub async fn sweep_artifacts(&self, older_than: Duration) -> Result<Swept, String> {
        let service = &self.app.service;
        sweep::sweep(&service.artifacts, service.engine(), older_than).await
    }

    /// Returns when the engine has stopped by itself, after a failed write, with the reason. What to do then
    /// is to end the process: nothing more will be written.
    pub async fn failed(&self) -> String {
        let reason = self.app.service.engine().failed().await.to_string();
        tracing::error!(target: "codeq::server", reason, "stopped after a failure");
        reason
    }
}
