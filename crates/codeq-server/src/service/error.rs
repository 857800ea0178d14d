//! Why a request was not served, in terms that every protocol can translate.

use std::borrow::Cow;

use codeq_core::reply::Rejection;
use codeq_engine::EngineError;

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
    /// The thing is not in a state that allows this: 409.
    Conflict,
    /// The request is larger than it may be: 413.
    TooLarge,
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
    /// Its class.
    pub kind: Kind,
    /// The short text that clients read.
    pub error: Cow<'static, str>,
    /// A stable slug for programs.
    pub code: &'static str,
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
    /// A failure with the class, the slug and the text.
    pub fn new(
        kind: Kind,
        code: &'static str,
        error: impl Into<Cow<'static, str>>,
    ) -> ServiceError {
        let error = error.into();
        let (detail, field, retry_after, scope) = (None, None, None, None);
        ServiceError { kind, error, code, detail, field, retry_after, scope }
    }

    /// The request makes no sense.
    pub fn invalid(code: &'static str, error: impl Into<Cow<'static, str>>) -> ServiceError {
        ServiceError::new(Kind::Invalid, code, error)
    }

    /// The body is not what it should be.
    pub fn invalid_body() -> ServiceError {
        ServiceError::invalid("invalid_body", "invalid body")
    }

    /// The caller may not do this.
    pub fn forbidden(error: impl Into<Cow<'static, str>>) -> ServiceError {
        ServiceError::new(Kind::Forbidden, "forbidden", error)
    }

    /// There is no such thing.
    pub fn not_found(error: &'static str) -> ServiceError {
        ServiceError::new(Kind::NotFound, "not_found", error)
    }

    /// There is no such task.
    pub(crate) fn no_task(error: &'static str) -> ServiceError {
        ServiceError::not_found(error).detail(NO_TASK)
    }

    /// The batch is empty or too long.
    pub fn batch_too_long(max: usize) -> ServiceError {
        ServiceError::invalid("invalid_batch", format!("batch size exceeds maximum of {max}"))
    }

    /// With more than the short text says.
    #[must_use]
    pub fn detail(self, detail: impl Into<Box<str>>) -> ServiceError {
        ServiceError { detail: Some(detail.into()), ..self }
    }

    /// The tenant asks too often; in so many seconds it may again.
    pub fn rate_limited(scope: &'static str, seconds: u64) -> ServiceError {
        let refused = ServiceError::new(Kind::TooMany, "rate_limited", "rate limit exceeded");
        ServiceError { retry_after: Some(seconds.max(1)), scope: Some(scope), ..refused }
    }

    /// With the field that is wrong.
    #[must_use]
    pub fn field(self, field: impl Into<Box<str>>) -> ServiceError {
        ServiceError { field: Some(field.into()), ..self }
    }

    /// With the scope that the token lacks.
    #[must_use]
    pub fn needs(self, scope: &'static str) -> ServiceError {
        ServiceError { scope: Some(scope), ..self }
    }

    /// There is no room for this now, here or in the engine.
    pub(crate) fn overloaded() -> ServiceError {
        EngineError::Overloaded.into()
    }

    /// An answer that the engine does not give to this command: a mistake of ours.
    pub(crate) fn unexpected() -> ServiceError {
        ServiceError::new(Kind::Internal, "internal", "internal error")
    }
}

impl From<Rejection> for ServiceError {
    fn from(rejection: Rejection) -> ServiceError {
        let kind = kind_of(&rejection);
        let error = ServiceError::new(kind, rejection.code(), rejection.to_string());
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

fn kind_of(rejection: &Rejection) -> Kind {
    match rejection {
        Rejection::NotFound | Rejection::NoCallback => Kind::NotFound,
        Rejection::NotInProgress
        | Rejection::LeaseLost
        | Rejection::Finished
        | Rejection::Completed
        | Rejection::NotFinished
        | Rejection::RecordChanged
        | Rejection::TooManyRecords { .. } => Kind::Conflict,
        Rejection::NotOwner => Kind::Forbidden,
        Rejection::IdempotencyConflict
        | Rejection::InvalidTopic { .. }
        | Rejection::InvalidTopicName => Kind::Unprocessable,
        Rejection::InBatch { reason, .. } => kind_of(reason),
        Rejection::InvalidPayload { .. } | Rejection::InvalidResult { .. } => Kind::TooLarge,
        _ => Kind::Invalid,
    }
}

impl From<EngineError> for ServiceError {
    fn from(error: EngineError) -> ServiceError {
        let unavailable = |code, seconds| {
            let text = error.to_string();
            let refused = ServiceError::new(Kind::Unavailable, code, text);
            ServiceError { retry_after: Some(seconds), ..refused }
        };
        match &error {
            EngineError::Overloaded => unavailable("overloaded", 1),
            EngineError::TooManyWaiting => unavailable("too_many_waiting", 1),
            EngineError::DiskFull => unavailable("disk_full", 30),
            EngineError::NoDescriptors => unavailable("overloaded", 1),
            EngineError::Closed => unavailable("shutting_down", 1),
            EngineError::Failed(reason) => {
                // The reason names files and offsets: it is for the operator, not for the client.
                tracing::error!(target: "codeq::engine", %reason, "the engine has stopped");
                let text = "the server has stopped after a failure of its storage";
                let refused = ServiceError::new(Kind::Unavailable, "failed", text);
                ServiceError { retry_after: Some(30), ..refused }
            }
            EngineError::TooLarge { .. } => {
                ServiceError::new(Kind::TooLarge, "too_large", error.to_string())
            }
            EngineError::AtomicSpansShards => {
                ServiceError::invalid("atomic_spans_shards", error.to_string())
            }
            EngineError::ConcernsEveryShard => ServiceError::unexpected(),
            EngineError::TooFewConsumers { .. } => {
                let text = error.to_string();
                let refused = ServiceError::new(Kind::Unprocessable, "invalid_topic_policy", text);
                refused.field("maxConsumers")
            }
        }
    }
}
