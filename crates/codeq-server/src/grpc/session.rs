//! A stream from its Hello to its end, for producers and workers alike.
//!
//! The session is the stream of answers. Polling it for the next answer also reads events, so the
//! server stops reading from a client that takes no answers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use codeq_auth::{Principal, SKEW_SECONDS, display_identity};
use codeq_engine::Answer;
use codeq_engine::request::Request;
use codeq_net::H2_STREAM_WINDOW;
use codeq_proto::Message;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, Stream, StreamExt};
use tokio::time::{Sleep, sleep};
use tonic::{Code, Status};

use super::StreamOrigin;
use super::hello::Revoked;
use super::mailbox::{PostedEvents, Slot};
use super::messages::Messages;
use crate::app::App;
use crate::limits::LimitScope;
use crate::limits::budget::{ConnectionBytes, HeldFor, Hold, Share};
use crate::service::ServiceError;

/// Maximum unanswered events per stream. Beyond this the stream is not read.
const IN_FLIGHT_MAX: usize = 1_024;
/// Maximum bytes of unanswered events.
const IN_FLIGHT_BYTES_MAX: usize = 8 << 20;
/// A stream's bytes are charged in steps, so that most events do not change the budget.
pub(super) const STEP: usize = 32 << 10;
/// Memory charged per stream, without its events.
const STREAM_BYTES: usize = 16 << 10;
/// Pause before checking again whether the tenant has room for more events.
const ROOM_RETRY: Duration = Duration::from_millis(100);
/// Maximum Readys that wait on one stream. A client that sends more is broken: no worker runs that
/// many tasks at once.
const READY_MAX: usize = 10_000;
/// Maximum bytes of waiting Readys, for clients that name a thousand commands in each.
const READY_BYTES_MAX: usize = 8 << 20;
/// Maximum Readys of one stream posted to the engine; the others wait for one of these to be
/// answered. Bounds the tasks in memory for a client that takes no answers.
const READY_POSTED_MAX: usize = 256;

/// The outcome of starting an event.
pub(super) enum Begun<P: Protocol> {
    /// Answered without the engine.
    Answered(P::Out),
    /// Posted to the engine, with its size in bytes. Answered once it is durable.
    Posted(P::EventState, usize),
}

/// The outcome of posting a Ready, which is a worker's wait for tasks.
pub(super) enum ReadyOutcome<P: Protocol> {
    /// Posted to the engine.
    Posted(P::EventState),
    /// To be posted again after a pause.
    Again(P::EventState, Duration),
    /// Refused, with this answer.
    Refused(P::Out),
}

/// What to do after the engine has answered a posted event.
pub(super) enum After<Out> {
    /// Send this answer.
    Answer(Out),
    /// Wait for other parts of the event.
    More,
    /// Send nothing.
    Nothing,
    /// Send nothing yet, and post the Ready again after a pause.
    Again(Duration),
}

