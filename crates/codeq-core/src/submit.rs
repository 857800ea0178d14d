//! Submit: a worker finishes its task. Result, place, lease and callback change in one step.

use std::sync::Arc;

use bytes::Bytes;

use crate::command::{Artifact, Outcome, Submit};
use crate::finish::Ending;
use crate::history::Event;
use crate::kv::{Kv, KvError, KvRead};
use crate::lease::{Holder, shorten};
use crate::limits::{ARTIFACT_FIELD_BYTES_MAX, ARTIFACTS_MAX, RESULT_BYTES_MAX};
use crate::place::Place;
use crate::read::Reader;
use crate::reply::{Rejection, Reply};
use crate::rows::TaskRow;
use crate::step::{Cause, Step};
use crate::view::ResultRecord;

impl<K: Kv> Step<'_, K> {
    pub(crate) fn submit(
        &mut self,
        command: &Submit,
        holder: Holder<'_>,
    ) -> Result<Reply, KvError> {
        let seq = command.id.seq();
        let Some(row) = self.find(&command.tenant, command.id)? else {
            return Ok(Reply::Rejected(Rejection::NotFound));
        };
        if repeats(&row, command, holder, |stored, sent| stored == sent)
            && let Some(record) = ResultRecord::from_row(seq, &row)
        {
            return Ok(Reply::Submitted(Box::new(record)));
        }
        let (mut row, owner) = match self.owned_row(command.id, row, holder)? {
            Ok(owned) => owned,
            Err(rejection) => return Ok(Reply::Rejected(rejection)),
        };
        if let Err(rejection) = check(&command.outcome, &command.artifacts) {
            return Ok(Reply::Rejected(rejection));
        }
        let place = place_of(&command.outcome);
        let ending = Ending { worker: Some(Arc::clone(&owner)), ..ending_of(command) };
        if let Some(error) = &ending.error {
            row.error = Some(Arc::clone(error));
        }
        let cause = Cause { event: Event::Submitted, who: Some(&owner), why: ending.error.clone() };
        let row = self.finish(seq, row, place, ending, cause)?;
        Ok(match ResultRecord::from_row(seq, &row) {
            Some(record) => Reply::Submitted(Box::new(record)),
            None => Reply::Rejected(Rejection::NotInProgress),
        })
    }
}

impl<K: KvRead + ?Sized> Reader<'_, K> {
    /// The stored result, if this submit repeats the one that finished the task. `same` compares a stored artifact with
    /// a submitted one.
    pub fn repeated(
        &self,
        command: &Submit,
        holder: Holder<'_>,
        same: impl Fn(&Artifact, &Artifact) -> bool,
    ) -> Result<Option<ResultRecord>, KvError> {
        let found = self.find(&command.tenant, command.id)?;
        let row = found.map(|(row, _)| row);
        let row = row.filter(|row| repeats(row, command, holder, same));
        Ok(row.and_then(|row| ResultRecord::from_row(command.id.seq(), &row)))
    }
}

/// Whether this repeats the submit that finished the task, because its reply was lost. `same` compares a stored
/// artifact with a submitted one.
fn repeats(
    row: &TaskRow,
    command: &Submit,
    holder: Holder<'_>,
    same: impl Fn(&Artifact, &Artifact) -> bool,
) -> bool {
    let Some(finish) = &row.finish else {
        return false;
    };
    let ending = ending_of(command);
    row.place == place_of(&command.outcome)
        && finish.worker.as_deref().is_some_and(|worker| holder.is(worker))
        && holder.is_current(row.fence)
        && finish.result == ending.result
        && finish.error == ending.error
        && finish.artifacts.len() == ending.artifacts.len()
        && finish.artifacts.iter().zip(&ending.artifacts).all(|(stored, sent)| same(stored, sent))
}

fn place_of(outcome: &Outcome) -> Place {
    match outcome {
        Outcome::Completed(_) | Outcome::Both { completed: true, .. } => Place::Completed,
        Outcome::Failed(_) | Outcome::Both { completed: false, .. } => Place::Failed,
    }
}

/// What the submit leaves behind.
fn ending_of(command: &Submit) -> Ending {
    let (result, error) = match &command.outcome {
        Outcome::Completed(result) if result.is_empty() => (Some(Bytes::from_static(b"{}")), None),
        Outcome::Completed(result) => (Some(result.clone()), None),
        Outcome::Failed(error) => (None, Some(shorten(Arc::clone(error)))),
        Outcome::Both { result, error, .. } => {
            (Some(result.clone()), Some(shorten(Arc::clone(error))))
        }
    };
    Ending { worker: None, result, error, artifacts: command.artifacts.clone() }
}

/// Whether the result is within the limits.
pub fn check(outcome: &Outcome, artifacts: &[Artifact]) -> Result<(), Rejection> {
    match outcome {
        Outcome::Failed(error) | Outcome::Both { error, .. } if error.is_empty() => {
            return Err(Rejection::ErrorRequired);
        }
        Outcome::Completed(result) | Outcome::Both { result, .. }
            if result.len() > RESULT_BYTES_MAX =>
        {
            return Err(Rejection::InvalidResult { max: RESULT_BYTES_MAX });
        }
        _ => {}
    }
    let field = |text: &str| (1..=ARTIFACT_FIELD_BYTES_MAX).contains(&text.len());
    let fine = artifacts.len() <= ARTIFACTS_MAX
        && artifacts.iter().all(|artifact| field(&artifact.name) && field(&artifact.url));
    if fine { Ok(()) } else { Err(Rejection::InvalidArtifacts) }
}
