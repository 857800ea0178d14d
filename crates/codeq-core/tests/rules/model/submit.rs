//! How an attempt ends, and what happens to its task.

use super::*;

impl Model {
    pub(super) fn submit(&mut self, c: &Submit) -> Reply {
        let (place, result, error) = match &c.outcome {
            Outcome::Completed(result) => (Place::Completed, Some(result.clone()), None),
            Outcome::Failed(error) => (Place::Failed, None, Some(error.clone())),
            Outcome::Both { completed, result, error } => {
                let place = if *completed { Place::Completed } else { Place::Failed };
                (place, Some(result.clone()), Some(error.clone()))
            }
        };
        if let Some(at) = self.find(&c.tenant, c.id) {
            let known = &self.tasks[at];
            if let Some(end) = &known.end
                && known.ended_by.as_ref() == Some(&c.worker)
                && (known.task.place, &end.result, &end.error) == (place, &result, &error)
            {
                return Reply::Submitted(Box::new(end.clone()));
            }
        }
        match self.owned(&c.tenant, c.id, &c.worker) {
            Err(why) => Reply::Rejected(why),
            Ok(at) => {
                if error.is_some() {
                    self.tasks[at].task.error = error.clone();
                }
                self.tasks[at].ended_by = Some(c.worker.clone());
                self.end(at, place, result, error);
                Reply::Submitted(Box::new(self.tasks[at].end.clone().expect("ended")))
            }
        }
    }

    /// Counts a failed attempt.
    pub(super) fn fail(
        &mut self,
        at: usize,
        error: Option<Arc<str>>,
        delay: Option<Millis>,
    ) -> Returned {
        let backoff = self.settings.backoff;
        let task = &mut self.tasks[at].task;
        task.attempts += 1;
        if error.is_some() {
            task.error = error;
        }
        if task.cancel_requested {
            self.end_cancelled(at);
            return Returned::Cancelled;
        }
        if task.attempts >= task.max_attempts {
            let error = task.error.clone().unwrap_or_else(|| "MAX_ATTEMPTS".into());
            task.error = Some(error.clone());
            self.end(at, Place::Dead, None, Some(error));
            let dead = self.tasks[at].task.clone();
            let to = self.policy(&dead.tenant, &self.tasks[at].queue.clone()).dead_letter_topic;
            if let Some(to) = to {
                let copy = NewTask {
                    command: to,
                    payload: dead.payload,
                    priority: i32::from(dead.priority),
                    ..NewTask::default()
                };
                self.create(&dead.tenant, &copy, Some(dead.id));
            }
            return Returned::Dead;
        }
        let attempts = u64::from(task.attempts);
        let delay = delay.unwrap_or_else(|| match backoff.growth {
            Growth::Fixed => backoff.base,
            Growth::Linear => backoff.base * attempts,
            Growth::Exponential => (1..attempts).fold(backoff.base, |pause, _| pause * 2),
            other => panic!("the model cannot predict {other:?}"),
        });
        let delay = delay.min(backoff.max);
        self.wait(at, delay);
        Returned::Requeued { delay }
    }

    /// Returns the task to the back of its queue, or delays it.
    pub(super) fn wait(&mut self, at: usize, delay: Millis) {
        self.order += 1;
        let known = &mut self.tasks[at];
        known.order = self.order;
        known.end = None;
        known.ended_by = None;
        known.post = None;
        (known.lease_ends, known.run_ends) = (None, None);
        known.delay_ends = (delay > 0).then_some(self.now + delay);
        let early = known.run_at.is_some_and(|date| date > self.wall);
        let task = &mut known.task;
        task.worker = None;
        task.place = if delay > 0 || early { Place::Delayed } else { Place::Pending };
        task.updated_at = self.wall;
    }

    pub(super) fn end(
        &mut self,
        at: usize,
        place: Place,
        result: Option<Bytes>,
        error: Option<Arc<str>>,
    ) {
        let own = self.policy(&self.tasks[at].task.tenant, &self.tasks[at].queue);
        let retention = match place {
            Place::Dead if own.dead_letter_retention > 0 => own.dead_letter_retention,
            _ if own.retention > 0 => own.retention,
            Place::Dead => self.settings.dead_letter_retention,
            _ => self.settings.retention,
        };
        let known = &mut self.tasks[at];
        (known.lease_ends, known.delay_ends, known.run_ends) = (None, None, None);
        let task = &mut known.task;
        task.worker = None;
        task.place = place;
        task.updated_at = self.wall;
        known.goes_at = self.now + retention;
        known.end = Some(ResultRecord {
            id: task.id,
            status: place.status(),
            result,
            error,
            artifacts: Vec::new(),
            completed_at: self.wall,
        });
        known.post = task.webhook.is_some().then_some(Post { tried: 0, next_at: Some(self.now) });
    }

    pub(super) fn end_cancelled(&mut self, at: usize) {
        let error: Arc<str> = "CANCELLED".into();
        self.tasks[at].task.error = Some(error.clone());
        self.end(at, Place::Failed, None, Some(error));
    }
}