/// The differences between the producer and the worker stream.
pub(super) trait Protocol: Send + Unpin + Sized + 'static {
    /// The client's messages.
    type In: Message + Default + 'static;
    /// The server's messages.
    type Out: Message + 'static;
    /// State kept for an event that is not answered yet.
    type EventState: Send + Unpin + 'static;

    /// The service's name in logs and metrics.
    const SERVICE: &'static str;

    /// Whether the events create tasks. Those leave room in memory for workers' events.
    const OF_PRODUCERS: bool;

    /// The authenticated client.
    fn caller(&self) -> &Principal;

    /// Accepts a Ready and returns its approximate size in bytes, or returns any other event.
    fn ready(&mut self, event: Self::In) -> Result<(Self::EventState, usize), Self::In>;

    /// Posts a Ready. It is cancelled when the client closes its side.
    fn post_ready(&mut self, ready: Self::EventState, slot: &mut Slot<'_>) -> ReadyOutcome<Self>;

    /// Starts the operation of an event.
    fn begin(&mut self, event: Self::In, slot: &mut Slot<'_>) -> Begun<Self>;

    /// Handles the engine's answer to one part of a posted event. May post another part.
    fn answered(
        &mut self,
        event: &mut Self::EventState,
        index: usize,
        answer: Answer,
        slot: &mut Slot<'_>,
    ) -> After<Self::Out>;
}

/// A stream whose client is authenticated.
pub(super) struct Opened<P: Protocol> {
    pub(super) protocol: P,
    pub(super) messages: Messages<P::In>,
    /// The answer to the Hello.
    pub(super) ack: P::Out,
    pub(super) revoked: Revoked,
}

/// One stream.
pub(super) struct Session<P: Protocol> {
    state: State<P>,
    /// The bytes held for its connection, if that is known.
    connection: Option<Arc<ConnectionBytes>>,
    tally: Tally,
}

enum State<P: Protocol> {
    Opening(BoxFuture<'static, Result<Opened<P>, Status>>),
    Open(Box<Open<P>>),
    Closed,
}

struct Open<P: Protocol> {
    app: Arc<App>,
    protocol: P,
    /// `None` once the client has closed its side.
    messages: Option<Messages<P::In>>,
    /// Requests to post to the engine.
    out: Vec<Request>,
    posted: PostedEvents<(P::EventState, usize)>,
    posted_ready: PostedEvents<(P::EventState, usize)>,
    /// Readys not posted to the engine yet.
    unposted_ready: VecDeque<(P::EventState, usize)>,
    /// Runs during a pause, in which no Ready is posted.
    pause: Option<Pin<Box<Sleep>>>,
    /// Futures that end the stream: server stop, token revoked and, if configured, token expired.
    endings: FuturesUnordered<BoxFuture<'static, Ending>>,
    ending: Option<Ending>,
    /// Bytes of unanswered events.
    bytes: usize,
    /// Bytes of all Readys.
    ready_bytes: usize,
    hold: Hold,
    /// Runs while there is no room for more events.
    retry: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Ending {
    Drain,
    Expired,
    Revoked,
}

impl Ending {
    /// Whether the token ended the stream, so that no more events may be read.
    fn is_token_end(self) -> bool {
        matches!(self, Ending::Expired | Ending::Revoked)
    }
}

/// Logs and counts a stream when it ends.
struct Tally {
    app: Arc<App>,
    origin: Arc<StreamOrigin>,
    service: &'static str,
    start: Instant,
    caller: Option<(Arc<str>, Arc<str>)>,
    events: u64,
    code: Code,
}

impl<P: Protocol> Session<P> {
    /// Creates a stream that waits for its Hello.
    pub(super) fn new(
        app: Arc<App>,
        connection: Option<Arc<ConnectionBytes>>,
        origin: Arc<StreamOrigin>,
        opening: impl Future<Output = Result<Opened<P>, Status>> + Send + 'static,
    ) -> Session<P> {
        app.metrics.stream_opened(P::SERVICE);
        let server = Arc::clone(&app);
        let opening = async move {
            tokio::select! {
                biased;
                opened = opening => opened,
                // A silent client must not delay the server's stop.
                () = server.service.shutdown_begins() => Err(stopped()),
            }
        };
        let tally = Tally {
            app,
            origin,
            service: P::SERVICE,
            start: Instant::now(),
            caller: None,
            events: 0,
            code: Code::Cancelled,
        };
        Session { state: State::Opening(Box::pin(opening)), connection, tally }
    }

    fn close(&mut self, status: Status) -> Poll<Option<Result<P::Out, Status>>> {
        self.state = State::Closed;
        self.tally.code = status.code();
        Poll::Ready((status.code() != Code::Ok).then_some(Err(status)))
    }
}

impl<P: Protocol> Stream for Session<P> {
    type Item = Result<P::Out, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        match &mut this.state {
            State::Opening(opening) => match opening.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Err(status)) => this.close(status),
                Poll::Ready(Ok(Opened { protocol, mut messages, ack, revoked })) => {
                    let caller = protocol.caller();
                    this.tally.caller = Some((caller.tenant.clone(), caller.subject.clone()));
                    let app = Arc::clone(&this.tally.app);
                    let share = app.budget.tenant(&caller.tenant).on(this.connection.as_ref());
                    let max = app.request_options.message_max;
                    if let Err(status) = messages.admit(&share, P::OF_PRODUCERS, max) {
                        return this.close(status);
                    }
                    let open = Open::new(app, protocol, messages, &share);
                    open.endings.push(Box::pin(async move {
                        revoked.await;
                        Ending::Revoked
                    }));
                    this.state = State::Open(Box::new(open));
                    Poll::Ready(Some(Ok(ack)))
                }
            },
            State::Open(open) => match open.poll(cx, &mut this.tally.events) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(answer)) => Poll::Ready(Some(Ok(answer))),
                Poll::Ready(Err(status)) => this.close(status),
            },
            State::Closed => Poll::Ready(None),
        }
    }
}

