//! A shard of a cluster: it applies only what the cluster has committed.
//!
//! A shard of a single node applies a request, logs it and answers. Here the order is: gather requests, have the
//! cluster commit them, apply them and answer. A waiting claim is a command too, so serving it while a request is applied
//! would apply a command that no other replica has. Instead, the shard notes the queues that became claimable, and their
//! waiting claims are proposed with the next entry.

use codeq_core::command::{Claim, Command, Selector};

use super::*;

impl Shard {
    /// Applies requests that the cluster has committed with entry `index`. The answers are in the group afterwards.
    pub fn apply_committed(
        &mut self,
        index: FrameIndex,
        at: Moment,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<(), KvError> {
        let data = Arc::clone(&self.data);
        let mut data = data.write();
        debug_assert!(index.0 > data.store.position());
        for request in requests {
            self.apply_committed_one(&mut data, at, request)?;
        }
        // The number of the batch stays: what is applied is durable already, so readers have nothing to wait for.
        self.count_waiting();
        Ok(())
    }

    fn apply_committed_one(
        &mut self,
        data: &mut ShardData,
        at: Moment,
        request: Request,
    ) -> Result<(), KvError> {
        let bytes = request.bytes();
        let Request { command, reply, wait, .. } = request;
        let mut effects = std::mem::take(&mut self.effects);
        let applied = self.run(data, at, &command, &mut effects)?;
        match (applied.reply, command) {
            (Reply::Claimed(tasks), Command::Claim(claim)) if tasks.is_empty() && wait > 0 => {
                let deadline = at.now.saturating_add(wait);
                self.let_wait(WaitingClaim { claim, reply, deadline, bytes });
            }
            (answer, _) => {
                if let Reply::Claimed(tasks) = &answer
                    && !self.waiting_claims.is_empty()
                {
                    // A queue that still has tasks sends no second `Effect::Ready`, so note it here.
                    let queues = tasks.iter().map(|task| (&task.tenant, &task.command));
                    let ids = queues.filter_map(|(tenant, name)| data.state.queue_id(tenant, name));
                    self.unserved_queues.extend(ids);
                }
                self.group.answer(reply, Ok(answer));
            }
        }
        self.note_ready(&effects);
        self.group.effects.append(&mut effects);
        self.effects = effects;
        Ok(())
    }

    /// Applies a record that another node proposed. The effects are in the group afterwards.
    pub fn replay_committed(&mut self, index: FrameIndex, record: &[u8]) -> Result<(), OpenError> {
        self.replay(index, record)?;
        let mut effects = std::mem::take(&mut self.replayed);
        self.note_ready(&effects);
        self.group.effects.append(&mut effects);
        self.replayed = effects;
        Ok(())
    }

    /// Remembers the queues that now have tasks.
    fn note_ready(&mut self, effects: &[Effect]) {
        if self.waiting_claims.is_empty() {
            return;
        }
        let ready = effects.iter().filter_map(|effect| match effect {
            Effect::Ready { queue } => Some(*queue),
            _ => None,
        });
        self.unserved_queues.extend(ready);
    }

    /// Takes waiting claims that can probably be served now, to be proposed: as many as there are tasks, but at most
    /// `max` with `max_bytes` in total, or a single larger one if `one_larger`. The others are taken the next time.
    pub fn take_servable(
        &mut self,
        at: Moment,
        max: usize,
        max_bytes: usize,
        one_larger: bool,
    ) -> Vec<Request> {
        let (mut servable, mut bytes) = (Vec::new(), 0);
        let data = Arc::clone(&self.data);
        let data = data.read();
        while let Some(queue) = self.unserved_queues.pop_first() {
            let Some(row) = data.state.queue_row(queue) else { continue };
            let (tenant, name) = (Arc::clone(&row.tenant), Arc::clone(&row.name));
            for _ in 0..data.state.claimable(queue) {
                let Some((id, waiting)) = self.waiting_claims.take(&tenant, &name) else { break };
                bytes += waiting.bytes;
                let full = servable.len() >= max || bytes > max_bytes;
                if full && !(servable.is_empty() && one_larger) {
                    self.waiting_claims.put(id, waiting);
                    self.unserved_queues.insert(queue);
                    self.count_waiting();
                    return servable;
                }
                // A claim that waits in other shards too may be served by several of them: the client gets the first
                // answer, and the other tasks go back.
                let WaitingClaim { claim, reply, deadline, .. } = waiting;
                let wait = deadline.saturating_sub(at.now);
                servable.push(Request::with(Command::Claim(claim), reply, wait));
            }
        }
        self.count_waiting();
        servable
    }

    /// Whether a claim might find a task in what is committed. If not, it can wait without being proposed.
    pub fn might_find(&self, at: Moment, claim: &Claim) -> bool {
        let data = self.data.read();
        let state = &data.state;
        let claimable = |name: &str| {
            state.queue_id(&claim.tenant, name).is_some_and(|id| state.is_claimable(id))
        };
        // What is due may become claimable: the claim itself ends leases that have expired.
        state.is_due(at)
            || match &claim.from {
                Selector::Any => state.has_claimable(&claim.tenant),
                Selector::Commands(names) => {
                    names.iter().any(|name| claimable(&codeq_core::names::queue_name(name)))
                }
            }
    }

    /// Lets a claim wait for a task, although it was not proposed.
    pub fn wait_for_task(&mut self, at: Moment, request: Request) {
        let bytes = request.bytes();
        let Request { command, reply, wait, .. } = request;
        if let Command::Claim(claim) = command {
            let deadline = at.now.saturating_add(wait);
            self.let_wait(WaitingClaim { claim, reply, deadline, bytes });
            self.count_waiting();
        }
    }

    /// Takes the claims whose wait is over.
    pub fn take_expired(&mut self, at: Moment) -> Vec<ReplyTo> {
        let mut expired = Vec::new();
        while let Some(waiting) = self.waiting_claims.take_due(at.now) {
            expired.push(waiting.reply);
        }
        self.count_waiting();
        expired
    }

    /// Answers all waiting claims with an error, because this node no longer leads.
    pub fn refuse_waiting(&mut self, error: &EngineError) {
        self.unserved_queues.clear();
        for waiting in self.waiting_claims.take_all() {
            // A client that is gone does not need to know.
            let _ = waiting.reply.send(Err(error.clone()));
        }
        self.count_waiting();
    }

    /// Continues with the rows of another node. Readers of this shard see them from now on.
    pub fn replace_rows(&mut self, other: Shard) {
        let batch = self.data.read().batch;
        std::mem::swap(&mut *self.data.write(), &mut *other.data.write());
        self.data.write().batch = batch;
        self.unserved_queues.clear();
        self.group.clear();
        self.keep_digest();
    }

    /// Whether the rules have something to do by themselves.
    pub fn is_due(&self, at: Moment) -> bool {
        self.data.read().state.is_due(at)
    }
}
