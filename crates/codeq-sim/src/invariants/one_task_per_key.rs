//! Invariant 6: one task per (tenant, idempotency key).

use std::collections::BTreeSet;

use codeq_core::keys::{Seq, TimerKind};
use codeq_core::limits::IDEMPOTENCY_MS_MIN;
use codeq_core::names::queue_name;

use super::{Histories, Rows, Violation};
use crate::ledger::Made;

/// Rows: tasks with a key and key rows match one to one; a key that outlived its task says so and has a timer that
/// ends it.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    let mut say = |text: String| found.push(Violation::new(6, text));
    for (seq, row) in &rows.tasks {
        let Some(body) = rows.bodies.get(seq) else {
            continue; // Reported by `one_place`.
        };
        if body.key.is_some() != row.has_key {
            say(format!("{} disagrees with its body about its key", rows.name(*seq)));
        }
    }
    let ending: BTreeSet<(Seq, u128)> = rows
        .timers_of(TimerKind::Idempotency)
        .filter_map(|(_, _, seq, value)| Some((seq, hash_of(value)?)))
        .collect();
    let mut used = BTreeSet::new();
    for (hash, key) in &rows.idempotency {
        let seq = key.id.seq();
        let task = rows.tasks.get(&seq).filter(|row| row.id(seq) == key.id);
        if !used.insert(key.id) {
            say(format!("task {} is held by two keys", key.id));
        }
        let armed = ending.contains(&(seq, *hash));
        match task {
            Some(row) if !row.has_key => say(format!("{} is held by a key", rows.name(seq))),
            Some(_) if key.gone.is_some() || armed => {
                say(format!("the key of {} claims that the task was removed", rows.name(seq)));
            }
            None if key.gone.is_none() || !armed => {
                say(format!("the key of the removed task {} has no timer", key.id));
            }
            _ => {}
        }
    }
    for seq in rows.tasks.iter().filter(|(_, row)| row.has_key).map(|(seq, _)| seq) {
        let held = rows.tasks.get(seq).is_some_and(|row| used.contains(&row.id(*seq)));
        if !held {
            say(format!("{} has lost its key", rows.name(*seq)));
        }
    }
    for (seq, hash) in &ending {
        if !rows.idempotency.contains_key(hash) {
            say(format!("{} has a timer for a key that does not exist", rows.name(*seq)));
        }
    }
}

fn hash_of(value: &[u8]) -> Option<u128> {
    value.try_into().ok().map(u128::from_le_bytes)
}

/// History: during its lifetime a key leads to one task, whoever uses it and however often; different work under the
/// same key is refused.
pub fn check_history(histories: &Histories, found: &mut Vec<Violation>) {
    for ((tenant, key), asked) in &histories.keys {
        let answers = || {
            asked.iter().filter_map(|keyed| {
                let (at, made) = keyed.answer.as_ref()?;
                match made {
                    Made::Created(seen) => Some((keyed, *at, seen, true)),
                    Made::Repeated(seen) => Some((keyed, *at, seen, false)),
                    Made::Refused(_) => None,
                }
            })
        };
        for (keyed, at, seen, created) in answers() {
            for (other, other_at, other_seen, other_created) in answers() {
                // A key lives as long as its task, and at least a day.
                let alive = histories.listed.contains_key(&seen.id)
                    || other_at < at.saturating_add(IDEMPOTENCY_MS_MIN);
                let later = other_at >= at && other.invoked >= keyed.invoked;
                if later && alive && created && seen.id != other_seen.id && other_created {
                    let text = format!(
                        "key {key} of tenant {tenant} made task {} at {at} and task {} at {other_at}",
                        seen.id, other_seen.id
                    );
                    found.push(Violation::new(6, text));
                }
                let same_work = keyed.wanted.payload == other.wanted.payload
                    && queue_name(&keyed.wanted.command) == queue_name(&other.wanted.command);
                if seen.id == other_seen.id && !same_work {
                    let text = format!(
                        "key {key} of tenant {tenant} gave task {} for different work",
                        seen.id
                    );
                    found.push(Violation::new(6, text));
                }
            }
        }
    }
}
