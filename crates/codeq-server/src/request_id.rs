//! Ids of requests and streams.

use axum::http::{HeaderMap, HeaderName};

/// Header that carries the id, in requests and responses.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The client's request id if it is well formed, or a new one.
pub fn request_id(headers: &HeaderMap) -> String {
    const LONGEST: usize = 128;
    let theirs = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let sane = |id: &&str| {
        (1..=LONGEST).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match theirs.filter(sane) {
        Some(id) => id.to_owned(),
        None => format!("{:032x}", rand::random::<u128>()),
    }
}
