//! Sends calls to the shards that they concern, and waits for the answers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use codeq_core::command::{Claim, Command, Millis};
use codeq_core::id::ShardId;
use codeq_core::reply::Reply;
use codeq_core::view::Task;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::boundary::{Answer, Call, Mailbox};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::group::give_back;
use crate::request::{
    ClaimAcrossShards, ClientNumber, CombinedReply, FirstReply, Notice, ReplyTo, Request, Split,
    mailbox_client, split,
};
use crate::route::{Route, route};

impl Engine {
    /// Makes a call and waits for its answer, which arrives once its effects are durable. Dropping the future ends the
    /// wait of a claim, and returns tasks that the client did not receive.
    pub async fn call(&self, call: Call) -> Answer {
        let (sender, answer) = oneshot::channel();
        let (mut reply, mut client) = (ReplyTo::One(sender), None);
        if matches!(call, Call::Claim { wait: 1.., .. }) {
            let first = FirstReply::new(reply, Arc::clone(&self.inboxes));
            client = Some(first.client());
            reply = ReplyTo::First(first);
        }
        self.take(Request::new(call, reply));
        Waiting { engine: self, answer, client }.await
    }

    /// Makes calls together and waits for all their answers, which come in the order of the calls. Use [`Engine::call`]
    /// for claims: if this future is dropped, claimed tasks stay leased until their leases end.
    pub async fn call_all(&self, calls: Vec<Call>) -> Vec<Answer> {
        let (sender, answers) = oneshot::channel();
        let count = calls.len();
        let collector: Arc<dyn Mailbox> = Arc::new(Collector::new(count, sender));
        let reply = |number| ReplyTo::Mailbox(Arc::clone(&collector), number);
        let requests = (0..).zip(calls).map(|(number, call)| Request::new(call, reply(number)));
        self.post(&mut requests.collect());
        drop(collector);
        let unanswered = || (0..count).map(|_| Err(self.status.error())).collect();
        answers.await.unwrap_or_else(|_| unanswered())
    }

    /// Same as [`Engine::call`], but blocks the calling thread.
    pub fn call_blocking(&self, call: Call) -> Answer {
        let (sender, answer) = oneshot::channel();
        self.take(Request::new(call, ReplyTo::One(sender)));
        answer.blocking_recv().unwrap_or_else(|_| Err(self.status.error()))
    }

    /// Proposes a command and waits for its answer.
    pub async fn propose(&self, command: Command) -> Answer {
        self.call(Call::Propose(command)).await
    }

    /// Same as [`Engine::propose`], but blocks the calling thread.
    pub fn propose_blocking(&self, command: Command) -> Answer {
        self.call_blocking(Call::Propose(command))
    }

    /// Claims tasks. If there are none, waits up to `wait` milliseconds for the first one: the claim waits in the
    /// shards, and the commit that brings the task serves it.
    pub async fn claim(&self, claim: Claim, wait: Millis) -> Answer {
        self.call(Call::Claim { claim, wait }).await
    }

    /// Claims tasks without waiting, blocking the calling thread.
    pub fn claim_blocking(&self, claim: Claim) -> Answer {
        self.propose_blocking(Command::Claim(claim))
    }

    /// Makes calls without waiting. Answers, including refusals, go where the requests say. Calls posted together
    /// lock each shard's inbox once and wake the shard once.
    pub fn post(&self, requests: &mut Vec<Request>) {
        if let [shard] = self.shards.as_slice()
            && requests.iter().all(|it| it.shard.is_none() && self.check_size(it).is_ok())
        {
            return shard.inbox.push_all(requests);
        }
        let mut by_shard: Vec<Vec<Request>> = self.shards.iter().map(|_| Vec::new()).collect();
        for request in requests.drain(..) {
            self.dispatch(request, |shard, part| {
                by_shard.get_mut(shard).map(|parts| parts.push(part))
            });
        }
        for (shard, mut parts) in self.shards.iter().zip(by_shard).filter(|(_, it)| !it.is_empty())
        {
            shard.inbox.push_all(&mut parts);
        }
    }

    /// Drops the waiting claims of a mailbox that is no longer read.
    pub fn mailbox_closed(&self, mailbox: &Arc<dyn Mailbox>) {
        self.forget(mailbox_client(mailbox));
    }

    /// Returns tasks that were leased to a client that left before it received them.
    pub fn give_back(&self, tasks: Vec<Task>) {
        for task in tasks {
            if let Some(shard) = self.shards.get(usize::from(task.id.shard(self.shards()))) {
                shard.inbox.push_unbounded(give_back(task).into_iter());
            }
        }
    }

