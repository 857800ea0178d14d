//! Abandon: a worker returns a task, which can be claimed again at once.

use crate::command::Abandon;
use crate::history::Event;
use crate::kv::{Kv, KvError};
use crate::lease::{Holder, Retry};
use crate::reply::{Rejection, Reply, Returned};
use crate::step::{Cause, Step};

impl<K: Kv> Step<'_, K> {
    pub(crate) fn abandon(
        &mut self,
        command: &Abandon,
        holder: Holder<'_>,
    ) -> Result<Reply, KvError> {
        let (row, owner) = match self.owned(&command.tenant, command.id, holder)? {
            Ok(owned) => owned,
            Err(rejection) => return Ok(Reply::Rejected(rejection)),
        };
        if command.fence.is_some_and(|fence| fence != row.fence) {
            return Ok(Reply::Rejected(Rejection::LeaseLost));
        }
        let seq = command.id.seq();
        if command.penalty {
            let cause = Cause::by(Event::Abandoned, &owner);
            let returned = self.fail_attempt(seq, row, None, Retry::After(0), cause)?;
            return Ok(Reply::Returned(returned));
        }
        let cause = Cause::by(Event::Released, &owner);
        if row.cancel_requested {
            self.finish_cancelled(seq, row, cause)?;
            return Ok(Reply::Returned(Returned::Cancelled));
        }
        self.requeue(seq, row, 0, cause)?;
        Ok(Reply::Returned(Returned::Requeued { delay: 0 }))
    }
}
