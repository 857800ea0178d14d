//! Operations on tasks regardless of who works on them: cancel, reschedule, replay, purge, cleanup.

use super::*;

impl Model {
    pub(super) fn cancel(&mut self, c: &Cancel) -> Reply {
        let Some(at) = self.find(&c.tenant, c.id) else {
            return Reply::Rejected(Rejection::NotFound);
        };
        self.end_lease_if_over(at);
        let moment = self.moment();
        let task = &mut self.tasks[at].task;
        match task.place {
            Place::Pending | Place::Delayed => {
                self.end_cancelled(at);
                Reply::Cancelled(Box::new(self.tasks[at].as_of(moment)))
            }
            Place::InProgress => {
                task.cancel_requested = true;
                Reply::CancelRequested(Box::new(self.tasks[at].as_of(moment)))
            }
            _ => Reply::Rejected(Rejection::Finished),
        }
    }

    pub(super) fn reschedule(&mut self, c: &Reschedule) -> Reply {
        let Some(at) = self.find(&c.tenant, c.id) else {
            return Reply::Rejected(Rejection::NotFound);
        };
        self.end_lease_if_over(at);
        let (moment, place) = (self.moment(), self.tasks[at].task.place);
        match place {
            Place::Pending | Place::Delayed => {}
            Place::InProgress => return Reply::Rejected(Rejection::InProgress),
            _ => return Reply::Rejected(Rejection::Finished),
        }
        let mut new = self.tasks[at].clone();
        if let Some(wanted) = c.priority {
            let policy = self.policy(&c.tenant, &new.queue);
            new.task.priority = enqueue::tier(&policy, wanted);
        }
        match c.when {
            None => {}
            Some(RunWhen::After(delay)) => {
                (new.delay_ends, new.run_at) = ((delay > 0).then(|| self.now + delay), None);
            }
            Some(RunWhen::At(date)) => (new.delay_ends, new.run_at) = (None, Some(date)),
        }
        let early = new.run_at.is_some_and(|date| date > self.wall);
        let waits = match c.when {
            None => place == Place::Delayed,
            Some(_) => new.delay_ends.is_some() || early,
        };
        new.task.place = if waits { Place::Delayed } else { Place::Pending };
        let old = &self.tasks[at];
        let stays = match (place, new.task.place) {
            (Place::Pending, Place::Pending) => true,
            (Place::Delayed, Place::Delayed) => {
                (old.delay_ends, old.run_at) == (new.delay_ends, new.run_at)
            }
            _ => false,
        };
        if !stays || old.task.priority != new.task.priority {
            self.order += 1;
            (new.order, new.task.updated_at) = (self.order, self.wall);
            self.tasks[at] = new;
        }
        Reply::Rescheduled(Box::new(self.tasks[at].as_of(moment)))
    }

    pub(super) fn replay(&mut self, c: &Replay) -> Reply {
        let (command, part, after, limit) = match &c.target {
            ReplayTarget::One(id) => {
                return match self.find(&c.tenant, *id) {
                    None => Reply::Rejected(Rejection::NotFound),
                    Some(at) if self.tasks[at].task.place == Place::Completed => {
                        Reply::Rejected(Rejection::Completed)
                    }
                    Some(at) if self.tasks[at].end.is_none() => {
                        Reply::Rejected(Rejection::NotFinished)
                    }
                    Some(at) => {
                        self.revive(at);
                        Reply::Replayed(Box::new(self.tasks[at].as_of(self.moment())))
                    }
                };
            }
            ReplayTarget::Queue { command, error_contains, after, limit } => {
                (command.to_ascii_lowercase(), error_contains, *after, *limit)
            }
        };
        let (mut done, mut last) = (0, after);
        for at in 0..self.tasks.len() {
            let known = &self.tasks[at];
            let seq = known.task.id.seq();
            let listed = known.task.tenant == c.tenant
                && known.queue == command
                && known.task.place == Place::Dead
                && seq > after;
            if !listed || done == u64::from(limit) {
                continue;
            }
            last = seq;
            let error = known.task.error.as_deref().unwrap_or("");
            if part.as_ref().is_none_or(|part| error.contains(&**part)) {
                self.revive(at);
                done += 1;
            }
        }
        let remaining = self.count(&c.tenant, &command, Place::Dead);
        Reply::Bulk(Bulk { done, remaining, last })
    }

    /// Returns a finished task to its queue as if it had never run.
    pub(super) fn revive(&mut self, at: usize) {
        let task = &mut self.tasks[at].task;
        (task.attempts, task.cancel_requested) = (0, false);
        self.wait(at, 0);
    }

