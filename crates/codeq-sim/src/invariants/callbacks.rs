//! Invariant 11: the callback of every terminal task with a webhook is eventually delivered or listed as failed.

use codeq_core::callback_retry::CallbackCounts;
use codeq_core::keys::{self, TimerKind};

use super::{Histories, Rows, Verb, Violation};
use crate::ledger::{Back, Delivered, is_failure};

/// Rows: only finished tasks with a webhook have a callback. A callback has a timer exactly as long as it is to be retried,
/// and the state in memory wakes up in time for it.
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
            _ => say(format!("{name} has a callback but is not finished with a webhook")),
        }
        if let Some(at) = outbox.next_at {
            if !rows.timers.contains_key(&keys::timer(TimerKind::Callback, at, *seq)) {
                say(format!("{name} has a callback due at {at} but no timer"));
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
        say(format!(
            "{counted:?} callbacks have rows, but {:?} are counted in memory",
            rows.callbacks
        ));
    }
    for (_, deadline, seq, _) in rows.timers_of(TimerKind::Callback) {
        if rows.outbox.get(&seq).and_then(|outbox| outbox.next_at) != Some(deadline) {
            say(format!("{} has a callback timer at {deadline} but no callback", rows.name(seq)));
        }
    }
    for (seq, row) in &rows.tasks {
        if rows.bodies.get(seq).is_some_and(|body| body.webhook != row.has_webhook) {
            say(format!("{} disagrees with its body about its webhook", rows.name(*seq)));
        }
    }
}

/// History: for a task that a client knows to be finished and that is still listed, the webhook was called or its
/// callback is listed.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for (id, history) in &histories.tasks {
        let Some(created) = history.created.as_ref().filter(|created| created.wanted.webhook)
        else {
            continue;
        };
        let Some(listed) = histories.listed.get(id) else {
            continue; // `retention` checks whether it may have been removed.
        };
        // The latest end that is certain. A completion is the last end: later submits only repeat it. After any other end,
        // the task may have been replayed and have ended again.
        let submitted = |bad: bool| {
            let submits = || {
                history.ops.iter().filter(move |op| match op.verb {
                    Verb::Submit(result) => is_failure(result) == bad,
                    _ => false,
                })
            };
            // The first submit counts, even if its answer was lost: it may have finished the task, and the acknowledged one
            // only repeated it.
            let possible = submits().filter(|op| op.possible()).map(|op| op.invoked).min();
            possible.filter(|_| submits().any(|op| op.acked().is_some()))
        };
        let died = history
            .ops
            .iter()
            .filter(|op| op.returned().is_some_and(|(_, back)| back == Back::Dead))
            .map(|op| op.invoked)
            .max();
        let terminal = submitted(false).or_else(|| submitted(true).max(died));
        let finished = listed.dead || matches!(listed.task.status.as_str(), "COMPLETED" | "FAILED");
        if !finished || listed.callback {
            continue;
        }
        let called = history.ops.iter().any(|op| {
            op.verb == Verb::Callback(Delivered::Yes)
                && op.possible()
                && terminal.is_none_or(|invoked| op.done > invoked)
        });
        if !called {
            let text = format!(
                "task {id} of tenant {} is finished, but its webhook was never called and its callback is \
                 not listed as failed",
                created.tenant
            );
            found.push(Violation::new(11, text));
        }
    }
}
