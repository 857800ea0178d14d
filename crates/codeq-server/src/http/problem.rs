//! Error responses: `application/problem+json` (RFC 9457), plus `WWW-Authenticate` for token errors
//! (RFC 6750).

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use codeq_auth::{AuthError, Refusal};
use schemars::JsonSchema;
use serde::Serialize;

use super::response::{self, PROBLEM};
use crate::service::{Code, Kind, ServiceError};

/// An error response.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The error to report.
    pub error: ServiceError,
    /// Whether to close the connection, so that the unread rest of the body is not parsed as a
    /// request.
    pub close: bool,
    /// Why the token was refused, for the log and the metrics. Boxed, as few problems have it.
    pub refusal: Option<Box<Refusal>>,
}

/// Why a request failed (RFC 9457).
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Problem")]
pub struct ProblemBody<'a> {
    /// `/docs#<code>`.
    #[schemars(extend("format" = "uri-reference"))]
    r#type: String,
    /// The name of the HTTP status.
    title: &'a str,
    /// The HTTP status.
    #[schemars(range(min = 400, max = 599))]
    status: u16,
    /// What is wrong with this request.
    detail: &'a str,
    /// A short message.
    error: &'a str,
    /// A stable, machine-readable code.
    #[schemars(with = "String")]
    code: Code,
    /// The request's id, as in the `X-Request-Id` header.
    request_id: &'a str,
    /// The invalid field or parameter, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// With 429, the limit that was exceeded. With 403, the scope that the token lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'a str>,
    /// With 429, the operation id of the route.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'a str>,
    /// With 429 and 503, seconds to wait before retrying.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u64>,
}

/// The error of one item in a batch.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub struct ItemProblem<'a> {
    /// A short message.
    error: &'a str,
    /// A stable, machine-readable code.
    #[schemars(with = "String")]
    code: Code,
    /// What is wrong with this item.
    detail: &'a str,
    /// The invalid field, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

impl<'a> From<&'a ServiceError> for ItemProblem<'a> {
    fn from(error: &'a ServiceError) -> ItemProblem<'a> {
        ItemProblem {
            error: &error.error,
            code: error.code,
            detail: error.detail.as_deref().unwrap_or(&error.error),
            field: error.field.as_deref(),
        }
    }
}

impl Problem {
    /// An error after which the connection is closed.
    pub fn closing(error: ServiceError) -> Problem {
        Problem { error, close: true, refusal: None }
    }

    /// Converts the error to a response.
    pub fn into_response(self, request_id: &str, operation: &'static str) -> Response {
        let Problem { error, close, .. } = self;
        let status = status(error.code);
        let limited = status == StatusCode::TOO_MANY_REQUESTS;
        let why = error.detail.as_deref().unwrap_or(&error.error);
        let detail = match error.code {
            // Without a verified signature, the text is the same for every bad token. The log has the exact reason,
            // unless too many refusals for that reason were logged recently.
            Code::InvalidToken => Cow::Owned(format!(
                "{why}: use a token that this server's configuration accepts; the server's log has the reason under this requestId"
            )),
            _ => Cow::Borrowed(why),
        };
        let body = ProblemBody {
            r#type: format!("/docs#{}", error.code.text()),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: &detail,
            error: &error.error,
            code: error.code,
            request_id,
            field: error.field.as_deref(),
            scope: error.scope,
            operation: limited.then_some(operation),
            retry_after_seconds: error.retry_after,
        };
        let mut response = response::json_as(status, &body, PROBLEM);
        let headers = response.headers_mut();
        if let Some(seconds) = error.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(challenge) = challenge(&error) {
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// The `WWW-Authenticate` value: a token is required, the token is invalid, or it lacks a scope.
fn challenge(error: &ServiceError) -> Option<HeaderValue> {
    const REALM: &str = "Bearer realm=\"codeq\"";
    let text = match error.code {
        Code::MissingToken => REALM.to_owned(),
        Code::InvalidToken => {
            let why = error.detail.as_deref().unwrap_or(&error.error);
            format!("{REALM}, error=\"invalid_token\", error_description=\"{why}\"")
        }
        // The other 403 codes concern the task, not the token.
        Code::Forbidden => {
            let scope = error.scope.map(|scope| format!(", scope=\"{scope}\""));
            format!("{REALM}, error=\"insufficient_scope\"{}", scope.unwrap_or_default())
        }
        _ => return None,
    };
    HeaderValue::from_str(&text).ok()
}

/// The HTTP status of an error code.
pub fn status(code: Code) -> StatusCode {
    match code.kind() {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Unauthenticated => StatusCode::UNAUTHORIZED,
        Kind::Forbidden => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Kind::TimedOut => StatusCode::REQUEST_TIMEOUT,
        Kind::Conflict => StatusCode::CONFLICT,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::Unsupported => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Kind::Unprocessable => StatusCode::UNPROCESSABLE_ENTITY,
        Kind::TooMany => StatusCode::TOO_MANY_REQUESTS,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Problem {
        Problem { error, close: false, refusal: None }
    }
}

impl From<AuthError> for Problem {
    fn from(error: AuthError) -> Problem {
        let (text, refusal) = (error.to_string(), error.refusal().map(Box::new));
        let error = match error {
            AuthError::Missing => ServiceError::new(Code::MissingToken, text)
                .detail("send the header 'Authorization: Bearer <token>'"),
            AuthError::Invalid(refusal) => {
                ServiceError::new(Code::InvalidToken, text).detail(refusal.client_message())
            }
            AuthError::WrongKind(_) => {
                let detail = format!(
                    "{text}: producerAuth configures producer tokens, workerAuth configures worker tokens, and \
                     allowProducerAsWorker lets producers act as workers"
                );
                ServiceError::new(Code::Forbidden, text).detail(detail)
            }
            AuthError::TenantsDisagree => ServiceError::new(Code::Forbidden, text).detail(
                "the token's claims tid, tenantId and organizationId name different tenants",
            ),
            AuthError::Unavailable => {
                ServiceError::new(Code::IdentityUnavailable, text).retry_after(5)
            }
        };
        Problem { error, close: false, refusal }
    }
}
