//! Why a request failed, in terms every protocol can translate.

use std::borrow::Cow;

use codeq_core::limits::{
    MAX_RUN_MS_MAX, RETENTION_MS_MAX, TOPIC_ATTEMPTS_MAX, TOPIC_CONSUMERS_MAX, TOPIC_TIER_MAX,
    TOPIC_TIERS_MAX,
};
use codeq_core::reply::Rejection;
use codeq_engine::EngineError;

use super::Code;

/// Detail for a well-formed id that matches no task.
pub(crate) const NO_TASK: &str = "the token's tenant has no task with this id: the task may belong to another tenant, or it was \
                                  removed when its retention ended";

/// The class of a failure; maps to one HTTP and one gRPC status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request is malformed: 400.
    Invalid,
    /// The caller is not authenticated: 401.
    Unauthenticated,
    /// The caller lacks permission: 403.
    Forbidden,
    /// Not found, or not visible to this caller: 404.
    NotFound,
    /// The method does not apply to the resource: 405.
    MethodNotAllowed,
    /// The request did not arrive in time: 408.
    TimedOut,
    /// The resource's state does not allow this: 409.
    Conflict,
    /// The request is too large: 413.
    TooLarge,
    /// The request's encoding is not supported: 415.
    Unsupported,
    /// The request is well formed but invalid: 422.
    Unprocessable,
    /// Rate limit or quota exceeded: 429.
    TooMany,
    /// Temporarily unavailable: 503.
    Unavailable,
    /// A bug or internal failure: 500.
    Internal,
}

/// A failed request, independent of protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ServiceError {
    /// Short message for clients.
    pub error: Cow<'static, str>,
    /// Machine-readable reason; implies the class.
    pub code: Code,
    /// What is wrong with this particular request, when the short message does not say.
    pub detail: Option<Box<str>>,
    /// The offending field or parameter.
    pub field: Option<Box<str>>,
    /// Seconds to wait before trying again.
    pub retry_after: Option<u64>,
    /// The limit that was hit, or the scope the token lacks.
    pub scope: Option<&'static str>,
}

impl ServiceError {
    /// Creates an error with a code and a short message.
    pub fn new(code: Code, error: impl Into<Cow<'static, str>>) -> ServiceError {
        let error = error.into();
        let (detail, field, retry_after, scope) = (None, None, None, None);
        ServiceError { error, code, detail, field, retry_after, scope }
    }

    /// The request body is invalid.
    pub fn invalid_body() -> ServiceError {
        ServiceError::new(Code::InvalidBody, "invalid body")
    }

    /// The caller lacks permission.
    pub fn forbidden(error: impl Into<Cow<'static, str>>) -> ServiceError {
        ServiceError::new(Code::Forbidden, error)
    }

    /// The resource does not exist or is not visible to the caller.
    pub fn not_found(error: &'static str) -> ServiceError {
        ServiceError::new(Code::NotFound, error)
    }

    /// No such task, with a detail that explains likely causes.
    pub(crate) fn no_task(error: &'static str) -> ServiceError {
        ServiceError::not_found(error).detail(NO_TASK)
    }

    /// The batch exceeds the maximum length.
    pub fn batch_too_long(max: usize) -> ServiceError {
        ServiceError::new(Code::InvalidBatch, format!("batch size exceeds maximum of {max}"))
    }

    /// Adds a detail.
    #[must_use]
    pub fn detail(self, detail: impl Into<Box<str>>) -> ServiceError {
        ServiceError { detail: Some(detail.into()), ..self }
    }

    /// The tenant exceeded its rate limit and may retry after `seconds`.
    pub fn rate_limited(scope: &'static str, seconds: u64) -> ServiceError {
        let refused = ServiceError::new(Code::RateLimited, "rate limit exceeded");
        refused.scope(scope).retry_after(seconds.max(1))
    }

    /// Adds a retry hint in seconds.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> ServiceError {
        ServiceError { retry_after: Some(seconds), ..self }
    }

    /// Names the offending field.
    #[must_use]
    pub fn field(self, field: impl Into<Box<str>>) -> ServiceError {
        ServiceError { field: Some(field.into()), ..self }
    }

    /// Names the limit that was hit, or the missing scope.
    #[must_use]
    pub fn scope(self, scope: &'static str) -> ServiceError {
        ServiceError { scope: Some(scope), ..self }
    }

    /// The server or the engine has no capacity right now.
    pub(crate) fn overloaded() -> ServiceError {
        EngineError::Overloaded.into()
    }

    /// An internal failure; usually a bug.
    pub(crate) fn unexpected() -> ServiceError {
        ServiceError::new(Code::Internal, "internal error")
    }
}

