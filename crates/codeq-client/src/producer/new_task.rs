//! A task to be made.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use codeq_proto::Timestamp;
use codeq_proto::producer::CreateTask;
use serde::Serialize;

use crate::error::Error;
use crate::seconds::{saturated, whole_seconds};
use crate::worker::TaskInfo;

/// A task to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    create: CreateTask,
}

/// More than all other fields together may have.
const TEXT_BYTES_MAX: usize = 1 << 16;

impl NewTask {
    /// A task of a command with a payload: anything that becomes JSON other than `null`.
    pub fn new(command: impl Into<String>, payload: &impl Serialize) -> Result<NewTask, Error> {
        let payload = serde_json::to_vec(payload).map_err(Error::Encode)?;
        Ok(NewTask::from_json(command, payload))
    }

    /// A task whose payload is JSON text already. It is kept byte for byte.
    pub fn from_json(command: impl Into<String>, payload: impl Into<Bytes>) -> NewTask {
        let (command, payload) = (command.into(), payload.into());
        NewTask { create: CreateTask { command, payload, ..CreateTask::default() } }
    }

    /// Refuses what the server would refuse for its size. A message that is longer than the server reads ends
    /// the stream, and others are on it.
    pub(super) fn check_size(&self, max: usize) -> Result<(), Error> {
        let CreateTask { command, webhook, idempotency_key, .. } = &self.create;
        let traces = self.create.trace_parent.len() + self.create.trace_state.len();
        let texts = command.len() + webhook.len() + idempotency_key.len() + traces;
        let (code, message) = if self.create.payload.len() > max {
            ("invalid_payload", format!("invalid payload (1 to {max} bytes)"))
        } else if texts > TEXT_BYTES_MAX {
            ("too_large", format!("the task's texts have more than {TEXT_BYTES_MAX} bytes"))
        } else {
            return Ok(());
        };
        Err(Error::Refused { code: code.to_owned(), message })
    }

    /// 0 to 9, higher first; what is above counts as 9. Default 0.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> NewTask {
        self.create.priority = priority.into();
        self
    }

    /// Where the result is to be posted. The server keeps the wish with the task; it does not post yet.
    #[must_use]
    pub fn webhook(mut self, url: impl Into<String>) -> NewTask {
        self.create.webhook = url.into();
        self
    }

    /// Failed executions before the task is dead-lettered. Default: the server's.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> NewTask {
        self.create.max_attempts = saturated(attempts.into());
        self
    }

    /// A key of your own: a second task with it is not made, the first one is answered. Without one, each
    /// enqueue has a random key, so that a resend after a lost connection makes no second task.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> NewTask {
        self.create.idempotency_key = key.into();
        self
    }

    /// Not before this moment. Wins over [`NewTask::delay`].
    #[must_use]
    pub fn run_at(mut self, moment: SystemTime) -> NewTask {
        let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        let nanos = i32::try_from(since.subsec_nanos()).unwrap_or_default();
        self.create.run_at = Some(Timestamp { seconds, nanos });
        self
    }

    /// Not before so much time has passed, in whole seconds, rounded up.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> NewTask {
        self.create.delay_seconds = whole_seconds(delay);
        self
    }

    /// The W3C trace context that the task continues.
    #[must_use]
    pub fn trace(mut self, parent: impl Into<String>, state: impl Into<String>) -> NewTask {
        self.create.trace_parent = parent.into();
        self.create.trace_state = state.into();
        self
    }

    /// Continues the trace of the task that is being worked on.
    #[must_use]
    pub fn continues(self, task: &TaskInfo) -> NewTask {
        self.trace(task.trace_parent.clone(), task.trace_state.clone())
    }

    /// The message, with a key in any case, and whether that is a random one.
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
