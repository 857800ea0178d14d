//! Invariant 5: terminal is terminal; one result.

use codeq_core::place::Place;

use super::{Histories, Rows, TaskOp, Verb, Violation};
use crate::ledger::{Answer, Digest, is_failure};

/// Rows: a finished task has exactly one result of the right kind, an unfinished one has none.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    for (seq, row) in &rows.tasks {
        let wrong = match (&row.finish, row.place) {
            (Some(finish), Place::Completed) => finish.result.is_none(),
            // A worker may send a result along with its error.
            (Some(finish), Place::Failed) => finish.error.is_none(),
            (Some(finish), Place::Dead) => finish.result.is_some() || finish.error.is_none(),
            (None, place) => place.is_terminal(),
            (Some(_), _) => true,
        };
        if wrong {
            let text =
                format!("{} is {:?} with result {:?}", rows.name(*seq), row.place, row.finish);
            found.push(Violation::new(5, text));
        }
    }
}

/// History: after an acknowledged submit the task is never claimed again, every acknowledged submit shows the same
/// result, and so does the final listing. A failure may be replayed, and then anything may follow; a completion may
/// not.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, history) in &histories.tasks {
        let submits: Vec<(&TaskOp, Digest)> = history
            .ops
            .iter()
            .filter(|op| matches!(op.verb, Verb::Submit(_)))
            .filter_map(|op| match op.acked()? {
                (_, Answer::Result(digest)) => Some((op, *digest)),
                _ => None,
            })
            .collect();
        let mut say = |text: String| found.push(Violation::new(5, format!("task {id}: {text}")));
        // Whether a replay may have undone a submit before the tick `until`: then anything may follow.
        let undone = |op: &TaskOp, result: Digest, until: u64| {
            is_failure(result) && histories.replayed_between(history, op.invoked, until)
        };
        for (at, (op, result)) in submits.iter().enumerate() {
            if op.verb != Verb::Submit(*result) {
                say(format!("{} submitted one result and was shown another", op.worker));
            }
            for (other, its) in submits.iter().skip(at + 1).filter(|(_, its)| its != result) {
                let certain = |first: &TaskOp, second: &TaskOp| first.done < second.invoked;
                let fine = (!certain(other, op) && undone(op, *result, other.done))
                    || (!certain(op, other) && undone(other, *its, op.done));
                if !fine {
                    say(format!("{} and {} submitted different results", op.worker, other.worker));
                }
            }
            for claim in history.claims.iter().filter(|claim| claim.invoked > op.done) {
                if !undone(op, *result, claim.done) {
                    let (worker, finisher) = (&claim.worker, &op.worker);
                    say(format!("{worker} claimed it after {finisher} had finished it"));
                }
            }
            if let Some(listed) = histories.listed.get(id)
                && listed.result != Some(*result)
                && !undone(op, *result, u64::MAX)
            {
                say(format!("{} finished it, but it now shows another result", op.worker));
            }
        }
    }
}
