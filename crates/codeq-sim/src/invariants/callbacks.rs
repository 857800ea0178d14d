//! Invariant 11: every terminal task with a webhook is eventually called or listed as failed.

use codeq_core::callback::CallbackCounts;
use codeq_core::keys::{self, TimerKind};

use super::{Histories, Rows, Verb, Violation};
use crate::ledger::{Back, Delivered, is_failure};

/// Over the rows: a callback is kept only for a finished task with a webhook, it has a timer exactly while
/// it is to be tried again, and the state in memory wakes up for it in time.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    let mut say = |text: String| found.push(Violation::new(11, text));
    for (seq, outbox) in &rows.outbox {
        let name = rows.name(*seq);
        match rows.tasks.get(seq) {
            Some(row) if row.has_webhook && row.place.is_terminal() => {
                if row.id(*seq) != outbox.id {
                    say(format!("{name} has the callback of task {}", outbox.id));
                }
            }
            _ => say(format!("{name} has a callback without being finished with a webhook")),
        }
        if let Some(at) = outbox.next_at {
            if !rows.timers.contains_key(&keys::timer(TimerKind::Callback, at, *seq)) {
                say(format!("{name} has a callback due at {at} without a timer"));
            }
            if rows.next_callback.is_none_or(|next| next > at) {
                say(format!(
                    "{name} has a callback due at {at}, the next one is expected at {:?}",
                    rows.next_callback
                ));
            }
        }
    }
    let pending = rows.outbox.values().filter(|outbox| outbox.next_at.is_some()).count() as u64;
    let counted = CallbackCounts { pending, failed: rows.outbox.len() as u64 - pending };
    if rows.callbacks != counted {
        say(format!("{counted:?} of callbacks, and {:?} in memory", rows.callbacks));
    }
    for (_, deadline, seq, _) in rows.timers_of(TimerKind::Callback) {
        if rows.outbox.get(&seq).and_then(|outbox| outbox.next_at) != Some(deadline) {
            say(format!("{} has a callback timer at {deadline} for nothing", rows.name(seq)));
        }
    }
    for (seq, row) in &rows.tasks {
        if rows.bodies.get(seq).is_some_and(|body| body.webhook != row.has_webhook) {
            say(format!("{} disagrees with its body about its webhook", rows.name(*seq)));
        }
    }
}

/// Over the history: a task that a client was told is finished, and that is still listed, was called or
/// has its callback listed.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, story) in &histories.stories {
        let Some(created) = story.created.as_ref().filter(|created| created.wanted.webhook) else {
            continue;
        };
        let Some(listed) = histories.listed.get(id) else {
            continue; // Whether it may be gone is `retention`'s question.
        };
        // The latest end that is known for certain. Nothing follows a completion: later submits only repeat it.
        // Whatever else ended may have been replayed and ended again.
        let submitted = |bad: bool| {
            let submits = story.deeds.iter().filter(move |deed| match deed.verb {
                Verb::Submit(result) => is_failure(result) == bad && deed.acked().is_some(),
                _ => false,
            });
            submits.map(|deed| deed.invoked).min()
        };
        let died = story
            .deeds
            .iter()
            .filter(|deed| deed.returned().is_some_and(|(_, back)| back == Back::Dead))
            .map(|deed| deed.invoked)
            .max();
        let terminal = submitted(false).or_else(|| submitted(true).max(died));
        let finished = listed.dead || matches!(listed.task.status.as_str(), "COMPLETED" | "FAILED");
        if !finished || listed.callback {
            continue;
        }
        let called = story.deeds.iter().any(|deed| {
            deed.verb == Verb::Callback(Delivered::Yes)
                && deed.possible()
                && terminal.is_none_or(|invoked| deed.done > invoked)
        });
        if !called {
            let text = format!(
                "task {id} of tenant {} is finished, has a webhook, was never called and is not listed \
                 as failed",
                created.tenant
            );
            found.push(Violation::new(11, text));
        }
    }
}
