//! One attempt to deliver a callback: read it, post it, record how it went.
//!
//! Nothing is retried here. [`Command::Callback`] records the outcome, and the rules decide whether and when the callback
//! is due again (`codeq_core::callback_retry`).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use codeq_core::command::{Callback, Command, Delivery};
use codeq_core::id::ShardId;
use codeq_core::keys::Seq;
use codeq_core::names::queue_name;
use codeq_core::read::PendingCallback;
use codeq_engine::{Answer, Engine, EngineError};
use futures_util::FutureExt;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Semaphore;
use tracing::Instrument;

use super::body::CallbackBody;
use crate::client::Answered;
use crate::dispatcher::Outcome;
use crate::outbound::Outbound;
use crate::report::{WebhookKind, WebhookOutcome};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Retry delay for recording an outcome: initial, maximum.
const RECORD_PAUSE: Duration = Duration::from_millis(100);
const RECORD_PAUSE_MAX: Duration = Duration::from_secs(5);
/// A callback whose task and result are larger than this waits for one of [`LARGE_AT_ONCE`] permits: hundreds of calls
/// run at once, and each holds the result twice.
const LARGE_BYTES: usize = 2 << 20;
/// Maximum number of large callbacks at once. This is more than the default limit of calls to one host, so that one
/// host that hangs does not delay the others.
const LARGE_AT_ONCE: usize = 24;

pub(super) struct Sender {
    outbound: Arc<Outbound>,
    attempts_max: u32,
    large: Semaphore,
}

impl Sender {
    pub fn new(outbound: Arc<Outbound>, attempts_max: u32) -> Sender {
        Sender { outbound, attempts_max, large: Semaphore::new(LARGE_AT_ONCE) }
    }

    pub fn engine(&self) -> &Engine {
        &self.outbound.engine
    }

    /// Delivers the callback of a task, if it still has to be delivered.
    pub async fn deliver(&self, shard: ShardId, seq: Seq) -> Outcome {
        let mut callback = match self.pending(shard, seq).await {
            Ok(callback) => callback,
            Err(outcome) => return outcome,
        };
        let mut _large = None;
        if callback.task.bytes() + result_bytes(&callback) > LARGE_BYTES {
            // It must not stay in memory while it waits for a permit.
            drop(callback);
            _large = self.large.acquire().await.ok();
            callback = match self.pending(shard, seq).await {
                Ok(callback) => callback,
                Err(outcome) => return outcome,
            };
        }
        let span = self.outbound.report.callback_span(&callback.task);
        // A panic counts as a failed attempt, so that it is not repeated for ever.
        let attempt = AssertUnwindSafe(self.attempt(&callback)).catch_unwind();
        let attempt = attempt.instrument(span.clone()).await;
        let Some(delivery) = attempt.unwrap_or_else(|_| Some(failed(None, "internal error", None)))
        else {
            return Outcome::Busy;
        };
        if delivery != Delivery::Delivered {
            span.record("otel.status_code", "ERROR");
        }
        self.count(&callback, &delivery);
        let delivered = delivery == Delivery::Delivered;
        match self.record(&callback, delivery).await {
            Recorded::Settled if delivered => Outcome::Delivered,
            Recorded::Settled => Outcome::Failed,
            // If the outcome was not recorded, the callback is still due and is sent again.
            Recorded::Unknown => Outcome::Busy,
        }
    }

    /// The callback of a task. There is nothing to send if it was delivered, has failed for good, or is due later, when
    /// the outbox returns it again. If it cannot be read, the call has to be made later.
    async fn pending(&self, shard: ShardId, seq: Seq) -> Result<PendingCallback, Outcome> {
        let found = self.engine().callback(shard, seq).await.map_err(|error| {
            tracing::debug!(target: "codeq::webhooks", %error, "a callback could not be read");
            Outcome::Busy
        })?;
        let now = self.engine().now().now;
        let is_due =
            |callback: &PendingCallback| callback.outbox.next_at.is_some_and(|at| at <= now);
        found.filter(is_due).ok_or(Outcome::Skipped)
    }

    /// `None` if the call could not be tried, through no fault of the receiver: then nothing is counted and no attempt
    /// is used up.
    async fn attempt(&self, callback: &PendingCallback) -> Option<Delivery> {
        let url = callback.task.webhook.as_deref().unwrap_or_default();
        let to = match self.outbound.policy.read(url) {
            Ok(to) => to,
            Err(refused) => return Some(failed(None, &refused.to_string(), None)),
        };
        let Ok(body) = self.body(callback) else {
            return Some(failed(None, "the result cannot be written as JSON", None));
        };
        let (tenant, id) = (&callback.task.tenant, message_id(callback));
        let headers = trace_headers(callback);
        match self.outbound.post(tenant, &to, &id, headers, body).await {
            Ok(answered) => Some(delivery(answered)),
            Err(error) if error.is_untried() => None,
            Err(error) => Some(failed(None, &error.to_string(), None)),
        }
    }

    fn body(&self, callback: &PendingCallback) -> Result<Bytes, serde_json::Error> {
        let (command, result) = (&callback.task.command, &callback.result);
        let body = CallbackBody::new(command, result, &self.outbound.format_time);
        serde_json::to_vec(&body).map(Bytes::from)
    }

