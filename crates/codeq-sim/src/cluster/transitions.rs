//! Checks what nodes report to observers, such as event streams: every transition of a task, once and in order.

use std::collections::BTreeMap;

use codeq_core::effect::{Effect, Transition};
use codeq_core::id::{ShardId, fnv1a64};
use codeq_engine::observer::Observer;
use parking_lot::Mutex;

use super::committed::{Committed, ProcessId};
use crate::invariants::Violation;

/// The transitions among some effects: their numbers, and hashes of their content.
pub fn of(effects: &[Effect]) -> impl Iterator<Item = (u64, u64)> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Moved(it) => Some((it.number, hash(it))),
        _ => None,
    })
}

fn hash(it: &Transition) -> u64 {
    fnv1a64(format!("{:?}", (it.id, &it.from, &it.to, &it.event, it.at)).as_bytes())
}

/// Collects the transitions that a process reports.
#[derive(Default)]
pub struct Observed(Mutex<Vec<(ShardId, u64, u64)>>);

impl Observer for Observed {
    fn committed(&self, shard: ShardId, effects: &[Effect]) {
        self.0.lock().extend(of(effects).map(|(number, hash)| (shard, number, hash)));
    }
}

/// The last transition that each process has reported.
#[derive(Default)]
pub struct LastReported(BTreeMap<(ProcessId, ShardId), u64>);

impl LastReported {
    /// Checks what a process has reported since the last call. If its rows come from another node or from a checkpoint,
    /// both of which end at entry `snapshot`, earlier transitions may be missing.
    pub fn check_reported(
        &mut self,
        process: ProcessId,
        observed: &Observed,
        snapshot: u64,
        committed: &Committed,
    ) -> Vec<Violation> {
        let (mut found, node) = (Vec::new(), process.0);
        for (shard, number, hash) in observed.0.lock().drain(..) {
            let last = self.0.insert((process, shard), number);
            let skipped = |last: u64| {
                let before = committed.transition(shard, number.saturating_sub(1));
                number > last + 1 && before.is_some_and(|(index, _)| index > snapshot)
            };
            let text = match (last, committed.transition(shard, number)) {
                (Some(last), _) if number <= last => "again",
                (Some(last), _) if skipped(last) => "after a gap",
                (_, Some((_, other))) if other != hash => "with different content",
                _ => continue,
            };
            let text = format!(
                "node {node} reported transition {number} of shard {shard} {text}; the last was {last:?}"
            );
            found.push(Violation::new(14, text));
        }
        found
    }
}
