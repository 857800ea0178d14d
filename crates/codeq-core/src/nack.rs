//! Nack: a worker returns a task as failed.

use crate::command::Nack;
use crate::history::Event;
use crate::kv::{Kv, KvError};
use crate::lease::{Holder, Retry, shorten};
use crate::reply::Reply;
use crate::step::{Cause, Step};

impl<K: Kv> Step<'_, K> {
    pub(crate) fn nack(&mut self, command: &Nack, holder: Holder<'_>) -> Result<Reply, KvError> {
        let (row, owner) = match self.owned(&command.tenant, command.id, holder)? {
            Ok(owned) => owned,
            Err(rejection) => return Ok(Reply::Rejected(rejection)),
        };
        let reason = command.reason.clone().filter(|reason| !reason.is_empty()).map(shorten);
        let retry = match command.delay {
            Some(delay) => Retry::After(delay),
            None => Retry::Backoff(command.seed),
        };
        let cause = Cause { event: Event::Nacked, who: Some(&owner), why: reason.clone() };
        let returned = self.fail_attempt(command.id.seq(), row, reason, retry, cause)?;
        Ok(Reply::Returned(returned))
    }
}
