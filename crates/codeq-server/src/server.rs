//! A running server: engine, service, listeners, and their end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use codeq_core::effect::Effect;
use codeq_engine::{Engine, EngineError, Observer, OpenError, SharedObserver};
use codeq_webhooks::availability::WorkAvailable;
use codeq_webhooks::client::{self, Client};
use codeq_webhooks::dns::{DnsResolver, Resolve};
use codeq_webhooks::results::CallbacksDue;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::artifacts::Artifacts;
use crate::artifacts::keeper::{self, Leavings};
use crate::artifacts::sweep::{self, Swept};
use crate::auth::Authenticator;
use crate::backup;
use crate::config::{Changes, Config, ConfigError};
use crate::descriptors::{Descriptors, METRICS_CONNECTIONS};
use crate::events::EventBus;
use crate::grpc::Streams;
use crate::http::wire::Times;
use crate::http::{App, Edge, budget, metrics_router, router};
use crate::limits::RateLimiter;
use crate::net::{self, Hosts, NetLimits, NetStats, TlsError, TlsFiles};
use crate::observe::Metrics;
use crate::reload::{Reloader, Reloading};
use crate::service::Service;
use crate::webhooks;

/// A running server.
pub struct Server {
    app: Arc<App>,
    http_addr: SocketAddr,
    producer_addr: SocketAddr,
    worker_addr: SocketAddr,
    metrics_addr: Option<SocketAddr>,
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

/// Everybody who wants to know what the engine did.
struct Observers {
    events: Arc<EventBus>,
    metrics: Arc<Metrics>,
    callbacks_due: Arc<CallbacksDue>,
    leavings: Leavings,
    work_available: Arc<WorkAvailable>,
}

impl Observer for Observers {
    fn committed(&self, shard: u16, effects: &[Effect]) {
        self.metrics.committed(shard, effects);
        self.events.committed(shard, effects);
        self.callbacks_due.committed(shard, effects);
        self.leavings.committed(shard, effects);
        self.work_available.committed(shard, effects);
    }

    fn recovered(&self, shard: u16, effects: &[Effect]) {
        self.metrics.recovered(shard, effects);
        self.events.recovered(shard, effects);
    }

    fn synced(&self, took: Duration, commands: usize) {
        self.metrics.synced(took, commands);
    }

    fn short(&self, why: Option<&str>) {
        match why {
            Some(why) => {
                tracing::warn!(target: "codeq::engine", why, "the log or a checkpoint waits")
            }
            None => tracing::info!(target: "codeq::engine", "the log or a checkpoint goes on"),
        }
    }

    fn refusing(&self, why: Option<&EngineError>) {
        match why {
            Some(why) => tracing::error!(target: "codeq::engine", %why, "writes are refused"),
            None => tracing::warn!(target: "codeq::engine", "writes are taken again"),
        }
    }

    fn checkpointed(&self, took: Duration, done: bool) {
        self.metrics.checkpointed(took, done);
    }

    fn scrubbed(&self, bytes: u64, took: Duration) {
        let took_ms = took.as_micros() as f64 / 1_000.0;
        tracing::info!(target: "codeq::engine", bytes, took_ms, "every row of the stores was verified");
    }
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

