//! Invariant 5: terminal is terminal; one result.

use codeq_core::place::Place;

use super::{Histories, Rows, Verb, Violation};
use crate::ledger::Answer;

/// Over the rows: a finished task holds exactly one result of the right kind, an unfinished one none.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    for (seq, row) in &rows.tasks {
        let wrong = match (&row.finish, row.place) {
            (Some(finish), Place::Completed) => finish.result.is_none(),
            // A worker may send a result with its error.
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

/// Over the history: after an acknowledged submit the task is never claimed again, every submit that is
/// acknowledged shows the same result, and so does the end.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, story) in &histories.stories {
        let submits: Vec<_> = story
            .deeds
            .iter()
            .filter(|deed| matches!(deed.verb, Verb::Submit(_)))
            .filter_map(|deed| match deed.acked()? {
                (_, Answer::Result(digest)) => Some((deed, *digest)),
                _ => None,
            })
            .collect();
        let Some((first, result)) = submits.iter().min_by_key(|(deed, _)| deed.done) else {
            continue;
        };
        let mut say = |text: String| found.push(Violation::new(5, format!("task {id}: {text}")));
        for (deed, other) in &submits {
            if other != result {
                say(format!("{} and {} submitted different results", first.worker, deed.worker));
            }
            if deed.verb != Verb::Submit(*other) {
                say(format!("{} submitted one result and was shown another", deed.worker));
            }
        }
        for claim in story.claims.iter().filter(|claim| claim.invoked > first.done) {
            say(format!("{} claimed it after {} had finished it", claim.worker, first.worker));
        }
        if let Some(listed) = histories.listed.get(id)
            && listed.result != Some(*result)
        {
            say(format!("it was finished by {} and now shows another result", first.worker));
        }
    }
}
