//! Turns the numbers of an act into a command on what exists.

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::*;
use codeq_core::id::TaskId;
use codeq_core::topic::Policy;

use super::{Act, COMMANDS, KINDS, Pair, TENANTS, WORKERS};
use crate::harness::*;

impl Pair {
    /// The same from a worker that names its lease: the right one, the previous one, or through an instance.
    pub(super) fn under_lease(&self, command: Command, act: &Act) -> Command {
        let action = match command {
            Command::Heartbeat(c) => LeaseAction::Heartbeat(c),
            Command::Submit(c) => LeaseAction::Submit(c),
            Command::Nack(c) => LeaseAction::Nack(c),
            Command::Abandon(c) => LeaseAction::Abandon(c),
            other => return other,
        };
        let of = self.model.tasks.iter().find(|known| known.task.id == action.id());
        let fence = of.map_or(Fence(1), |known| known.task.fence);
        let fence = [None, Some(fence), Some(fence), Some(fence.next())][act.b / 4 % 4];
        let instance = [None, Some(text(WORKERS[act.b % 3]))][act.b / 16 % 2].clone();
        Command::UnderLease(UnderLease { fence, instance, action: Box::new(action) })
    }

    pub(super) fn command(&self, act: &Act) -> Command {
        let Act { verb, pick, a, b, .. } = *act;
        // Mostly the newest tasks, and mostly by the worker or tenant that owns them.
        let newest = self.ids[self.ids.len() - 1 - pick % self.ids.len().min(12)];
        let running: Vec<TaskId> = self
            .model
            .tasks
            .iter()
            .map(|k| &k.task)
            .filter(|t| t.worker.is_some())
            .map(|t| t.id)
            .collect();
        let ended: Vec<TaskId> =
            self.model.tasks.iter().filter(|k| k.end.is_some()).map(|k| k.task.id).collect();
        let id = match verb {
            77..=80 | 106..=113 if !ended.is_empty() && b % 4 > 0 => ended[pick % ended.len()],
            45..=76 if !running.is_empty() && b % 4 > 0 => running[pick % running.len()],
            _ => newest,
        };
        let of = self.model.tasks.iter().find(|known| known.task.id == id);
        let right = !pick.is_multiple_of(7);
        let tenant = match of.filter(|_| right) {
            Some(known) => known.task.tenant.clone(),
            None => text(TENANTS[a % 2]),
        };
        let worker = match of.and_then(|known| known.task.worker.clone()).filter(|_| right) {
            Some(worker) => worker,
            None => text(WORKERS[b % 3]),
        };
        let name = text(COMMANDS[b % 3]);
        match verb {
            0..=24 => Command::Enqueue(Enqueue {
                tenant: text(TENANTS[pick % 2]),
                tasks: (0..1 + a % 3)
                    .map(|i| new_task(a / 3 + i * 7, b + i, self.h.wall()))
                    .collect(),
                atomic: a.is_multiple_of(2),
                seed: b as u64,
            }),
            25..=44 => Command::Claim(Claim {
                tenant: text(TENANTS[pick % 2]),
                worker: text(WORKERS[a % 3]),
                from: match b % 4 {
                    0 => Selector::Any,
                    n => Selector::Commands(COMMANDS[..n].iter().rev().map(|c| text(c)).collect()),
                },
                lease: [1_000, 5_000, 60_000][b % 3],
                count: 1 + (a % 4) as u32,
            }),
            45..=48 => Command::Heartbeat(Heartbeat { tenant, id, worker, extend: 5_000 }),
            49..=58 => Command::Submit(Submit {
                tenant,
                id,
                worker,
                outcome: match a % 5 {
                    0 => Outcome::Failed(text("no")),
                    4 => Outcome::Both {
                        completed: b.is_multiple_of(2),
                        result: Bytes::from_static(b"{}"),
                        error: text("half"),
                    },
                    n => Outcome::Completed(Bytes::from(format!("{{\"n\":{n}}}"))),
                },
                artifacts: Vec::new(),
            }),
            59..=68 => Command::Nack(Nack {
                tenant,
                id,
                worker,
                delay: some(a, [0, 1, 700, 9_000][b % 4]),
                reason: some(b, text(["slow", "broken"][a % 2])),
                seed: a as u64,
            }),
            69..=72 => Command::Abandon(Abandon {
                tenant,
                id,
                worker,
                penalty: a.is_multiple_of(2),
                fence: None,
            }),
            73..=76 => Command::Cancel(Cancel { tenant, id, by: text("p") }),
            77..=80 => Command::Replay(Replay {
                tenant,
                target: match a % 2 {
                    0 => ReplayTarget::One(id),
                    _ => ReplayTarget::Queue {
                        command: name,
                        error_contains: some(a / 2, text("slow")),
                        after: if b.is_multiple_of(4) { id.seq() } else { Seq(0) },
                        limit: (b % 5) as u32,
                    },
                },
                by: text("admin"),
            }),
            81..=82 => Command::Purge(Purge {
                tenant,
                command: name,
                target: [PurgeTarget::Dead, PurgeTarget::Waiting][a % 2],
                limit: (a % 4) as u32,
                by: text("admin"),
            }),
            83..=85 => Command::Pause(Pause { tenant, command: name, paused: a.is_multiple_of(3) }),
            86..=87 => Command::PutTopic(PutTopic {
                tenant,
                name: name.clone(),
                policy: Policy {
                    priority_tiers: [vec![], vec![3, 0], vec![10]][a % 3].clone(),
                    max_attempts: some(a / 3, 2),
                    dead_letter_topic: some(a / 5, text(COMMANDS[(b + 1) % 3])),
                    retention: [0, 0, 5_000][a / 7 % 3],
                    max_consumers: [0, 0, 1, 2][a / 11 % 4],
                    dead_letter_retention: [0, 0, 9_000][a / 13 % 3],
                    max_run: [0, 0, 1_000, 7_000][a / 17 % 4],
                },
            }),
            88 => Command::DeleteTopic(DeleteTopic { tenant, name }),
            89..=90 => Command::Cleanup(Cleanup {
                tenant,
                before: self.h.wall().saturating_sub([0, 1_000, HOUR][a % 3]),
                limit: (b % 6) as u32,
            }),
            91..=95 => Command::Sweep(Sweep { limit: [1, 3, 100][a % 3], seed: b as u64 }),
            96..=99 => Command::Callback(Callback {
                tenant,
                id,
                completed_at: None,
                delivery: match a % 4 {
                    0 => Delivery::Delivered,
                    1 => Delivery::Resend,
                    2 => Delivery::Refused { status: 410, error: text("gone") },
                    _ => Delivery::Failed {
                        status: Some(500),
                        error: text("bad"),
                        retry_after: some(b, 10_000),
                    },
                },
            }),
            100..=101 => Command::DeleteRecord(DeleteRecord {
                tenant: text(TENANTS[pick % 2]),
                kind: KINDS[a % 2],
                name: text(["r", "s"][b % 2]),
                expected: some(a / 2, (b / 2 % 3) as u64),
            }),
            102..=105 => Command::PutRecord(PutRecord {
                tenant: text(TENANTS[pick % 2]),
                kind: KINDS[a % 2],
                name: text(["r", "s"][b % 2]),
                value: Bytes::from(format!("{a}")),
                ttl: [None, Some(1), Some(5_000), Some(HOUR)][b / 2 % 4],
                expected: some(a / 2, (b / 8 % 3) as u64),
            }),
            114.. => Command::Reschedule(Reschedule {
                tenant,
                id,
                priority: (a % 4 > 0).then_some([-1, 0, 5, 99][b % 4]),
                when: match a / 4 % 5 {
                    0 => Some(RunWhen::After(0)),
                    1 => Some(RunWhen::After([1, 700, HOUR][b / 4 % 3])),
                    2 => Some(RunWhen::At(
                        self.h.wall().saturating_add_signed([-1, 700, HOUR as i64][b / 4 % 3]),
                    )),
                    _ => None,
                },
                by: text("admin"),
            }),
            _ => {
                let its = of.filter(|_| right).map(|known| known.task.command.clone());
                self.bulk(act, tenant, its.unwrap_or(name), id)
            }
        }
    }

