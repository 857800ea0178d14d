//! What comes due, and callbacks.

use super::*;

impl Model {
    pub(super) fn come_due(&mut self, limit: u32) -> Swept {
        let mut swept = Swept::default();
        let Moment { now, wall } = self.moment();
        let over = |known: &Known| known.lease_ends.filter(|until| *until < now);
        while swept.expired < limit
            && let Some(at) = self.earliest(over)
        {
            self.end_lease_if_over(at);
            swept.expired += 1;
        }
        // The latest date first.
        let early = |known: &Known| known.date_passed().filter(|date| *date > wall);
        while swept.expired + swept.postponed < limit
            && let Some((.., at)) =
                (0..self.tasks.len()).filter_map(|at| Some((early(&self.tasks[at])?, at))).max()
        {
            self.tasks[at].task.place = Place::Delayed;
            self.tasks[at].task.updated_at = wall;
            swept.postponed += 1;
        }
        let delayed = |known: &Known| known.delay_ends.filter(|end| *end <= now);
        let dated = |known: &Known| known.waits_for_date().filter(|date| *date <= wall);
        while swept.expired + swept.postponed + swept.promoted < limit
            && let Some(at) = self.earliest(delayed).or_else(|| self.earliest(dated))
        {
            self.wait(at, 0);
            swept.promoted += 1;
        }
        swept
    }

    /// The task with the earliest time of a kind; if several share it, the oldest.
    pub(super) fn earliest(&self, moment: impl Fn(&Known) -> Option<Millis>) -> Option<usize> {
        let all = self.tasks.iter().enumerate();
        let some = all.filter_map(|(at, known)| Some((moment(known)?, at)));
        some.min().map(|(_, at)| at)
    }

    pub(super) fn sweep(&mut self, limit: u32) -> Swept {
        let mut swept = self.come_due(limit);
        let mut left = limit - swept.expired - swept.promoted - swept.postponed;
        let now = self.now;
        let old =
            |known: &Known| known.end.as_ref().map(|_| known.goes_at).filter(|goes| *goes <= now);
        while left > 0
            && let Some(at) = self.earliest(old)
        {
            left -= 1;
            if self.tasks[at].awaits_post() {
                self.tasks[at].goes_at = self.now + 60_000;
            } else {
                self.remove(at);
                swept.removed += 1;
            }
        }
        self.old_keys.sort_by_key(|old| (old.created_at_engine, old.id.seq()));
        while left > 0
            && self.old_keys.first().is_some_and(|old| old.created_at_engine + DAY <= self.now)
        {
            self.old_keys.remove(0);
            left -= 1;
            swept.removed += 1;
        }
        swept.removed += self.records.sweep(self.now, left);
        swept
    }

    pub(super) fn callback(&mut self, c: &Callback) -> Reply {
        let Some(at) = self.find(&c.tenant, c.id) else {
            return Reply::Rejected(Rejection::NotFound);
        };
        let settings = self.settings.clone();
        let Some(post) = &mut self.tasks[at].post else {
            return Reply::Rejected(Rejection::NoCallback);
        };
        match &c.delivery {
            Delivery::Delivered => self.tasks[at].post = None,
            Delivery::Refused { .. } => *post = Post { tried: post.tried + 1, next_at: None },
            Delivery::Resend => *post = Post { tried: 0, next_at: Some(self.now) },
            Delivery::Failed { retry_after, .. } => {
                post.tried += 1;
                let pause = (1..post.tried).fold(settings.callback_base, |pause, _| pause * 2);
                let pause = pause.min(settings.callback_max).max(retry_after.unwrap_or(0));
                let again = post.tried < settings.callback_attempts;
                post.next_at = again.then_some(self.now + pause);
            }
        }
        Reply::Done
    }
}
