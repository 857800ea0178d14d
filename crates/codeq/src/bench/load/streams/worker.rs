//! A worker stream: completes every task as soon as it arrives, and renews its credit with the result.

use std::collections::HashMap;

use bytes::Bytes;
use codeq_proto::worker::server_event::Event as Heard;
use codeq_proto::worker::worker_event::Event as Say;
use codeq_proto::worker::worker_stream_client::WorkerStreamClient;
use codeq_proto::worker::{
    Hello, Ready, Result as Outcome, ResultAck, ResultBatch, ServerEvent, Task, WorkerEvent,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tonic::Streaming;
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;

use super::super::ids::key;
use super::super::payload;
use super::super::plan::Plan;
use super::super::state::{Failure, RunState};
use super::{MESSAGE, connect, describe, greeting};

const RESULT: &[u8] = b"{\"ok\":true}";

/// A worker stream.
pub struct Worker {
    out: UnboundedSender<WorkerEvent>,
    /// Results waiting for a full batch.
    results: Vec<Outcome>,
    /// Slots that neither a Ready nor a task takes.
    free_slots: usize,
    /// Numbers of the tasks that were assigned and whose results are not acknowledged, by id.
    unacknowledged: HashMap<u64, u64>,
    ready: Ready,
    ready_batch: usize,
    result_batch: usize,
}

impl Worker {
    /// Opens a stream, sends Hello and gives all credits.
    pub async fn open(
        address: &str,
        token: &str,
        number: usize,
        plan: &Plan,
    ) -> anyhow::Result<(Worker, Streaming<ServerEvent>)> {
        let channel = connect(address, "worker").await?;
        let commands = vec![plan.command.clone()];
        let (out, outgoing) = unbounded_channel();
        let mut worker = Worker {
            out,
            results: Vec::new(),
            free_slots: plan.slots,
            unacknowledged: HashMap::new(),
            ready: Ready { commands, lease_seconds: 0, count: plan.ready_batch as i32 },
            ready_batch: plan.ready_batch,
            result_batch: plan.result_batch,
        };
        let worker_id = format!("bench-{number}");
        worker.say(Say::Hello(Hello { token: token.to_owned(), worker_id }));
        let client = WorkerStreamClient::new(channel);
        let mut client = client.max_decoding_message_size(MESSAGE);
        let answer = client.stream(UnboundedReceiverStream::new(outgoing)).await;
        let answer = answer.map_err(|status| {
            anyhow::anyhow!("the worker stream was refused: {}", describe(&status))
        });
        let mut incoming = answer?.into_inner();
        match greeting(&mut incoming, "worker").await?.event {
            Some(Heard::HelloAck(_)) => {
                worker.give();
                Ok((worker, incoming))
            }
            other => anyhow::bail!("the worker stream answered the hello with {other:?}"),
        }
    }

    fn say(&self, event: Say) {
        // That a stream is gone shows when its answers end.
        let _ = self.out.send(WorkerEvent { event: Some(event) });
    }

    fn give(&mut self) {
        while self.free_slots >= self.ready_batch {
            self.free_slots -= self.ready_batch;
            self.say(Say::Ready(self.ready.clone()));
        }
    }

    /// Handles a message.
    pub fn handle(&mut self, state: &mut RunState, event: ServerEvent) -> Result<(), Failure> {
        match event.event {
            Some(Heard::Task(assignment)) => {
                let tasks = assignment.task.map_or_else(Vec::new, |task| vec![task]);
                self.assigned(state, tasks);
            }
            Some(Heard::TaskBatch(batch)) => self.assigned(state, batch.tasks),
            Some(Heard::ResultAck(ack)) => self.acknowledged(state, &ack),
            Some(Heard::ResultAckBatch(batch)) => {
                batch.acks.iter().for_each(|ack| self.acknowledged(state, ack));
            }
            Some(Heard::Error(error)) => {
                let (code, message) = (error.code, error.message);
                return Err(Failure::Refused(format!("the worker stream said {code}: {message}")));
            }
            _ => state.error("a message on the worker stream that was not asked for".to_owned()),
        }
        Ok(())
    }

    /// These tasks answer one credit; the rest of the credit is free again.
    fn assigned(&mut self, state: &mut RunState, tasks: Vec<Task>) {
        self.free_slots += self.ready_batch.saturating_sub(tasks.len());
        let now = state.now();
        for task in tasks {
            let key = key(&task.id);
            if let Some(number) = payload::number(&task.payload) {
                state.tracker.assigned(number, key, now);
                self.unacknowledged.insert(key, number);
            } else {
                state.error("a task with a payload that is not ours".to_owned());
            }
            self.results.push(Outcome {
                task_id: task.id,
                status: "COMPLETED".to_owned(),
                result_json: Bytes::from_static(RESULT),
                error: String::new(),
                fence: 0,
            });
            if self.results.len() >= self.result_batch {
                self.submit();
            }
        }
        self.give();
    }

    fn submit(&mut self) {
        self.free_slots += self.results.len();
        if self.result_batch > 1 {
            let results = std::mem::take(&mut self.results);
            self.say(Say::ResultBatch(ResultBatch { results }));
        } else if let Some(result) = self.results.pop() {
            self.say(Say::Result(result));
        }
    }

    /// Sends the waiting results.
    pub fn flush(&mut self) {
        if !self.results.is_empty() {
            self.submit();
            self.give();
        }
    }

    fn acknowledged(&mut self, state: &mut RunState, ack: &ResultAck) {
        match self.unacknowledged.remove(&key(&ack.task_id)) {
            Some(number) if ack.ok => state.completed(number, &ack.task_id),
            Some(_) => state.error(format!("result refused: {}", ack.error_message)),
            None => state.error("an acknowledgement of a result that was not sent".to_owned()),
        }
    }
}
