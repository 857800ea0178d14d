//! Gives `codeq-webhooks` what it needs of this server, and starts it.

use std::sync::Arc;

use codeq_core::view::Task;
use codeq_engine::EngineError;
use codeq_webhooks::availability::{CLAIM_PATH, Notifier};
use codeq_webhooks::client::Client;
use codeq_webhooks::results::{Announced, Courier, LARGE_AT_ONCE, Outbox};
use codeq_webhooks::{FormatTime, Report, WebhookKind, WebhookOutcome};
use tokio::sync::{Semaphore, watch};
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

/// Starts sending result callbacks and availability notifications, until `stop` turns true.
pub(crate) async fn start(
    app: &App,
    config: &Config,
    client: Client,
    callbacks: Arc<Announced>,
    stop: &watch::Receiver<bool>,
) -> Result<[JoinHandle<()>; 2], EngineError> {
    let Service { destinations, secrets, subscriptions, .. } = &app.service;
    let engine = app.service.engine();
    let report: Arc<dyn Report> = Arc::<Metrics>::clone(&app.metrics);
    let times = app.times.clone();
    let format_time: FormatTime = Arc::new(move |at| times.text(at));
    let public = config.public_url.as_deref().map(|url| url.trim_end_matches('/'));
    subscriptions.load(engine).await?;
    let notifier = Notifier {
        engine: Arc::clone(engine),
        subscriptions: Arc::clone(subscriptions),
        client: client.clone(),
        secrets: Arc::clone(secrets),
        report: Arc::clone(&report),
        format_time: Arc::clone(&format_time),
        claim_url: public.map(|url| format!("{url}{CLAIM_PATH}")),
    };
    let courier = Courier {
        engine: Arc::clone(engine),
        client,
        policy: Arc::clone(destinations),
        secrets: Arc::clone(secrets),
        report,
        format_time,
        attempts_max: config.result_webhook_max_attempts,
        large: Semaphore::new(LARGE_AT_ONCE),
    };
    let outbox = Outbox::new(courier, callbacks, config.webhooks.call_limits());
    Ok([tokio::spawn(notifier.run(stop.clone())), tokio::spawn(outbox.run(stop.clone()))])
}
