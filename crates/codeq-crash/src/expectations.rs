//! What must be true of every task, according to what clients were answered.
//!
//! Everything here is a lower bound that must hold after any crash: a task exists, its fence and attempts are at
//! least this high, it has ended in this way. Unknown outcomes (requested, but not answered) widen what is allowed
//! until the next look at the recovered engine settles them: an operation that a dead process has not done by then
//! never happens, and one whose effect was seen stays.

use std::collections::{BTreeMap, BTreeSet};

use codeq_core::command::{Fence, Millis};
use codeq_core::id::TaskId;
use codeq_sim::ledger::{Answer, Back, Digest, Line, Listed, Made, Op, Outcome, Ref, Seen, Wanted};
use serde::{Deserialize, Serialize};

use crate::ledger::ClientLedger;

/// How a task is known to have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// With this result.
    Result(Digest),
    /// Among the dead letters.
    Dead,
    /// Cancelled.
    Cancelled,
    /// With this status; nothing more was shown.
    Status(String),
}

/// A lease that a worker knows of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Lease {
    /// Its fence.
    pub fence: Fence,
    /// Its end.
    pub until: Millis,
    /// Its owner.
    pub worker: String,
}

/// What is known of one task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Known {
    /// The tenant that owns it.
    pub tenant: String,
    /// The command, in the letter case that the producer used.
    pub command: String,
    /// The digest of its payload.
    pub payload: Digest,
    /// Upper bound on its attempts.
    pub max_attempts: u32,
    /// Whether it has a webhook, if known.
    pub webhook: Option<bool>,
    /// Lower bound on its fence.
    pub fence: Fence,
    /// Lower bound on its attempts.
    pub attempts: u32,
    /// The last lease that a worker knows of.
    pub lease: Option<Lease>,
    /// The highest fence under which it was, or may have been, returned or finished.
    pub let_go: Fence,
    /// How it has ended.
    pub ending: Option<Ending>,
    /// Cancellation was requested while it ran, so its worker must be asked to stop.
    pub stop_wanted: bool,
    /// A cancellation was attempted and not refused.
    pub cancel_tried: bool,
    /// Results that were submitted and not refused.
    pub tried: Vec<Digest>,
}

/// Everything that is known.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Expectations {
    /// The tasks that must exist.
    pub tasks: BTreeMap<TaskId, Known>,
    /// The task of each (tenant, idempotency key).
    pub keys: BTreeMap<(String, String), TaskId>,
    /// Finished tasks that were removed, and whose keys live on.
    pub gone: BTreeSet<TaskId>,
    /// Every (tenant, payload) ever sent, and the key it was sent with.
    pub sent: BTreeMap<(String, Digest), Option<String>>,
    /// Every (tenant, payload) whose enqueue has an unknown outcome: the task may exist.
    pub possible: BTreeSet<(String, Digest)>,
    /// Operations that were acknowledged.
    pub acked: u64,
    /// Operations whose outcome is unknown.
    pub unknown: u64,
    /// Contradictions among the answers themselves.
    pub wrong: Vec<String>,
}

/// The claims that one client holds: fence and attempts as it knows them.
type Held = BTreeMap<TaskId, (Fence, u32)>;

impl Expectations {
    /// Adds what the clients of a cycle know.
    pub fn add(&mut self, clients: &[ClientLedger]) {
        // First everything that was sent: a worker may see a task before its producer is answered.
        for line in clients.iter().flat_map(|client| &client.lines) {
            if let Op::Enqueue { tenant, tasks } = &line.op {
                self.add_sent(line, tenant, tasks);
            }
        }
        // Then which tasks clients were shown, and only then what was done to them, by any client.
        for client in clients {
            for line in &client.lines {
                match &line.outcome {
                    Outcome::Acked { .. } => self.acked += 1,
                    Outcome::Unknown => self.unknown += 1,
                    Outcome::Refused { .. } => {}
                }
                self.add_shown(line);
            }
            for listed in &client.reads {
                self.add_read(listed);
            }
        }
        for client in clients {
            let mut held = Held::new();
            for line in &client.lines {
                self.add_op(line, &mut held);
            }
        }
    }

