//! What a handler is given.

use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use codeq_proto::worker as wire;
use tokio::sync::watch;

/// A task with its payload, typed. Everything else about it is in [`TaskInfo`], which this dereferences to.
#[derive(Debug)]
#[non_exhaustive]
pub struct Task<T> {
    /// What the producer sent.
    pub payload: T,
    /// Everything else.
    pub info: TaskInfo,
}

impl<T> Deref for Task<T> {
    type Target = TaskInfo;

    fn deref(&self) -> &TaskInfo {
        &self.info
    }
}

/// A task, apart from its payload.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TaskInfo {
    /// Opaque.
    pub id: String,
    /// The kind of work, as the producer spelled it.
    pub command: String,
    /// 0 to 9.
    pub priority: i32,
    /// Failed executions so far.
    pub attempts: i32,
    /// The ceiling of attempts.
    pub max_attempts: i32,
    /// Grows with every claim of the task: pass it on to what must not be written by a late worker.
    pub fence: u64,
    /// Its tenant.
    pub tenant_id: String,
    /// The identity that has the lease.
    pub worker_id: String,
    /// The producer's W3C trace context; empty if there was none.
    pub trace_parent: String,
    /// The producer's W3C trace state; empty if there was none.
    pub trace_state: String,
    /// When it was made.
    pub created_at: SystemTime,
    /// Says when the work should stop.
    pub cancellation: Cancellation,
}

impl TaskInfo {
    pub(super) fn new(task: &wire::Task, cancellation: Cancellation) -> TaskInfo {
        let created = task.created_at.unwrap_or_default();
        let since = Duration::new(
            u64::try_from(created.seconds).unwrap_or_default(),
            u32::try_from(created.nanos).unwrap_or_default().min(999_999_999),
        );
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
            created_at: UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH),
            cancellation,
        }
    }
}

/// Why work should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// The producer asked for it. The outcome still counts.
    Requested,
    /// The lease is lost: somebody else may be at it. The outcome is thrown away.
    LeaseLost,
    /// The worker shuts down and its grace period is over. The task goes back to its queue.
    Shutdown,
}

/// Says when work should stop. Clones say the same.
#[derive(Debug, Clone)]
pub struct Cancellation {
    receiver: watch::Receiver<Option<CancelReason>>,
}

impl Cancellation {
    /// Whether the work should stop, and why.
    pub fn reason(&self) -> Option<CancelReason> {
        *self.receiver.borrow()
    }

    /// Whether the work should stop.
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Returns when the work should stop, with the reason. Never returns if it may go on to its end.
    pub async fn cancelled(&self) -> CancelReason {
        let mut receiver = self.receiver.clone();
        if let Ok(reason) = receiver.wait_for(Option::is_some).await
            && let Some(reason) = *reason
        {
            return reason;
        }
        // Nobody is left who could say so.
        std::future::pending().await
    }
}

/// The other end of a [`Cancellation`].
#[derive(Debug)]
pub(super) struct Signal {
    sender: watch::Sender<Option<CancelReason>>,
}

impl Signal {
    pub(super) fn new() -> (Signal, Cancellation) {
        let (sender, receiver) = watch::channel(None);
        (Signal { sender }, Cancellation { receiver })
    }

    /// A graver reason replaces a request.
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
    async fn a_request_may_become_a_loss_and_nothing_else() {
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
