//! A stream from its Hello to its end: the same for producers and workers.
//!
//! The session is the stream of answers itself. Whoever writes it to the connection polls it, and while it
//! is polled it reads events; a client that takes no answers is therefore not read either.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use codeq_engine::Answer;
use codeq_engine::request::Request;
use codeq_net::H2_STREAM_WINDOW;
use codeq_proto::Message;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, Stream, StreamExt};
use tokio::time::{Sleep, sleep};
use tonic::{Code, Status};

use super::Call;
use super::events::Events;
use super::hello::Withdrawn;
use super::mail::{Posted, Slot};
use crate::app::App;
use crate::auth::{Principal, SKEW_SECONDS, shown};
use crate::limits::LimitScope;
use crate::limits::budget::{Connection, HeldFor, Hold, Share};
use crate::service::ServiceError;

/// Events of one stream whose answers are due; beyond them the stream is not read.
const IN_FLIGHT_MAX: usize = 1_024;
/// Bytes of such events.
const IN_FLIGHT_BYTES_MAX: usize = 8 << 20;
/// The bytes of a stream are counted in steps, so that most events cost nothing there.
pub(super) const STEP: usize = 32 << 10;
/// What a stream takes beside its events.
const STREAM_BYTES: usize = 16 << 10;
/// Pause before it is looked again whether the tenant has room for more events.
const ROOM_RETRY: Duration = Duration::from_millis(100);
/// Credits of one stream that wait. A client that gives more is mistaken: nobody works on so much at once.
const CREDITS_MAX: usize = 10_000;
/// Bytes of such credits: a client that names a thousand commands in each of them is mistaken as well.
const CREDIT_BYTES_MAX: usize = 8 << 20;
/// Credits of one stream that tasks may be found for; the others wait until one of these is answered. A client that
/// takes no answers has so many of them in the server's memory at most.
const CREDITS_OUT_MAX: usize = 256;

/// What an event begins.
pub(super) enum Begun<P: Protocol> {
    /// Nothing: this is the answer.
    Answered(P::Out),
    /// It was posted to the engine, and is answered when it is durable. It weighs so many bytes.
    Posted(P::Posted, usize),
}

/// What becomes of a wait for work.
pub(super) enum Credit<P: Protocol> {
    /// It was posted.
    Posted(P::Posted),
    /// It is to be posted again after a pause.
    Again(P::Posted, Duration),
    /// It cannot be: this is the answer.
    Refused(P::Out),
}

/// What the engine's answer to a posted event comes to.
pub(super) enum After<Out> {
    /// This.
    Answer(Out),
    /// Other parts of the event have no answer yet.
    More,
    /// Nothing that the client hears of.
    Nothing,
    /// Nothing yet: the wait for work is posted again after a pause.
    Again(Duration),
}

