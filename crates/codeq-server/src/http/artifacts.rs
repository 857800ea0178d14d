//! `GET /artifacts/{id}/{artifact}`.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};

use super::request_context::{Answer, RequestContext};
use super::response;
use crate::artifacts::DEFAULT_TYPE;
use crate::artifacts::address::escaped;

/// The worker chooses the content type, so a browser must not run the content.
const POLICY: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'");
const CONTENT_SECURITY_POLICY: HeaderName = HeaderName::from_static("content-security-policy");

pub async fn download(context: RequestContext) -> Answer {
    let download = context
        .service()
        .artifact(&context.caller, context.path("id"), context.path("artifact"))
        .await?;
    let media = HeaderValue::from_str(&download.content_type)
        .unwrap_or(HeaderValue::from_static(DEFAULT_TYPE));
    let body = Body::from_stream(download.body);
    let mut response = response::bytes_as(StatusCode::OK, body, media);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(download.length));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    if let Ok(disposition) = HeaderValue::from_str(&disposition(context.path("artifact"))) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    Ok(response)
}

/// Offers the artifact for download under its name: an ASCII form for old clients, then the exact
/// name (RFC 6266).
fn disposition(name: &str) -> String {
    let plain = |letter: char| {
        let fine = letter.is_ascii_alphanumeric() || matches!(letter, ' ' | '.' | '_' | '-');
        if fine { letter } else { '_' }
    };
    let simple: String = name.chars().map(plain).collect();
    let exact = escaped(name);
    format!("attachment; filename=\"{simple}\"; filename*=UTF-8''{exact}")
}
