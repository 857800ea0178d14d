//! Why a request was not served, in terms that every protocol can translate.

use std::borrow::Cow;

use codeq_core::reply::Rejection;
use codeq_engine::EngineError;

use super::Code;

/// Why an id that looks like one finds no task.
pub(crate) const NO_TASK: &str = "no task of the token's tenant has this id: it may be another tenant's, or was removed \
                                  when its retention ended";

/// The class of a failure; HTTP and gRPC have a status for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request makes no sense: 400.
    Invalid,
    /// Who is calling is not known: 401.
    Unauthenticated,
    /// The caller may not do this: 403.
    Forbidden,
    /// There is no such thing for this caller: 404.
    NotFound,
    /// The thing cannot be called this way: 405.
    MethodNotAllowed,
    /// The request did not arrive in time: 408.
    TimedOut,
    /// The thing is not in a state that allows this: 409.
    Conflict,
    /// The request is larger than it may be: 413.
    TooLarge,
    /// The request is encoded in a way that is not understood: 415.
    Unsupported,
    /// The request is well formed and still wrong: 422.
    Unprocessable,
    /// The tenant asks too often or holds too much: 429.
    TooMany,
    /// Not now: 503.
    Unavailable,
    /// A mistake of ours: 500.
    Internal,
}

/// Why a request was not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ServiceError {
    /// The short text that clients read.
    pub error: Cow<'static, str>,
    /// The same for programs, with its class.
    pub code: Code,
    /// What is wrong with this very request, where that is more than the short text says.
    pub detail: Option<Box<str>>,
    /// The field or parameter that is wrong, if one is.
    pub field: Option<Box<str>>,
    /// When to try again, in seconds.
    pub retry_after: Option<u64>,
    /// Which limit was hit, or which scope the token lacks.
    pub scope: Option<&'static str>,
}

impl ServiceError {
    /// A failure with the code and the text.
    pub fn new(code: Code, error: impl Into<Cow<'static, str>>) -> ServiceError {
        let error = error.into();
        let (detail, field, retry_after, scope) = (None, None, None, None);
        ServiceError { error, code, detail, field, retry_after, scope }
    }

    /// The body is not what it should be.
    pub fn invalid_body() -> ServiceError {
        ServiceError::new(Code::InvalidBody, "invalid body")
    }

    /// The caller may not do this.
    pub fn forbidden(error: impl Into<Cow<'static, str>>) -> ServiceError {
        ServiceError::new(Code::Forbidden, error)
    }

    /// There is no such thing.
    pub fn not_found(error: &'static str) -> ServiceError {
        ServiceError::new(Code::NotFound, error)
    }

    /// There is no such task.
    pub(crate) fn no_task(error: &'static str) -> ServiceError {
        ServiceError::not_found(error).detail(NO_TASK)
    }

    /// The batch is empty or too long.
    pub fn batch_too_long(max: usize) -> ServiceError {
        ServiceError::new(Code::InvalidBatch, format!("batch size exceeds maximum of {max}"))
    }

    /// With more than the short text says.
    #[must_use]
    pub fn detail(self, detail: impl Into<Box<str>>) -> ServiceError {
        ServiceError { detail: Some(detail.into()), ..self }
    }

    /// The tenant asks too often; in so many seconds it may again.
    pub fn rate_limited(scope: &'static str, seconds: u64) -> ServiceError {
        let refused = ServiceError::new(Code::RateLimited, "rate limit exceeded");
        refused.scope(scope).retry_after(seconds.max(1))
    }

    /// Worth trying again after so many seconds.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> ServiceError {
        ServiceError { retry_after: Some(seconds), ..self }
    }

    /// With the field that is wrong.
    #[must_use]
    pub fn field(self, field: impl Into<Box<str>>) -> ServiceError {
        ServiceError { field: Some(field.into()), ..self }
    }

    /// With the limit that was hit, or the scope that the token lacks.
    #[must_use]
    pub fn scope(self, scope: &'static str) -> ServiceError {
        ServiceError { scope: Some(scope), ..self }
    }

    /// There is no room for this now, here or in the engine.
    pub(crate) fn overloaded() -> ServiceError {
        EngineError::Overloaded.into()
    }

    /// An answer that the engine does not give to this command: a mistake of ours.
    pub(crate) fn unexpected() -> ServiceError {
        ServiceError::new(Code::Internal, "internal error")
    }
}

impl From<Rejection> for ServiceError {
    fn from(rejection: Rejection) -> ServiceError {
        let error = ServiceError::new(Code::from(&rejection), rejection.to_string());
        match rejection {
            Rejection::InvalidTopic { field } => error.field(field),
            Rejection::InvalidTopicName => {
                let detail = "a topic's name has 1 to 63 lower-case letters, digits and inner hyphens";
                error.field("name").detail(detail)
            }
            Rejection::InvalidCommand => {
                error.field("command").detail("a command has 1 to 128 bytes and no control characters")
            }
            Rejection::InvalidDelay { max } => error.detail(format!(
                "a task waits at most {} seconds: delaySeconds is in seconds, runAt is a moment",
                max / 1_000
            )),
            Rejection::NotFound => error.detail(NO_TASK),
            Rejection::NotInProgress => error.detail(
                "nobody holds a lease on the task: it is finished, or went back to its queue when its lease ended",
            ),
            Rejection::NotOwner => error.detail(
                "the lease is another worker's: the caller's has ended, the token has another subject, or the task was \
                 claimed with another workerId",
            ),
            Rejection::LeaseLost => error.detail(
                "the fence is not that of the latest claim: the task was claimed again, or never with this fence; \
                 stop working on it",
            ),
            Rejection::ErrorRequired => {
                error.field("error").detail("say in 'error' why the task failed: it is missing or blank")
            }
            _ => error,
        }
    }
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
            EngineError::Closed => unavailable(Code::ShuttingDown, 1),
            EngineError::Failed(reason) => {
                // The reason names files and offsets: it is for the operator, not for the client.
                tracing::error!(target: "codeq::engine", %reason, "the engine has stopped");
                let text = "the server has stopped after a failure of its storage";
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