    fn add_shown(&mut self, line: &Line) {
        let answer = line.acked().map(|(_, _, answer)| answer);
        match (&line.op, answer) {
            (Op::Enqueue { tenant, tasks }, Some(Answer::Enqueued(made))) => {
                for (wanted, made) in tasks.iter().zip(made) {
                    self.add_made(tenant, wanted, made);
                }
            }
            (Op::Claim { tenant, worker, .. }, Some(Answer::Claimed(tasks))) => {
                for seen in tasks {
                    self.add_claimed(tenant, worker, seen);
                }
            }
            _ => {}
        }
    }

    fn add_sent(&mut self, line: &Line, tenant: &str, tasks: &[Wanted]) {
        for wanted in tasks {
            let sent = (tenant.to_owned(), wanted.payload);
            if line.is_unknown() {
                self.possible.insert(sent.clone());
            }
            self.sent.insert(sent, wanted.key.clone());
        }
    }

    fn add_op(&mut self, line: &Line, held: &mut Held) {
        if matches!(line.outcome, Outcome::Refused { .. }) {
            return;
        }
        let answer = line.acked().map(|(_, _, answer)| answer);
        match (&line.op, answer) {
            (Op::Claim { .. }, Some(Answer::Claimed(tasks))) => {
                for seen in tasks {
                    held.insert(seen.id, (seen.fence.unwrap_or_default(), seen.attempts));
                }
            }
            (Op::Heartbeat(task), _) => self.add_heartbeat(task, answer, held),
            (Op::Submit(task, digest), _) => {
                self.add_let_go(task, held);
                if let Some(Answer::Result(shown)) = answer
                    && shown != digest
                {
                    let id = task.id;
                    self.wrong.push(format!("task {id}: one result was submitted, another shown"));
                }
                let Some(known) = self.tasks.get_mut(&task.id) else {
                    return;
                };
                known.tried.push(*digest);
                if answer.is_some() {
                    known.ending = Some(Ending::Result(*digest));
                }
            }
            (Op::Nack(task), _) => self.add_returned(task, true, answer, held),
            (Op::Abandon(task, penalty), _) => self.add_returned(task, *penalty, answer, held),
            (Op::Cancel(task), _) => {
                let Some(known) = self.tasks.get_mut(&task.id) else {
                    return;
                };
                known.cancel_tried = true;
                match answer {
                    Some(Answer::Task(seen)) if seen.status == "IN_PROGRESS" => {
                        known.stop_wanted = true;
                    }
                    Some(_) => known.ending = Some(Ending::Cancelled),
                    None => {}
                }
            }
            _ => {}
        }
    }

    fn add_made(&mut self, tenant: &str, wanted: &Wanted, made: &Made) {
        let seen = match made {
            Made::Created(seen) => seen,
            Made::Repeated(seen) if self.gone.contains(&seen.id) => {
                self.add_key(tenant, wanted.key.as_deref(), seen.id);
                return;
            }
            Made::Repeated(seen) => seen,
            Made::Refused(_) => return,
        };
        if seen.payload != wanted.payload || seen.tenant != tenant {
            self.wrong.push(format!("task {} is not what its enqueue sent", seen.id));
        }
        self.add_key(tenant, wanted.key.as_deref(), seen.id);
        let known = self.known(seen);
        if let Made::Created(_) = made {
            known.webhook = Some(wanted.webhook);
        }
    }

    /// Notes the task of a key; a key that returns two tasks is a contradiction.
    pub fn add_key(&mut self, tenant: &str, key: Option<&str>, id: TaskId) {
        let Some(key) = key else { return };
        let scope = (tenant.to_owned(), key.to_owned());
        let first = *self.keys.entry(scope).or_insert(id);
        if first != id {
            let text = format!("key {key} of tenant {tenant} gave task {first}, then task {id}");
            self.wrong.push(text);
        }
    }

    fn add_claimed(&mut self, tenant: &str, worker: &str, seen: &Seen) {
        if seen.tenant != tenant || !self.sent.contains_key(&(tenant.to_owned(), seen.payload)) {
            let text = format!("worker {worker} received task {}, which nobody sent", seen.id);
            self.wrong.push(text);
        }
        let known = self.known(seen);
        let fence = seen.fence.unwrap_or_default();
        if known.lease.as_ref().is_none_or(|lease| lease.fence <= fence)
            && let Some(until) = seen.lease_until
        {
            known.lease = Some(Lease { fence, until, worker: worker.to_owned() });
        }
    }

