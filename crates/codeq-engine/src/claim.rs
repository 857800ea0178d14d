//! Claims: from one shard or from whichever has something, waiting if need be.

use std::sync::atomic::Ordering;

use codeq_core::command::{Claim, Command, Millis};
use codeq_core::reply::Reply;
use tokio::sync::oneshot;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::request::{Answer, FirstReply, ReplyTo, Request};

impl Engine {
    /// Claims tasks. If there are none, waits up to `wait` milliseconds for the first one: the claim lies
    /// in the shard and is served by the commit that brings the task. Dropping the future ends the wait.
    pub async fn claim(&self, claim: Claim, wait: Millis) -> Answer {
        let (sender, answer) = oneshot::channel();
        if let [_] = self.shards.as_slice() {
            let reply = ReplyTo::One(sender);
            self.push(0, Request::with(Command::Claim(claim), reply, wait))?;
            return self.answer(answer).await;
        }
        for shard in self.round() {
            let answer = self.submit(shard, Command::Claim(claim.clone()))?;
            match self.answer(answer).await? {
                Reply::Claimed(tasks) if tasks.is_empty() => {}
                reply => return Ok(reply),
            }
        }
        if wait == 0 {
            return Ok(Reply::Claimed(Vec::new()));
        }
        let first = FirstReply::new(sender);
        for shard in self.round() {
            let reply = ReplyTo::First(first.clone());
            self.push(shard, Request::with(Command::Claim(claim.clone()), reply, wait))?;
        }
        drop(first);
        self.answer(answer).await
    }

    /// All shards, beginning with another one each time.
    fn round(&self) -> impl Iterator<Item = u16> + use<> {
        let shards = self.shards();
        let start = self.turn.fetch_add(1, Ordering::Relaxed);
        (0..shards).map(move |i| ((start.wrapping_add(u64::from(i))) % u64::from(shards)) as u16)
    }

    pub(crate) async fn answer(&self, answer: oneshot::Receiver<Answer>) -> Answer {
        answer.await.unwrap_or_else(|_| Err(self.failure().unwrap_or(EngineError::Closed)))
    }
}
