//! The server's description of itself.

use axum::http::{HeaderValue, StatusCode};

use super::answer;
use super::call::{Answer, Call};

pub async fn openapi(_call: Call) -> Answer {
    Ok(answer::bytes_as(StatusCode::OK, "{}", answer::JSON))
}

pub async fn page(_call: Call) -> Answer {
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    Ok(answer::bytes_as(StatusCode::OK, "", html))
}
