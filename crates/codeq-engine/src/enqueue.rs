//! Enqueues: a batch goes to as many shards as its keys need, with one commit in each.

use std::collections::BTreeMap;

use codeq_core::command::{Command, Enqueue};
use codeq_core::limits::BATCH_MAX;
use codeq_core::reply::{Rejection, Reply};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::request::Answer;
use crate::route::task_shard;

impl Engine {
    /// Enqueues tasks and answers for each, in order. An atomic batch must lie in one shard; any other is
    /// divided by the keys of its tasks.
    pub async fn enqueue(&self, enqueue: Enqueue) -> Answer {
        let shards = self.shards();
        if shards == 1 || enqueue.atomic || enqueue.tasks.len() <= 1 {
            return self.propose(Command::Enqueue(enqueue)).await;
        }
        if enqueue.tasks.len() > BATCH_MAX {
            return Ok(Reply::Rejected(Rejection::InvalidBatch { max: BATCH_MAX }));
        }
        let Enqueue { tenant, tasks, seed, .. } = enqueue;
        let count = tasks.len();
        let mut parts: BTreeMap<u16, (Vec<usize>, Vec<_>)> = BTreeMap::new();
        for (at, task) in tasks.into_iter().enumerate() {
            let (places, tasks) =
                parts.entry(task_shard(&tenant, &task, seed, shards)).or_default();
            places.push(at);
            tasks.push(task);
        }
        let mut answers = Vec::new();
        for (shard, (places, tasks)) in parts {
            let part = Enqueue { tenant: tenant.clone(), tasks, atomic: false, seed };
            answers.push((places, self.submit(shard, Command::Enqueue(part))?));
        }
        let mut outcomes: Vec<_> = (0..count).map(|_| None).collect();
        for (places, answer) in answers {
            match self.answer(answer).await? {
                Reply::Enqueued(part) => {
                    for (at, outcome) in places.into_iter().zip(part) {
                        if let Some(slot) = outcomes.get_mut(at) {
                            *slot = Some(outcome);
                        }
                    }
                }
                refused => return Ok(refused),
            }
        }
        outcomes.into_iter().collect::<Option<_>>().map(Reply::Enqueued).ok_or(EngineError::Closed)
    }
}
