//! Reading bodies: how large, how long, and how much memory all large ones together may take.

use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use bytes::{Bytes, BytesMut};
use codeq_engine::EngineError;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Edge;
use super::problem::Problem;
use crate::service::ServiceError;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Memory for large bodies, in bytes.
#[derive(Debug, Clone)]
pub struct Room(Arc<Semaphore>);

/// A large body, and the memory that it was allowed to take. The room is free again when the last part of it
/// is gone, whoever has that.
struct Held {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Room {
    /// Room for bodies of which the largest may have so many bytes.
    pub fn new(largest: usize) -> Room {
        /// Room that is there in any case.
        const LEAST: usize = 256 << 20;
        Room(Arc::new(Semaphore::new(largest.saturating_mul(4).max(LEAST))))
    }
}

/// The body of a request, of at most `max` bytes.
pub async fn read(edge: &Edge, parts: &Parts, body: Body, max: usize) -> Result<Bytes, Problem> {
    let length = parts.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|text| text.to_str().ok()).and_then(|text| text.parse().ok());
    if length.is_some_and(|length: u64| length > max as u64) {
        return Err(too_large(max));
    }
    if parts.headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        let said = "content encoding not supported";
        return Err(Problem::edge(status, "unsupported_encoding", said));
    }
    let mut body = Limited::new(body, max);
    let most = length.map_or(max, |length| length as usize);
    if most <= edge.body_max {
        let small = async { Ok(body.collect().await?.to_bytes()) };
        return whole(timeout(edge.body_timeout, small).await, max);
    }
    let mut bytes = BytesMut::new();
    // Room is for those who have sent something: to say that much will come costs nothing.
    let first = gather(&mut body, &mut bytes, edge.body_max);
    if whole(timeout(edge.body_timeout, first).await, max)? {
        return Ok(bytes.freeze());
    }
    let wanted =
        Arc::clone(&edge.room.0).acquire_many_owned(u32::try_from(most).unwrap_or(u32::MAX));
    let Ok(Ok(room)) = timeout(edge.body_timeout, wanted).await else {
        let overloaded = ServiceError::from(EngineError::Overloaded);
        return Err(Problem { close: true, ..overloaded.into() });
    };
    if let Some(length) = length {
        bytes.reserve((length as usize).saturating_sub(bytes.len()));
    }
    let rest = gather(&mut body, &mut bytes, usize::MAX);
    whole(timeout(edge.body_timeout, rest).await, max)?;
    Ok(Bytes::from_owner(Held { bytes: bytes.freeze(), _room: room }))
}

/// Puts a body together as it comes: to do that at the end would take its memory twice. Says whether it has
/// ended, or else has more bytes than `enough`.
async fn gather(
    body: &mut Limited<Body>,
    bytes: &mut BytesMut,
    enough: usize,
) -> Result<bool, Failure> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() > enough {
            return Ok(false);
        }
    }
    Ok(true)
}

fn whole<T, E>(read: Result<Result<T, Failure>, E>, max: usize) -> Result<T, Problem> {
    match read {
        Ok(Ok(read)) => Ok(read),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(max)),
        Ok(Err(_)) => {
            Err(ServiceError::invalid_body().detail("the body did not arrive whole").into())
        }
        Err(_) => {
            let status = StatusCode::REQUEST_TIMEOUT;
            let problem = Problem::edge(status, "body_timeout", "the body took too long");
            Err(Problem { close: true, ..problem })
        }
    }
}

fn too_large(max: usize) -> Problem {
    let detail = format!("the body is larger than {max} bytes, the limit of this route");
    let status = StatusCode::PAYLOAD_TOO_LARGE;
    Problem::edge(status, "body_too_large", "body too large").detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use axum::http::Request;

    const LARGEST: usize = 80 << 20;

    fn parts(length: usize) -> Parts {
        let request = Request::builder().header("content-length", length.to_string());
        request.body(()).unwrap().into_parts().0
    }

    async fn ask(edge: &Edge, said: usize, body: Vec<u8>) -> Result<Bytes, Problem> {
        read(edge, &parts(said), Body::from(body), LARGEST).await
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_share_what_room_there_is() {
        let mut config = Config::default();
        config.http.max_batch_body_bytes = LARGEST;
        let edge = Edge::new(&config);
        let free = || edge.room.0.available_permits();
        assert_eq!(free(), 4 * LARGEST);
        let mut held: Vec<Bytes> = Vec::new();
        for at in 1..=4 {
            let body = ask(&edge, LARGEST, vec![7; (1 << 20) + 1]).await.unwrap();
            // A part of it is as good as the whole.
            held.push(body.slice(5..9));
            assert_eq!(free(), (4 - at) * LARGEST);
        }
        let small = ask(&edge, 1 << 20, vec![7; 1 << 20]).await.unwrap();
        assert_eq!(small.len(), 1 << 20, "a small one needs no room");
        let promised = ask(&edge, LARGEST, vec![7; 1 << 20]).await.unwrap();
        assert_eq!(promised.len(), 1 << 20, "nor does one that only says that it is large");
        let refused = ask(&edge, (1 << 20) + 1, vec![7; (1 << 20) + 1]).await.unwrap_err();
        assert_eq!(
            (refused.status, refused.error.code),
            (StatusCode::SERVICE_UNAVAILABLE, "overloaded")
        );
        assert!(refused.close && refused.error.retry_after.is_some());
        held.pop();
        assert_eq!(ask(&edge, 2 << 20, vec![1; 2 << 20]).await.unwrap(), vec![1; 2 << 20]);
        held.clear();
        assert_eq!(free(), 4 * LARGEST);
    }
}
