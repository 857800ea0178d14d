//! Background tasks: artifact cleanup and webhooks.

use std::net::SocketAddr;
use std::sync::Arc;

use codeq_engine::OpenError;
use codeq_webhooks::client::{self, Client};
use codeq_webhooks::dns::Resolve;
use codeq_webhooks::results::CallbacksDue;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::StartError;
use crate::app::App;
use crate::artifacts::removal::{self, RemovedTasks};
use crate::config::Config;
use crate::descriptors::Descriptors;
use crate::webhooks;

/// Starts the background tasks. Each ends when `stop` turns true.
pub(super) async fn start(
    app: &App,
    config: &Config,
    client: Client,
    callbacks_due: Arc<CallbacksDue>,
    removed: RemovedTasks,
    stop: &watch::Receiver<bool>,
) -> Result<Vec<JoinHandle<()>>, StartError> {
    let (artifacts, engine) = (&app.service.artifacts, app.service.engine());
    let removal = removal::run(Arc::clone(artifacts), Arc::clone(engine), removed, stop.clone());
    let mut tasks = vec![tokio::spawn(removal)];
    let webhooks = webhooks::start(app, config, client, callbacks_due, stop).await;
    tasks.extend(webhooks.map_err(OpenError::from)?);
    Ok(tasks)
}

/// The HTTP client for all webhooks. It refuses to call this server.
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
        per_address: config.webhooks.call_limits().per_host(),
        ..client::Options::default()
    };
    Client::new(Arc::clone(&app.service.destinations), resolve, options)
}