impl From<Rejection> for ServiceError {
    fn from(rejection: Rejection) -> ServiceError {
        let error = ServiceError::new(Code::from(&rejection), rejection.to_string());
        match rejection {
            Rejection::InvalidTopic { field } => match policy_rule(&field) {
                Some(rule) => error.detail(format!("{field} is {rule}")).field(field),
                None => error.field(field),
            },
            Rejection::InvalidTopicName => {
                let detail = "a topic's name has 1 to 63 lowercase letters, digits and hyphens, with no hyphen at either end";
                error.field("name").detail(detail)
            }
            Rejection::InvalidCommand => {
                error.field("command").detail("a command must have 1 to 128 bytes and no control characters")
            }
            Rejection::InvalidDelay { max } => error.detail(format!(
                "a task can be delayed by at most {} seconds; delaySeconds is in seconds, runAt is a date",
                max / 1_000
            )),
            Rejection::InvalidMaxRun { min, max } => error.field("maxRunSeconds").detail(format!(
                "maxRunSeconds is {} to {}; 0 means the limit of the queue's policy, or none",
                min / 1_000,
                max / 1_000
            )),
            Rejection::NotFound => error.detail(NO_TASK),
            Rejection::NotInProgress => error.detail(
                "the task has no lease: it is finished, or returned to its queue when its lease ended",
            ),
            Rejection::NotOwner => error.detail(
                "another worker holds the lease: the caller's lease has ended, the token has a different subject, or the \
                 task was claimed with a different workerId",
            ),
            Rejection::LeaseLost => error.detail(
                "the fence does not match the latest claim: the task was claimed again, or never with this fence; \
                 stop working on it",
            ),
            Rejection::ErrorRequired => {
                error.field("error").detail("'error' is missing or blank: describe why the task failed")
            }
            _ => error,
        }
    }
}

/// What a field of a topic's policy may be.
fn policy_rule(field: &str) -> Option<String> {
    let seconds = |max: u64| format!("0 to {} seconds", max / 1_000);
    Some(match field {
        "priorityTiers" => {
            format!("1 to {TOPIC_TIERS_MAX} different numbers from 0 to {TOPIC_TIER_MAX}")
        }
        "maxAttempts" => format!("1 to {TOPIC_ATTEMPTS_MAX}"),
        "deadLetterTopicRef" => "the name of another queue: 1 to 63 lowercase letters, digits and \
                                 hyphens, with no hyphen at either end"
            .to_owned(),
        "retentionSeconds" | "deadLetterRetentionSeconds" => seconds(RETENTION_MS_MAX),
        "maxConsumers" => format!("0 to {TOPIC_CONSUMERS_MAX}"),
        "maxRunSeconds" => seconds(MAX_RUN_MS_MAX),
        _ => return None,
    })
}

impl From<EngineError> for ServiceError {
    fn from(error: EngineError) -> ServiceError {
        let unavailable =
            |code, seconds| ServiceError::new(code, error.to_string()).retry_after(seconds);
        match &error {
            EngineError::Overloaded => unavailable(Code::Overloaded, 1),
            EngineError::TooManyWaiting => unavailable(Code::TooManyWaiting, 1),
            EngineError::DiskFull => unavailable(Code::DiskFull, 30),
            EngineError::NoDescriptors => unavailable(Code::Overloaded, 1),
            // A server does not run as a member of a cluster yet; for a client these mean the same.
            EngineError::Closed | EngineError::NoLeader => unavailable(Code::ShuttingDown, 1),
            EngineError::Unknown => unavailable(Code::Failed, 1),
            EngineError::Failed(reason) => {
                // The reason names files and offsets: log it for the operator, hide it from clients.
                tracing::error!(target: "codeq::engine", %reason, "the engine has stopped");
                let text = "the server has stopped because its storage failed";
                ServiceError::new(Code::Failed, text).retry_after(30)
            }
            EngineError::TooLarge { .. } => ServiceError::new(Code::TooLarge, error.to_string()),
            EngineError::AtomicSpansShards => {
                ServiceError::new(Code::AtomicSpansShards, error.to_string())
            }
            EngineError::ConcernsEveryShard => ServiceError::unexpected(),
            EngineError::TooFewConsumers { .. } => {
                ServiceError::new(Code::InvalidTopicPolicy, error.to_string()).field("maxConsumers")
            }
        }
    }
}
