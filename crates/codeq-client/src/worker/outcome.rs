//! What a handler returns, and how it is reported.

use std::time::Duration;

use bytes::Bytes;
use codeq_proto::worker::worker_event::Event;
use codeq_proto::worker::{Abandon, Nack, Result as WireResult, WorkerEvent};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::seconds::whole_seconds;

/// Errors are cut to this length, because the server keeps no more.
const ERROR_MAX: usize = 4_096;

/// Any error. If a handler returns one, its task is nacked with the error's text.
pub type HandlerError = Box<dyn std::error::Error + Send + Sync>;

/// What a handler decides about its task.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Succeeded, with a JSON object. See [`Outcome::complete`].
    Complete(Box<RawValue>),
    /// Failed for good: the task is not retried.
    Fail(String),
    /// Failed for now: the task is retried or, after its last attempt, a dead letter.
    Nack {
        /// Delay in whole seconds, rounded up; `None` applies the server's backoff policy.
        delay: Option<Duration>,
        /// Kept as the task's error.
        reason: String,
    },
    /// Return the task to its queue. Costs an attempt: after its last one, the task becomes a dead letter.
    Abandon,
}

impl Outcome {
    /// Succeeded, with a value that serialises to a JSON object. Any other value is an error, which nacks the task if
    /// the handler returns it. A result above [`Options::max_payload_bytes`](crate::Options::max_payload_bytes) nacks
    /// the task too.
    pub fn complete(result: &impl Serialize) -> Result<Outcome, HandlerError> {
        let json = serde_json::value::to_raw_value(result)?;
        if !json.get().starts_with('{') {
            return Err("the result is not a JSON object".into());
        }
        Ok(Outcome::Complete(json))
    }

    /// Succeeded, with an empty result.
    pub fn done() -> Outcome {
        // Sent as zero bytes, which the server reads as the empty object.
        Outcome::Complete(RawValue::NULL.to_owned())
    }

    /// Failed for good.
    pub fn fail(error: impl Into<String>) -> Outcome {
        Outcome::Fail(error.into())
    }

    /// Failed for now: retried after the delay of the server's backoff policy.
    pub fn nack(reason: impl Into<String>) -> Outcome {
        Outcome::Nack { delay: None, reason: reason.into() }
    }

    /// Failed for now: retried after `delay`.
    pub fn nack_after(delay: Duration, reason: impl Into<String>) -> Outcome {
        Outcome::Nack { delay: Some(delay), reason: reason.into() }
    }
}

/// What the worker reports about a task, until the server acknowledges it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Report {
    Complete(Bytes),
    Fail(String),
    Nack { delay_seconds: i32, reason: String },
    Abandon { no_penalty: bool },
}

impl Report {
    /// The report for an outcome. Results may have at most `max` bytes.
    pub(super) fn new(outcome: Outcome, max: usize) -> Report {
        match outcome {
            Outcome::Complete(json) if json.get().len() > max => {
                // A message that is too long for the server would end the stream, again and again.
                let reason = format!("the result has more than {max} bytes");
                Report::Nack { delay_seconds: 0, reason }
            }
            Outcome::Complete(json) if json.get() == "null" => Report::Complete(Bytes::new()),
            Outcome::Complete(json) => {
                Report::Complete(String::from(Box::<str>::from(json)).into())
            }
            Outcome::Fail(error) if error.is_empty() => Report::Fail("failed".to_owned()),
            Outcome::Fail(error) => Report::Fail(cut(error)),
            Outcome::Nack { delay, reason } => {
                let delay_seconds = match delay {
                    None => 0,
                    Some(Duration::ZERO) => -1,
                    Some(delay) => whole_seconds(delay),
                };
                Report::Nack { delay_seconds, reason: cut(reason) }
            }
            Outcome::Abandon => Report::Abandon { no_penalty: false },
        }
    }
}

impl Report {
    pub(super) fn event(&self, task_id: &str, fence: u64) -> WorkerEvent {
        let task_id = task_id.to_owned();
        let result = |status: &str, result_json, error| {
            let (task_id, status) = (task_id.clone(), status.to_owned());
            Event::Result(WireResult { task_id, status, result_json, error, fence })
        };
        let event = match self.clone() {
            Report::Complete(json) => result("COMPLETED", json, String::new()),
            Report::Fail(error) => result("FAILED", Bytes::new(), error),
            Report::Nack { delay_seconds, reason } => {
                Event::Nack(Nack { task_id, delay_seconds, reason, fence })
            }
            Report::Abandon { no_penalty } => {
                Event::Abandon(Abandon { task_id, no_penalty, fence })
            }
        };
        WorkerEvent { event: Some(event) }
    }
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(ERROR_MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome) -> Report {
        Report::new(outcome, 100)
    }

    #[test]
    fn a_result_that_is_too_long_is_refused() {
        let of = |length: usize| Outcome::complete(&serde_json::json!({"a": "x".repeat(length)}));
        assert!(matches!(report(of(92).unwrap()), Report::Complete(_)));
        let Report::Nack { reason, .. } = report(of(93).unwrap()) else { panic!("too long") };
        assert_eq!(reason, "the result has more than 100 bytes");
    }

    #[test]
    fn a_result_must_be_an_object() {
        assert!(Outcome::complete(&serde_json::json!({"n": 1})).is_ok());
        assert!(Outcome::complete(&[1, 2]).is_err());
        assert!(Outcome::complete(&"text").is_err());
        assert_eq!(report(Outcome::done()), Report::Complete(Bytes::new()));
    }

    #[test]
    fn a_nack_distinguishes_a_delay_no_delay_and_backoff() {
        let seconds = |delay| match report(Outcome::Nack { delay, reason: String::new() }) {
            Report::Nack { delay_seconds, .. } => delay_seconds,
            other => panic!("{other:?}"),
        };
        assert_eq!(seconds(None), 0);
        assert_eq!(seconds(Some(Duration::ZERO)), -1);
        assert_eq!(seconds(Some(Duration::from_millis(1))), 1);
    }

    #[test]
    fn errors_are_cut_between_characters() {
        let Report::Fail(text) = report(Outcome::fail("é".repeat(3_000))) else { panic!() };
        assert_eq!(text.len(), 4_096);
        let Report::Fail(text) = report(Outcome::fail(format!("x{}", "é".repeat(3_000)))) else {
            panic!()
        };
        assert_eq!(text.len(), 4_095);
        assert_eq!(report(Outcome::fail("")), Report::Fail("failed".to_owned()));
    }
}
