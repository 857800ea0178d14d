//! Operations on queues and topics: the same in every shard, summed up.

use codeq_core::command::{BulkPart, Command, DeleteTopic, Pause, PutTopic};
use codeq_core::reply::{BulkDone, Reply};

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

    /// Does a bounded part of a bulk operation in one shard.
    pub async fn bulk_part(&self, shard: u16, part: BulkPart) -> Result<BulkDone, EngineError> {
        let answer = self.submit(shard, Command::BulkPart(part))?;
        match self.answer(answer).await? {
            Reply::BulkPart(done) => Ok(done),
            _ => Ok(BulkDone::default()),
        }
    }

    /// The answer of the first shard that does not refuse, or else the refusal.
    async fn same_everywhere(&self, command: Command) -> Answer {
        let replies = self.ask_all(command).await?;
        let accepted = replies.iter().find(|reply| !matches!(reply, Reply::Rejected(_)));
        accepted.or(replies.first()).cloned().ok_or(EngineError::Closed)
    }
}
