//! The end of a run: faults stop, the clients' history is checked, and all remaining tasks must finish.

use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::{Claim, Command, DeleteTopic, Millis, Outcome, Pause, Selector, Submit};
use codeq_core::digest::digest;
use codeq_core::kv::KvError;
use codeq_core::moment::Moment;
use codeq_core::place::Place;
use codeq_core::read::Reader;
use codeq_core::rows::OutboxRow;
use codeq_core::view::{ResultRecord, Task};
use codeq_core::{keys, rows::TaskRow};
use codeq_engine::shard::Shard;

use crate::disk::Faults;
use crate::invariants::Violation;
use crate::ledger::{Final, Listed, Seen};
use crate::notes;
use crate::server::{Server, Stopped};
use crate::simulator::Run;
use crate::workload::ClientCall;

/// Maximum number of rounds to finish the remaining tasks.
const ROUNDS_MAX: usize = 400;
/// The shortest round. Otherwise finished tasks whose callbacks nobody delivers would use up the rounds: their removal is
/// put off by one minute at a time, for ever.
const ROUND_MIN: Millis = 1_800_000;

impl Run {
    /// Ends all faults, checks the history, and finishes the remaining tasks.
    pub(crate) fn finish(&mut self) {
        self.disk.plan(Faults::default());
        if self.server.is_none() {
            self.judge();
            return;
        }
        if self.disk.is_dead()
            || self.run_all_shards().and_then(|()| self.run_all_shards()).is_err()
        {
            self.crash_and_restart(self.disk.is_dead());
            let _ = self.run_all_shards();
        }
        self.check_rows("at the end");
        self.ledger.end = self.listing().ok();
        self.judge();
        if self.report.violations.is_empty() {
            self.ledger.end = None;
            if let Err(Stopped(text)) = self.work_off() {
                let text = format!("the server stopped although all faults are over: {text}");
                self.report.violations.push(Violation::new(1, text));
            }
            self.judge();
            // A last restart must find the same state.
            self.crash_and_restart(false);
        }
        for number in 0..self.server.as_ref().map_or(0, Server::shards) {
            let sum = self.server.as_ref().and_then(|server| {
                let data = server.node.shards.get(number)?.data().read();
                digest(&data.state, &data.store).ok()
            });
            let head = sum.and_then(|sum| sum.first_chunk::<8>().copied());
            self.trace(head.map_or(0, u64::from_le_bytes));
        }
    }

    /// Lists everything that the server holds.
    fn listing(&mut self) -> Result<Final, KvError> {
        let mut end = Final { retention: self.retention, ..Final::default() };
        let fence = !self.saboteur.hides_fences();
        let Some(server) = &self.server else {
            return Ok(end);
        };
        end.at = server.now().now;
        for shard in &server.node.shards {
            list(shard, fence, &mut end)?;
        }
        Ok(end)
    }

    /// Claims and finishes every remaining task, however long its delay.
    fn work_off(&mut self) -> Result<(), Stopped> {
        // A full disk may have left checkpoints undone, and without room the server accepts no commands.
        if let Some(server) = &mut self.server {
            for number in 0..server.shards() {
                server.run_job(number)?;
                server.begin_checkpoint(number, &mut self.model, &self.saboteur)?;
                server.run_job(number)?;
            }
        }
        for call in self.resume() {
            self.invoke(call);
        }
        self.run_all_shards()?;
        for _ in 0..ROUNDS_MAX {
            let left = self.unfinished();
            if left.is_empty() {
                return Ok(());
            }
            let held = self.workload.held.len();
            for (tenant, ready) in left {
                if ready {
                    let claim = Claim {
                        tenant,
                        worker: "finisher".into(),
                        from: Selector::Any,
                        lease: 3_600_000,
                        count: 100,
                    };
                    for _ in 0..self.plan.shards {
                        self.invoke(ClientCall { command: Command::Claim(claim.clone()), wait: 0 });
                    }
                }
            }
            self.run_all_shards()?;
            for held in self.workload.held.split_off(held.min(self.workload.held.len())) {
                let submit = Submit {
                    tenant: held.tenant,
                    id: held.id,
                    worker: held.worker,
                    outcome: Outcome::Completed(Bytes::from_static(b"{\"end\":true}")),
                    artifacts: Vec::new(),
                };
                self.invoke(ClientCall { command: Command::Submit(submit), wait: 0 });
            }
            self.run_all_shards()?;
            self.wait_for_deadline();
            self.run_all_shards()?;
        }
        let left = self.unfinished();
        if !left.is_empty() {
            let text = format!(
                "live tasks are left {ROUNDS_MAX} rounds after all faults are over, of tenants {left:?}"
            );
            self.report.violations.push(Violation::new(1, text));
        }
        Ok(())
    }

    fn wait_for_deadline(&mut self) {
        if let Some(server) = &self.server {
            let wait = server.wait().unwrap_or(0).max(ROUND_MIN);
            self.clock.advance(wait);
            self.report.simulated += wait;
        }
    }

    /// Requests that lift everything that keeps tasks from being claimed.
    fn resume(&self) -> Vec<ClientCall> {
        let mut calls = Vec::new();
        let shards = self.server.iter().flat_map(|server| &server.node.shards);
        for shard in shards {
            let data = shard.data().read();
            for (_, row) in data.state.queues() {
                let (tenant, name) = (Arc::clone(&row.tenant), Arc::clone(&row.name));
                let mut call = |command| calls.push(ClientCall { command, wait: 0 });
                if row.topic.is_some() {
                    let (tenant, name) = (Arc::clone(&tenant), Arc::clone(&name));
                    call(Command::DeleteTopic(DeleteTopic { tenant, name }));
                }
                if row.paused {
                    call(Command::Pause(Pause { tenant, command: name, paused: false }));
                }
            }
        }
        calls
    }

    /// Tenants with unfinished tasks, and whether some of these can be claimed.
    fn unfinished(&self) -> Vec<(Arc<str>, bool)> {
        let mut left: Vec<(Arc<str>, bool)> = Vec::new();
        let shards = self.server.iter().flat_map(|server| &server.node.shards);
        for shard in shards {
            let data = shard.data().read();
            let reader = Reader { state: &data.state, kv: &data.store };
            for (id, row) in reader.state.queues() {
                let counts = &row.counts;
                if counts.ready() + counts.delayed + counts.in_progress > 0 {
                    left.push((Arc::clone(&row.tenant), data.state.is_claimable(id)));
                }
            }
        }
        left.sort();
        left.dedup();
        left
    }
}

/// Lists everything that a shard holds.
pub(crate) fn list(shard: &Shard, fence: bool, end: &mut Final) -> Result<(), KvError> {
    let data = shard.data().read();
    let mut rows = Vec::new();
    codeq_core::kv::for_each(
        &data.store,
        codeq_core::kv::Table::Task,
        0,
        u128::MAX,
        |key, value| {
            rows.push((keys::seq_of(key), TaskRow::decode(key, value)?));
            Ok(())
        },
    )?;
    for (seq, row) in rows {
        let Some(queue) = data.state.queue_row(row.queue) else {
            continue; // Reported by the check of the rows.
        };
        let task = Task::from_rows(&data.store, seq, &row, queue, Moment::agreed(end.at))?;
        let callback = OutboxRow::load(&data.store, keys::task(seq))?.is_some();
        let result = ResultRecord::from_row(seq, &row);
        end.tasks.push(Listed {
            task: Seen { fence: fence.then_some(task.fence), ..notes::seen(&task) },
            dead: row.place == Place::Dead,
            result: result.map(|record| notes::record_digest(&record)),
            callback,
        });
    }
    Ok(())
}