    fn forget(&self, client: ClientNumber) {
        self.shards.iter().for_each(|shard| shard.inbox.notify(Notice::Gone(client)));
    }

    fn take(&self, request: Request) {
        let push =
            |shard: usize, part| self.shards.get(shard).map(|handle| handle.inbox.push(part));
        self.dispatch(request, push);
    }

    /// Splits a call among the shards that it concerns; `put` receives the part of each shard.
    fn dispatch(&self, request: Request, mut put: impl FnMut(usize, Request) -> Option<()>) {
        let shards = self.shards();
        let mut put = |shard: ShardId, part: Request| match self.check_size(&part) {
            Ok(()) if shard.0 < shards => {
                put(usize::from(shard), part);
            }
            Ok(()) => part.refuse(EngineError::Closed),
            Err(error) => part.refuse(error),
        };
        if let Some(shard) = request.shard {
            return put(shard, request);
        }
        if shards == 1 {
            return put(ShardId(0), request);
        }
        if matches!(request.command, Command::Claim(_)) {
            let start = self.next_claim_shard.fetch_add(1, Ordering::Relaxed) % u64::from(shards);
            return put(
                ShardId(start as u16),
                ClaimAcrossShards::begin(request, start as usize, &self.inboxes),
            );
        }
        let Request { command, reply, .. } = request;
        match split(command, shards) {
            Split::Parts(parts, merge) => {
                let combined = CombinedReply::new(reply, parts.len(), merge);
                for (index, (shard, command)) in parts.into_iter().enumerate() {
                    let reply = ReplyTo::Part(Arc::clone(&combined), index);
                    put(shard, Request::with(command, reply, 0));
                }
            }
            // A client that is gone does not need to know.
            Split::Refused(answer) => {
                let _ = reply.send(answer);
            }
            Split::Whole(command) => {
                let route = route(&command, shards);
                let request = Request::with(command, reply, 0);
                match route {
                    Ok(Route::One(shard)) => put(shard, request),
                    Ok(Route::All) => request.refuse(EngineError::ConcernsEveryShard),
                    Err(error) => request.refuse(error),
                }
            }
        }
    }

    fn check_size(&self, request: &Request) -> Result<(), EngineError> {
        let (bytes, max) = (request.bytes(), self.options.command_bytes_max());
        if bytes > max { Err(EngineError::TooLarge { bytes, max }) } else { Ok(()) }
    }
}

/// The mailbox of calls that were made together. Passes their answers on when all of them are there.
struct Collector(Mutex<Collected>);

struct Collected {
    /// By the number of the call.
    answers: Vec<Option<Answer>>,
    missing: usize,
    /// `None` once the answers are sent.
    caller: Option<oneshot::Sender<Vec<Answer>>>,
}

impl Collector {
    fn new(count: usize, caller: oneshot::Sender<Vec<Answer>>) -> Collector {
        let answers = (0..count).map(|_| None).collect();
        Collector(Mutex::new(Collected { answers, missing: count, caller: Some(caller) }))
    }
}

impl Mailbox for Collector {
    fn deliver(&self, number: u64, answer: Answer) -> Result<(), Answer> {
        let mut collected = self.0.lock();
        match collected.answers.get_mut(number as usize) {
            Some(place @ None) => *place = Some(answer),
            _ => return Err(answer),
        }
        collected.missing -= 1;
        Ok(())
    }

    fn wake(&self) {
        let mut collected = self.0.lock();
        if collected.missing == 0
            && let Some(caller) = collected.caller.take()
        {
            // A caller that is gone does not need to know.
            let _ = caller.send(collected.answers.drain(..).flatten().collect());
        }
    }

    fn is_closed(&self) -> bool {
        self.0.lock().caller.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

/// A client that waits for an answer.
struct Waiting<'a> {
    engine: &'a Engine,
    answer: oneshot::Receiver<Answer>,
    /// The number under which its claim may wait in the shards.
    client: Option<ClientNumber>,
}

impl Future for Waiting<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = Pin::new(&mut self.answer).poll(cx);
        answer.map(|answer| {
            self.client = None;
            answer.unwrap_or_else(|_| Err(self.engine.status.error()))
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // From here on the shards find no receiver, and return tasks themselves.
        self.answer.close();
        if let Some(client) = self.client {
            self.engine.forget(client);
        }
        if let Ok(Ok(Reply::Claimed(tasks))) = self.answer.try_recv() {
            self.engine.give_back(tasks);
        }
    }
}