    /// An operator's bulk operation: every kind of work with every kind of filter.
    fn bulk(&self, act: &Act, tenant: Arc<str>, command: Arc<str>, id: TaskId) -> Command {
        let Act { a, b, pick, .. } = *act;
        let work = match a % 12 {
            0 => BulkWork::Cleanup { expired: a / 8 % 2 == 0 },
            1 => BulkWork::PurgeDead { command },
            2 => BulkWork::PurgeWaiting { command },
            3 => BulkWork::Replay { command, from: ReplayFrom::DeadLetters },
            4..=6 => BulkWork::Replay { command, from: ReplayFrom::Failed },
            7 => BulkWork::Replay { command, from: ReplayFrom::Cancelled },
            _ => BulkWork::Cancel { command, running: a % 12 > 8 },
        };
        let ago = |n: usize| self.h.wall().saturating_sub([0, 1, 1_000, HOUR][n % 4]);
        let filtered = BulkFilter {
            error_contains: some(b / 3, text(["slow", "no", "CANCEL"][b / 9 % 3])),
            before: some(pick / 2, ago(a / 16)),
            after: some(pick / 6, ago(a / 64)),
            worker: some(pick / 18, text(WORKERS[b / 27 % 3])),
        };
        let filter = if pick.is_multiple_of(2) { filtered } else { BulkFilter::default() };
        let after = match work {
            BulkWork::Cleanup { .. } => Seq(0),
            _ => [Seq(0), Seq(0), Seq(0), id.seq()][pick / 54 % 4],
        };
        let list = match work {
            BulkWork::Cancel { running: true, .. } => u8::from(b / 5 % 4 > 0),
            _ => 0,
        };
        let from = BulkFrom { queue: None, list, after };
        let (take, look, by) = ((b % 5) as u32, u32::MAX, text("admin"));
        Command::BulkPart(Box::new(BulkPart { tenant, work, filter, from, take, look, by }))
    }
}

