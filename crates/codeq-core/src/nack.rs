//! Nack: a worker gives a task back as failed.

use crate::command::Nack;
use crate::history::Event;
use crate::kv::{Kv, KvError};
use crate::lease::{Retry, shorten};
use crate::reply::Reply;
use crate::step::{Cause, Step};

impl<K: Kv> Step<'_, K> {
    pub(crate) fn nack(&mut self, command: &Nack) -> Result<Reply, KvError> {
        let was = match self.owned(&command.tenant, command.id, &command.worker)? {
            Ok(row) => row,
            Err(rejection) => return Ok(Reply::Rejected(rejection)),
        };
        let reason = command.reason.clone().filter(|reason| !reason.is_empty()).map(shorten);
        let retry = match command.delay {
            Some(delay) => Retry::After(delay),
            None => Retry::Backoff(command.seed),
        };
        let cause = Cause { event: Event::Nacked, who: Some(&command.worker), why: reason.clone() };
        let returned = self.fail_attempt(command.id.seq(), &was, reason, retry, cause)?;
        Ok(Reply::Returned(returned))
    }
}