impl<P: Protocol> Open<P> {
    fn new(app: Arc<App>, protocol: P, messages: Messages<P::In>, share: &Share) -> Open<P> {
        let ends_at_expiry = app.request_options.end_streams_at_expiry;
        let endings: FuturesUnordered<BoxFuture<'static, Ending>> = FuturesUnordered::new();
        let server = Arc::clone(&app);
        endings.push(Box::pin(async move {
            server.service.shutdown_begins().await;
            Ending::Drain
        }));
        let expires_at = protocol.caller().expires_at;
        if let Some(expires_at) = expires_at.filter(|_| ends_at_expiry) {
            let end = UNIX_EPOCH + Duration::from_secs(expires_at.saturating_add(SKEW_SECONDS));
            let left = end.duration_since(SystemTime::now()).unwrap_or_default();
            endings.push(Box::pin(async move {
                tokio::time::sleep(left).await;
                Ending::Expired
            }));
        }
        Open {
            protocol,
            messages: Some(messages),
            out: Vec::new(),
            posted: PostedEvents::new(Arc::clone(&app), share),
            posted_ready: PostedEvents::new(Arc::clone(&app), share),
            unposted_ready: VecDeque::new(),
            pause: None,
            app,
            endings,
            ending: None,
            bytes: 0,
            ready_bytes: 0,
            // With this much, a stream with few unanswered events is always read. Otherwise many small streams could keep
            // each other waiting, because each that waits is charged its window.
            hold: share.hold_anyway(HeldFor::Streams, STEP).of_producer(P::OF_PRODUCERS),
            retry: None,
        }
    }

    /// The next answer. An error ends the stream; its code is `Ok` for a normal end.
    fn poll(&mut self, cx: &mut Context<'_>, events: &mut u64) -> Poll<Result<P::Out, Status>> {
        loop {
            let read = self.poll_events(cx, events);
            if !self.out.is_empty() {
                self.app.service.post(&mut self.out);
            }
            if let Poll::Ready(answer) = read {
                return Poll::Ready(answer);
            }
            // Acks first: one commit may take a task back from a worker and assign it to the same
            // worker again, and the worker must see the ack before the new assignment.
            if let Some(answer) = self.next_posted(cx) {
                return Poll::Ready(Ok(answer));
            }
            if let Some(answer) = self.next_posted_ready(cx) {
                return Poll::Ready(Ok(answer));
            }
            if !self.out.is_empty() {
                // An answer led to another request: post it.
                continue;
            }
            if let Some(pause) = &mut self.pause
                && pause.as_mut().poll(cx).is_ready()
            {
                self.pause = None;
                continue;
            }
            if let Poll::Ready(Some(ending)) = self.endings.poll_next_unpin(cx) {
                // An ended token takes precedence over a drain because it also stops reading.
                self.ending = Some(self.ending.filter(|had| had.is_token_end()).unwrap_or(ending));
                if self.ending.is_some_and(Ending::is_token_end) {
                    self.drop_ready();
                }
                continue;
            }
            if self.posted.len() > 0 {
                return Poll::Pending;
            }
            return match (self.ending, &self.messages) {
                (Some(Ending::Expired), _) => {
                    Poll::Ready(Err(Status::unauthenticated("token expired")))
                }
                (Some(Ending::Revoked), _) => {
                    Poll::Ready(Err(Status::unauthenticated("token revoked")))
                }
                (Some(Ending::Drain), _) => Poll::Ready(Err(stopped())),
                (None, None) => Poll::Ready(Err(Status::new(Code::Ok, ""))),
                (None, Some(_)) => Poll::Pending,
            };
        }
    }