    fn add_heartbeat(&mut self, task: &Ref, answer: Option<&Answer>, held: &Held) {
        let Some(known) = self.tasks.get_mut(&task.id) else {
            return;
        };
        let fence = held.get(&task.id).map(|(fence, _)| *fence);
        let same = known.lease.as_mut().filter(|lease| Some(lease.fence) == fence);
        match (same, answer) {
            (Some(lease), Some(Answer::Extended(until))) => lease.until = *until,
            // It may have been shortened, so its end is unknown.
            (Some(_), None) => known.lease = None,
            _ => {}
        }
    }

    fn add_returned(&mut self, task: &Ref, spends: bool, answer: Option<&Answer>, held: &Held) {
        self.add_let_go(task, held);
        let attempts = held.get(&task.id).map(|(_, attempts)| *attempts);
        let Some(known) = self.tasks.get_mut(&task.id) else {
            return;
        };
        let Some(Answer::Returned(back)) = answer else {
            return;
        };
        if let Some(attempts) = attempts {
            let spent = spends && *back != Back::Cancelled;
            known.attempts = known.attempts.max(attempts + u32::from(spent));
        }
        match back {
            Back::Requeued(_) => {}
            Back::Dead => known.ending = Some(Ending::Dead),
            Back::Cancelled => known.ending = Some(Ending::Cancelled),
        }
    }

    fn add_let_go(&mut self, task: &Ref, held: &Held) {
        if let (Some(known), Some((fence, _))) = (self.tasks.get_mut(&task.id), held.get(&task.id))
        {
            known.let_go = known.let_go.max(*fence);
        }
    }

    fn add_read(&mut self, listed: &Listed) {
        let seen = &listed.task;
        if !self.sent.contains_key(&(seen.tenant.clone(), seen.payload)) {
            self.wrong.push(format!("a list showed task {}, which nobody sent", seen.id));
        }
        let known = self.known(seen);
        if known.ending.is_none() && matches!(seen.status.as_str(), "COMPLETED" | "FAILED") {
            known.ending = Some(match listed.dead {
                true => Ending::Dead,
                false => Ending::Status(seen.status.clone()),
            });
        }
    }

    /// The entry of a task that was shown, raised to what was shown.
    fn known(&mut self, seen: &Seen) -> &mut Known {
        let known = self.tasks.entry(seen.id).or_insert_with(|| Known {
            tenant: seen.tenant.clone(),
            command: seen.command.clone(),
            payload: seen.payload,
            max_attempts: seen.max_attempts,
            webhook: None,
            fence: Fence(0),
            attempts: 0,
            lease: None,
            let_go: Fence(0),
            ending: None,
            stop_wanted: false,
            cancel_tried: false,
            tried: Vec::new(),
        });
        known.fence = known.fence.max(seen.fence.unwrap_or_default());
        known.attempts = known.attempts.max(seen.attempts);
        known
    }

    /// Takes over what the recovered engine shows, which must stay from now on.
    pub fn settle(
        &mut self,
        seen: &Seen,
        ending: Option<Ending>,
        webhook: bool,
        stop_wanted: bool,
    ) {
        let key = self.sent.get(&(seen.tenant.clone(), seen.payload)).cloned();
        if let Some(Some(key)) = key {
            self.add_key(&seen.tenant, Some(&key), seen.id);
        }
        let known = self.known(seen);
        known.webhook = Some(webhook);
        known.stop_wanted = stop_wanted;
        known.ending = ending;
        known.let_go = Fence(0);
        known.cancel_tried = false;
        known.tried.clear();
        known.lease = match (&seen.worker, seen.lease_until) {
            (Some(worker), Some(until)) => {
                Some(Lease { fence: seen.fence.unwrap_or_default(), until, worker: worker.clone() })
            }
            _ => None,
        };
    }

    /// Forgets everything except the keys, because all tasks have ended and were removed.
    pub fn close(&mut self) {
        self.tasks.clear();
        self.sent.clear();
        self.possible.clear();
        self.gone = self.keys.values().copied().collect();
    }
}
