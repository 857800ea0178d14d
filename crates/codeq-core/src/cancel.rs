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
        let Some(mut was) = self.find(&command.tenant, command.id)? else {
            return Ok(Reply::Rejected(Rejection::NotFound));
        };
        if was.lease.as_ref().is_some_and(|lease| lease.until < self.now) {
            self.expire(seq, &was, self.now ^ command.id.salt())?;
            match TaskRow::load(self.kv, keys::task(seq))? {
                Some(row) => was = row,
                None => return Ok(Reply::Rejected(Rejection::NotFound)),
            }
        }
        match was.place {
            Place::Pending | Place::Delayed => {
                let cause = Cause::by(Event::Cancelled, &command.by);
                let row = self.finish_cancelled(seq, was.clone(), &was, cause)?;
                Ok(Reply::Cancelled(Box::new(self.view(seq, &row)?)))
            }
            Place::InProgress => {
                let mut row = was.clone();
                if !row.cancel_requested {
                    row.cancel_requested = true;
                    let cause = Cause::by(Event::CancelRequested, &command.by);
                    self.relocate(seq, &mut row, &was, cause)?;
                }
                Ok(Reply::CancelRequested(Box::new(self.view(seq, &row)?)))
            }
            Place::Completed | Place::Failed | Place::Dead => {
                Ok(Reply::Rejected(Rejection::Finished))
            }
        }
    }
}
