//! The clients of a script: what they ask for, what they are told, and what they read.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use codeq_core::command::{Claim, Command, Enqueue, Millis, NewTask, Outcome, Selector, Submit};
use codeq_core::id::TaskId;
use codeq_core::reply::{Enqueued, Reply};
use codeq_core::view::Task;
use codeq_engine::{Answer, EngineError};
use codeq_raft::types::NodeId;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::repair::PROGRESS_WITHIN;
use super::rules::READS;
use super::script::Script;
use crate::invariants::Violation;
use crate::workload::ClientCall;

/// The tenant of everything that a script asks for itself.
pub(super) const TENANT: &str = "script";
/// Its worker.
const WORKER: &str = "w";

/// A request that a script has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    number: u64,
    /// When it was sent, in true time.
    pub at: Duration,
}

/// Reads that go on in the background.
#[derive(Default)]
pub(super) struct Reads {
    pending: BTreeMap<NodeId, PendingRead>,
    done: u64,
}

struct PendingRead {
    /// What was acknowledged before it began.
    floor: u64,
    answer: oneshot::Receiver<(Result<u64, EngineError>, Option<u64>)>,
}

/// Clients.
impl Script {
    /// Lets clients send all kinds of requests in the background, up to `burst` at a time.
    pub fn work(&mut self, burst: u64) {
        self.run.burst = burst;
    }

    /// Sends a request to a node.
    pub fn ask(&mut self, id: NodeId, command: Command, wait: Millis) -> Call {
        self.run.call_node(id, ClientCall { command, wait });
        Call { number: self.run.clients.last(), at: self.time() }
    }

    /// The answer to a request, if it has arrived.
    pub fn answer(&mut self, call: Call) -> Option<Answer> {
        self.run.clients.heard.as_ref()?.get(&call.number).cloned()
    }

    /// Waits for the answer to a request.
    pub fn wait(&mut self, call: Call) -> Answer {
        self.pass_until("the request is answered", PROGRESS_WITHIN, |script| {
            script.answer(call).is_some()
        });
        self.answer(call).unwrap_or(Err(EngineError::Unknown))
    }

    /// A command that creates `count` tasks in a queue, each with a payload of about `bytes` bytes.
    pub fn new_tasks(&mut self, queue: &str, count: usize, bytes: usize) -> Command {
        let task = NewTask {
            command: queue.into(),
            payload: Bytes::from(format!("\"{}\"", "x".repeat(bytes))),
            ..NewTask::default()
        };
        let (tenant, seed) = (TENANT.into(), self.run.rng.draw());
        Command::Enqueue(Enqueue { tenant, tasks: vec![task; count], atomic: false, seed })
    }

    /// A claim of one task of a queue.
    pub fn a_claim(&self, queue: &str, lease: Millis) -> Command {
        let from = Selector::Commands(vec![queue.into()]);
        let (tenant, worker) = (TENANT.into(), WORKER.into());
        Command::Claim(Claim { tenant, worker, from, lease, count: 1 })
    }

    /// Creates a task through the leader, and waits until it is acknowledged.
    pub fn enqueue(&mut self, queue: &str) -> TaskId {
        let leader = self.leader();
        let command = self.new_tasks(queue, 1, 100);
        let call = self.ask(leader, command, 0);
        let answer = self.wait(call);
        match ids(&answer).first() {
            Some(id) => *id,
            None => self.fail(&format!("a task was not accepted: {answer:?}")),
        }
    }

    /// Creates `count` tasks, one after the other, each in an entry of its own.
    pub fn enqueue_many(&mut self, queue: &str, count: usize) -> Vec<TaskId> {
        (0..count).map(|_| self.enqueue(queue)).collect()
    }

    /// Claims a task through the leader.
    pub fn claim(&mut self, queue: &str, lease: Millis) -> Option<Task> {
        let leader = self.leader();
        let call = self.ask(leader, self.a_claim(queue, lease), 0);
        match self.wait(call) {
            Ok(Reply::Claimed(mut tasks)) => tasks.pop(),
            other => self.fail(&format!("a claim was answered {other:?}")),
        }
    }

    /// Finishes a task through the leader.
    pub fn submit(&mut self, id: TaskId) -> Answer {
        let leader = self.leader();
        let (tenant, worker) = (TENANT.into(), WORKER.into());
        let outcome = Outcome::Completed("1".into());
        let submit = Submit { tenant, id, worker, outcome, artifacts: Vec::new() };
        let call = self.ask(leader, Command::Submit(submit), 0);
        self.wait(call)
    }
}

/// The ids of the tasks that were created.
pub fn ids(answer: &Answer) -> Vec<TaskId> {
    let Ok(Reply::Enqueued(tasks)) = answer else { return Vec::new() };
    let id = |task: &Enqueued| match task {
        Enqueued::Created(task) | Enqueued::Repeated(task) => Some(task.id),
        Enqueued::Rejected(_) => None,
    };
    tasks.iter().filter_map(id).collect()
}

/// Reads.
impl Script {
    /// Waits for a read index on a node; returns it, or why there is none.
    pub fn read(&mut self, id: NodeId) -> Result<u64, EngineError> {
        let (mut read, end) = (self.begin_read(id), self.time() + PROGRESS_WITHIN);
        loop {
            if let Some(result) = self.judge_read(id, &mut read) {
                return result;
            }
            if self.time() >= end {
                self.fail(&format!("a read on node {id} is neither answered nor refused"));
            }
            self.pass(Duration::from_millis(1));
        }
    }

    /// Lets clients read on all nodes in the background, one after the other.
    pub fn keep_reading(&mut self) {
        self.reads.get_or_insert_default();
    }

    /// How many of those reads have succeeded.
    pub fn reads(&self) -> u64 {
        self.reads.as_ref().map_or(0, |reads| reads.done)
    }

    fn begin_read(&mut self, id: NodeId) -> PendingRead {
        let (sender, answer) = oneshot::channel();
        self.on(id, |node| async move {
            let read = node.read_index().await;
            // What the rows include at the moment when the read may look at them.
            let _ = sender.send((read, node.applied().map(|at| at.index)));
        });
        PendingRead { floor: self.run.clients.acknowledged, answer }
    }

    /// The outcome of a read that has ended; breaks the rule of reads if it is too old.
    fn judge_read(
        &mut self,
        id: NodeId,
        read: &mut PendingRead,
    ) -> Option<Result<u64, EngineError>> {
        let (result, rows) = match read.answer.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return None,
            // The node is gone.
            Err(TryRecvError::Closed) => (Err(EngineError::Closed), None),
        };
        if let Ok(index) = result
            && (index < read.floor || rows < Some(index))
        {
            let text = format!(
                "a read on node {id} found rows as of {rows:?} with read index {index}, but entry {} had been \
                 acknowledged before",
                read.floor
            );
            self.run.report.violations.push(Violation::new(READS, text));
        }
        Some(result)
    }

    /// Ends reads and begins new ones.
    pub(super) fn read_on(&mut self) {
        let Some(mut reads) = self.reads.take() else { return };
        for (id, _) in self.run.nodes() {
            let mut pending = reads.pending.remove(&id);
            if let Some(read) = &mut pending
                && let Some(result) = self.judge_read(id, read)
            {
                reads.done += u64::from(result.is_ok());
                pending = None;
            }
            let pending = pending.unwrap_or_else(|| self.begin_read(id));
            reads.pending.insert(id, pending);
        }
        self.reads = Some(reads);
    }
}