    /// Ends all waits for work: the client could not report on a task assigned from here on.
    fn drop_ready(&mut self) {
        self.unposted_ready.clear();
        self.posted_ready.clear();
        self.ready_bytes = 0;
    }

    fn next_posted(&mut self, cx: &Context<'_>) -> Option<P::Out> {
        while let Some((key, index, answer)) = self.posted.next(cx) {
            let Some(((event, _), mut slot)) = self.posted.get(key, &mut self.out) else {
                continue;
            };
            let after = self.protocol.answered(event, index, answer, &mut slot);
            if matches!(after, After::More) {
                continue;
            }
            let bytes = self.posted.remove(key).map_or(0, |(_, bytes)| bytes);
            self.bytes = self.bytes.saturating_sub(bytes);
            if let After::Answer(answer) = after {
                return Some(answer);
            }
        }
        None
    }

    fn next_posted_ready(&mut self, cx: &Context<'_>) -> Option<P::Out> {
        while let Some((key, index, answer)) = self.posted_ready.next(cx) {
            let Some((mut ready, bytes)) = self.posted_ready.remove(key) else { continue };
            let mut slot = self.posted_ready.slot(&mut self.out);
            match self.protocol.answered(&mut ready, index, answer, &mut slot) {
                After::Answer(answer) => {
                    self.ready_bytes = self.ready_bytes.saturating_sub(bytes);
                    return Some(answer);
                }
                After::Again(pause) => self.again((ready, bytes), pause),
                After::More | After::Nothing => {
                    self.ready_bytes = self.ready_bytes.saturating_sub(bytes);
                }
            }
        }
        None
    }

