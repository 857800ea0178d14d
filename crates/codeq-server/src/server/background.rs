//! What runs beside the requests: artifacts are cleared away, webhooks are called.

use std::net::SocketAddr;
use std::sync::Arc;

use codeq_engine::OpenError;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::StartError;
use crate::app::App;
use crate::artifacts::keeper::{self, Heard};
use crate::config::Config;
use crate::descriptors::Descriptors;
use crate::push::client::{self, Client};
use crate::push::notify::{CLAIM_PATH, Notifier};
use crate::push::outbox::{Announced, Courier, LARGE_AT_ONCE, Outbox, per_host};
use crate::push::resolve::Resolve;
use crate::service::Service;

/// Starts it all, each in a task of its own that ends when `stop` turns true.
pub(super) async fn start(
    app: &App,
    config: &Config,
    client: Client,
    callbacks: Arc<Announced>,
    heard: Heard,
    stop: &watch::Receiver<bool>,
) -> Result<Vec<JoinHandle<()>>, StartError> {
    let Service { artifacts, engine, .. } = &app.service;
    let keeper = keeper::run(Arc::clone(artifacts), Arc::clone(engine), heard, stop.clone());
    let notifier = notifier(app, client.clone(), config).await?;
    let outbox = Outbox::new(courier(app, client, config), callbacks, &config.webhooks);
    Ok(vec![
        tokio::spawn(keeper),
        tokio::spawn(notifier.run(stop.clone())),
        tokio::spawn(outbox.run(stop.clone())),
    ])
}

/// The client of all calls. It never calls this server.
pub(super) fn client(
    app: &App,
    config: &Config,
    own: Vec<SocketAddr>,
    descriptors: &Descriptors,
    resolve: Arc<dyn Resolve>,
) -> Client {
    let options = client::Options {
        own,
        connections: descriptors.calls,
        lookups: descriptors.lookups,
        per_address: per_host(&config.webhooks),
        ..client::Options::default()
    };
    Client::new(Arc::clone(&app.service.destinations), resolve, options)
}

fn courier(app: &App, client: Client, config: &Config) -> Courier {
    Courier {
        engine: Arc::clone(&app.service.engine),
        client,
        policy: Arc::clone(&app.service.destinations),
        secrets: Arc::clone(&app.service.secrets),
        metrics: Arc::clone(&app.metrics),
        times: app.times.clone(),
        attempts_max: config.result_webhook_max_attempts,
        large: Semaphore::new(LARGE_AT_ONCE),
    }
}

/// What tells workers that queues have work, with all subscriptions read.
async fn notifier(app: &App, client: Client, config: &Config) -> Result<Notifier, StartError> {
    let public = config.public_url.as_deref().map(|url| url.trim_end_matches('/'));
    let Service { engine, subscriptions, secrets, .. } = &app.service;
    subscriptions.load(engine).await.map_err(OpenError::from)?;
    Ok(Notifier {
        engine: Arc::clone(engine),
        subscriptions: Arc::clone(subscriptions),
        client,
        secrets: Arc::clone(secrets),
        metrics: Arc::clone(&app.metrics),
        times: app.times.clone(),
        claim_url: public.map(|url| format!("{url}{CLAIM_PATH}")),
    })
}
