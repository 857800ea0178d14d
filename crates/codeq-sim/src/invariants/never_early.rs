//! Invariant 8: delayed is never early.

use codeq_core::command::Millis;
use codeq_core::place::Place;

use super::{Histories, Rows, Story, Verb, Violation};
use crate::ledger::{Back, NotBefore};

/// Over the rows: a delayed task's moment is the one its last transition set, and it has not been claimed
/// since; what is claimable has no moment left to wait for.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    for (seq, row) in &rows.tasks {
        let wrong = match row.place {
            Place::Delayed => row.visible_at <= row.updated_at,
            _ => row.visible_at != 0,
        };
        if wrong {
            let text = format!(
                "{} is {:?}, visible at {}, last changed at {}",
                rows.name(*seq),
                row.place,
                row.visible_at,
                row.updated_at
            );
            found.push(Violation::new(8, text));
        }
    }
}

/// Over the history: no claim before the moment that its producer, or its last failure, had set.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, story) in &histories.stories {
        let mut say = |text: String| found.push(Violation::new(8, format!("task {id}: {text}")));
        if let Some(moment) = first_moment(story)
            && let Some(early) = story.claims.iter().find(|claim| claim.at < moment)
        {
            say(format!("it was to wait until {moment} and was claimed at {}", early.at));
        }
        for deed in &story.deeds {
            let Some((at, Back::Requeued(delay))) = deed.returned() else {
                continue;
            };
            let moment = at.saturating_add(delay);
            let early =
                story.claims.iter().find(|claim| claim.invoked > deed.done && claim.at < moment);
            // Nothing shortens the wait of a live task; only a replay comes round it.
            let replayed = histories
                .stories
                .get(id)
                .is_some_and(|story| story.deeds.iter().any(|deed| deed.verb == Verb::Replay));
            if let Some(early) = early
                && !replayed
            {
                say(format!(
                    "it was given back at {at} for {delay} ms and was claimed at {}",
                    early.at
                ));
            }
        }
    }
}

fn first_moment(story: &Story) -> Option<Millis> {
    let created = story.created.as_ref()?;
    let asked = match created.wanted.not_before? {
        NotBefore::At(moment) => moment,
        NotBefore::After(delay) => created.at.saturating_add(delay),
    };
    Some(asked)
}
