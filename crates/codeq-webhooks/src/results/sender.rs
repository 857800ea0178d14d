//! One callback, once: read it, sign it, post it, report what became of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use codeq_core::command::{Callback, Command, Delivery};
use codeq_core::names::queue_name;
use codeq_core::read::PendingCallback;
use codeq_engine::{Engine, EngineError};
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Semaphore;
use tracing::Instrument;

use super::body::CallbackBody;
use crate::client::{Answered, Client, SendError};
use crate::dispatcher::Went;
use crate::policy::Policy;
use crate::report::{FormatTime, Report, WebhookKind, WebhookOutcome as Counted};
use crate::secrets::Secrets;
use crate::signing;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The pause before a report that the engine did not take is made again, and the longest.
const REPORT_PAUSE: Duration = Duration::from_millis(100);
const REPORT_PAUSE_MAX: Duration = Duration::from_secs(5);
/// A callback whose task and result have more than this waits for one of a few turns: hundreds of calls run at once,
/// and each holds the result twice.
const LARGE_BYTES: usize = 2 << 20;
/// Large callbacks at once. More than go to one host by default, so that one that hangs does not hold up the others.
pub const LARGE_AT_ONCE: usize = 24;

/// Makes the calls.
pub struct Courier {
    /// Where the outbox is.
    pub engine: Arc<Engine>,
    /// Who posts.
    pub client: Client,
    /// Where to.
    pub policy: Arc<Policy>,
    /// What is signed with.
    pub secrets: Arc<Secrets>,
    /// Counting.
    pub report: Arc<dyn Report>,
    /// How moments are written.
    pub format_time: FormatTime,
    /// Attempts of a callback.
    pub attempts_max: u32,
    /// Turns of large callbacks.
    pub large: Semaphore,
}

fn result_bytes(callback: &PendingCallback) -> usize {
    callback.result.result.as_ref().map_or(0, Bytes::len)
}

impl Courier {
    /// Delivers the callback of a task, if it is still to be delivered.
    pub async fn deliver(&self, shard: u16, seq: u64) -> Went {
        let Some(mut callback) = self.pending(shard, seq).await else { return Went::Nowhere };
        let mut _large = None;
        if callback.task.bytes() + result_bytes(&callback) > LARGE_BYTES {
            // Not in memory while it waits for its turn.
            drop(callback);
            _large = self.large.acquire().await.ok();
            let Some(again) = self.pending(shard, seq).await else { return Went::Nowhere };
            callback = again;
        }
        let span = self.report.callback_span(&callback.task);
        let Some(delivery) = self.attempt(&callback).instrument(span.clone()).await else {
            return Went::Busy;
        };
        if delivery != Delivery::Delivered {
            span.record("otel.status_code", "ERROR");
        }
        self.count(&callback, &delivery);
        let went = if delivery == Delivery::Delivered { Went::Well } else { Went::Badly };
        self.report(&callback, delivery).await;
        went
    }

    /// The callback of a task that is to be delivered now or later.
    async fn pending(&self, shard: u16, seq: u64) -> Option<PendingCallback> {
        let callback = self.engine.callback(shard, seq).await.ok().flatten()?;
        callback.outbox.next_at.is_some().then_some(callback)
    }

    /// None if it could not be tried, for no fault of the receiver: then nothing is counted and nothing spent.
    async fn attempt(&self, callback: &PendingCallback) -> Option<Delivery> {
        let url = callback.task.webhook.as_deref().unwrap_or_default();
        let to = match self.policy.read(url) {
            Ok(to) => to,
            Err(refused) => return Some(failed(None, &refused.to_string(), None)),
        };
        let secrets = match self.secrets.live(&callback.task.tenant).await {
            Ok(secrets) => secrets,
            Err(error) => return Some(failed(None, &error.to_string(), None)),
        };
        let Ok(body) = self.body(callback) else {
            return Some(failed(None, "the result cannot be written as JSON", None));
        };
        let at = self.engine.wall() / 1_000;
        let mut headers = signing::headers(&secrets, &message_id(callback), at, &body);
        headers.insert(header::CONTENT_TYPE, JSON);
        carry_trace(callback, &mut headers);
        match self.client.post(&callback.task.tenant, &to, headers, body).await {
            Ok(answered) => Some(judge(answered)),
            Err(SendError::Busy) => None,
            Err(error) => Some(failed(None, &error.to_string(), None)),
        }
    }

