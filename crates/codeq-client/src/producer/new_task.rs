//! Builder for tasks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use codeq_proto::Timestamp;
use codeq_proto::producer::CreateTask;
use serde::Serialize;

use crate::error::Error;
use crate::seconds::{saturated, whole_seconds};
use crate::worker::TaskInfo;

/// A task to enqueue.
///
/// ```
/// use std::time::Duration;
///
/// use codeq_client::NewTask;
///
/// # fn main() -> Result<(), codeq_client::Error> {
/// let task = NewTask::new("send-mail", &serde_json::json!({"to": "ada"}))?
///     .priority(5)
///     .delay(Duration::from_secs(60))
///     .idempotency_key("welcome-ada");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    create: CreateTask,
}

/// More than the server allows for all text fields together.
const TEXT_BYTES_MAX: usize = 1 << 16;

impl NewTask {
    /// A task for a command, with a payload: any value that serialises to JSON other than `null`.
    pub fn new(command: impl Into<String>, payload: &impl Serialize) -> Result<NewTask, Error> {
        let payload = serde_json::to_vec(payload).map_err(Error::Encode)?;
        Ok(NewTask::from_json(command, payload))
    }

    /// A task whose payload is already JSON text. It is kept byte for byte.
    pub fn from_json(command: impl Into<String>, payload: impl Into<Bytes>) -> NewTask {
        let (command, payload) = (command.into(), payload.into());
        NewTask { create: CreateTask { command, payload, ..CreateTask::default() } }
    }

    /// Refuses what the server would refuse for its size. A message that is too long for the server would end the
    /// stream for everyone on it.
    pub(super) fn check_size(&self, max: usize) -> Result<(), Error> {
        let CreateTask { command, webhook, idempotency_key, .. } = &self.create;
        let traces = self.create.trace_parent.len() + self.create.trace_state.len();
        let texts = command.len() + webhook.len() + idempotency_key.len() + traces;
        let (code, message) = if self.create.payload.len() > max {
            ("invalid_payload", format!("invalid payload (1 to {max} bytes)"))
        } else if texts > TEXT_BYTES_MAX {
            ("too_large", format!("the task's text fields exceed {TEXT_BYTES_MAX} bytes"))
        } else {
            return Ok(());
        };
        Err(Error::Refused { code: code.to_owned(), message })
    }

    /// 0 to 9, higher first; larger values are clamped to 9. Default 0.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> NewTask {
        self.create.priority = priority.into();
        self
    }

    /// URL to which the server posts the result. The server's configuration decides which hosts are allowed.
    #[must_use]
    pub fn webhook(mut self, url: impl Into<String>) -> NewTask {
        self.create.webhook = url.into();
        self
    }

    /// Failed attempts before the task is dead-lettered. Defaults to the queue's or the server's setting; the queue's
    /// policy may lower it.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> NewTask {
        self.create.max_attempts = saturated(attempts.into());
        self
    }

    /// A key of your own: enqueueing it again returns the existing task. Without one, each enqueue gets a random key,
    /// so that a resend after a lost connection does not create a second task.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> NewTask {
        self.create.idempotency_key = key.into();
        self
    }

    /// Not before this time. Takes precedence over [`NewTask::delay`].
    #[must_use]
    pub fn run_at(mut self, moment: SystemTime) -> NewTask {
        let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        let nanos = i32::try_from(since.subsec_nanos()).unwrap_or_default();
        self.create.run_at = Some(Timestamp { seconds, nanos });
        self
    }

    /// Not before this much time has passed, in whole seconds, rounded up.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> NewTask {
        self.create.delay_seconds = whole_seconds(delay);
        self
    }

    /// How long an attempt may run, in whole seconds, rounded up. Then the server takes the task away from its worker,
    /// and the attempt has failed with `TIMED_OUT`. Defaults to the queue's limit; zero means the same.
    #[must_use]
    pub fn max_run(mut self, limit: Duration) -> NewTask {
        self.create.max_run_seconds = whole_seconds(limit);
        self
    }

    /// The W3C trace context (`traceparent`, `tracestate`) that the task continues.
    #[must_use]
    pub fn trace(mut self, parent: impl Into<String>, state: impl Into<String>) -> NewTask {
        self.create.trace_parent = parent.into();
        self.create.trace_state = state.into();
        self
    }

    /// Continues the trace of the task being worked on.
    #[must_use]
    pub fn continues(self, task: &TaskInfo) -> NewTask {
        self.trace(task.trace_parent.clone(), task.trace_state.clone())
    }

    /// The message, always with a key, and whether that key is random.
    pub(crate) fn into_wire(self) -> (CreateTask, bool) {
        let mut create = self.create;
        let random = create.idempotency_key.is_empty();
        if random {
            create.idempotency_key = format!("sdk-{:032x}", rand::random::<u128>());
        }
        (create, random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_a_key_of_its_own() {
        let task = NewTask::new("mail", &1).unwrap();
        let (one, random) = task.clone().into_wire();
        assert!(random && one.idempotency_key.len() > 32);
        assert_ne!(one.idempotency_key, task.clone().into_wire().0.idempotency_key);
        let (own, random) = task.idempotency_key("mine").into_wire();
        assert!(!random && own.idempotency_key == "mine");
    }

    #[test]
    fn time_is_never_rounded_down() {
        let seconds = |millis| whole_seconds(Duration::from_millis(millis));
        assert_eq!([seconds(0), seconds(1), seconds(1_000), seconds(1_001)], [0, 1, 1, 2]);
        assert_eq!(whole_seconds(Duration::MAX), i32::MAX);
        let task =
            NewTask::new("mail", &1).unwrap().run_at(UNIX_EPOCH + Duration::from_millis(1_500));
        assert_eq!(task.create.run_at, Some(Timestamp { seconds: 1, nanos: 500_000_000 }));
    }
}