    async fn launch(
        config: Config,
        resolve: Arc<dyn Resolve>,
        reloading: Reloading,
    ) -> Result<Server, StartError> {
        let start = Instant::now();
        if let Some(problem) = config.check().first() {
            return Err(StartError::Config(problem.to_string()));
        }
        let auth = Authenticator::new(&config).map_err(StartError::Config)?;
        let unknown = || StartError::Config(format!("unknown timezone '{}'", config.timezone));
        let times = Times::new(&config.timezone).ok_or_else(unknown)?;
        let tls = match (&config.tls.cert_file, &config.tls.key_file) {
            (Some(cert), Some(key)) => Some(TlsFiles::load(cert, key)?),
            _ => None,
        };
        // The addresses before the data: a second server by mistake touches nothing.
        let listener = bind(config.http_addr)?;
        let http_addr = listener.local_addr()?;
        let (producer_addr, worker_addr) = config.stream_addrs();
        let mut stream_listeners = vec![bind(producer_addr)?];
        if producer_addr != worker_addr || producer_addr.port() == 0 {
            stream_listeners.push(bind(worker_addr)?);
        }
        let producer_addr =
            stream_listeners.first().map_or(Ok(producer_addr), TcpListener::local_addr)?;
        let worker_addr =
            stream_listeners.last().map_or(Ok(worker_addr), TcpListener::local_addr)?;
        let metrics_listener = match config.metrics.addr {
            Some(addr) => Some(bind(addr)?),
            None => None,
        };
        let metrics = Metrics::new();
        let public = config.public_url(http_addr);
        let artifacts = Artifacts::open(&config, public, Arc::clone(&metrics));
        let artifacts = artifacts
            .map_err(|why| StartError::Config(format!("artifacts.url cannot be used: {why}")))?;
        let artifacts = Arc::new(artifacts);
        if let Some(Err(why)) = config.backup.target.as_deref().map(backup::check_target) {
            return Err(StartError::Config(format!("backup.target cannot be used: {why}")));
        }
        let (leavings, heard) = Leavings::new();
        let events = EventBus::new(codeq_engine::options::SHARDS_MAX);
        let callbacks_due = Arc::new(CallbacksDue::default());
        let work_available = Arc::new(WorkAvailable::default());
        // There may be subscriptions, until they have been read.
        let listening = work_available.listen();
        let observers = Observers {
            events: Arc::clone(&events),
            metrics: Arc::clone(&metrics),
            callbacks_due: Arc::clone(&callbacks_due),
            leavings,
            work_available: Arc::clone(&work_available),
        };
        let engine = open(&config, &events, observers).await?;
        let (draining, drained) = watch::channel(false);
        let (stopping, stop) = watch::channel(false);
        let keeper = {
            let (artifacts, engine) = (Arc::clone(&artifacts), Arc::clone(&engine));
            tokio::spawn(keeper::run(artifacts, engine, heard, stop.clone()))
        };
        let app = Arc::new(App {
            service: Service::new(engine, events, artifacts, work_available, &config, drained),
            auth,
            limiter: RateLimiter::new(&config.rate_limit),
            budget: budget(&config),
            metrics,
            net: Arc::new(NetStats::default()),
            times,
            edge: Edge::new(&config),
            reloader: Reloader::new(reloading, tls.clone(), config.clone()),
        });
        let descriptors = Descriptors::now(&config, app.service.engine.shards());
        if let Some(note) = descriptors.note(&config) {
            tracing::warn!(target: "codeq::server", "{note}");
        }
        let limits = NetLimits {
            max_connections: descriptors.connections,
            header_timeout: Duration::from_secs(config.http.header_timeout_seconds),
            idle_timeout: Duration::from_secs(config.http.idle_timeout_seconds),
            hosts: hosts(&config),
        };
        let grace = Duration::from_secs(config.shutdown_grace_seconds);
        let alone = NetLimits { max_connections: METRICS_CONNECTIONS, ..limits.clone() };
        let serve = |listener, app, tls, limits: &NetLimits, stats| {
            tokio::spawn(net::serve(listener, app, tls, limits.clone(), stats, stop.clone(), grace))
        };
        let mut listeners = Vec::new();
        let mut metrics_addr = None;
        if let Some(listener) = metrics_listener {
            metrics_addr = Some(listener.local_addr()?);
            let router = metrics_router(Arc::clone(&app));
            listeners.push(serve(listener, router, None, &alone, Arc::new(NetStats::default())));
        }
        let net = Arc::clone(&app.net);
        listeners.push(serve(listener, router(Arc::clone(&app)), tls.clone(), &limits, net));
        let streams = Streams::new(Arc::clone(&app), config.grpc.reflection).await;
        for listener in stream_listeners {
            let net = Arc::clone(&app.net);
            listeners.push(serve(listener, streams.router(), tls.clone(), &limits, net));
        }
        let mut own = vec![http_addr, producer_addr, worker_addr];
        own.extend(metrics_addr);
        let options = client::Options {
            own,
            connections: descriptors.calls,
            lookups: descriptors.lookups,
            per_address: config.webhooks.call_limits().per_host(),
            ..client::Options::default()
        };
        let client = Client::new(Arc::clone(&app.service.destinations), resolve, options);
        let mut background = vec![keeper];
        let webhooks = webhooks::start(&app, &config, client, callbacks_due, &stop).await;
        background.extend(webhooks.map_err(OpenError::from)?);
        drop(listening);
        let ready_after = start.elapsed();
        Ok(Server {
            app,
            http_addr,
            producer_addr,
            worker_addr,
            metrics_addr,
            streams,
            draining,
            stopping,
            listeners,
            background,
            tls,
            ready_after,
        })
    }

