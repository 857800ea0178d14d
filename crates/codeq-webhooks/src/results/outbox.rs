//! Reads the outbox and starts the calls.
//!
//! The engine's commit thread reports the position of new callbacks; one task reads what is due
//! ([`ResultCallbacks::run`]), the [`Backlog`] decides who is called next, and every call runs in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use codeq_core::command::Millis;
use codeq_core::effect::Effect;
use codeq_core::id::ShardId;
use codeq_engine::{EngineError, Observer};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::backlog::{Backlog, Callback, Position, Positions, note};
use super::sender::Sender;
use crate::dispatcher::{Call, Outcome, Receiver};
use crate::outbound::{Outbound, run};

/// Rows read at a time. The shard waits meanwhile.
const PAGE: usize = 256;
/// How long calls in flight may take once the server stops.
const STOP_TIME_MAX: Duration = Duration::from_secs(2);
/// The pause after the outbox could not be read.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// How many result callbacks are sent at once.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// In total.
    pub max_concurrent: usize,
    /// To one host and port.
    pub max_per_host: usize,
}

impl CallLimits {
    /// Maximum number of calls to one host, and to one IP address. Since a tenant gets half of all calls, a host gets a
    /// quarter at most, so that no host can use up its tenant's calls.
    pub fn per_host(self) -> usize {
        self.max_per_host.min((self.max_concurrent / 4).max(1))
    }
}

/// Where the outbox has new callbacks, as the engine's commit thread reports it.
#[derive(Debug, Default)]
pub struct CallbacksDue {
    positions: Mutex<Positions>,
    wake: Notify,
}

impl Observer for CallbacksDue {
    fn committed(&self, shard: ShardId, effects: &[Effect]) {
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

/// Sends the callbacks that are due.
pub struct ResultCallbacks {
    sender: Arc<Sender>,
    due: Arc<CallbacksDue>,
    backlog: Backlog,
    /// By shard, where to read next.
    cursors: Vec<Position>,
    /// By shard, due time of the earliest future callback.
    next_at: Vec<Option<Millis>>,
    calls: JoinSet<(Call<Callback>, Outcome)>,
}

impl ResultCallbacks {
    /// `attempts_max` is the number of attempts after which the engine gives up on a callback.
    pub fn new(
        outbound: Arc<Outbound>,
        due: Arc<CallbacksDue>,
        limits: CallLimits,
        attempts_max: u32,
    ) -> ResultCallbacks {
        let shards = usize::from(outbound.engine.shards());
        ResultCallbacks {
            sender: Arc::new(Sender::new(outbound, attempts_max)),
            due,
            backlog: Backlog::new(limits.max_concurrent, limits.per_host()),
            cursors: vec![Position::default(); shards],
            next_at: vec![Some(0); shards],
            calls: JoinSet::new(),
        }
    }

    /// Sends until `stop` turns true or its sender is gone. Calls in flight then get a moment to end.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            let failed = self.read_due().await.is_err();
            self.backlog.wake(Instant::now());
            self.start_calls();
            let sleep = if failed { READ_PAUSE } else { self.until_next() };
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                () = self.due.wake.notified() => {}
                Some(done) = self.calls.join_next() => self.finish_calls(done),
                () = tokio::time::sleep(sleep) => {}
            }
        }
        let ended = async { while self.calls.join_next().await.is_some() {} };
        // Calls that take longer are made again after the next start.
        let _ = tokio::time::timeout(STOP_TIME_MAX, ended).await;
    }

    fn start_calls(&mut self) {
        while let Some(call) = self.backlog.next_call() {
            let sender = Arc::clone(&self.sender);
            let Callback { shard, seq } = call.item;
            self.calls.spawn(run(call, async move { sender.deliver(shard, seq).await }));
        }
    }

    fn finish_calls(&mut self, first: Result<(Call<Callback>, Outcome), JoinError>) {
        let mut next = Some(first);
        while let Some(done) = next {
            match done {
                Ok((call, outcome)) => self.backlog.done(call, outcome, Instant::now()),
                Err(error) => {
                    tracing::error!(target: "codeq::webhooks", %error, "the task of a callback was aborted");
                }
            }
            next = self.calls.try_join_next();
        }
    }

    /// Reads the outbox where something may have changed.
    async fn read_due(&mut self) -> Result<(), EngineError> {
        let mut changed = std::mem::take(&mut *self.due.positions.lock());
        for (shard, position) in self.backlog.take_again() {
            note(&mut changed, shard, position);
        }
        for (shard, position) in changed {
            let at = usize::from(shard);
            if let (Some(cursor), Some(next)) = (self.cursors.get_mut(at), self.next_at.get_mut(at))
            {
                *cursor = position.min(*cursor);
                *next = Some(0);
            }
        }
        for shard in ShardId::all(self.sender.engine().shards()) {
            let now = self.sender.engine().now().now;
            let next = self.next_at.get(usize::from(shard)).copied().flatten();
            if next.is_some_and(|at| at <= now) {
                self.read_shard(shard, now).await?;
            }
        }
        Ok(())
    }

    async fn read_shard(&mut self, shard: ShardId, now: Millis) -> Result<(), EngineError> {
        let at = usize::from(shard);
        let Some(mut cursor) = self.cursors.get(at).copied() else { return Ok(()) };
        let mut future = None;
        loop {
            let page = self.sender.engine().callbacks_due(shard, cursor, PAGE).await?;
            for found in &page {
                if found.at > now {
                    future = Some(found.at);
                    cursor = (found.at, found.seq);
                    break;
                }
                let to = Receiver { tenant: found.tenant, host: found.receiver };
                self.backlog.add(to, Callback { shard, seq: found.seq }, found.at);
                cursor = (found.at, found.seq.next());
            }
            if let Some(slot) = self.cursors.get_mut(at) {
                *slot = cursor;
            }
            if future.is_some() || page.len() < PAGE {
                break;
            }
            // A long backlog is read in steps, so that other tasks run in between.
            tokio::task::yield_now().await;
        }
        if let Some(slot) = self.next_at.get_mut(at) {
            *slot = future;
        }
        Ok(())
    }

    /// How long until a callback is due or a pause is over.
    fn until_next(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(60);
        let due = self.next_at.iter().flatten().min();
        let due = due.map(|at| self.sender.engine().until(*at));
        let paused =
            self.backlog.next_wake().map(|at| at.saturating_duration_since(Instant::now()));
        due.into_iter().chain(paused).min().unwrap_or(LONGEST).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[tokio::test]
    async fn a_sender_of_the_stop_that_is_gone_counts_as_a_stop() {
        let fixture = Fixture::open(1);
        let limits = CallLimits { max_concurrent: 4, max_per_host: 4 };
        let callbacks =
            ResultCallbacks::new(Arc::clone(&fixture.outbound), Arc::default(), limits, 3);
        let (stopping, stop) = watch::channel(false);
        drop(stopping);
        let run = tokio::time::timeout(Duration::from_secs(10), callbacks.run(stop));
        assert!(run.await.is_ok(), "it still runs");
    }
}