    fn count(&self, callback: &PendingCallback, delivery: &Delivery) {
        let attempt = callback.outbox.attempts.saturating_add(1);
        let retried = if attempt >= self.attempts_max {
            WebhookOutcome::Failed
        } else {
            WebhookOutcome::Retried
        };
        let queue = queue_name(&callback.task.command);
        let count = |outcome| {
            let queue = Some((&callback.task.tenant, &*queue));
            self.outbound.report.count(WebhookKind::Result, outcome, queue);
        };
        let (status, error, outcome) = match delivery {
            Delivery::Failed { status, error, .. } => (*status, error, retried),
            Delivery::Refused { status, error } => (Some(*status), error, WebhookOutcome::Failed),
            Delivery::Delivered | Delivery::Resend => return count(WebhookOutcome::Delivered),
        };
        count(outcome);
        let outcome = if outcome == WebhookOutcome::Failed { "failed" } else { "retried" };
        let (tenant, task) = (&*callback.task.tenant, callback.task.id);
        tracing::info!(
            target: "codeq::webhooks", tenant, %task, attempt, status, %error, outcome,
            "a callback was not delivered"
        );
    }

    /// Records in the engine how the delivery ended.
    async fn record(&self, callback: &PendingCallback, delivery: Delivery) -> Recorded {
        let command = Command::Callback(Callback {
            tenant: Arc::clone(&callback.task.tenant),
            id: callback.task.id,
            completed_at: Some(callback.result.completed_at),
            delivery,
        });
        until_recorded(|| self.engine().propose(command.clone())).await
    }
}

/// Whether an outcome is recorded.
#[derive(Debug, PartialEq, Eq)]
enum Recorded {
    /// It is recorded, or there is nothing left to do for this attempt.
    Settled,
    /// It may have been recorded.
    Unknown,
}

/// Proposes to record an outcome. While the engine accepts no writes, this waits and so keeps the call's slot. Otherwise
/// the receiver would be called over and over.
async fn until_recorded<F: Future<Output = Answer>>(propose: impl Fn() -> F) -> Recorded {
    let mut pause = RECORD_PAUSE;
    loop {
        match propose().await {
            Err(
                EngineError::Overloaded
                | EngineError::DiskFull
                | EngineError::NoDescriptors
                | EngineError::NoLeader,
            ) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RECORD_PAUSE_MAX);
            }
            // Proposed again, a failed attempt might count twice.
            Err(EngineError::Unknown) => return Recorded::Unknown,
            // A refusal means that the task has moved on. If the engine is closed, the callback is sent again after the
            // next start.
            Ok(_) | Err(_) => return Recorded::Settled,
        }
    }
}

/// The id of a callback's message: the same for all attempts, but a new one if the task is replayed and finishes again.
pub fn message_id(callback: &PendingCallback) -> String {
    format!("{}-{}", callback.task.id, callback.result.completed_at)
}

fn result_bytes(callback: &PendingCallback) -> usize {
    callback.result.result.as_ref().map_or(0, Bytes::len)
}

fn trace_headers(callback: &PendingCallback) -> HeaderMap {
    let (parent, state) = (&callback.task.trace_parent, &callback.task.trace_state);
    let headers = [(TRACEPARENT, parent), (TRACESTATE, state)].into_iter();
    let headers = headers
        .filter_map(|(name, text)| Some((name, HeaderValue::from_str(text.as_deref()?).ok()?)));
    headers.collect()
}

fn delivery(answered: Answered) -> Delivery {
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::ready;

    use codeq_core::reply::{Rejection, Reply};

    use super::*;
    use crate::fixture::Fixture;

    #[tokio::test(start_paused = true)]
    async fn an_outcome_is_proposed_until_the_engine_takes_it() {
        let closed = || Err(EngineError::Closed);
        let done = || Ok(Reply::Done);
        let moved_on = || Ok(Reply::Rejected(Rejection::NoCallback));
        for (answers, recorded) in [
            (vec![done()], Recorded::Settled),
            (vec![moved_on()], Recorded::Settled),
            (vec![closed()], Recorded::Settled),
            (
                vec![Err(EngineError::Overloaded), Err(EngineError::DiskFull), done()],
                Recorded::Settled,
            ),
            (
                vec![Err(EngineError::NoLeader), Err(EngineError::NoLeader), done()],
                Recorded::Settled,
            ),
            (vec![Err(EngineError::NoLeader), Err(EngineError::Unknown)], Recorded::Unknown),
        ] {
            let left = RefCell::new(answers.into_iter());
            let propose = || ready(left.borrow_mut().next().expect("proposed too often"));
            assert_eq!(until_recorded(propose).await, recorded);
            assert_eq!(left.into_inner().next(), None, "proposed too rarely");
        }
    }

    #[tokio::test]
    async fn a_callback_that_cannot_be_read_is_tried_again() {
        let fixture = Fixture::open(1);
        let sender = Sender::new(Arc::clone(&fixture.outbound), 3);
        assert_eq!(sender.deliver(ShardId(0), Seq(1)).await, Outcome::Skipped, "there is none");
        assert_eq!(
            sender.deliver(ShardId(1), Seq(1)).await,
            Outcome::Busy,
            "there is no such shard"
        );
    }
}
