//! Reschedule: changes the priority of a waiting task, its delay, or both.

use crate::command::{Reschedule, RunWhen};
use crate::history::Event;
use crate::kv::{Kv, KvError};
use crate::limits::{DELAY_MS_MAX, PRIORITY_MAX};
use crate::moment::Millis;
use crate::place::Place;
use crate::reply::{Rejection, Reply};
use crate::rows::TaskRow;
use crate::step::{Cause, Step};

impl<K: Kv> Step<'_, K> {
    pub(crate) fn reschedule(&mut self, command: &Reschedule) -> Result<Reply, KvError> {
        let wait = match command.when {
            Some(RunWhen::After(delay)) => delay,
            Some(RunWhen::At(date)) => date.saturating_sub(self.wall),
            None => 0,
        };
        if wait > DELAY_MS_MAX {
            return Ok(Reply::Rejected(Rejection::InvalidDelay { max: DELAY_MS_MAX }));
        }
        let seq = command.id.seq();
        let Some(mut row) = self.find_unexpired(&command.tenant, command.id)? else {
            return Ok(Reply::Rejected(Rejection::NotFound));
        };
        match row.place {
            Place::Pending | Place::Delayed => {}
            Place::InProgress => return Ok(Reply::Rejected(Rejection::InProgress)),
            Place::Completed | Place::Failed | Place::Dead => {
                return Ok(Reply::Rejected(Rejection::Finished));
            }
        }
        let priority = match command.priority {
            Some(wanted) => {
                let wanted = wanted.clamp(0, i32::from(PRIORITY_MAX)) as u8;
                let topic = self.queue(row.queue)?.row.topic.as_ref();
                topic.map_or(wanted, |topic| topic.policy.tier(wanted))
            }
            None => row.priority,
        };
        let (place, visible_at, run_at) = self.new_place(&row, command.when);
        // A task that is claimable either way keeps its position, so a repeated call is harmless.
        let same_time = match place {
            Place::Pending => row.place == Place::Pending,
            _ => (row.place, row.visible_at, row.run_at) == (place, visible_at, run_at),
        };
        if priority != row.priority || !same_time {
            let why = Some(changes(command).into());
            let cause = Cause { event: Event::Rescheduled, who: Some(&command.by), why };
            self.relocate(seq, &mut row, cause, |row| {
                row.place = place;
                row.priority = priority;
                row.visible_at = visible_at;
                row.run_at = run_at;
            })?;
        }
        Ok(Reply::Rescheduled(Box::new(self.view(seq, &row)?)))
    }

    /// Where a waiting task belongs, with the end of its delay and its `runAt`. A new time replaces both.
    fn new_place(&self, row: &TaskRow, when: Option<RunWhen>) -> (Place, Millis, Millis) {
        match when {
            None => (row.place, row.visible_at, row.run_at),
            Some(RunWhen::After(0)) => (Place::Pending, 0, 0),
            Some(RunWhen::After(delay)) => (Place::Delayed, self.now.saturating_add(delay), 0),
            Some(RunWhen::At(date)) if date > self.wall => (Place::Delayed, 0, date),
            Some(RunWhen::At(date)) => (Place::Pending, 0, date),
        }
    }
}

/// What was asked for, for the history.
fn changes(command: &Reschedule) -> String {
    let priority = command.priority.map(|priority| format!("priority {priority}"));
    let when = command.when.map(|when| match when {
        RunWhen::After(0) => "now".to_owned(),
        RunWhen::After(delay) => format!("delay {}s", delay.div_ceil(1_000)),
        RunWhen::At(_) => "runAt".to_owned(),
    });
    let changes: Vec<String> = priority.into_iter().chain(when).collect();
    changes.join(", ")
}
