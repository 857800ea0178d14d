//! A group: what a shard has applied and the log has not made durable yet.

use std::ops::Range;
use std::sync::Arc;

use codeq_core::codec;
use codeq_core::command::{Abandon, Command};
use codeq_core::effect::Effect;
use codeq_core::moment::Moment;
use codeq_core::reply::Reply;
use codeq_core::view::Task;

use crate::boundary::{Answer, Mailbox};
use crate::error::EngineError;
use crate::request::{ReplyTo, Request};

/// Maximum number of mailboxes remembered so that each is woken only once. Small, because every answer searches the
/// list.
const TOUCHED_MAX: usize = 16;

/// The number of a shard's batch, counted since the start; see [`ShardData::batch`](crate::shard::ShardData::batch).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Batch(pub u64);

/// Commands that share one sync, with the answers that wait for it.
#[derive(Default)]
pub struct Group {
    /// Records for the log, one per moment at which commands were applied.
    bytes: Vec<u8>,
    records: Vec<Range<usize>>,
    answers: Vec<(ReplyTo, Answer)>,
    /// Number of answers whose clients wait for nothing else; see [`Group::callers`].
    callers: usize,
    /// Effects to report once the group is durable.
    pub effects: Vec<Effect>,
    /// The last batch in the group.
    pub batch: Batch,
    /// Number of commands that changed something.
    pub commands: usize,
    /// Bytes of the log reserved for the group.
    pub reserved: u64,
}

impl Group {
    /// Starts a record: the following commands are applied at this moment.
    pub fn begin(&mut self, at: Moment) {
        let start = self.bytes.len();
        codec::begin_record(at, &mut self.bytes);
        self.records.push(start..self.bytes.len());
    }

    /// Adds a command that changed something to the record.
    pub fn push(&mut self, command: &Command) {
        codec::push_command(command, &mut self.bytes);
        self.commands += 1;
    }

    /// Ends the record, or removes it if it has no commands.
    pub fn end(&mut self) {
        let end = self.bytes.len();
        if let Some(record) = self.records.last_mut() {
            record.end = end;
            if record.len() <= codec::RECORD_HEADER_BYTES {
                self.bytes.truncate(record.start);
                self.records.pop();
            }
        }
    }

    /// Keeps an answer until the group is durable.
    pub fn answer(&mut self, to: ReplyTo, answer: Answer) {
        self.callers += usize::from(!to.is_posted());
        self.answers.push((to, answer));
    }

    /// Takes the answers, to be sent by somebody else.
    pub fn take_answers(&mut self) -> Vec<(ReplyTo, Answer)> {
        self.callers = 0;
        std::mem::take(&mut self.answers)
    }

    /// Moves a later group of the same shard into this one.
    pub fn absorb(&mut self, later: &mut Group) {
        let shift = self.bytes.len();
        self.bytes.extend_from_slice(&later.bytes);
        let shifted = later.records.iter().map(|range| range.start + shift..range.end + shift);
        self.records.extend(shifted);
        self.answers.append(&mut later.answers);
        self.callers += later.callers;
        self.effects.append(&mut later.effects);
        self.batch = self.batch.max(later.batch);
        self.commands += later.commands;
        self.reserved += later.reserved;
        later.clear();
    }

    /// Whether there is nothing to log and nobody to answer.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.answers.is_empty() && self.effects.is_empty()
    }

    /// Whether there is something to log.
    pub fn has_records(&self) -> bool {
        !self.records.is_empty()
    }

    /// Bytes for the log.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Number of waiting answers.
    pub fn answers(&self) -> usize {
        self.answers.len()
    }

    /// Number of clients that wait for one answer and are likely to come back at once. Readers of a mailbox do not
    /// count: they have more in flight.
    pub fn callers(&self) -> usize {
        self.callers
    }

    /// The records for the log.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.records.iter().filter_map(|range| self.bytes.get(range.clone()))
    }

    /// Sends the answers, because the group is durable. Some clients may have left meanwhile: returns the requests to
    /// propose next, which give their tasks back.
    pub fn release(&mut self) -> Vec<Request> {
        let mut back = Vec::new();
        // Wake each mailbox once, after all of its answers are in it.
        let mut touched: Vec<Arc<dyn Mailbox>> = Vec::new();
        for (to, answer) in self.answers.drain(..) {
            let Some((to, answer)) = to.resolve(answer) else { continue };
            let sent = match to {
                ReplyTo::Mailbox(mailbox, number) => {
                    let sent = mailbox.deliver(number, answer);
                    if touched.len() >= TOUCHED_MAX {
                        touched.drain(..).for_each(|mailbox| mailbox.wake());
                    }
                    if !touched.iter().any(|other| Arc::ptr_eq(other, &mailbox)) {
                        touched.push(mailbox);
                    }
                    sent
                }
                to => to.send(answer),
            };
            if let Err(Ok(Reply::Claimed(tasks))) = sent {
                back.extend(tasks.into_iter().filter_map(give_back));
            }
        }
        touched.into_iter().for_each(|mailbox| mailbox.wake());
        back
    }

    /// Sends an error instead of the answers, because the group will not become durable.
    pub fn fail(&mut self, error: &EngineError) {
        for (to, _) in self.answers.drain(..) {
            // A client that is gone does not need to know.
            let _ = to.send(Err(error.clone()));
        }
    }

    /// Empties the group for new commands, keeping its memory.
    pub fn clear(&mut self) {
        const KEEP: usize = 4 << 20;
        self.bytes.clear();
        self.bytes.shrink_to(KEEP);
        self.records.clear();
        self.answers.clear();
        self.callers = 0;
        self.effects.clear();
        self.commands = 0;
        self.reserved = 0;
    }
}

/// The request that returns a task to its queue, because the client that it was leased to is gone.
pub(crate) fn give_back(task: Task) -> Option<Request> {
    // With its fence: the same worker may lose this lease and claim the task again before this is applied.
    let (worker, fence) = (task.worker?, Some(task.fence));
    let abandon = Abandon { tenant: task.tenant, id: task.id, worker, penalty: false, fence };
    Some(Request::detached(Command::Abandon(abandon)))
}
