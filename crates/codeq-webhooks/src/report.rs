//! What this crate reports to the server that runs it: outcomes to count, and spans to trace.

use std::sync::Arc;

use codeq_core::command::Millis;
use codeq_core::view::Task;
use tracing::Span;

/// What a webhook reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookKind {
    /// A task finished.
    Result,
    /// A queue has work.
    Availability,
}

/// How a webhook ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookOutcome {
    /// The receiver accepted it.
    Delivered,
    /// The receiver did not accept it and will be called again.
    Retried,
    /// The receiver did not accept it and will not be called again.
    Failed,
    /// There was no room to queue it.
    Dropped,
}

/// Counts and traces webhooks. The server's metrics implement it.
pub trait Report: Send + Sync {
    /// Counts a webhook, for its queue (tenant and name) if that is known.
    fn count(&self, kind: WebhookKind, outcome: WebhookOutcome, queue: Option<(&Arc<str>, &str)>);

    /// Starts the span of one call that carries a task's result.
    fn callback_span(&self, task: &Task) -> Span;
}

/// Formats a time as clients see it, in the configured time zone.
pub type FormatTime = Arc<dyn Fn(Millis) -> String + Send + Sync>;
