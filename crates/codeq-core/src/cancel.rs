//! Cancel: a producer withdraws its task, at once or by asking the worker that runs it to stop.

use crate::command::Cancel;
use crate::history::Event;
use crate::keys;
use crate::kv::{Kv, KvError};
use crate::place::Place;
use crate::reply::{Rejection, Reply};
use crate::rows::TaskRow;
use crate::step::{Cause, Step};

impl<K: Kv> Step<'_, K> {
    pub(crate) fn cancel(&mut self, command: &Cancel) -> Result<Reply, KvError> {
        let seq = command.id.seq();
        let Some(mut row) = self.find(&command.tenant, command.id)? else {
            return Ok(Reply::Rejected(Rejection::NotFound));
        };
        if row.lease.as_ref().is_some_and(|lease| lease.until < self.now) {
            self.expire(seq, row, self.now ^ command.id.salt())?;
            match TaskRow::load(self.kv, keys::task(seq))? {
                Some(expired) => row = expired,
                None => return Ok(Reply::Rejected(Rejection::NotFound)),
            }
        }
        match row.place {
            Place::Pending | Place::Delayed => {
                let cause = Cause::by(Event::Cancelled, &command.by);
                let row = self.finish_cancelled(seq, row, cause)?;
                Ok(Reply::Cancelled(Box::new(self.view(seq, &row)?)))
            }
            Place::InProgress => {
                if !row.cancel_requested {
                    row.cancel_requested = true;
                    let cause = Cause::by(Event::CancelRequested, &command.by);
                    // `updated_at` stays: of a running task, it says when its worker was last heard of.
                    self.record_move(seq, &mut row, Some(Place::InProgress), cause)?;
                    self.save(seq, &row);
                }
                Ok(Reply::CancelRequested(Box::new(self.view(seq, &row)?)))
            }
            Place::Completed | Place::Failed | Place::Dead => {
                Ok(Reply::Rejected(Rejection::Finished))
            }
        }
    }
}