    /// The whole operation at once: with so few rows, no part reaches its limit of rows.
    pub(super) fn bulk(&mut self, c: &BulkPart) -> Reply {
        let cleans = matches!(c.work, BulkWork::Cleanup { .. });
        let mut over: Vec<(String, Place)> = Vec::new();
        let mut chosen: Vec<(String, Place, usize)> = Vec::new();
        for (at, known) in self.tasks.iter().enumerate() {
            let place = known.task.place;
            let here = |name: &str| known.queue == name.to_ascii_lowercase();
            let listed = match &c.work {
                BulkWork::Cleanup { .. } => known.end.is_some(),
                BulkWork::PurgeDead { command } => here(command) && place == Place::Dead,
                BulkWork::PurgeWaiting { command } => {
                    here(command) && matches!(place, Place::Pending | Place::Delayed)
                }
                BulkWork::Cancel { command, .. } if c.from.list == 0 => {
                    here(command) && matches!(place, Place::Pending | Place::Delayed)
                }
                BulkWork::Cancel { command, .. } => {
                    here(command) && place == Place::InProgress && !known.task.cancel_requested
                }
                BulkWork::Replay { command, from } => {
                    here(command)
                        && match from {
                            ReplayFrom::DeadLetters => place == Place::Dead,
                            ReplayFrom::Failed => {
                                place == Place::Failed && known.ended_by.is_some()
                            }
                            ReplayFrom::Cancelled => {
                                place == Place::Failed && known.ended_by.is_none()
                            }
                        }
                }
            };
            if known.task.tenant != c.tenant || !listed {
                continue;
            }
            // A cleanup reads a list up to the first task created at that date or later.
            let list = (known.queue.clone(), place);
            let before = c.filter.before;
            if cleans && before.is_some_and(|date| known.task.created_at >= date) {
                over.push(list.clone());
            }
            let expired = match c.work {
                BulkWork::Cleanup { expired } => !expired || known.goes_at <= self.now,
                _ => known.task.id.seq() > c.from.after,
            };
            let date = known.end.as_ref().map_or(known.task.created_at, |end| end.completed_at);
            let error = known.task.error.as_deref().unwrap_or("");
            let removes = cleans || matches!(c.work, BulkWork::PurgeDead { .. });
            if !over.contains(&list)
                && expired
                && before.is_none_or(|before| date < before)
                && c.filter.after.is_none_or(|after| date >= after)
                && c.filter.error_contains.as_ref().is_none_or(|part| error.contains(&**part))
                && (c.filter.worker.is_none() || c.filter.worker == known.claimed_by)
                && !(removes && known.awaits_post())
            {
                chosen.push((known.queue.clone(), place, at));
            }
        }
        if cleans {
            chosen.sort();
        }
        chosen.truncate(c.take as usize);
        let done = chosen.len() as u64;
        let mut chosen: Vec<usize> = chosen.into_iter().map(|(_, _, at)| at).collect();
        match c.work {
            BulkWork::Cleanup { .. } | BulkWork::PurgeDead { .. } => {
                chosen.sort_unstable();
                chosen.into_iter().rev().for_each(|at| self.remove(at));
            }
            BulkWork::PurgeWaiting { .. } => {
                chosen.into_iter().for_each(|at| self.end_cancelled(at));
            }
            BulkWork::Replay { .. } => chosen.into_iter().for_each(|at| self.revive(at)),
            BulkWork::Cancel { .. } => chosen.into_iter().for_each(|at| {
                let task = &mut self.tasks[at].task;
                match task.place {
                    Place::InProgress => {
                        task.cancel_requested = true;
                    }
                    _ => self.end_cancelled(at),
                }
            }),
        }
        Reply::BulkPart(BulkDone { done, next: None })
    }

    pub(super) fn purge(&mut self, c: &Purge) -> Reply {
        let queue = c.command.to_ascii_lowercase();
        let (mut done, mut last, mut at) = (0, Seq(0), 0);
        while at < self.tasks.len() && done < u64::from(c.limit) {
            let known = &self.tasks[at];
            let seq = known.task.id.seq();
            let here = known.task.tenant == c.tenant && known.queue == queue;
            match (c.target, known.task.place) {
                (PurgeTarget::Dead, Place::Dead) if here => {
                    last = seq;
                    if !known.awaits_post() {
                        self.remove(at);
                        done += 1;
                        continue;
                    }
                }
                (PurgeTarget::Waiting, Place::Pending | Place::Delayed) if here => {
                    last = seq;
                    self.end_cancelled(at);
                    done += 1;
                }
                _ => {}
            }
            at += 1;
        }
        let places: &[Place] = match c.target {
            PurgeTarget::Dead => &[Place::Dead],
            PurgeTarget::Waiting => &[Place::Pending, Place::Delayed],
        };
        let counts = places.iter().map(|place| self.count(&c.tenant, &queue, *place));
        Reply::Bulk(Bulk { done, remaining: counts.sum(), last })
    }

    /// Removes a task with its result and callback; its key lives on until it is a day old.
    pub(super) fn remove(&mut self, at: usize) {
        let known = self.tasks.remove(at);
        let task = known.task;
        if let Some(key) = known.key
            && known.created_at_engine + DAY > self.now
        {
            self.old_keys.push(OldKey {
                tenant: task.tenant,
                key,
                command: known.queue,
                payload: task.payload,
                id: task.id,
                place: task.place,
                created_at_engine: known.created_at_engine,
                created_at: task.created_at,
            });
        }
    }
}
