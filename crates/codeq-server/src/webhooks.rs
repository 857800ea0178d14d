//! Connects `codeq-webhooks` to this server and starts it.

use std::sync::Arc;

use codeq_core::view::Task;
use codeq_engine::EngineError;
use codeq_webhooks::availability::Notifier;
use codeq_webhooks::client::Client;
use codeq_webhooks::results::{CallbacksDue, ResultCallbacks};
use codeq_webhooks::{Outbound, Report, WebhookKind, WebhookOutcome};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Span;

use crate::app::App;
use crate::config::Config;
use crate::observe::{Metrics, trace};
use crate::service::Service;

impl Report for Metrics {
    fn count(&self, kind: WebhookKind, outcome: WebhookOutcome, queue: Option<(&Arc<str>, &str)>) {
        self.webhook(kind, outcome, queue);
    }

    fn callback_span(&self, task: &Task) -> Span {
        let stored = task.trace_parent.as_deref();
        let stored = stored.map(|parent| (parent, task.trace_state.as_deref().unwrap_or_default()));
        trace::task_span("callback", &task.command, &task.id.to_string(), &task.tenant, stored)
    }
}

/// Starts sending result callbacks and availability notifications until `stop` turns true.
pub(crate) async fn start(
    app: &App,
    config: &Config,
    client: Client,
    due: Arc<CallbacksDue>,
    stop: &watch::Receiver<bool>,
) -> Result<[JoinHandle<()>; 2], EngineError> {
    let Service { destinations, secrets, subscriptions, .. } = &app.service;
    let engine = app.service.engine();
    subscriptions.load(engine).await?;
    let times = app.times.clone();
    let outbound = Arc::new(Outbound {
        engine: Arc::clone(engine),
        client,
        policy: Arc::clone(destinations),
        secrets: Arc::clone(secrets),
        report: Arc::<Metrics>::clone(&app.metrics),
        format_time: Arc::new(move |at| times.text(at)),
    });
    let public_url = config.public_url.as_deref();
    let notifier = Notifier::new(Arc::clone(&outbound), Arc::clone(subscriptions), public_url);
    let limits = config.webhooks.call_limits();
    let attempts_max = config.result_webhook_max_attempts;
    let results = ResultCallbacks::new(outbound, due, limits, attempts_max);
    Ok([tokio::spawn(notifier.run(stop.clone())), tokio::spawn(results.run(stop.clone()))])
}
