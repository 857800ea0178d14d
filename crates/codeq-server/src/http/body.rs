//! Reads request bodies within limits on size, time and the tenant's memory.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::header;
use axum::http::request::Parts;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::{Instant, timeout_at};

use super::json::{self, NoFields};
use super::problem::Problem;
use crate::app::RequestOptions;
use crate::config::UnknownFields;
use crate::limits::budget::Hold;
use crate::service::{Code, ServiceError};

/// How long a body may wait for memory before the request is refused.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes read of the body on a route without fields, so that the error can name what is wrong.
const NO_FIELDS_BYTES: usize = 4 << 10;
/// A body up to this size is covered by the charge for the request head.
const SMALL: usize = 1 << 10;
/// A larger body is charged in steps of this size.
const STEP: usize = 16 << 10;
/// Once this much of a body has arrived, reserve the rest of its announced length: growing by
/// doubling would take three times the memory. The kernel backs only pages that are written, so the
/// unwritten rest is not charged.
const RESERVE_FROM: usize = 1 << 20;

/// A body and its charge against the memory budget, which is released when the last slice of the body is dropped.
struct Counted {
    bytes: Bytes,
    _hold: Hold,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a request body of at most `max` bytes. Charges `hold` for the bytes received, not for the
/// announced length. Returns the hold with a small body; keep it until the request ends.
pub async fn read(
    options: &RequestOptions,
    parts: &Parts,
    body: Body,
    max: usize,
    mut hold: Hold,
) -> Result<(Bytes, Option<Hold>), Problem> {
    let length = parts.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|text| text.to_str().ok()).and_then(|text| text.parse().ok());
    let length: u64 = length.unwrap_or(0);
    if length > max as u64 {
        return Err(too_large(max));
    }
    if parts.headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        let said = "content encoding not supported";
        return Err(ServiceError::new(Code::UnsupportedEncoding, said).into());
    }
    let end = Instant::now() + options.body_timeout;
    let mut body = Limited::new(body, max);
    // The initial charge covers the request head.
    let head = hold.bytes();
    let mut bytes = BytesMut::new();
    let mut whole = Bytes::new();
    let mut reserved = false;
    loop {
        let frame = match timeout_at(end, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => return Err(too_large(max)),
            Ok(Some(Err(_))) => {
                let invalid = ServiceError::invalid_body();
                return Err(invalid.detail("the body ended early").into());
            }
            Ok(None) => break,
            Err(_) => return Err(too_slow()),
        };
        let Ok(data) = frame.into_data() else { continue };
        // Most bodies arrive in one piece and need no copy.
        if whole.is_empty() && bytes.is_empty() {
            whole = data;
        } else {
            bytes.extend_from_slice(&std::mem::take(&mut whole));
            if !reserved && bytes.len() >= RESERVE_FROM {
                reserved = true;
                bytes.reserve((length as usize).saturating_sub(bytes.len()));
            }
            bytes.extend_from_slice(&data);
        }
        // A buffer that grows by doubling is charged for its capacity.
        let within_reserve = reserved && bytes.len() as u64 <= length;
        let taken = if within_reserve { bytes.len() } else { bytes.capacity() };
        let held = head + whole.len().max(taken);
        if held - head <= SMALL {
            continue;
        }
        if !hold.grow_within(held.next_multiple_of(STEP), ROOM_TIMEOUT).await {
            return Err(Problem::closing(ServiceError::overloaded()));
        }
    }
    let bytes = if whole.is_empty() { bytes.freeze() } else { whole };
    if bytes.len() <= SMALL {
        return Ok((bytes, Some(hold)));
    }
    Ok((Bytes::from_owner(Counted { bytes, _hold: hold }), None))
}

/// Checks that the body on a route without fields is empty, `null` or `{}`.
pub async fn none(options: &RequestOptions, body: Body) -> Result<(), Problem> {
    if body.is_end_stream() {
        return Ok(());
    }
    let refused = || ServiceError::invalid_body().detail("this route accepts no body");
    let whole = Limited::new(body, NO_FIELDS_BYTES).collect();
    let whole = timeout_at(Instant::now() + options.body_timeout, whole).await;
    let bytes = whole.ok().and_then(Result::ok).ok_or_else(refused)?.to_bytes();
    let body = json::Body { bytes, unknown: UnknownFields::Refuse };
    json::parse_or_default::<NoFields>(&body)?;
    Ok(())
}

fn too_slow() -> Problem {
    Problem::closing(ServiceError::new(Code::BodyTimeout, "the body did not arrive in time"))
}

fn too_large(max: usize) -> Problem {
    let detail = format!("the body is larger than {max} bytes, which is this route's limit");
    ServiceError::new(Code::BodyTooLarge, "body too large").detail(detail).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::limits::budget::{Budget, HeldFor};
    use axum::http::Request;

    const LARGEST: usize = 8 << 20;

    fn parts(length: usize) -> Parts {
        let request = Request::builder().header("content-length", length.to_string());
        request.body(()).unwrap().into_parts().0
    }

    async fn ask(
        budget: &Budget,
        tenant: &str,
        said: usize,
        sent: usize,
    ) -> Result<Bytes, Problem> {
        let hold = budget.tenant(&tenant.into()).nothing(HeldFor::Requests);
        let options = RequestOptions::new(&Config::default());
        // Send the body in pieces, as over a network.
        let pieces: Vec<Result<Bytes, std::io::Error>> =
            (0..sent.div_ceil(STEP)).map(|_| Ok(Bytes::from(vec![7; STEP]))).collect();
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        read(&options, &parts(said), body, LARGEST, hold).await.map(|(bytes, _)| bytes)
    }

    #[tokio::test(start_paused = true)]
    async fn received_bytes_are_charged_up_to_half_per_tenant() {
        let budget = Budget::new(4 * LARGEST);
        let held = || budget.bytes(HeldFor::Requests);
        let promised = ask(&budget, "a", LARGEST, STEP).await.unwrap();
        assert_eq!((promised.len(), held()), (STEP, STEP), "announced bytes are not charged");
        let first = ask(&budget, "a", LARGEST, LARGEST).await.unwrap();
        assert!(held() >= LARGEST, "{}", held());
        let mut parts_of_it = vec![first.slice(5..9)];
        drop(first);
        assert!(held() >= LARGEST, "a slice keeps the whole charge");
        let refused = ask(&budget, "a", LARGEST, LARGEST).await.unwrap_err();
        assert_eq!(refused.error.code, Code::Overloaded);
        assert!(refused.close && refused.error.retry_after.is_some());
        assert_eq!(budget.refused(HeldFor::Requests), 1);
        assert!(ask(&budget, "b", LARGEST, LARGEST).await.is_ok(), "another tenant has its half");
        parts_of_it.clear();
        assert!(ask(&budget, "a", LARGEST, LARGEST).await.is_ok());
        drop(promised);
        assert_eq!(held(), 0);
    }
}
