//! Invariant 12: counters equal a recount.

use std::collections::BTreeMap;

use codeq_core::rows::Counts;
use codeq_core::usage::Usage;

use super::{Rows, Violation};

/// Rows: the counters of queues and tenants equal what the rows of the tasks add up to.
pub fn check(rows: &Rows, found: &mut Vec<Violation>) {
    let mut recount: BTreeMap<u32, Counts> =
        rows.queues.keys().map(|id| (*id, Counts::default())).collect();
    for row in rows.tasks.values() {
        let counts = recount.entry(row.queue).or_default();
        *counts.slot(row) += 1;
        counts.stored_bytes += row.stored_bytes();
        if !row.place.is_terminal() {
            counts.live_bytes += u64::from(row.size);
        }
    }
    for (id, counts) in recount {
        let Some(queue) = rows.queues.get(&id) else {
            continue; // Reported by `one_place`.
        };
        if queue.counts != counts {
            let text = format!(
                "queue {} of tenant {} counts {:?}, a recount gives {counts:?}",
                queue.name, queue.tenant, queue.counts
            );
            found.push(Violation::new(12, text));
        }
    }
    for (tenant, usage) in &rows.usage {
        let queues = rows.queues.values().filter(|queue| queue.tenant == *tenant);
        let sum = queues.fold(Usage::default(), |sum, queue| Usage {
            tasks: sum.tasks + queue.counts.live(),
            bytes: sum.bytes + queue.counts.live_bytes,
            stored_bytes: sum.stored_bytes + queue.counts.stored_bytes,
        });
        if sum != *usage {
            let text = format!("tenant {tenant} uses {usage:?}, but its queues add up to {sum:?}");
            found.push(Violation::new(12, text));
        }
    }
    for (seq, row) in &rows.tasks {
        if rows.bodies.get(seq).is_some_and(|body| body.size != row.size as usize) {
            let text = format!("{} counts {} payload bytes", rows.name(*seq), row.size);
            found.push(Violation::new(12, text));
        }
    }
}
