//! Result callbacks: from the durable outbox to their receivers.
//!
//! The outbox is rows in the engine, written in the same step as the end of a task. What is here only reads
//! them, calls, and reports to the engine what became of it: should the process die in between, the rows are
//! as they were and the callback is sent again. The commit thread announces new ones by their position;
//! one task looks for what is due ([`Outbox::run`]), a [`Schedule`] decides who is called next, and
//! every call runs in a task of its own.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use codeq_core::command::Millis;
use codeq_core::effect::Effect;
use codeq_engine::{EngineError, Observer};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::sender::Courier;
use crate::dispatcher::{Call, Due, Position, Schedule, Went, note};

/// Rows that are read at a time. The shard stands still meanwhile.
const PAGE: usize = 256;
/// How long calls that are under way may take once the server stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// The pause after the outbox could not be read.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// How many result callbacks are sent at once.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// In all.
    pub max_concurrent: usize,
    /// To one host and port.
    pub max_per_host: usize,
}

impl CallLimits {
    /// Calls to one host, and to one address. A tenant has half of the slots: one host must not have all of these.
    pub fn per_host(self) -> usize {
        self.max_per_host.min((self.max_concurrent / 4).max(1))
    }
}

/// What the commit threads tell the outbox.
#[derive(Debug, Default)]
pub struct Announced {
    /// By shard, the first position since it was last looked at.
    positions: Mutex<BTreeMap<u16, Position>>,
    wake: Notify,
}

impl Observer for Announced {
    fn committed(&self, shard: u16, effects: &[Effect]) {
        let positions = effects.iter().filter_map(|effect| match effect {
            Effect::CallbackDue { seq, at } => Some((*at, *seq)),
            _ => None,
        });
        if let Some(first) = positions.min() {
            note(&mut self.positions.lock(), shard, first);
            self.wake.notify_one();
        }
    }
}

/// Sends what is due.
pub struct Outbox {
    courier: Arc<Courier>,
    announced: Arc<Announced>,
    schedule: Schedule,
    /// By shard, where to go on looking.
    cursors: Vec<Position>,
    /// By shard, when the next one is due that is not yet.
    next_at: Vec<Option<Millis>>,
    calls: JoinSet<(Call, Went)>,
}

impl Outbox {
    /// With as many calls at once as the configuration allows.
    pub fn new(courier: Courier, announced: Arc<Announced>, limits: CallLimits) -> Outbox {
        let each = limits.per_host();
        let shards = usize::from(courier.engine.shards());
        Outbox {
            courier: Arc::new(courier),
            announced,
            schedule: Schedule::new(limits.max_concurrent, each),
            cursors: vec![(0, 0); shards],
            next_at: vec![Some(0); shards],
            calls: JoinSet::new(),
        }
    }

    /// Sends until the server stops. Calls that are under way then get a moment to end.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            let failed = self.fill().await.is_err();
            self.schedule.wake(Instant::now());
            self.start_calls();
            let sleep = if failed { READ_PAUSE } else { self.until_next() };
            tokio::select! {
                _ = stop.changed() => {}
                () = self.announced.wake.notified() => {}
                Some(done) = self.calls.join_next() => self.finish_calls(done),
                () = tokio::time::sleep(sleep) => {}
            }
        }
        let ended = async { while self.calls.join_next().await.is_some() {} };
        // Those that take longer are sent again after the next start.
        let _ = tokio::time::timeout(STOP_PATIENCE, ended).await;
    }

    fn start_calls(&mut self) {
        while let Some(call) = self.schedule.next_call() {
            let courier = Arc::clone(&self.courier);
            let Due { shard, seq, .. } = call.due;
            let delivering = async move { courier.deliver(shard, seq).await };
            self.calls.spawn(ended(call, delivering));
        }
    }

    fn finish_calls(&mut self, first: Result<(Call, Went), tokio::task::JoinError>) {
        let mut next = Some(first);
        while let Some(done) = next {
            match done {
                Ok((call, went)) => self.schedule.done(call, went, Instant::now()),
                Err(error) => {
                    tracing::error!(target: "codeq::push", %error, "a callback's task ended badly");
                }
            }
            next = self.calls.try_join_next();
        }
    }

    /// Looks for what is due, where something may have changed.
    async fn fill(&mut self) -> Result<(), EngineError> {
        let mut look = std::mem::take(&mut *self.announced.positions.lock());
        for (shard, position) in self.schedule.take_again() {
            note(&mut look, shard, position);
        }
        for (shard, position) in look {
            let at = usize::from(shard);
            if let (Some(cursor), Some(next)) = (self.cursors.get_mut(at), self.next_at.get_mut(at))
            {
                *cursor = position.min(*cursor);
                *next = Some(0);
            }
        }
        for shard in 0..self.courier.engine.shards() {
            let now = self.courier.engine.now().now;
            let next = self.next_at.get(usize::from(shard)).copied().flatten();
            if next.is_some_and(|at| at <= now) {
                self.fill_from(shard, now).await?;
            }
        }
        Ok(())
    }

    async fn fill_from(&mut self, shard: u16, now: Millis) -> Result<(), EngineError> {
        let at = usize::from(shard);
        let Some(mut cursor) = self.cursors.get(at).copied() else { return Ok(()) };
        let mut future = None;
        loop {
            let page = self.courier.engine.callbacks_due(shard, cursor, PAGE).await?;
            for found in &page {
                if found.at > now {
                    future = Some(found.at);
                    cursor = (found.at, found.seq);
                    break;
                }
                let due = Due { shard, at: found.at, seq: found.seq };
                self.schedule.add((found.tenant, found.receiver), due);
                cursor = (found.at, found.seq.saturating_add(1));
            }
            if let Some(slot) = self.cursors.get_mut(at) {
                *slot = cursor;
            }
            if future.is_some() || page.len() < PAGE {
                break;
            }
            // A long backlog is read in steps, between which others run.
            tokio::task::yield_now().await;
        }
        if let Some(slot) = self.next_at.get_mut(at) {
            *slot = future;
        }
        Ok(())
    }

    /// How long until something is due or a slot has rested.
    fn until_next(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(60);
        let due = self.next_at.iter().flatten().min();
        let due = due.map(|at| self.courier.engine.until(*at));
        let rested =
            self.schedule.next_wake().map(|at| at.saturating_duration_since(Instant::now()));
        due.into_iter().chain(rested).min().unwrap_or(LONGEST).min(LONGEST)
    }
}

/// How a call went. It should never panic; if it does, its slot is free again, and its callback waits for the next start.
async fn ended(call: Call, delivering: impl Future<Output = Went>) -> (Call, Went) {
    let went = AssertUnwindSafe(delivering).catch_unwind().await;
    (call, went.unwrap_or(Went::Badly))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_panics_gives_its_slot_back() {
        let mut schedule = Schedule::new(1, 1);
        for seq in 0..100 {
            schedule.add((seq, seq), Due { shard: 0, at: 1, seq });
        }
        let mut calls = JoinSet::new();
        for _ in 0..100 {
            let call = schedule.next_call().expect("a slot is free");
            assert_eq!(schedule.next_call(), None);
            calls.spawn(ended(call, async { panic!("on purpose") }));
            let (call, went) = calls.join_next().await.unwrap().expect("it says how it went");
            assert_eq!(went, Went::Badly);
            schedule.done(call, went, Instant::now());
        }
        assert_eq!(schedule.next_call(), None, "all were called once");
    }
}