    fn body(&self, callback: &PendingCallback) -> Result<Bytes, serde_json::Error> {
        let body = CallbackBody::new(&callback.task.command, &callback.result, &self.format_time);
        serde_json::to_vec(&body).map(Bytes::from)
    }

    fn count(&self, callback: &PendingCallback, delivery: &Delivery) {
        let spent = callback.outbox.attempts.saturating_add(1) >= self.attempts_max;
        let queue = queue_name(&callback.task.command);
        let count = |outcome| {
            let queue = Some((&callback.task.tenant, &*queue));
            self.report.count(WebhookKind::Result, outcome, queue);
        };
        let (status, error, outcome) = match delivery {
            Delivery::Failed { status, error, .. } => {
                (*status, error, if spent { Counted::Failed } else { Counted::Retried })
            }
            Delivery::Refused { status, error } => (Some(*status), error, Counted::Failed),
            Delivery::Delivered | Delivery::Resend => return count(Counted::Delivered),
        };
        count(outcome);
        let outcome = if outcome == Counted::Failed { "failed" } else { "retried" };
        let attempt = callback.outbox.attempts.saturating_add(1);
        let (tenant, task) = (&*callback.task.tenant, callback.task.id);
        tracing::info!(
            target: "codeq::push", tenant, %task, attempt, status, %error, outcome,
            "a callback was not delivered"
        );
    }

    /// Tells the engine what became of the callback. As long as it does not listen the slot is kept, so that
    /// a receiver is not called over and over.
    async fn report(&self, callback: &PendingCallback, delivery: Delivery) {
        let command = Command::Callback(Callback {
            tenant: Arc::clone(&callback.task.tenant),
            id: callback.task.id,
            completed_at: Some(callback.result.completed_at),
            delivery,
        });
        let mut pause = REPORT_PAUSE;
        loop {
            match self.engine.propose(command.clone()).await {
                Err(
                    EngineError::Overloaded | EngineError::DiskFull | EngineError::NoDescriptors,
                ) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(REPORT_PAUSE_MAX);
                }
                // Refused means that the task has moved on; closed, that the next start sends it again.
                Ok(_) | Err(_) => return,
            }
        }
    }
}

/// The same for all attempts to tell of one end of a task; another one if it is replayed and ends again.
pub fn message_id(callback: &PendingCallback) -> String {
    format!("{}-{}", callback.task.id, callback.result.completed_at)
}

fn carry_trace(callback: &PendingCallback, headers: &mut HeaderMap) {
    let (parent, state) = (&callback.task.trace_parent, &callback.task.trace_state);
    for (name, text) in [(TRACEPARENT, parent), (TRACESTATE, state)] {
        if let Some(value) = text.as_deref().and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(name, value);
        }
    }
}

fn judge(answered: Answered) -> Delivery {
    let Answered { status, retry_after } = answered;
    let error = format!("answered {}", status.as_u16());
    match status {
        status if status.is_success() => Delivery::Delivered,
        // The receiver says that it is gone for good.
        StatusCode::GONE => Delivery::Refused { status: status.as_u16(), error: error.into() },
        _ => failed(Some(status), &error, retry_after),
    }
}

fn failed(status: Option<StatusCode>, error: &str, retry_after: Option<Duration>) -> Delivery {
    Delivery::Failed {
        status: status.map(|status| status.as_u16()),
        error: error.into(),
        retry_after: retry_after.map(|pause| pause.as_millis() as u64),
    }
}
