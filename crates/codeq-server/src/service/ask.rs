//! What a verb comes to once everything about it is checked: one call to the engine, and how its answer is read.
//!
//! HTTP waits for the answer; a stream posts the call together with others and reads the answer from its mailbox.

use std::sync::Arc;

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
use crate::auth::Principal;

/// A verb that may be done.
pub struct Ask<T> {
    call: Call,
    asked: Asked<T>,
}

/// A verb whose answer is not there yet.
pub struct Asked<T> {
    read: Read<T>,
    aside: Option<Box<Aside>>,
}

type Read<T> = fn(Answer) -> Result<T, ServiceError>;

/// What few verbs need.
#[derive(Default)]
struct Aside {
    /// What is wrong with the request in itself. The call is one that the rules refuse, if they find nothing else.
    flaw: Option<ServiceError>,
    /// The time until the answer, in the trace of the task's producer.
    span: Option<Span>,
}

impl<T> Ask<T> {
    pub(super) fn new(call: Call, read: Read<T>) -> Ask<T> {
        Ask { call, asked: Asked { read, aside: None } }
    }

    pub(super) fn flawed(mut self, flaw: Option<ServiceError>) -> Ask<T> {
        if flaw.is_some() {
            self.asked.aside.get_or_insert_default().flaw = flaw;
        }
        self
    }

    /// What to post, and what reads the answer.
    pub fn post(self, reply: ReplyTo) -> (Request, Asked<T>) {
        (Request::new(self.call, reply), self.asked)
    }
}

impl<T> Asked<T> {
    /// Reads the answer.
    pub fn read(&mut self, answer: Answer) -> Result<T, ServiceError> {
        let aside = self.aside.take();
        match (answer, aside.and_then(|aside| aside.flaw)) {
            (Ok(Reply::Rejected(Rejection::ErrorRequired)), Some(flaw)) => Err(flaw),
            (answer, _) => (self.read)(answer),
        }
    }
}

impl Service {
    /// Makes the call of a verb and waits for its answer. Dropping the future gives back what nobody will hear of.
    pub async fn answer<T>(&self, ask: Ask<T>) -> Result<T, ServiceError> {
        let Ask { call, mut asked } = ask;
        let span = asked.aside.as_mut().and_then(|aside| aside.span.take());
        let answer = match span {
            None => self.engine.call(call).await,
            Some(span) => self.engine.call(call).instrument(span).await,
        };
        asked.read(answer)
    }

    /// Makes the calls of verbs without waiting for their answers.
    pub fn post(&self, requests: &mut Vec<Request>) {
        self.engine.post(requests);
    }

    /// Says that nobody reads a mailbox any more.
    pub fn gone(&self, mailbox: &Arc<dyn Mailbox>) {
        self.engine.gone(mailbox);
    }

    /// Gives tasks back that their worker will not hear of.
    pub fn give_back(&self, tasks: Vec<Task>) {
        self.engine.give_back(tasks);
    }

    /// The moment on both clocks.
    pub fn now(&self) -> Moment {
        self.engine.now()
    }

    /// For what runs beside requests.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// What a worker does with a task under its lease.
    pub(super) fn deed<T>(
        &self,
        operation: &'static str,
        caller: &Principal,
        id: TaskId,
        command: Command,
        read: Read<T>,
    ) -> Ask<T> {
        let mut ask = Ask::new(Call::Propose(command), read);
        if let Some(span) = self.span(operation, caller, id) {
            ask.asked.aside.get_or_insert_default().span = Some(span);
        }
        ask
    }

    pub(super) async fn propose(&self, command: Command) -> Answer {
        self.engine.call(Call::Propose(command)).await
    }
}
