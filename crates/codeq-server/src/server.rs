//! A running server: engine, service, listeners and shutdown.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use codeq_engine::{Engine, OpenError, Options};
use codeq_net::TlsError;
use codeq_webhooks::dns::{DnsResolver, Resolve};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::{App, ReloadInputs};
use crate::artifacts::sweep::{self, Swept};
use crate::config::{Changes, Config, ConfigError};
use crate::grpc::Streams;
use listeners::Addresses;

mod background;
mod listeners;
mod observers;
mod start;
mod stop;

/// A running server. Shut it down with [`Server::stop`].
pub struct Server {
    app: Arc<App>,
    addresses: Addresses,
    streams: Streams,
    /// Once true, streams and waits for results end, and the readiness probe fails. Waiting claims are answered by
    /// [`Engine::drain`].
    draining: watch::Sender<bool>,
    /// Once true, the listeners are closed.
    stopping: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
    /// Webhooks and artifact cleanup.
    background: Vec<JoinHandle<()>>,
    ready_after: Duration,
}

/// Opens a data directory.
pub type OpenEngine = fn(&Path, Options) -> Result<Engine, OpenError>;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// The data could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address could not be bound.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Another operating system error.
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
}

impl Server {
    /// Binds the listeners, opens the data and serves.
    pub async fn start(config: Config) -> Result<Server, StartError> {
        Server::start_with(config, Arc::new(DnsResolver::system())).await
    }

    /// Starts a server with a custom resolver for webhook hosts.
    pub async fn start_with(
        config: Config,
        resolve: Arc<dyn Resolve>,
    ) -> Result<Server, StartError> {
        Server::start_on(config, resolve, Engine::open).await
    }

    /// Starts a server with a custom resolver on an engine that is opened in another way, such as a member of a
    /// cluster.
    pub async fn start_on(
        config: Config,
        resolve: Arc<dyn Resolve>,
        open: OpenEngine,
    ) -> Result<Server, StartError> {
        Server::launch(config, resolve, ReloadInputs::default(), open).await
    }

    /// Starts a server whose configuration can be reloaded.
    pub async fn start_reloading(
        config: Config,
        inputs: ReloadInputs,
    ) -> Result<Server, StartError> {
        let resolve = Arc::new(DnsResolver::system());
        Server::launch(config, resolve, inputs, Engine::open).await
    }

    /// Address of the HTTP API.
    pub fn http_addr(&self) -> SocketAddr {
        self.addresses.http
    }

    /// Address of the producer stream.
    pub fn producer_addr(&self) -> SocketAddr {
        self.addresses.producer
    }

    /// Address of the worker stream.
    pub fn worker_addr(&self) -> SocketAddr {
        self.addresses.worker
    }

    /// Address of the separate metrics port, if configured.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.addresses.metrics
    }

    /// How long the start took.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// Reloads the configuration and the certificate. Returns, and logs, which changes are in force
    /// and which need a restart.
    pub async fn reload(&self) -> Result<Changes, ConfigError> {
        self.app.reload().await
    }

    /// Applies the reloadable settings of another configuration.
    pub async fn reload_to(&self, config: &Config) -> Result<Changes, ConfigError> {
        self.app.apply_config(config).await
    }

    /// Runs the sweep of artifacts now: removes those older than `older_than` that no result references.
    /// The server also does this at startup and every six hours, for artifacts older than an hour.
    pub async fn sweep_artifacts(&self, older_than: Duration) -> Result<Swept, String> {
        let service = &self.app.service;
        sweep::sweep(&service.artifacts, service.engine(), older_than).await
    }

    /// Completes, with the reason, when the engine has stopped after a failed write. Exit the
    /// process then: nothing more will be written.
    pub async fn failed(&self) -> String {
        let reason = self.app.service.engine().failed().await.to_string();
        tracing::error!(target: "codeq::server", reason, "stopped after a failure");
        reason
    }
}