fn some<V>(n: usize, value: V) -> Option<V> {
    n.is_multiple_of(3).then_some(value)
}

fn new_task(a: usize, b: usize, wall: Millis) -> NewTask {
    let some = |n: usize| n.is_multiple_of(4);
    NewTask {
        command: text(["x", "y", "z", "X"][b % 4]),
        payload: Bytes::from(format!("{{\"n\":{}}}", a % 2)),
        priority: [0, 0, 5, 99][a / 2 % 4],
        max_attempts: some(a / 3).then_some([1, 2, 50][b % 3]),
        webhook: some(a / 5).then(|| text("https://example.com")),
        idempotency_key: some(a / 7).then(|| text(["k1", "k2"][b % 2])),
        delay: some(a / 11).then_some([0, 1, 700, HOUR][b % 4]),
        run_at: some(a / 13)
            .then_some(wall.saturating_add_signed([-1, 1, 700, HOUR as i64][a % 4])),
        max_run: some(a / 17).then_some([0, 1_000, 5_000, 6_000][b % 4]),
        ..NewTask::default()
    }
}

/// The bulk commands of older logs, in the form that newer versions write.
pub(super) fn in_parts(command: Command) -> Command {
    let (tenant, work, after, take, by) = match command {
        Command::Cleanup(Cleanup { tenant, before, limit }) => {
            (tenant, BulkWorkV1::Cleanup { before }, Seq(0), limit, text("admin"))
        }
        Command::Purge(Purge { tenant, command, target, limit, by }) => {
            let work = match target {
                PurgeTarget::Dead => BulkWorkV1::PurgeDead { command },
                PurgeTarget::Waiting => BulkWorkV1::PurgeWaiting { command },
            };
            (tenant, work, Seq(0), limit, by)
        }
        Command::Replay(Replay {
            tenant,
            target: ReplayTarget::Queue { command, error_contains, after, limit },
            by,
        }) => (tenant, BulkWorkV1::Replay { command, error_contains }, after, limit, by),
        other => return other,
    };
    let from = BulkFrom { after, ..BulkFrom::default() };
    Command::BulkPartV1(BulkPartV1 { tenant, work, from, take, look: u32::MAX, by })
}
