//! A checked request: one engine call, plus the function that reads its answer.
//!
//! HTTP awaits the answer. A stream posts calls in batches and reads the answers from its mailbox.

use std::sync::Arc;

use codeq_auth::Principal;
use codeq_core::command::Command;
use codeq_core::id::TaskId;
use codeq_core::moment::Moment;
use codeq_core::reply::{Rejection, Reply};
use codeq_core::view::Task;
use codeq_engine::boundary::Mailbox;
use codeq_engine::request::{ReplyTo, Request};
use codeq_engine::{Answer, Call, Engine};
use tracing::{Instrument, Span};

use super::{Service, ServiceError};

/// A request that is ready to send to the engine. It passed every check, or carries the flaw that was found.
pub struct PreparedCall<T> {
    call: Call,
    reader: AnswerReader<T>,
}

/// A request in flight: knows how to read its answer.
pub struct AnswerReader<T> {
    read: Read<T>,
    extras: Option<Box<Extras>>,
}

type Read<T> = fn(Answer) -> Result<T, ServiceError>;

/// Rarely needed fields, boxed to keep [`AnswerReader`] small.
#[derive(Default)]
struct Extras {
    /// What is wrong with the request itself. The call is then one that the engine rejects only after all its other
    /// checks, so that any other refusal takes precedence.
    flaw: Option<ServiceError>,
    /// Covers the time until the answer, in the trace of the task's producer.
    span: Option<Span>,
}

impl<T> PreparedCall<T> {
    pub(super) fn new(call: Call, read: Read<T>) -> PreparedCall<T> {
        PreparedCall { call, reader: AnswerReader { read, extras: None } }
    }

    pub(super) fn flawed(mut self, flaw: Option<ServiceError>) -> PreparedCall<T> {
        if flaw.is_some() {
            self.reader.extras.get_or_insert_default().flaw = flaw;
        }
        self
    }

    /// Splits into the request to post and the reader of its answer.
    pub fn into_request(self, reply: ReplyTo) -> (Request, AnswerReader<T>) {
        (Request::new(self.call, reply), self.reader)
    }
}

impl<T> AnswerReader<T> {
    /// Converts the engine's answer into the caller's result.
    pub fn read(&mut self, answer: Answer) -> Result<T, ServiceError> {
        let extras = self.extras.take();
        match (answer, extras.and_then(|extras| extras.flaw)) {
            (Ok(Reply::Rejected(Rejection::ErrorRequired)), Some(flaw)) => Err(flaw),
            (answer, _) => (self.read)(answer),
        }
    }
}

impl Service {
    /// Sends the call and waits for its answer. Dropping the future returns any tasks it would have claimed.
    pub async fn call<T>(&self, prepared: PreparedCall<T>) -> Result<T, ServiceError> {
        let PreparedCall { call, mut reader } = prepared;
        let span = reader.extras.as_mut().and_then(|extras| extras.span.take());
        let answer = match span {
            None => self.engine.call(call).await,
            Some(span) => self.engine.call(call).instrument(span).await,
        };
        reader.read(answer)
    }

    /// Sends calls together and waits for all answers, which come in the order of the calls. Not for claims: see
    /// [`Engine::call_all`].
    pub async fn call_all<T>(
        &self,
        prepared: Vec<PreparedCall<T>>,
    ) -> Vec<Result<T, ServiceError>> {
        let (calls, readers): (Vec<Call>, Vec<AnswerReader<T>>) =
            prepared.into_iter().map(|PreparedCall { call, reader }| (call, reader)).unzip();
        let answers = self.engine.call_all(calls).await;
        readers.into_iter().zip(answers).map(|(mut reader, answer)| reader.read(answer)).collect()
    }

    /// Sends calls without waiting for their answers.
    pub fn post(&self, requests: &mut Vec<Request>) {
        self.engine.post(requests);
    }

    /// Tells the engine that a mailbox has lost its reader.
    pub fn mailbox_closed(&self, mailbox: &Arc<dyn Mailbox>) {
        self.engine.mailbox_closed(mailbox);
    }

    /// Returns claimed tasks that can no longer reach their worker.
    pub fn give_back(&self, tasks: Vec<Task>) {
        self.engine.give_back(tasks);
    }

    /// The engine's current time on both clocks.
    pub fn now(&self) -> Moment {
        self.engine.now()
    }

    /// The engine itself, for background work, probes and metrics.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Builds the request for a worker's operation on a task it holds.
    pub(super) fn under_lease<T>(
        &self,
        operation: &'static str,
        caller: &Principal,
        id: TaskId,
        command: Command,
        read: Read<T>,
    ) -> PreparedCall<T> {
        let mut prepared = PreparedCall::new(Call::Propose(command), read);
        if let Some(span) = self.span(operation, caller, id) {
            prepared.reader.extras.get_or_insert_default().span = Some(span);
        }
        prepared
    }

    pub(super) async fn propose(&self, command: Command) -> Answer {
        self.engine.call(Call::Propose(command)).await
    }
}
