//! The API documentation that the server serves.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;

use super::request_context::{Answer, RequestContext};
use super::{openapi, response};

/// The documentation changes only with the server version, so clients may cache it.
const KEEP: HeaderValue = HeaderValue::from_static("public, max-age=300");
/// Allows styles only, so that injected content cannot run scripts.
const CONTENT: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// Links to the documentation.
#[derive(Serialize, JsonSchema)]
pub struct Index {
    /// `codeQ`.
    name: &'static str,
    /// The server's version.
    version: &'static str,
    /// The base path of the API.
    api: &'static str,
    /// The documentation as a page.
    docs: &'static str,
    /// The documentation in OpenAPI 3.1.
    openapi: &'static str,
}

pub async fn index(_context: RequestContext) -> Answer {
    let index = Index {
        name: "codeQ",
        version: env!("CARGO_PKG_VERSION"),
        api: "/v1/codeq",
        docs: "/docs",
        openapi: "/openapi.json",
    };
    Ok(kept(response::json(StatusCode::OK, &index)))
}

pub async fn openapi(_context: RequestContext) -> Answer {
    Ok(kept(response::bytes_as(StatusCode::OK, openapi::text(), response::JSON)))
}

pub async fn page(_context: RequestContext) -> Answer {
    let mut response = kept(response::bytes_as(StatusCode::OK, openapi::page::html(), HTML));
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, CONTENT);
    Ok(response)
}

fn kept(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, KEEP);
    response
}
