//! Invariant 5: terminal is terminal; one result.

use codeq_core::place::Place;

use super::{Deed, Histories, Rows, Verb, Violation};
use crate::ledger::{Answer, Digest, is_failure};

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
/// acknowledged shows the same result, and so does the end. A failure may be replayed, and then everything may
/// follow; a completion never.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, story) in &histories.stories {
        let submits: Vec<(&Deed, Digest)> = story
            .deeds
            .iter()
            .filter(|deed| matches!(deed.verb, Verb::Submit(_)))
            .filter_map(|deed| match deed.acked()? {
                (_, Answer::Result(digest)) => Some((deed, *digest)),
                _ => None,
            })
            .collect();
        let mut say = |text: String| found.push(Violation::new(5, format!("task {id}: {text}")));
        // Whether something else may come after what a submit did, before a tick.
        let undone = |deed: &Deed, result: Digest, until: u64| {
            is_failure(result) && histories.replayed_between(story, deed.invoked, until)
        };
        for (at, (deed, result)) in submits.iter().enumerate() {
            if deed.verb != Verb::Submit(*result) {
                say(format!("{} submitted one result and was shown another", deed.worker));
            }
            for (other, its) in submits.iter().skip(at + 1).filter(|(_, its)| its != result) {
                let certain = |first: &Deed, second: &Deed| first.done < second.invoked;
                let fine = (!certain(other, deed) && undone(deed, *result, other.done))
                    || (!certain(deed, other) && undone(other, *its, deed.done));
                if !fine {
                    say(format!(
                        "{} and {} submitted different results",
                        deed.worker, other.worker
                    ));
                }
            }
            for claim in story.claims.iter().filter(|claim| claim.invoked > deed.done) {
                if !undone(deed, *result, claim.done) {
                    let (worker, finisher) = (&claim.worker, &deed.worker);
                    say(format!("{worker} claimed it after {finisher} had finished it"));
                }
            }
            if let Some(listed) = histories.listed.get(id)
                && listed.result != Some(*result)
                && !undone(deed, *result, u64::MAX)
            {
                say(format!("it was finished by {} and now shows another result", deed.worker));
            }
        }
    }
}
