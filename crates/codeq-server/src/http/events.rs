//! `GET /events`: transitions of the caller's tasks as server-sent events.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode};
use bytes::Bytes;
use codeq_auth::SKEW_SECONDS;
use codeq_core::effect::Transition;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use super::request_context::{Answer, RequestContext};
use super::response;
use super::schema::{events, places, statuses};
use crate::app::App;
use crate::events::{BusItem, Position, Reader};
use crate::limits::budget::{HeldFor, Hold};
use crate::service::{Code, ServiceError};
use crate::times::{Times, Timestamp};

/// Interval of the comments that keep proxies from closing a quiet stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Memory charged per stream, for transitions the client has not read yet.
const STREAM_BYTES: usize = 64 << 10;

/// Transitions per write: about 16 KiB, and a fraction of a millisecond of work.
const AT_ONCE: usize = 64;

/// The `data` of a `task` event in the stream.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TaskEvent")]
pub struct EventBody<'a> {
    /// The task's id.
    #[schemars(extend("format" = "uuid"))]
    task_id: String,
    /// The task's queue.
    command: &'a str,
    /// What happened.
    #[schemars(extend("enum" = events()))]
    event: &'static str,
    /// Where the task was. Absent if it was just created.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = places()))]
    from: Option<&'static str>,
    /// Where the task went. Absent if it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = places()))]
    to: Option<&'static str>,
    /// The task's status after the transition. Absent if it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = statuses()))]
    status: Option<&'static str>,
    /// Failed attempts so far.
    attempts: u32,
    /// When it happened.
    at: Timestamp,
}

struct Stream {
    app: Arc<App>,
    tenant: Arc<str>,
    reader: Reader,
    command: Option<String>,
    /// When bytes were last sent.
    last_sent: Instant,
    ends: Instant,
    /// Completes when the token is revoked.
    revoked: BoxFuture<'static, ()>,
    first: Option<String>,
    _hold: Hold,
}

pub async fn stream(context: RequestContext) -> Answer {
    let invalid = || ServiceError::new(Code::InvalidEventId, "invalid Last-Event-ID");
    let id = context.headers.get("last-event-id").map(|id| id.to_str().map_err(|_| invalid()));
    let from = match id.transpose()?.map(str::trim).filter(|id| !id.is_empty()) {
        None => None,
        Some(id) => Some(position(id).ok_or_else(invalid)?),
    };
    // `listen` grants a tenant at most half of all streams.
    let Some((reader, missed)) = context.service().events.listen(&context.caller.tenant, from)
    else {
        let refused = ServiceError::new(Code::TooManyStreams, "too many event streams");
        return Err(refused.retry_after(5).into());
    };
    let hold =
        context.share.hold(HeldFor::Answers, STREAM_BYTES).ok_or_else(ServiceError::overloaded)?;
    let first = if missed { missed_event(reader.position()) } else { String::new() };
    let stream = Stream {
        last_sent: Instant::now(),
        ends: token_end(&context),
        revoked: context.revoked(),
        command: context.param("command").map(|text| text.to_ascii_lowercase()),
        app: Arc::clone(&context.app),
        tenant: Arc::clone(&context.caller.tenant),
        reader,
        _hold: hold,
        // Send something at once, so that the client knows it is connected.
        first: Some(format!("retry: 1000\n: connected\n\n{first}")),
    };
    let body = futures_util::stream::unfold(stream, |mut stream| async move {
        let text = stream.next().await?;
        stream.last_sent = Instant::now();
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), stream))
    });
    let media = HeaderValue::from_static("text/event-stream");
    let mut response = response::bytes_as(StatusCode::OK, Body::from_stream(body), media);
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

impl Stream {
    async fn next(&mut self) -> Option<String> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            let quiet_until = self.last_sent + KEEP_ALIVE;
            // In this order, because a busy tenant always has something to read: it must delay neither the end nor a
            // keep-alive of a stream whose own command is quiet.
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.ends) => return None,
                () = &mut self.revoked => return None,
                () = self.app.service.shutdown_begins() => return None,
                () = tokio::time::sleep_until(quiet_until) => return Some(": quiet\n\n".to_owned()),
                () = self.reader.wait() => {}
            }
            // Hundreds of streams can catch up at the same time, so only one per tenant runs at
            // once.
            let _permit = self.app.service.scans.permit(&self.tenant).await.ok()?;
            let mut text = String::new();
            for _ in 0..AT_ONCE {
                match self.reader.take() {
                    None => break,
                    Some(BusItem::Missed(position)) => text.push_str(&missed_event(&position)),
                    Some(BusItem::Transition(moved, position)) => {
                        if self.command.as_ref().is_none_or(|name| **name == *moved.queue) {
                            text.push_str(&event(&moved, &position, &self.app.times));
                        }
                    }
                }
            }
            if !text.is_empty() {
                return Some(text);
            }
        }
    }
}

/// When the stream must end because its token expires.
fn token_end(context: &RequestContext) -> Instant {
    /// Longer than any stream lasts.
    const YEAR: u64 = 366 * 86_400;
    let now = context.service().now().wall / 1_000;
    let left =
        context.caller.expires_at.map(|end| end.saturating_add(SKEW_SECONDS).saturating_sub(now));
    Instant::now() + Duration::from_secs(left.unwrap_or(YEAR).min(YEAR))
}

fn event(moved: &Transition, position: &Position, times: &Times) -> String {
    let body = EventBody {
        task_id: moved.id.to_string(),
        command: &moved.queue,
        event: moved.event.as_str(),
        from: moved.from.map(|place| place.location()),
        to: moved.to.map(|place| place.location()),
        status: moved.to.map(|place| place.status().as_str()),
        attempts: moved.attempts,
        at: times.timestamp(moved.at.wall),
    };
    // The JSON is a single line, so no value can start a new SSE field.
    let data = serde_json::to_string(&body).unwrap_or_default();
    format!("id: {}\nevent: task\ndata: {data}\n\n", id_text(position))
}

fn missed_event(position: &Position) -> String {
    let text = "transitions before this one are no longer stored: list the tasks again";
    format!("id: {}\nevent: missed\ndata: {{\"detail\":\"{text}\"}}\n\n", id_text(position))
}

fn id_text(position: &Position) -> String {
    let mut text = String::new();
    for (at, number) in position.iter().enumerate() {
        let separator = if at == 0 { "" } else { "-" };
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{separator}{number}");
    }
    text
}

fn position(id: &str) -> Option<Position> {
    const SHARDS: usize = codeq_engine::options::SHARDS_MAX as usize;
    let numbers: Option<Position> =
        id.split('-').take(SHARDS + 1).map(|n| n.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() <= SHARDS)
}
