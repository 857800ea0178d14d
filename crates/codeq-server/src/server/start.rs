//! Startup, in dependency order.

use codeq_core::id::ShardId;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use codeq_auth::Authenticator;
use codeq_engine::{Engine, OpenError, SharedObserver};
use codeq_net::{NetStats, TlsFiles};
use codeq_webhooks::dns::Resolve;
use tokio::sync::watch;

use super::listeners::{Listeners, limits};
use super::observers::Observers;
use super::{OpenEngine, Server, StartError, background};
use crate::app::{App, ReloadInputs, ReloadState, RequestOptions, budget};
use crate::artifacts::Artifacts;
use crate::backup;
use crate::config::Config;
use crate::descriptors::Descriptors;
use crate::grpc::Streams;
use crate::limits::RateLimiter;
use crate::observe::Metrics;
use crate::service::Service;
use crate::times::Times;

impl Server {
    pub(super) async fn launch(
        config: Config,
        resolve: Arc<dyn Resolve>,
        inputs: ReloadInputs,
        open_engine: OpenEngine,
    ) -> Result<Server, StartError> {
        let start = Instant::now();
        if let Some(problem) = config.check().first() {
            return Err(StartError::Config(problem.to_string()));
        }
        let auth = Authenticator::new(&config.auth_settings()).map_err(StartError::Config)?;
        let times = times(&config)?;
        let tls = certificate(&config)?;
        // Bind before opening the data, so that a second server started by mistake touches nothing.
        let listeners = Listeners::bind(&config)?;
        let addresses = listeners.addresses()?;
        let metrics = Metrics::new();
        metrics.measure_disk(&config.data_dir);
        let artifacts = artifacts(&config, addresses.http, &metrics)?;
        check_backup_target(&config)?;
        let (observers, removed) = Observers::new(&metrics);
        let observers = Arc::new(observers);
        // Queues that get work are recorded from here on: until the subscriptions are read, it is
        // not known whether there are any.
        let listening = observers.work_available.listen();
        let engine = open(&config, &observers, open_engine).await?;

        let (draining, is_draining) = watch::channel(false);
        let (stopping, stop) = watch::channel(false);
        let (events, work_available) =
            (Arc::clone(&observers.events), Arc::clone(&observers.work_available));
        let app = Arc::new(App {
            service: Service::new(engine, events, artifacts, work_available, &config, is_draining),
            auth,
            limiter: RateLimiter::new(&config.rate_limit),
            budget: budget(&config),
            metrics,
            net: Arc::new(NetStats::default()),
            times,
            request_options: RequestOptions::new(&config),
            reload_state: ReloadState::new(inputs, tls.clone(), config.clone()),
        });

        tokio::spawn(app.auth.warm());
        let descriptors = descriptors(&app, &config);
        let streams = Streams::new(Arc::clone(&app), config.grpc.reflection).await;
        let limits = limits(&config, descriptors.connections);
        let grace = Duration::from_secs(config.shutdown_grace_seconds);
        let listeners = listeners.serve(&app, &streams, tls.as_ref(), &limits, grace, &stop);
        let client = background::client(&app, &config, addresses.all(), &descriptors, resolve);
        let callbacks = Arc::clone(&observers.callbacks_due);
        let background =
            background::start(&app, &config, client, callbacks, removed, &stop).await?;
        drop(listening);
        let ready_after = start.elapsed();
        Ok(Server {
            app,
            addresses,
            streams,
            draining,
            stopping,
            listeners,
            background,
            ready_after,
        })
    }
}

fn times(config: &Config) -> Result<Times, StartError> {
    let unknown = || StartError::Config(format!("unknown timezone '{}'", config.timezone));
    Times::new(&config.timezone).ok_or_else(unknown)
}

fn certificate(config: &Config) -> Result<Option<TlsFiles>, StartError> {
    match (&config.tls.cert_file, &config.tls.key_file) {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles::load(cert, key)?)),
        _ => Ok(None),
    }
}

fn artifacts(
    config: &Config,
    http_addr: SocketAddr,
    metrics: &Arc<Metrics>,
) -> Result<Arc<Artifacts>, StartError> {
    let opened = Artifacts::open(config, config.public_url(http_addr), Arc::clone(metrics));
    let unusable = |why| StartError::Config(format!("artifacts.url cannot be used: {why}"));
    opened.map(Arc::new).map_err(unusable)
}

fn check_backup_target(config: &Config) -> Result<(), StartError> {
    let Some(target) = config.backup.target.as_deref() else { return Ok(()) };
    let unusable = |why| StartError::Config(format!("backup.target cannot be used: {why}"));
    backup::check_target(target).map_err(unusable)
}

/// Opens the data. Event numbering continues where it stopped.
async fn open(
    config: &Config,
    observers: &Arc<Observers>,
    open_engine: OpenEngine,
) -> Result<Arc<Engine>, StartError> {
    let mut options = config.engine_options();
    options.observer = SharedObserver(Some(Arc::clone(observers) as _));
    let dir = config.data_dir.clone();
    let engine = tokio::task::spawn_blocking(move || open_engine(&dir, options)).await;
    let engine = Arc::new(engine.map_err(std::io::Error::other)??);
    for rebuilt in engine.rebuilt() {
        tracing::warn!(target: "codeq::server", "{rebuilt}");
    }
    for shard in ShardId::all(engine.shards()) {
        let next = engine.read(shard, |reader| Ok(reader.state.meta().transitions)).await;
        observers.events.start_at(shard, next.map_err(OpenError::from)?);
    }
    observers.events.limit_to(engine.shards());
    Ok(engine)
}

fn descriptors(app: &App, config: &Config) -> Descriptors {
    let descriptors = Descriptors::now(config, app.service.engine().shards());
    if let Some(warning) = descriptors.warning(config) {
        tracing::warn!(target: "codeq::server", "{warning}");
    }
    descriptors
}