/// One of the two streams.
pub(super) trait Protocol: Send + Unpin + Sized + 'static {
    /// What the client sends.
    type In: Message + Default + 'static;
    /// What the server sends.
    type Out: Message + 'static;
    /// What is remembered of a posted event.
    type Posted: Send + Unpin + 'static;

    /// The service's name in logs and metrics.
    const SERVICE: &'static str;

    /// Whether what comes are tasks, which must not keep out what workers say.
    const OF_PRODUCERS: bool;

    /// Who is at the other end.
    fn caller(&self) -> &Principal;

    /// Takes an event that is a wait for work, and says about how many bytes it takes; gives back any other one.
    fn credit(&mut self, event: Self::In) -> Result<(Self::Posted, usize), Self::In>;

    /// Posts a wait for work, which ends when the client has no more to say.
    fn post_credit(&mut self, credit: Self::Posted, slot: &mut Slot<'_>) -> Credit<Self>;

    /// Starts what an event asks for.
    fn begin(&mut self, event: Self::In, slot: &mut Slot<'_>) -> Begun<Self>;

    /// Takes the engine's answer to a part of a posted event, and may post another part.
    fn answered(
        &mut self,
        event: &mut Self::Posted,
        index: usize,
        answer: Answer,
        slot: &mut Slot<'_>,
    ) -> After<Self::Out>;
}

/// A stream whose client is known.
pub(super) struct Opened<P: Protocol> {
    pub(super) protocol: P,
    pub(super) events: Events<P::In>,
    /// The answer to the Hello.
    pub(super) ack: P::Out,
    pub(super) withdrawn: Withdrawn,
}

/// One stream.
pub(super) struct Session<P: Protocol> {
    state: State<P>,
    /// What it comes over, if that is known.
    connection: Option<Arc<Connection>>,
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
    /// None once the client has said its last.
    events: Option<Events<P::In>>,
    /// To be posted.
    out: Vec<Request>,
    posted: Posted<(P::Posted, usize)>,
    posted_credits: Posted<(P::Posted, usize)>,
    /// Waits for work beyond those that are out.
    held: VecDeque<(P::Posted, usize)>,
    /// Runs while none of them is posted.
    rest: Option<Pin<Box<Sleep>>>,
    /// What can end the stream: the server's stop, the token's withdrawal, and its end if it is to.
    endings: FuturesUnordered<BoxFuture<'static, Ending>>,
    ending: Option<Ending>,
    /// Of events whose acknowledgement is due.
    bytes: usize,
    /// Of all waits for work.
    credit_bytes: usize,
    hold: Hold,
    /// Runs while there is no room for more events.
    retry: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Ending {
    Drain,
    Expired,
    Withdrawn,
}

impl Ending {
    /// Whether the client has no right to be heard any more.
    fn is_tokens(self) -> bool {
        matches!(self, Ending::Expired | Ending::Withdrawn)
    }
}

/// What is said of a stream when it is over.
struct Tally {
    app: Arc<App>,
    call: Arc<Call>,
    service: &'static str,
    start: Instant,
    caller: Option<(Arc<str>, Arc<str>)>,
    events: u64,
    code: Code,
}

impl<P: Protocol> Session<P> {
    /// A stream whose Hello is still to come.
    pub(super) fn new(
        app: Arc<App>,
        connection: Option<Arc<Connection>>,
        call: Arc<Call>,
        opening: impl Future<Output = Result<Opened<P>, Status>> + Send + 'static,
    ) -> Session<P> {
        app.metrics.stream_opened(P::SERVICE);
        let drained = Arc::clone(&app);
        let opening = async move {
            tokio::select! {
                biased;
                opened = opening => opened,
                // A client that says nothing does not hold up the server's stop.
                () = drained.service.drained() => Err(stopped()),
            }
        };
        let tally = Tally {
            app,
            call,
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
                Poll::Ready(Ok(Opened { protocol, mut events, ack, withdrawn })) => {
                    let caller = protocol.caller();
                    this.tally.caller = Some((caller.tenant.clone(), caller.subject.clone()));
                    let app = Arc::clone(&this.tally.app);
                    let share = app.budget.tenant(&caller.tenant).on(this.connection.as_ref());
                    let max = app.edge.message_max;
                    if let Err(status) = events.admit(&share, P::OF_PRODUCERS, max) {
                        return this.close(status);
                    }
                    let open = Open::new(app, protocol, events, &share);
                    open.endings.push(Box::pin(async move {
                        withdrawn.await;
                        Ending::Withdrawn
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
    fn new(app: Arc<App>, protocol: P, events: Events<P::In>, share: &Share) -> Open<P> {
        let ends_at_expiry = app.edge.end_streams_at_expiry;
        let endings: FuturesUnordered<BoxFuture<'static, Ending>> = FuturesUnordered::new();
        let drained = Arc::clone(&app);
        endings.push(Box::pin(async move {
            drained.service.drained().await;
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
            events: Some(events),
            out: Vec::new(),
            posted: Posted::new(Arc::clone(&app), share),
            posted_credits: Posted::new(Arc::clone(&app), share),
            held: VecDeque::new(),
            rest: None,
            app,
            endings,
            ending: None,
            bytes: 0,
            credit_bytes: 0,
            hold: share.hold_anyway(HeldFor::Streams, STREAM_BYTES).of_producer(P::OF_PRODUCERS),
            retry: None,
        }
    }

    /// The next answer; an error is the end, also a good one.
    fn poll(&mut self, cx: &mut Context<'_>, events: &mut u64) -> Poll<Result<P::Out, Status>> {
        loop {
            let read = self.poll_events(cx, events);
            if !self.out.is_empty() {
                self.app.service.post(&mut self.out);
            }
            if let Poll::Ready(answer) = read {
                return Poll::Ready(answer);
            }
            // Acknowledgements first: a task that was given back may be assigned to the same worker again by the
            // same commit, and it should hear of the one before the other.
            if let Some(answer) = self.next_posted(cx) {
                return Poll::Ready(Ok(answer));
            }
            if let Some(answer) = self.next_posted_credit(cx) {
                return Poll::Ready(Ok(answer));
            }
            if !self.out.is_empty() {
                // What an answer has led to.
                continue;
            }
            if let Some(rest) = &mut self.rest
                && rest.as_mut().poll(cx).is_ready()
            {
                self.rest = None;
                continue;
            }
            if let Poll::Ready(Some(ending)) = self.endings.poll_next_unpin(cx) {
                // The token's end outweighs the server's: it stops the reading too.
                self.ending = Some(self.ending.filter(|had| had.is_tokens()).unwrap_or(ending));
                continue;
            }
            if self.posted.len() > 0 {
                return Poll::Pending;
            }
            return match (self.ending, &self.events) {
                (Some(Ending::Expired), _) => {
                    Poll::Ready(Err(Status::unauthenticated("token expired")))
                }
                (Some(Ending::Withdrawn), _) => {
                    Poll::Ready(Err(Status::unauthenticated("token withdrawn")))
                }
                (Some(Ending::Drain), _) => Poll::Ready(Err(stopped())),
                (None, None) => Poll::Ready(Err(Status::new(Code::Ok, ""))),
                (None, Some(_)) => Poll::Pending,
            };
        }
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

    fn next_posted_credit(&mut self, cx: &Context<'_>) -> Option<P::Out> {
        while let Some((key, index, answer)) = self.posted_credits.next(cx) {
            let Some((mut credit, bytes)) = self.posted_credits.remove(key) else { continue };
            let mut slot = self.posted_credits.slot(&mut self.out);
            match self.protocol.answered(&mut credit, index, answer, &mut slot) {
                After::Answer(answer) => {
                    self.credit_bytes = self.credit_bytes.saturating_sub(bytes);
                    return Some(answer);
                }
                After::Again(pause) => self.again((credit, bytes), pause),
                After::More | After::Nothing => {
                    self.credit_bytes = self.credit_bytes.saturating_sub(bytes);
                }
            }
        }
        None
    }

    /// Reads what the client has sent, as far as there is room. Ready with an answer that needs no waiting,
    /// or with the end.
    fn poll_events(
        &mut self,
        cx: &mut Context<'_>,
        count: &mut u64,
    ) -> Poll<Result<P::Out, Status>> {
        loop {
            if self.ending.is_some_and(Ending::is_tokens) || self.events.is_none() {
                return Poll::Pending;
            }
            match self.has_room(cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(status) => return Poll::Ready(Err(status)),
            }
            if let Some(credit) = self.next_held() {
                if let Some(refusal) = self.post(credit) {
                    return Poll::Ready(Ok(refusal));
                }
                continue;
            }
            let Some(events) = &mut self.events else { return Poll::Pending };
            let event = match events.poll_next(cx) {
                Poll::Ready(Some(Ok(event))) => event,
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Err(status)),
                Poll::Ready(None) => {
                    self.events = None;
                    // Nobody could say what became of a task that came now.
                    self.held.clear();
                    self.posted_credits.clear();
                    self.credit_bytes = 0;
                    return Poll::Pending;
                }
                Poll::Pending => return Poll::Pending,
            };
            *count += 1;
            let answer = match self.protocol.credit(event) {
                Ok(credit) => self.take_credit(credit)?,
                Err(event) => self.begin(event),
            };
            if let Some(answer) = answer {
                return Poll::Ready(Ok(answer));
            }
        }
    }

    /// Whether another event may be read: there are not too many whose answers are due, and there is room for its
    /// bytes. What a client has sent beyond waits in the connection's window, which counts too. An error ends the stream.
    fn has_room(&mut self, cx: &mut Context<'_>) -> Result<bool, Status> {
        let bytes = STREAM_BYTES + self.bytes + self.credit_bytes;
        let few = self.posted.len() < IN_FLIGHT_MAX && self.bytes < IN_FLIGHT_BYTES_MAX;
        if few && self.hold.fit(bytes, STEP) {
            self.retry = None;
            return Ok(true);
        }
        self.hold.grow_anyway(bytes + H2_STREAM_WINDOW as usize);
        if let Some(events) = &mut self.events {
            events.pause()?;
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

    /// A wait for work that may be posted now.
    fn next_held(&mut self) -> Option<(P::Posted, usize)> {
        let now = self.rest.is_none() && self.posted_credits.len() < CREDITS_OUT_MAX;
        if now { self.held.pop_front() } else { None }
    }

    /// Takes a wait for work that has just come. An error ends the stream.
    fn take_credit(&mut self, credit: (P::Posted, usize)) -> Result<Option<P::Out>, Status> {
        if self.held.len() + self.posted_credits.len() >= CREDITS_MAX {
            let text = format!("more than {CREDITS_MAX} Readys wait");
            return Err(Status::resource_exhausted(text));
        }
        self.credit_bytes += credit.1;
        if self.credit_bytes > CREDIT_BYTES_MAX {
            let text = format!("Readys that wait take more than {CREDIT_BYTES_MAX} bytes");
            return Err(Status::resource_exhausted(text));
        }
        if !self.held.is_empty() || self.posted_credits.len() >= CREDITS_OUT_MAX {
            self.held.push_back(credit);
            return Ok(None);
        }
        Ok(self.post(credit))
    }

    /// Posts a wait for work, or answers it.
    fn post(&mut self, (credit, bytes): (P::Posted, usize)) -> Option<P::Out> {
        let mut slot = self.posted_credits.slot(&mut self.out);
        match self.protocol.post_credit(credit, &mut slot) {
            Credit::Posted(credit) => self.posted_credits.put((credit, bytes)),
            Credit::Again(credit, pause) => self.again((credit, bytes), pause),
            Credit::Refused(refusal) => {
                self.credit_bytes = self.credit_bytes.saturating_sub(bytes);
                return Some(refusal);
            }
        }
        None
    }

    /// Posts a wait for work again after a pause, before any other.
    fn again(&mut self, credit: (P::Posted, usize), pause: Duration) {
        self.held.push_front(credit);
        self.rest = Some(Box::pin(sleep(pause)));
    }

    /// Starts what an event asks for; what needs no waiting is answered.
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
        if self.call.quiet.load(Ordering::Relaxed) {
            return;
        }
        let took_ms = (self.start.elapsed().as_secs_f64() * 1_000.0).round();
        let tenant = self.caller.as_ref().map(|(tenant, _)| &**tenant);
        let subject = self.caller.as_ref().map(|(_, subject)| shown(subject));
        tracing::info!(
            target: "codeq::grpc",
            request_id = %self.call.request_id,
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

/// The end of a stream when the server stops.
fn stopped() -> Status {
    Status::unavailable("the server is about to stop")
}

/// Whether the tenant may ask now: the same buckets as over HTTP, one token for each event.
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
