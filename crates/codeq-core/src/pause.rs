//! Pause and resume claims of a queue; enqueues continue.

use crate::command::Pause;
use crate::kv::{Kv, KvError};
use crate::reply::{Rejection, Reply};
use crate::step::Step;

impl<K: Kv> Step<'_, K> {
    pub(crate) fn pause(&mut self, command: &Pause) -> Result<Reply, KvError> {
        let known = self.state.queue_id(&command.tenant, &command.command);
        let queue = match (known, command.paused) {
            (Some(queue), _) => Ok(queue),
            // A queue can be paused before its first task, so that no task slips through.
            (None, true) => self.queue_or_new(&command.tenant, &command.command),
            (None, false) => Err(Rejection::NotFound),
        };
        let queue = match queue {
            Ok(queue) => queue,
            Err(rejection) => return Ok(Reply::Rejected(rejection)),
        };
        if self.queue(queue)?.row.paused != command.paused {
            self.queue_mut(queue)?.row.paused = command.paused;
            self.reindex_head(queue)?;
            self.forget_if_unused(queue);
        }
        Ok(Reply::Done)
    }
}
