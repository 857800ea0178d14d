//! Cancel: a producer withdraws its task, at once or by asking the worker that runs it to stop.

use std::sync::Arc;

use crate::command::Cancel;
use crate::history::Event;
use crate::keys::Seq;
use crate::kv::{Kv, KvError};
use crate::place::Place;
use crate::reply::{Rejection, Reply};
use crate::rows::TaskRow;
use crate::step::{Cause, Step};

impl<K: Kv> Step<'_, K> {
    pub(crate) fn cancel(&mut self, command: &Cancel) -> Result<Reply, KvError> {
        let seq = command.id.seq();
        let Some(mut row) = self.find_unexpired(&command.tenant, command.id)? else {
            return Ok(Reply::Rejected(Rejection::NotFound));
        };
        match row.place {
            Place::Pending | Place::Delayed => {
                let cause = Cause::by(Event::Cancelled, &command.by);
                let row = self.finish_cancelled(seq, row, cause)?;
                Ok(Reply::Cancelled(Box::new(self.view(seq, &row)?)))
            }
            Place::InProgress => {
                self.request_cancel(seq, &mut row, &command.by)?;
                Ok(Reply::CancelRequested(Box::new(self.view(seq, &row)?)))
            }
            Place::Completed | Place::Failed | Place::Dead => {
                Ok(Reply::Rejected(Rejection::Finished))
            }
        }
    }

    /// Cancels a task that a bulk operation found among those that are not finished. If its lease is over, the next
    /// sweep finishes it.
    pub(crate) fn cancel_one(
        &mut self,
        seq: Seq,
        mut row: TaskRow,
        by: &Arc<str>,
    ) -> Result<(), KvError> {
        if row.place == Place::InProgress {
            return self.request_cancel(seq, &mut row, by);
        }
        self.finish_cancelled(seq, row, Cause::by(Event::Cancelled, by))?;
        Ok(())
    }

    /// Asks the worker of a running task to stop, once.
    fn request_cancel(
        &mut self,
        seq: Seq,
        row: &mut TaskRow,
        by: &Arc<str>,
    ) -> Result<(), KvError> {
        if !row.cancel_requested {
            row.cancel_requested = true;
            // `updated_at` stays: for a running task, it says when its worker was last heard from.
            self.record_transition(
                seq,
                row,
                Some(Place::InProgress),
                Cause::by(Event::CancelRequested, by),
            )?;
            self.save(seq, row);
        }
        Ok(())
    }
}