    /// Where HTTP is served.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// Where producers' streams are served.
    pub fn producer_addr(&self) -> SocketAddr {
        self.producer_addr
    }

    /// Where workers' streams are served.
    pub fn worker_addr(&self) -> SocketAddr {
        self.worker_addr
    }

    /// Where metrics have a port of their own.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics_addr
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
        let Service { artifacts, engine, .. } = &self.app.service;
        sweep::sweep(artifacts, engine, older_than).await
    }

    /// Returns when the engine has stopped by itself, after a failed write, with the reason. What to do then
    /// is to end the process: nothing more will be written.
    pub async fn failed(&self) -> String {
        let reason = self.app.service.engine.failed().await.to_string();
        tracing::error!(target: "codeq::server", reason, "stopped after a failure");
        reason
    }

    /// Drains and stops: not ready any more, no new claims, those that wait are answered, requests in flight
    /// finish, a checkpoint is left.
    pub async fn stop(self) {
        self.stop_because("asked to").await;
    }

    /// The same, with the reason for the log.
    pub async fn stop_because(self, why: &str) {
        let start = Instant::now();
        tracing::info!(target: "codeq::server", why, "draining");
        self.drain().await;
        let took_ms = start.elapsed().as_micros() as f64 / 1_000.0;
        tracing::info!(target: "codeq::server", took_ms, "stopped");
    }

    async fn drain(self) {
        let Server { app, draining, stopping, listeners, background, streams, .. } = self;
        draining.send_replace(true);
        streams.stop().await;
        drop(streams);
        app.service.engine.drain();
        stopping.send_replace(true);
        for task in listeners.into_iter().chain(background) {
            if let Err(error) = task.await {
                tracing::error!(target: "codeq::server", %error, "a task ended badly");
            }
        }
        let engine = Arc::clone(&app.service.engine);
        drop(app);
        // Ends threads and writes a checkpoint: not a thing to do on a thread of the runtime.
        let closed = tokio::task::spawn_blocking(move || engine.shutdown()).await;
        if let Err(error) = closed {
            tracing::error!(target: "codeq::server", %error, "the engine did not close");
        }
    }
}

/// Connections that the system holds for us until they are accepted: a fleet of workers comes back at once.
const BACKLOG: u32 = 4_096;

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

async fn open(
    config: &Config,
    events: &EventBus,
    observers: Observers,
) -> Result<Arc<Engine>, StartError> {
    let mut options = config.engine_options();
    options.observer = SharedObserver(Some(Arc::new(observers)));
    let dir = config.data_dir.clone();
    let engine = tokio::task::spawn_blocking(move || Engine::open(&dir, options)).await;
    let engine = Arc::new(engine.map_err(std::io::Error::other)??);
    for rebuilt in engine.rebuilt() {
        tracing::warn!(target: "codeq::server", "{rebuilt}");
    }
    for shard in 0..engine.shards() {
        let next = engine.read(shard, |reader| Ok(reader.state.meta().moves)).await;
        events.resume(shard, next.map_err(OpenError::from)?);
    }
    events.limit_to(engine.shards());
    Ok(engine)
}
