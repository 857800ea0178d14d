//! Claims and leases.

use super::*;

impl Model {
    pub(super) fn claim(&mut self, c: &Claim, actual: &Reply) -> Reply {
        let moment = self.moment();
        self.come_due(u32::MAX);
        let mut actual = match actual {
            Reply::Claimed(tasks) => tasks.iter(),
            _ => [].iter(),
        };
        let mut taken = Vec::new();
        while taken.len() < c.count as usize {
            let wanted = |known: &Known| {
                let named = match &c.from {
                    Selector::Any => true,
                    Selector::Commands(all) => {
                        all.iter().any(|name| name.eq_ignore_ascii_case(&known.queue))
                    }
                };
                let rule = self.ruled(&c.tenant, &known.queue);
                let limit = u64::from(self.policy(&c.tenant, &known.queue).max_consumers);
                let running = self.count(&c.tenant, &known.queue, Place::InProgress);
                known.task.tenant == c.tenant
                    && known.task.place == Place::Pending
                    && named
                    && !rule.is_some_and(|rule| rule.paused)
                    && (limit == 0 || running < limit)
            };
            let best =
                (0..self.tasks.len()).filter(|at| wanted(&self.tasks[*at])).max_by_key(|at| {
                    let known = &self.tasks[*at];
                    (known.task.priority, std::cmp::Reverse(known.order))
                });
            let Some(at) = best else { break };
            let theirs = self.policy(&c.tenant, &self.tasks[at].queue).max_run;
            let known = &mut self.tasks[at];
            let limit = known.task.max_run.or(Some(theirs).filter(|limit| *limit > 0));
            known.run_ends = limit.map(|limit| self.now + limit);
            known.task.place = Place::InProgress;
            known.task.worker = Some(c.worker.clone());
            known.claimed_by = Some(c.worker.clone());
            let lease = limit.map_or(c.lease, |limit| limit.min(c.lease));
            known.lease_ends = Some(self.now + lease);
            known.task.fence = known.task.fence.next();
            known.task.updated_at = self.wall;
            taken.push(known.shown(actual.next().map(|task| task.id), moment));
        }
        Reply::Claimed(taken)
    }

    /// 404, 409, 403, in this order; an expired lease is ended first.
    pub(super) fn owned(
        &mut self,
        tenant: &str,
        id: TaskId,
        worker: &str,
    ) -> Result<usize, Rejection> {
        let at = self.find(tenant, id).ok_or(Rejection::NotFound)?;
        self.end_lease_if_over(at);
        let task = &self.tasks[at].task;
        match &task.worker {
            _ if task.place != Place::InProgress => Err(Rejection::NotInProgress),
            Some(owner) if **owner == *worker => Ok(at),
            _ => Err(Rejection::NotOwner),
        }
    }

    pub(super) fn end_lease_if_over(&mut self, at: usize) -> bool {
        let over = self.tasks[at].lease_ends.is_some_and(|until| self.now > until);
        if over {
            // A lease that ended before the limit did so for want of a heartbeat, however late that is noticed.
            let at_limit = self.tasks[at].run_ends == self.tasks[at].lease_ends;
            let error = if at_limit { "TIMED_OUT" } else { "LEASE_EXPIRED" };
            self.fail(at, Some(error.into()), None);
        }
        over
    }
}
