//! How tasks end: result, move and callback happen in one step.

use std::sync::Arc;

use bytes::Bytes;

use crate::command::{Artifact, NewTask};
use crate::effect::Effect;
use crate::keys::Seq;
use crate::kv::{Kv, KvError};
use crate::lease::{CANCELLED, MAX_ATTEMPTS};
use crate::place::Place;
use crate::rows::{Finish, TaskRow};
use crate::step::{Cause, Step};

/// What a finished task leaves behind.
#[derive(Default)]
pub(crate) struct Ending {
    pub worker: Option<Arc<str>>,
    pub result: Option<Bytes>,
    pub error: Option<Arc<str>>,
    pub artifacts: Vec<Artifact>,
}

impl<K: Kv> Step<'_, K> {
    /// Moves a task to a terminal place.
    pub(crate) fn finish(
        &mut self,
        seq: Seq,
        mut row: TaskRow,
        place: Place,
        ending: Ending,
        cause: Cause<'_>,
    ) -> Result<TaskRow, KvError> {
        let settings = &self.state.meta.settings;
        let retention = match &self.queue(row.queue)?.row.topic {
            Some(topic) => topic.policy.retention(place, settings),
            None if place == Place::Dead => settings.dead_letter_retention,
            None => settings.retention,
        };
        let finish = Finish {
            at: self.wall,
            expires_at: self.now.saturating_add(retention),
            worker: ending.worker,
            result: ending.result,
            error: ending.error,
            artifacts: ending.artifacts,
        };
        self.relocate(seq, &mut row, cause, |row| {
            row.place = place;
            row.visible_at = 0;
            row.end_attempt();
            row.finish = Some(finish);
        })?;
        if row.has_webhook {
            self.add_callback(seq, &row)?;
        }
        Ok(row)
    }

    /// Dead-letters a task that used up its attempts, and enqueues a copy elsewhere if the queue's policy says so.
    pub(crate) fn dead_letter(
        &mut self,
        seq: Seq,
        row: TaskRow,
        cause: Cause<'_>,
    ) -> Result<(), KvError> {
        let error = row.error.clone().unwrap_or_else(|| Arc::from(MAX_ATTEMPTS));
        let row = TaskRow { error: Some(Arc::clone(&error)), ..row };
        let ending = Ending { error: Some(error), ..Ending::default() };
        let row = self.finish(seq, row, Place::Dead, ending, cause)?;
        let queue = &self.queue(row.queue)?.row;
        let topic = queue.topic.as_ref().and_then(|topic| topic.policy.dead_letter_topic.clone());
        let Some(command) = topic else { return Ok(()) };
        let tenant = Arc::clone(&queue.tenant);
        let dead = self.view(seq, &row)?;
        let copy = NewTask {
            command: Arc::clone(&command),
            payload: dead.payload,
            priority: i32::from(dead.priority),
            trace_parent: dead.trace_parent,
            trace_state: dead.trace_state,
            ..NewTask::default()
        };
        // A tenant at its queue limit keeps the dead letter itself; only the copy is dropped.
        if let Ok(queue) = self.queue_or_new(&tenant, &command) {
            self.create(queue, &copy, Some(dead.id), dead.id.salt())?;
        }
        Ok(())
    }

    /// Finishes a task as cancelled.
    pub(crate) fn finish_cancelled(
        &mut self,
        seq: Seq,
        row: TaskRow,
        cause: Cause<'_>,
    ) -> Result<TaskRow, KvError> {
        let error: Arc<str> = Arc::from(CANCELLED);
        let row = TaskRow { error: Some(Arc::clone(&error)), ..row };
        let ending = Ending { error: Some(error), ..Ending::default() };
        self.finish(seq, row, Place::Failed, ending, cause)
    }

    /// Removes a finished task with its result, idempotency key and callback.
    pub(crate) fn remove(&mut self, seq: Seq, row: &TaskRow) -> Result<(), KvError> {
        self.release_key(seq, row)?;
        self.drop_callback(seq, row)?;
        self.drop_artifacts(seq, row);
        self.evict(seq, row)
    }

    /// Reports that the artifacts of the task's result are no longer needed.
    pub(crate) fn drop_artifacts(&mut self, seq: Seq, row: &TaskRow) {
        if let Some(finish) = row.finish.as_ref().filter(|finish| !finish.artifacts.is_empty()) {
            let artifacts = finish.artifacts.clone();
            self.effects.push(Effect::ArtifactsGone { id: row.id(seq), artifacts });
        }
    }
}
