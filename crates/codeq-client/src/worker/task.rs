//! The task as a handler receives it.

use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use codeq_proto::{Timestamp, worker as wire};
use tokio::sync::watch;

/// A task with its typed payload. Dereferences to [`TaskInfo`], which has everything else.
#[derive(Debug)]
#[non_exhaustive]
pub struct Task<T> {
    /// The payload, deserialised.
    pub payload: T,
    /// Everything except the payload.
    pub info: TaskInfo,
}

impl<T> Deref for Task<T> {
    type Target = TaskInfo;

    fn deref(&self) -> &TaskInfo {
        &self.info
    }
}

/// A task, except for its payload.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TaskInfo {
    /// The task's id; treat it as opaque.
    pub id: String,
    /// The kind of work, as the producer spelled it.
    pub command: String,
    /// 0 to 9.
    pub priority: i32,
    /// Failed attempts so far.
    pub attempts: i32,
    /// Attempts before the task is dead-lettered.
    pub max_attempts: i32,
    /// Grows with every claim of the task. Pass it along with writes that a late worker must not make.
    pub fence: u64,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// The identity that holds the lease.
    pub worker_id: String,
    /// The producer's W3C `traceparent`; empty if there was none.
    pub trace_parent: String,
    /// The producer's W3C `tracestate`; empty if there was none.
    pub trace_state: String,
    /// When it was created.
    pub created_at: SystemTime,
    /// When the attempt's maximum run time ends, by the server's clock: the server then takes the task away, even if
    /// heartbeats arrive. `None` if there is no limit.
    pub run_until: Option<SystemTime>,
    /// Signals when the work should stop.
    pub cancellation: Cancellation,
}

impl TaskInfo {
    pub(super) fn new(task: &wire::Task, cancellation: Cancellation) -> TaskInfo {
        TaskInfo {
            id: task.id.clone(),
            command: task.command.clone(),
            priority: task.priority,
            attempts: task.attempts,
            max_attempts: task.max_attempts,
            fence: task.fence,
            tenant_id: task.tenant_id.clone(),
            worker_id: task.worker_id.clone(),
            trace_parent: task.trace_parent.clone(),
            trace_state: task.trace_state.clone(),
            created_at: moment(task.created_at.unwrap_or_default()),
            run_until: task.run_until.map(moment),
            cancellation,
        }
    }
}

/// How long the attempt may run, from its claim. Both times are from the server's clock, so this machine's does not matter.
pub(super) fn run_limit(task: &wire::Task) -> Option<Duration> {
    let claimed = moment(task.updated_at?);
    Some(moment(task.run_until?).duration_since(claimed).unwrap_or_default())
}

fn moment(at: Timestamp) -> SystemTime {
    let since = Duration::new(
        u64::try_from(at.seconds).unwrap_or_default(),
        u32::try_from(at.nanos).unwrap_or_default().min(999_999_999),
    );
    UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
}

/// Why the work should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// A producer or an admin cancelled the task. The outcome still counts, but a task that is nacked or abandoned ends
    /// as cancelled instead of being retried.
    Requested,
    /// The lease is lost and another worker may have the task. The outcome is discarded.
    LeaseLost,
    /// The worker's grace period is over. The task returns to its queue.
    Shutdown,
}

/// Signals that the work should stop. Clones share the signal.
///
/// ```
/// use codeq_client::{HandlerError, Outcome, Task};
///
/// async fn resize(task: Task<String>) -> Result<Outcome, HandlerError> {
///     tokio::select! {
///         result = work(&task.payload) => result,
///         reason = task.cancellation.cancelled() => Ok(Outcome::fail(format!("{reason:?}"))),
///     }
/// }
/// # async fn work(_: &str) -> Result<Outcome, HandlerError> { Ok(Outcome::done()) }
/// ```
#[derive(Debug, Clone)]
pub struct Cancellation {
    receiver: watch::Receiver<Option<CancelReason>>,
}

impl Cancellation {
    /// Why the work should stop; `None` if it may continue.
    pub fn reason(&self) -> Option<CancelReason> {
        *self.receiver.borrow()
    }

    /// Whether the work should stop.
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Completes when the work should stop, with the reason. Never completes otherwise.
    pub async fn cancelled(&self) -> CancelReason {
        let mut receiver = self.receiver.clone();
        if let Ok(reason) = receiver.wait_for(Option::is_some).await
            && let Some(reason) = *reason
        {
            return reason;
        }
        // The sender is gone, so no cancellation can follow.
        std::future::pending().await
    }
}

/// The sending side of a [`Cancellation`].
#[derive(Debug)]
pub(super) struct Signal {
    sender: watch::Sender<Option<CancelReason>>,
}

impl Signal {
    pub(super) fn new() -> (Signal, Cancellation) {
        let (sender, receiver) = watch::channel(None);
        (Signal { sender }, Cancellation { receiver })
    }

    /// Sets the reason. A lost lease or a shutdown replaces a request; nothing else is replaced.
    pub(super) fn fire(&self, reason: CancelReason) {
        self.sender.send_if_modified(|now| {
            let news = match now {
                None => true,
                Some(CancelReason::Requested) => reason != CancelReason::Requested,
                Some(_) => false,
            };
            if news {
                *now = Some(reason);
            }
            news
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_request_is_replaced_by_another_reason() {
        let (signal, cancellation) = Signal::new();
        assert!(!cancellation.is_cancelled());
        signal.fire(CancelReason::Requested);
        assert_eq!(cancellation.cancelled().await, CancelReason::Requested);
        signal.fire(CancelReason::LeaseLost);
        signal.fire(CancelReason::Requested);
        signal.fire(CancelReason::Shutdown);
        assert_eq!(cancellation.clone().cancelled().await, CancelReason::LeaseLost);
    }
}
