//! The error type of the SDK.

use std::time::Duration;

use tonic::{Code, Status};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address or an option is invalid.
    #[error("invalid configuration: {0}")]
    Config(String),
    /// The server cannot be reached, or the connection broke.
    #[error("the server is unavailable: {0}")]
    Unavailable(String),
    /// The call's time limit passed. The operation may have happened nevertheless.
    #[error("no response within the time limit")]
    Timeout,
    /// The connection behind this handle was closed.
    #[error("the connection is closed")]
    Closed,
    /// The server refused a message sent over a stream.
    #[error("refused: {message} ({code})")]
    Refused {
        /// A stable code, the same as over HTTP.
        code: String,
        /// A short explanation for people.
        message: String,
    },
    /// The HTTP API returned an error.
    #[error("refused with {status}: {detail} ({code})")]
    Api {
        /// The HTTP status.
        status: u16,
        /// A stable code; empty if the response did not come from codeQ.
        code: String,
        /// A short text, the same for every error with this code.
        message: String,
        /// What exactly is wrong, for people.
        detail: String,
        /// How long to wait before retrying, if the server said so.
        retry_after: Option<Duration>,
        /// The id of the request, by which the server's logs know it.
        request_id: Option<String>,
    },
    /// A value could not be serialised to JSON.
    #[error("cannot encode: {0}")]
    Encode(#[source] serde_json::Error),
    /// The response, or a part of it, is larger than accepted here.
    #[error("{0}")]
    TooLarge(String),
    /// JSON does not have the expected shape.
    #[error("cannot decode: {0}")]
    Decode(#[source] serde_json::Error),
    /// The task whose result was requested has failed.
    #[error("the task failed: {0}")]
    TaskFailed(String),
}

impl Error {
    /// The stable code of a refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Refused { code, .. } | Error::Api { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Whether the same call may succeed a little later.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Unavailable(_) | Error::Timeout => true,
            Error::Refused { code, .. } => {
                is_transient(code) || matches!(code.as_str(), "disk_full" | "quota_exceeded")
            }
            Error::Api { status, .. } => matches!(status, 429 | 502..=504),
            _ => false,
        }
    }

    /// How long the server asked to wait before a retry.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Api { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub(crate) fn unavailable(cause: &dyn std::error::Error) -> Error {
        Error::Unavailable(chain(cause))
    }

    /// Converts the status of a stream that ended or could not be opened.
    pub(crate) fn of_status(status: &Status) -> Error {
        let code = match status.code() {
            Code::Unauthenticated => "unauthenticated",
            Code::PermissionDenied => "forbidden",
            Code::FailedPrecondition => "failed_precondition",
            Code::InvalidArgument => "invalid_argument",
            Code::Unimplemented => "unimplemented",
            _ => return Error::unavailable(status),
        };
        Error::Refused { code: code.to_owned(), message: status.message().to_owned() }
    }

    /// Converts an error received as a message on a stream, whose code is the name of a gRPC code.
    pub(crate) fn of_stream(code: String, message: String) -> Error {
        let code = match code.as_str() {
            "Unauthenticated" => "unauthenticated",
            "PermissionDenied" => "forbidden",
            "FailedPrecondition" => "failed_precondition",
            "InvalidArgument" => "invalid_argument",
            "Unavailable" | "ResourceExhausted" | "Internal" => return Error::Unavailable(message),
            _ => return Error::Refused { code, message },
        };
        Error::Refused { code: code.to_owned(), message }
    }
}

/// Refusals after which the SDK itself tries again: the server is busy, shutting down or restarting. A full disk or quota
/// may pass too, but not soon: the caller decides.
pub(crate) fn is_transient(code: &str) -> bool {
    matches!(code, "overloaded" | "shutting_down" | "failed" | "rate_limited")
}

/// An error with its causes, because the outermost text of a transport error says nothing.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_stream_is_not_an_outage() {
        let denied = Error::of_status(&Status::unauthenticated("missing token"));
        assert_eq!(denied.code(), Some("unauthenticated"));
        assert!(!denied.is_transient());
        let gone = Error::of_status(&Status::unavailable("draining"));
        assert!(matches!(gone, Error::Unavailable(_)));
        assert!(gone.is_transient());
    }

    #[test]
    fn errors_on_a_stream_have_the_codes_of_http() {
        let of = |code: &str| Error::of_stream(code.to_owned(), "no".to_owned());
        assert_eq!(of("PermissionDenied").code(), Some("forbidden"));
        assert_eq!(of("invalid_lease").code(), Some("invalid_lease"));
        assert!(of("Unavailable").is_transient());
        assert!(of("disk_full").is_transient() && of("quota_exceeded").is_transient());
    }

    #[test]
    fn a_chain_names_the_cause_once() {
        let inner = std::io::Error::other("connection refused");
        let outer = Error::unavailable(&inner);
        assert_eq!(outer.to_string(), "the server is unavailable: connection refused");
    }
}