    /// Reads events while there is room. Returns `Poll::Ready` with an immediate answer, or with an error that ends the
    /// stream.
    fn poll_events(
        &mut self,
        cx: &mut Context<'_>,
        count: &mut u64,
    ) -> Poll<Result<P::Out, Status>> {
        loop {
            if self.ending.is_some_and(Ending::is_token_end) || self.messages.is_none() {
                return Poll::Pending;
            }
            match self.has_room(cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(status) => return Poll::Ready(Err(status)),
            }
            if let Some(ready) = self.next_unposted() {
                if let Some(refusal) = self.post(ready) {
                    return Poll::Ready(Ok(refusal));
                }
                continue;
            }
            let Some(messages) = &mut self.messages else { return Poll::Pending };
            let event = match messages.poll_next(cx) {
                Poll::Ready(Some(Ok(event))) => event,
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Err(status)),
                Poll::Ready(None) => {
                    self.messages = None;
                    self.drop_ready();
                    return Poll::Pending;
                }
                Poll::Pending => return Poll::Pending,
            };
            *count += 1;
            let answer = match self.protocol.ready(event) {
                Ok(ready) => self.take_ready(ready)?,
                Err(event) => self.begin(event),
            };
            if let Some(answer) = answer {
                return Poll::Ready(Ok(answer));
            }
        }
    }

    /// Whether another event may be read: not too many are unanswered, and there is memory for it.
    /// If not, the stream is not read: what the client sends stays in its HTTP/2 window, and the
    /// whole window is charged as well. An error ends the stream.
    fn has_room(&mut self, cx: &mut Context<'_>) -> Result<bool, Status> {
        let bytes = STREAM_BYTES + self.bytes + self.ready_bytes;
        let few = self.posted.len() < IN_FLIGHT_MAX && self.bytes < IN_FLIGHT_BYTES_MAX;
        if few && self.hold.resize_to_fit(bytes, STEP) {
            self.retry = None;
            return Ok(true);
        }
        self.hold.grow_anyway(bytes + H2_STREAM_WINDOW as usize);
        if let Some(messages) = &mut self.messages {
            messages.pause()?;
        }
        if few {
            let retry = self.retry.get_or_insert_with(|| {
                self.hold.refused();
                Box::pin(sleep(ROOM_RETRY))
            });
            while retry.as_mut().poll(cx).is_ready() {
                retry.as_mut().reset(tokio::time::Instant::now() + ROOM_RETRY);
            }
        }
        Ok(false)
    }

    /// The next Ready to post, unless the stream is in a pause or at its limit.
    fn next_unposted(&mut self) -> Option<(P::EventState, usize)> {
        let now = self.pause.is_none() && self.posted_ready.len() < READY_POSTED_MAX;
        if now { self.unposted_ready.pop_front() } else { None }
    }

    /// Accepts a new Ready. An error ends the stream.
    fn take_ready(&mut self, ready: (P::EventState, usize)) -> Result<Option<P::Out>, Status> {
        if self.unposted_ready.len() + self.posted_ready.len() >= READY_MAX {
            let text = format!("more than {READY_MAX} Ready events are waiting");
            return Err(Status::resource_exhausted(text));
        }
        self.ready_bytes += ready.1;
        if self.ready_bytes > READY_BYTES_MAX {
            let text = format!("waiting Ready events take more than {READY_BYTES_MAX} bytes");
            return Err(Status::resource_exhausted(text));
        }
        if !self.unposted_ready.is_empty() || self.posted_ready.len() >= READY_POSTED_MAX {
            self.unposted_ready.push_back(ready);
            return Ok(None);
        }
        Ok(self.post(ready))
    }

    /// Posts a Ready. Returns the answer if it was refused.
    fn post(&mut self, (ready, bytes): (P::EventState, usize)) -> Option<P::Out> {
        let mut slot = self.posted_ready.slot(&mut self.out);
        match self.protocol.post_ready(ready, &mut slot) {
            ReadyOutcome::Posted(ready) => self.posted_ready.put((ready, bytes)),
            ReadyOutcome::Again(ready, pause) => self.again((ready, bytes), pause),
            ReadyOutcome::Refused(refusal) => {
                self.ready_bytes = self.ready_bytes.saturating_sub(bytes);
                return Some(refusal);
            }
        }
        None
    }

    /// Puts a Ready back at the front of the queue, to be posted after a pause.
    fn again(&mut self, ready: (P::EventState, usize), pause: Duration) {
        self.unposted_ready.push_front(ready);
        self.pause = Some(Box::pin(sleep(pause)));
    }

    /// Starts the operation of an event. Returns the answer if it is immediate.
    fn begin(&mut self, event: P::In) -> Option<P::Out> {
        let mut slot = self.posted.slot(&mut self.out);
        match self.protocol.begin(event, &mut slot) {
            Begun::Answered(answer) => return Some(answer),
            Begun::Posted(event, bytes) => {
                self.bytes += bytes;
                self.posted.put((event, bytes));
            }
        }
        None
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.app.metrics.stream_closed(self.service, self.code as i32, self.events);
        if self.origin.quiet.load(Ordering::Relaxed) {
            return;
        }
        let took_ms = (self.start.elapsed().as_secs_f64() * 1_000.0).round();
        let tenant = self.caller.as_ref().map(|(tenant, _)| &**tenant);
        let subject = self.caller.as_ref().map(|(_, subject)| display_identity(subject));
        tracing::info!(
            target: "codeq::grpc",
            request_id = %self.origin.request_id,
            service = self.service,
            code = ?self.code,
            events = self.events,
            took_ms,
            tenant,
            subject = subject.as_deref(),
            "stream"
        );
    }
}

/// The status of streams ended by a server stop.
fn stopped() -> Status {
    Status::unavailable("the server is shutting down")
}

/// Applies the tenant's rate limit: the same buckets as over HTTP, one token per event or part of a batch.
pub(super) fn check_rate(
    app: &App,
    caller: &Principal,
    scope: LimitScope,
    operation: &'static str,
) -> Result<(), ServiceError> {
    let Some(allowance) = app.limiter.take(&caller.tenant, scope) else {
        return Ok(());
    };
    if allowance.allowed {
        return Ok(());
    }
    app.metrics.rate_limited(scope.name(), operation);
    Err(ServiceError::rate_limited(scope.name(), allowance.reset_seconds))
}
