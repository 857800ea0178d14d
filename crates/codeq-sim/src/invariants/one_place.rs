//! Invariant 3: a task is in exactly one place.
//!
//! Rows and lists match one to one: every task has a body, a queue, one entry in one list, and exactly the order entry,
//! timer or lease that its place requires; nothing refers to a task that does not exist.

use codeq_core::keys::{self, Order, Seq, TimerKind};
use codeq_core::place::Place;
use codeq_core::rows::TaskRow;

use super::{Rows, Violation};

/// Rows.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    let mut say = |text: String| found.push(Violation::new(3, text));
    for (seq, row) in &rows.tasks {
        let name = rows.name(*seq);
        let expect = expected(*seq, row);
        if !rows.bodies.contains_key(seq) {
            say(format!("{name} has no body"));
        }
        if !rows.queues.contains_key(&row.queue) {
            say(format!("{name} is in queue {}, which does not exist", row.queue));
        }
        if *seq >= rows.next_seq || row.order >= Order::from(rows.next_seq) {
            say(format!("{name} has a number that was not assigned yet"));
        }
        if !rows.index.contains(&keys::index(row.queue, row.place, *seq)) {
            say(format!("{name} is {:?} but not in that list", row.place));
        }
        if let Some(key) = expect.pending
            && rows.pending.get(&key) != Some(seq)
        {
            say(format!("{name} is pending but not in the order"));
        }
        for (kind, key) in &expect.timers {
            if !rows.timers.contains_key(key) {
                say(format!("{name} is {:?} but has no {kind:?} timer", row.place));
            }
        }
        if (row.place == Place::InProgress) != row.lease.is_some() {
            say(format!("{name} is {:?} with lease {:?}", row.place, row.lease));
        }
        if row.place.is_terminal() != row.finish.is_some() {
            say(format!("{name} is {:?}, but its result says otherwise", row.place));
        }
    }
    for seq in rows.bodies.keys().filter(|seq| !rows.tasks.contains_key(seq)) {
        say(format!("task number {seq} has a body but no row"));
    }
    for (seq, row) in &rows.outbox {
        let queue = rows.tasks.get(seq).map(|task| task.queue);
        let key = queue.map(|queue| keys::callback(queue, row.next_at.is_none(), *seq));
        if key.is_some_and(|key| !rows.index.contains(&key)) {
            say(format!("{} has a callback that is not in its list", rows.name(*seq)));
        }
    }
    for key in &rows.index {
        let (queue, code, seq) = keys::index_parts(*key);
        let task = rows.tasks.get(&seq).filter(|row| row.queue == queue);
        let callback = rows.outbox.get(&seq);
        let right = task.is_some_and(|row| {
            let of_callback =
                callback.map(|callback| keys::callback(queue, callback.next_at.is_none(), seq));
            row.place.index_code() == code || of_callback == Some(*key)
        });
        if !right {
            say(format!("{} is in list {code} of queue {queue}", rows.name(seq)));
        }
    }
    for (key, seq) in &rows.pending {
        let task = rows.tasks.get(seq);
        if task.and_then(|row| expected(*seq, row).pending) != Some(*key) {
            say(format!("{} is in the order at {key:#x}", rows.name(*seq)));
        }
    }
    let kinds =
        [TimerKind::Delayed, TimerKind::RunAt, TimerKind::RunAtPassed, TimerKind::Retention];
    for kind in kinds {
        for (key, deadline, seq, _) in rows.timers_of(kind) {
            let task = rows.tasks.get(&seq);
            let right = task.is_some_and(|row| expected(seq, row).timers.contains(&(kind, key)));
            if !right {
                say(format!("{} has a {kind:?} timer at {deadline}", rows.name(seq)));
            }
        }
    }
}

struct Expected {
    pending: Option<u128>,
    timers: Vec<(TimerKind, u128)>,
}

fn expected(seq: Seq, row: &TaskRow) -> Expected {
    let pending =
        (row.place == Place::Pending).then(|| keys::pending(row.queue, row.priority, row.order));
    let mut timers = Vec::new();
    let waits_for = match row.place {
        Place::Delayed if row.visible_at == 0 => Some((TimerKind::RunAt, row.run_at)),
        Place::Delayed => Some((TimerKind::Delayed, row.visible_at)),
        Place::Pending if row.run_at != 0 => Some((TimerKind::RunAtPassed, row.run_at)),
        _ => None,
    };
    timers.extend(waits_for.map(|(kind, at)| (kind, keys::timer(kind, at, seq))));
    if let Some(finish) = &row.finish {
        let key = keys::timer(TimerKind::Retention, finish.expires_at, seq);
        timers.push((TimerKind::Retention, key));
    }
    Expected { pending, timers }
}
