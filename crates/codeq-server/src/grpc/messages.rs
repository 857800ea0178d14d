//! Reads a client's messages from a stream.
//!
//! Memory grows with the bytes received, never with the length a client announces: a five-byte
//! prefix can announce megabytes.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::{Buf, Bytes, BytesMut};
use codeq_proto::codec;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tonic::{Code, Status};

use super::session::STEP;
use crate::limits::budget::{HeldFor, Hold, Share};

/// Maximum size of a Hello. A longer token goes in the metadata.
pub(super) const HELLO_BYTES_MAX: usize = 16 << 10;
/// Maximum items in a Hello. It has no repeated fields.
const HELLO_ITEMS_MAX: usize = 64;
/// Time limit from a message's first byte to its last.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Hard limit on the same time, whatever delays the message. While the server does not read, or has
/// no room for the rest, the client's timeout is paused but the partial message stays in memory.
/// Without this limit, clients that send half messages could exhaust a tenant's memory for good.
const HELD_MAX: Duration = Duration::from_secs(120);
/// Pause before checking again for room.
const RETRY: Duration = Duration::from_millis(100);
/// The prefix of each message: a compression flag and the length.
const PREFIX: usize = 5;
/// An HTTP/2 frame.
const FRAME: usize = 16 << 10;

/// The messages of one stream.
pub(super) struct Messages<In> {
    body: Body,
    /// Bytes of a message that is still incomplete.
    buf: BytesMut,
    max: usize,
    hold: Hold,
    ended: bool,
    /// When the client must have sent the rest of a message. `None` while the timeout is paused.
    deadline: Option<Instant>,
    /// When the rest of a message must have arrived, pauses included.
    held_until: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Runs while there is no room for more bytes.
    retry: Option<Pin<Box<Sleep>>>,
    messages: PhantomData<fn() -> In>,
}

impl<In: codeq_proto::Message + Default> Messages<In> {
    /// Reads from a client that has not identified itself yet.
    pub(super) fn new(body: Body, strangers: &Share) -> Result<Messages<In>, Status> {
        let hold = strangers.hold(HeldFor::Streams, HELLO_BYTES_MAX);
        let full = || Status::unavailable("too many streams have not sent their Hello yet");
        Ok(Messages {
            body,
            buf: BytesMut::new(),
            max: HELLO_BYTES_MAX,
            hold: hold.ok_or_else(full)?,
            ended: false,
            deadline: None,
            held_until: None,
            timer: None,
            retry: None,
            messages: PhantomData,
        })
    }

    /// Charges the tenant from here on, and allows longer messages. A producer's stream leaves room
    /// for workers.
    pub(super) fn admit(
        &mut self,
        share: &Share,
        of_producer: bool,
        max: usize,
    ) -> Result<(), Status> {
        let full = || {
            let text = "the server is holding too many bytes for this tenant or connection: try again later";
            Status::resource_exhausted(text)
        };
        let hold = share.hold(HeldFor::Streams, HELLO_BYTES_MAX).ok_or_else(full)?;
        self.hold = hold.of_producer(of_producer);
        self.max = max;
        Ok(())
    }

