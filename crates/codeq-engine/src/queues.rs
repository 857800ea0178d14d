//! Operations on queues and topics: the same in every shard, summed up.

use codeq_core::command::{
    Cleanup, Command, DeleteTopic, Pause, Purge, PutTopic, Replay, ReplayTarget,
};
use codeq_core::reply::{Bulk, Reply};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::request::Answer;

impl Engine {
    /// Stops or allows claims of a queue, in every shard.
    pub async fn pause(&self, command: Pause) -> Answer {
        self.same_everywhere(Command::Pause(command)).await
    }

    /// Creates or changes a topic policy, in every shard. `maxConsumers` is divided among them.
    pub async fn put_topic(&self, command: PutTopic) -> Answer {
        let shards = self.shards();
        let max = command.policy.max_consumers;
        if max != 0 && max < u32::from(shards) {
            return Err(EngineError::TooFewConsumers { shards });
        }
        let mut first = None;
        for shard in 0..shards {
            let mut share = command.clone();
            let extra = u32::from(u32::from(shard) < max % u32::from(shards));
            share.policy.max_consumers = max / u32::from(shards) + extra;
            let answer = self.submit(shard, Command::PutTopic(share))?;
            let reply = self.answer(answer).await?;
            first.get_or_insert(reply);
        }
        let mut reply = first.ok_or(EngineError::Closed)?;
        if let Reply::Topic { topic, .. } = &mut reply {
            topic.policy.max_consumers = max;
        }
        Ok(reply)
    }

    /// Removes a topic policy, in every shard.
    pub async fn delete_topic(&self, command: DeleteTopic) -> Answer {
        self.same_everywhere(Command::DeleteTopic(command)).await
    }

    /// Empties a queue or its dead letters: `limit` tasks in each shard.
    pub async fn purge(&self, command: Purge) -> Answer {
        self.bulk(Command::Purge(command)).await
    }

    /// Removes finished tasks early: `limit` tasks in each shard.
    pub async fn cleanup(&self, command: Cleanup) -> Answer {
        self.bulk(Command::Cleanup(command)).await
    }

    /// Replays one task, or `limit` tasks of a queue in each shard.
    pub async fn replay(&self, command: Replay) -> Answer {
        match command.target {
            ReplayTarget::One(_) => self.propose(Command::Replay(command)).await,
            ReplayTarget::Queue { .. } => self.bulk(Command::Replay(command)).await,
        }
    }

    /// Replays `limit` tasks of a queue in each shard, going on where each one stopped. `after` is what the
    /// call before returned, or empty.
    pub async fn replay_from(
        &self,
        command: Replay,
        after: &[u64],
    ) -> Result<(Bulk, Vec<u64>), EngineError> {
        let mut sum = Bulk { done: 0, remaining: 0, last: 0 };
        let mut reached = Vec::new();
        for shard in 0..self.shards() {
            let mut share = command.clone();
            if let ReplayTarget::Queue { after: from, .. } = &mut share.target {
                *from = after.get(usize::from(shard)).copied().unwrap_or(0);
            }
            let answer = self.submit(shard, Command::Replay(share))?;
            if let Reply::Bulk(bulk) = self.answer(answer).await? {
                sum.done += bulk.done;
                sum.remaining += bulk.remaining;
                sum.last = sum.last.max(bulk.last);
                reached.push(bulk.last);
            }
        }
        Ok((sum, reached))
    }

    async fn bulk(&self, command: Command) -> Answer {
        let mut sum = Bulk { done: 0, remaining: 0, last: 0 };
        for reply in self.ask_all(command).await? {
            match reply {
                Reply::Bulk(bulk) => {
                    sum.done += bulk.done;
                    sum.remaining += bulk.remaining;
                    sum.last = sum.last.max(bulk.last);
                }
                other => return Ok(other),
            }
        }
        Ok(Reply::Bulk(sum))
    }

    /// The answer of the first shard that does not refuse, or else the refusal.
    async fn same_everywhere(&self, command: Command) -> Answer {
        let replies = self.ask_all(command).await?;
        let accepted = replies.iter().find(|reply| !matches!(reply, Reply::Rejected(_)));
        accepted.or(replies.first()).cloned().ok_or(EngineError::Closed)
    }
}
