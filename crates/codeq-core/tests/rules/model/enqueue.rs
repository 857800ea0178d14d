//! Enqueueing, and what a key remembers.

use super::*;

/// The priority that a task gets: the highest tier at or below the wanted one, or else the lowest tier.
pub(super) fn tier(policy: &Policy, wanted: i32) -> u8 {
    let wanted = wanted.clamp(0, 9) as u8;
    let mut tiers = policy.priority_tiers.clone();
    tiers.sort_unstable();
    let highest = tiers.iter().rev().find(|tier| **tier <= wanted);
    highest.or(tiers.first()).map_or(wanted, |tier| (*tier).min(9))
}

impl Model {
    pub(super) fn enqueue(&mut self, c: &Enqueue, actual: &Reply) -> Reply {
        let conflict = |model: &Model, at: usize| {
            let task = &c.tasks[at];
            let Some(key) = &task.idempotency_key else {
                return false;
            };
            let earlier = c.tasks[..at].iter().find(|t| t.idempotency_key.as_ref() == Some(key));
            let same = |t: &NewTask| same_work(&t.command, &t.payload, task);
            match model.keyed(&c.tenant, key) {
                Some((command, payload, _)) => !same_work(&command, &payload, task),
                None => earlier.is_some_and(|t| !same(t)),
            }
        };
        if c.atomic
            && let Some(index) = (0..c.tasks.len()).find(|at| conflict(self, *at))
        {
            let reason = Box::new(Rejection::IdempotencyConflict);
            return Reply::Rejected(Rejection::InBatch { index, reason });
        }
        let mut replies = Vec::new();
        for (at, new) in c.tasks.iter().enumerate() {
            let known = new.idempotency_key.as_ref().and_then(|key| self.keyed(&c.tenant, key));
            replies.push(match known {
                Some((command, payload, _)) if !same_work(&command, &payload, new) => {
                    Enqueued::Rejected(Rejection::IdempotencyConflict)
                }
                Some((.., task)) => {
                    let mut task = task;
                    // Of a removed task, only what the producer has just sent again is known.
                    if self.find(&c.tenant, task.id).is_none() {
                        (task.command, task.payload) = (new.command.clone(), new.payload.clone());
                    }
                    Enqueued::Repeated(Box::new(task))
                }
                None => {
                    let id = match actual {
                        Reply::Enqueued(actual) => match actual.get(at) {
                            Some(Enqueued::Created(task)) => Some(task.id),
                            _ => None,
                        },
                        _ => None,
                    };
                    let at = self.create(&c.tenant, new, None);
                    let moment = self.moment();
                    Enqueued::Created(Box::new(self.tasks[at].shown(id, moment)))
                }
            });
        }
        Reply::Enqueued(replies)
    }

    /// The command, payload and task of a key.
    pub(super) fn keyed(&self, tenant: &str, key: &str) -> Option<(String, Bytes, Task)> {
        let live = self
            .tasks
            .iter()
            .find(|known| *known.task.tenant == *tenant && known.key.as_deref() == Some(key));
        if let Some(known) = live {
            let task = known.as_of(self.moment());
            return Some((known.queue.clone(), known.task.payload.clone(), task));
        }
        let old = self.old_keys.iter().find(|o| *o.tenant == *tenant && *o.key == *key)?;
        let mut task = blank(&old.tenant, old.id, old.created_at);
        task.place = old.place;
        Some((old.command.clone(), old.payload.clone(), task))
    }

    pub(super) fn create(
        &mut self,
        tenant: &Arc<str>,
        new: &NewTask,
        origin: Option<TaskId>,
    ) -> usize {
        let queue = new.command.to_ascii_lowercase();
        let policy = self.policy(tenant, &queue);
        let priority = tier(&policy, new.priority);
        let default = policy.max_attempts.unwrap_or(self.settings.max_attempts);
        let ceiling = policy.max_attempts.unwrap_or(1_000);
        self.order += 1;
        let mut task = blank(tenant, TaskId::new(Seq(0), 0), self.wall);
        task.command = new.command.clone();
        task.payload = new.payload.clone();
        task.priority = priority;
        task.webhook = new.webhook.clone();
        task.origin = origin;
        task.max_run = new.max_run.filter(|limit| *limit > 0);
        task.max_attempts = new.max_attempts.unwrap_or(default).min(ceiling);
        let delay = new.delay.filter(|delay| *delay > 0 && new.run_at.is_none());
        let early = new.run_at.is_some_and(|date| date > self.wall);
        task.place = if delay.is_some() || early { Place::Delayed } else { Place::Pending };
        self.tasks.push(Known {
            task,
            created_at_engine: self.now,
            lease_ends: None,
            delay_ends: delay.map(|delay| self.now + delay),
            run_ends: None,
            run_at: new.run_at,
            named: false,
            queue,
            key: new.idempotency_key.clone(),
            order: self.order,
            end: None,
            ended_by: None,
            claimed_by: None,
            goes_at: 0,
            post: None,
        });
        self.tasks.len() - 1
    }
}