    pub(super) async fn message(&mut self) -> Result<Option<In>, Status> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await.transpose()
    }

    /// Pauses the client's timeout while the server does not read. Fails if a partial message has
    /// been held too long, so call this repeatedly during the pause.
    pub(super) fn pause(&mut self) -> Result<(), Status> {
        self.deadline = None;
        if self.buf.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        if now < *self.held_until.get_or_insert(now + HELD_MAX) {
            return Ok(());
        }
        self.ended = true;
        self.buf = BytesMut::new();
        let text = "the server has held a part of a message for too long: send smaller messages";
        Err(Status::resource_exhausted(text))
    }

    /// The next message; `None` at the end of the stream.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<In, Status>>> {
        loop {
            match self.whole() {
                Ok(Some(message)) => {
                    self.deadline = None;
                    self.held_until = None;
                    let known = self.max > HELLO_BYTES_MAX;
                    let most = if known { codec::ITEMS_MAX } else { HELLO_ITEMS_MAX };
                    return Poll::Ready(Some(codec::decode(message, most)));
                }
                Ok(None) => {}
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            if self.ended {
                return Poll::Ready(if self.buf.is_empty() {
                    None
                } else {
                    self.buf.clear();
                    Some(Err(Status::internal("the stream ended in the middle of a message")))
                });
            }
            match self.has_room(cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buf.extend_from_slice(&data);
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    self.ended = true;
                    let status = Status::from_error(Box::new(error));
                    // The client disconnected. Events received before that still count.
                    if status.code() == Code::Cancelled {
                        self.buf.clear();
                        return Poll::Ready(None);
                    }
                    return Poll::Ready(Some(Err(status)));
                }
                Poll::Ready(None) => self.ended = true,
                Poll::Pending if self.buf.is_empty() => return Poll::Pending,
                Poll::Pending => {
                    std::task::ready!(self.poll_late(cx));
                    self.ended = true;
                    self.buf.clear();
                    let late = "the rest of a message did not arrive in time";
                    return Poll::Ready(Some(Err(Status::deadline_exceeded(late))));
                }
            }
        }
    }

    /// Takes a complete message from the buffer.
    fn whole(&mut self) -> Result<Option<Bytes>, Status> {
        let Some([compressed, length @ ..]) = self.buf.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let (compressed, length) = (*compressed, u32::from_be_bytes(*length) as usize);
        if compressed != 0 {
            self.ended = true;
            return Err(Status::internal(
                "a message is compressed, but no compression was negotiated",
            ));
        }
        if length > self.max {
            self.ended = true;
            let max = self.max;
            let text = format!("a message has {length} bytes, the limit is {max}");
            return Err(Status::out_of_range(text));
        }
        if self.buf.len() < PREFIX + length {
            return Ok(None);
        }
        self.buf.advance(PREFIX);
        Ok(Some(self.buf.split_to(length).freeze()))
    }

    /// Whether there is room for another frame.
    fn has_room(&mut self, cx: &mut Context<'_>) -> Result<bool, Status> {
        if self.max == HELLO_BYTES_MAX {
            return Ok(true);
        }
        loop {
            let wanted = (self.buf.len() + FRAME).max(self.buf.capacity());
            if self.hold.resize_to_fit(wanted, STEP) {
                self.retry = None;
                return Ok(true);
            }
            self.pause()?;
            let retry = self.retry.get_or_insert_with(|| {
                self.hold.refused();
                Box::pin(sleep(RETRY))
            });
            if retry.as_mut().poll(cx).is_pending() {
                return Ok(false);
            }
            retry.as_mut().reset(Instant::now() + RETRY);
        }
    }

    /// Ready when the rest of a message is late. If the timer is set too early, resets it only when
    /// it fires: most messages are complete before that.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + MESSAGE_TIMEOUT);
        let held_until = *self.held_until.get_or_insert_with(|| Instant::now() + HELD_MAX);
        let deadline = deadline.min(held_until);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        loop {
            std::task::ready!(timer.as_mut().poll(cx));
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codeq_proto::Message;
    use codeq_proto::producer::producer_event::Event;
    use codeq_proto::producer::{CreateTask, Hello, ProducerEvent};
    use futures_util::stream::unfold;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use crate::limits::budget::Budget;

    const MESSAGE_BYTES_MAX: usize = 4 << 20;

    struct Client {
        /// `None` once the client is done sending.
        send: Option<UnboundedSender<Bytes>>,
        messages: Messages<ProducerEvent>,
    }

    fn stranger(budget: &Budget) -> Client {
        let (send, receive) = unbounded_channel();
        let pieces = unfold(receive, |mut receive: UnboundedReceiver<Bytes>| async move {
            Some((Ok::<_, std::io::Error>(receive.recv().await?), receive))
        });
        let messages = Messages::new(Body::from_stream(pieces), &budget.strangers()).unwrap();
        Client { send: Some(send), messages }
    }

    fn admitted(budget: &Budget) -> Client {
        let mut client = stranger(budget);
        client.messages.admit(&budget.tenant(&"a".into()), false, MESSAGE_BYTES_MAX).unwrap();
        client
    }

    impl Client {
        fn send(&self, bytes: impl Into<Bytes>) {
            self.send.as_ref().unwrap().send(bytes.into()).unwrap();
        }

        /// Reads what has arrived, and expects no complete message.
        async fn reads(&mut self) {
            let read = std::future::poll_fn(|cx| Poll::Ready(self.messages.poll_next(cx)));
            assert!(read.await.is_pending());
        }

        async fn fails(&mut self) -> Code {
            self.messages.message().await.unwrap_err().code()
        }
    }

    fn prefix(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&(length as u32).to_be_bytes());
        bytes
    }

    fn framed(event: Event) -> Vec<u8> {
        let message = ProducerEvent { event: Some(event) }.encode_to_vec();
        [prefix(message.len()), message].concat()
    }

    fn sized(bytes: usize) -> Event {
        Event::Create(CreateTask { payload: vec![b'1'; bytes].into(), ..CreateTask::default() })
    }

    #[tokio::test]
    async fn announced_bytes_reserve_nothing() {
        let budget = Budget::new(64 << 20);
        let mut client = admitted(&budget);
        client.send([prefix(MESSAGE_BYTES_MAX), vec![0; 100]].concat());
        client.reads().await;
        assert!(client.messages.buf.capacity() < 1_024, "{}", client.messages.buf.capacity());
        assert!(budget.bytes(HeldFor::Streams) <= STEP);
        // Bytes are charged as they arrive.
        client.send(vec![0; 1 << 20]);
        client.reads().await;
        client.send(vec![0; 1]);
        client.reads().await;
        assert!(budget.bytes(HeldFor::Streams) > 1 << 20);
        drop(client);
        assert_eq!(budget.bytes(HeldFor::Streams), 0);
    }

    #[tokio::test]
    async fn messages_are_bounded_and_a_hello_more_so() {
        let budget = Budget::new(64 << 20);
        let mut client = stranger(&budget);
        let hello = Hello { token: "t".repeat(HELLO_BYTES_MAX - 8) };
        client.send(framed(Event::Hello(hello.clone())));
        assert_eq!(
            client.messages.message().await.unwrap().unwrap().event,
            Some(Event::Hello(hello))
        );
        client.send(prefix(HELLO_BYTES_MAX + 1));
        assert_eq!(client.fails().await, Code::OutOfRange);
        let mut client = admitted(&budget);
        client.send(prefix(MESSAGE_BYTES_MAX + 1));
        assert_eq!(client.fails().await, Code::OutOfRange);
    }

    #[tokio::test]
    async fn messages_arrive_in_any_pieces() {
        let budget = Budget::new(64 << 20);
        let mut client = admitted(&budget);
        let bytes = [framed(sized(10)), framed(sized(0)), framed(sized(70_000))].concat();
        for piece in bytes.chunks(7) {
            client.send(piece.to_vec());
        }
        for want in [10, 0, 70_000] {
            assert_eq!(client.messages.message().await.unwrap().unwrap().event, Some(sized(want)));
        }
        client.send = None;
        assert!(client.messages.message().await.unwrap().is_none());
        let mut cut = admitted(&budget);
        cut.send(vec![0, 0]);
        cut.send = None;
        assert_eq!(cut.fails().await, Code::Internal);
        let mut compressed = admitted(&budget);
        compressed.send(vec![1, 0, 0, 0, 0]);
        assert_eq!(compressed.fails().await, Code::Internal);
    }

    #[tokio::test(start_paused = true)]
    async fn the_rest_of_a_message_has_a_deadline() {
        let budget = Budget::new(64 << 20);
        let mut client = admitted(&budget);
        let message = framed(sized(100));
        let (start, end) = message.split_at(50);
        // Slow, but complete in time; a pause does not count against the client.
        for pause in [false, true] {
            client.send(start.to_vec());
            client.reads().await;
            tokio::time::advance(MESSAGE_TIMEOUT - Duration::from_secs(1)).await;
            client.reads().await;
            if pause {
                client.messages.pause().unwrap();
                tokio::time::advance(MESSAGE_TIMEOUT).await;
                client.reads().await;
            }
            client.send(end.to_vec());
            assert!(client.messages.message().await.unwrap().is_some());
        }
        client.send(start.to_vec());
        let begun = Instant::now();
        assert_eq!(client.fails().await, Code::DeadlineExceeded);
        assert!(begun.elapsed() >= MESSAGE_TIMEOUT && begun.elapsed() < 2 * MESSAGE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn reading_waits_for_room_and_resumes() {
        let budget = Budget::new(4 << 20);
        let share = budget.tenant(&"a".into());
        let mut client = admitted(&budget);
        let rest = share.hold(HeldFor::Requests, (2 << 20) - HELLO_BYTES_MAX).unwrap();
        for piece in framed(sized(100_000)).chunks(FRAME) {
            client.send(piece.to_vec());
        }
        client.reads().await;
        tokio::time::advance(MESSAGE_TIMEOUT * 2).await;
        client.reads().await;
        drop(rest);
        assert!(client.messages.message().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_partial_message_is_not_held_forever_without_room() {
        let budget = Budget::new(4 << 20);
        let share = budget.tenant(&"a".into());
        let mut client = admitted(&budget);
        client.send(framed(sized(1 << 20))[..500_000].to_vec());
        client.reads().await;
        let rest = (2 << 20) - budget.bytes(HeldFor::Streams);
        let rest = share.hold(HeldFor::Requests, rest).unwrap();
        client.send(vec![b'1'; 500_000]);
        let begun = Instant::now();
        assert_eq!(client.fails().await, Code::ResourceExhausted);
        assert!(begun.elapsed() >= HELD_MAX && begun.elapsed() < 2 * HELD_MAX);
        assert_eq!(client.messages.buf.capacity(), 0);
        drop((client, rest));
        // Pauses count here, but the time between messages does not.
        let mut client = admitted(&budget);
        assert_eq!(budget.bytes(HeldFor::Streams), HELLO_BYTES_MAX);
        client.send(framed(sized(10)));
        assert!(client.messages.message().await.unwrap().is_some());
        tokio::time::advance(2 * HELD_MAX).await;
        client.messages.pause().unwrap();
        client.send(framed(sized(10))[..8].to_vec());
        client.reads().await;
        client.messages.pause().unwrap();
        tokio::time::advance(HELD_MAX).await;
        assert_eq!(client.messages.pause().unwrap_err().code(), Code::ResourceExhausted);
    }

    #[tokio::test]
    async fn streams_without_a_hello_are_bounded() {
        let budget = Budget::new(1 << 20);
        let clients: Vec<_> = (0..8).map(|_| stranger(&budget)).collect();
        let one_more = Messages::<ProducerEvent>::new(Body::empty(), &budget.strangers());
        assert_eq!(one_more.err().map(|status| status.code()), Some(Code::Unavailable));
        drop(clients);
        assert!(Messages::<ProducerEvent>::new(Body::empty(), &budget.strangers()).is_ok());
    }
}
