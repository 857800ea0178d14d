//! Claims: from one shard or from whichever has something, waiting if need be.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use codeq_core::command::{Claim, Command, Millis};
use codeq_core::reply::Reply;
use tokio::sync::oneshot;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::inbox::Notice;
use crate::request::{Answer, ClientNumber, FirstReply, Mailbox, ReplyTo, Request, mailbox_client};

impl Engine {
    /// Claims tasks. If there are none, waits up to `wait` milliseconds for the first one: the claim lies
    /// in the shard and is served by the commit that brings the task. Dropping the future ends the wait, and
    /// gives back what it was not there to take.
    pub async fn claim(&self, claim: Claim, wait: Millis) -> Answer {
        if self.shards.len() > 1 {
            for shard in self.round() {
                let answer = self.submit(shard, Command::Claim(claim.clone()))?;
                match (Waiting { engine: self, answer, client: None }).await? {
                    Reply::Claimed(tasks) if tasks.is_empty() => {}
                    reply => return Ok(reply),
                }
            }
            if wait == 0 {
                return Ok(Reply::Claimed(Vec::new()));
            }
        }
        let (sender, answer) = oneshot::channel();
        if wait == 0 {
            self.push(0, Request::new(Command::Claim(claim), sender))?;
            return Waiting { engine: self, answer, client: None }.await;
        }
        let first = FirstReply::new(sender);
        let waiting = Waiting { engine: self, answer, client: Some(first.client()) };
        for shard in self.round() {
            let reply = ReplyTo::First(first.clone());
            self.push(shard, Request::with(Command::Claim(claim.clone()), reply, wait))?;
        }
        drop(first);
        waiting.await
    }

    /// Claims tasks without waiting, blocking the calling thread.
    pub fn claim_blocking(&self, claim: Claim) -> Answer {
        for shard in self.round() {
            let answer = self.submit(shard, Command::Claim(claim.clone()))?;
            match answer.blocking_recv().unwrap_or_else(|_| Err(self.pipeline.error()))? {
                Reply::Claimed(tasks) if tasks.is_empty() => {}
                reply => return Ok(reply),
            }
        }
        Ok(Reply::Claimed(Vec::new()))
    }

    /// Says that nobody reads a mailbox any more, so that claims that wait for it are let go.
    pub fn gone(&self, mailbox: &Arc<dyn Mailbox>) {
        self.forget(mailbox_client(mailbox));
    }

    fn forget(&self, client: ClientNumber) {
        self.shards.iter().for_each(|shard| shard.inbox.notify(Notice::Gone(client)));
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

/// A client that waits for the answer to its claim.
struct Waiting<'a> {
    engine: &'a Engine,
    answer: oneshot::Receiver<Answer>,
    /// Its number in the shards that the claim may wait in.
    client: Option<ClientNumber>,
}

impl Future for Waiting<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = Pin::new(&mut self.answer).poll(cx);
        answer.map(|answer| {
            if self.engine.shards() == 1 {
                // The only shard that the claim was in has answered it.
                self.client = None;
            }
            answer.unwrap_or_else(|_| Err(self.engine.failure().unwrap_or(EngineError::Closed)))
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // From here on the shard finds nobody, and gives the tasks back itself.
        self.answer.close();
        if let Some(client) = self.client {
            self.engine.forget(client);
        }
        if let Ok(Ok(Reply::Claimed(tasks))) = self.answer.try_recv() {
            self.engine.give_back(tasks);
        }
    }
}
