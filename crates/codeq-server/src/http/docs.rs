//! The server's description of itself.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use super::call::{Answer, Call};
use super::{answer, openapi};

/// It changes with the server only; a client may keep it for a while.
const KEEP: HeaderValue = HeaderValue::from_static("public, max-age=300");
/// The page is text and style, whatever somebody may smuggle into it.
const CONTENT: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

pub async fn openapi(_call: Call) -> Answer {
    Ok(kept(answer::bytes_as(StatusCode::OK, openapi::text(), answer::JSON)))
}

pub async fn page(_call: Call) -> Answer {
    let mut response = kept(answer::bytes_as(StatusCode::OK, openapi::page::html(), HTML));
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, CONTENT);
    Ok(response)
}

fn kept(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, KEEP);
    response
}
