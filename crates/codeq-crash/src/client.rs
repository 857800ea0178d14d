//! A client: sends one request at a time and writes the ledger around it.

use std::io;
use std::path::Path;

use anyhow::Context;
use codeq_core::command::{Claim, Command, Millis};
use codeq_core::id::ShardId;
use codeq_core::read::ListQuery;
use codeq_core::reply::{Enqueued, Reply};
use codeq_core::view::{ResultRecord, Task};
use codeq_engine::{Engine, EngineError};
use codeq_sim::ledger::{Listed, Outcome};
use codeq_sim::notes;
use tokio::runtime::Runtime;

use crate::ledger::Writer;

/// A client with its ledger file.
pub struct Client<'a> {
    engine: &'a Engine,
    ledger: Writer,
    runtime: Runtime,
}

impl<'a> Client<'a> {
    /// Creates client number `number`, which writes to `dir`.
    pub fn new(engine: &'a Engine, dir: &Path, number: usize) -> io::Result<Client<'a>> {
        Ok(Client { engine, ledger: Writer::create(dir, number)?, runtime: runtime()? })
    }

    /// Proposes a command. `None` if the engine refused the call itself, for example for lack of room.
    pub fn ask(&mut self, command: &Command) -> anyhow::Result<Option<Reply>> {
        self.ledger.asked(notes::op(command))?;
        let asked_at = self.engine.wall();
        let answer = self.engine.propose_blocking(command.clone());
        self.note(command, asked_at, answer)
    }

    /// Claims, waiting for a task.
    pub fn claim(&mut self, claim: &Claim, wait: Millis) -> anyhow::Result<Vec<Task>> {
        let command = Command::Claim(claim.clone());
        self.ledger.asked(notes::op(&command))?;
        let asked_at = self.engine.wall();
        let answer = self.runtime.block_on(self.engine.claim(claim.clone(), wait));
        match self.note(&command, asked_at, answer)? {
            Some(Reply::Claimed(tasks)) => Ok(tasks),
            _ => Ok(Vec::new()),
        }
    }

    /// Reads a page of the newest tasks: what a read shows must never be lost either.
    pub fn look(&mut self, tenant: &str, limit: usize) -> anyhow::Result<()> {
        let query = ListQuery { tenant: tenant.into(), limit, ..ListQuery::default() };
        let page = self.runtime.block_on(self.engine.list(&query, &[]));
        let tasks = page?.items;
        // The list does not show results, so nothing is known about them.
        let tasks = tasks.iter().map(|task| listed(task, None)).collect();
        self.ledger.read(tasks).context("cannot write the ledger")
    }

    fn note(
        &mut self,
        command: &Command,
        asked_at: Millis,
        answer: Result<Reply, EngineError>,
    ) -> anyhow::Result<Option<Reply>> {
        let refused = |code: String| Outcome::Refused { at: asked_at, code };
        let (outcome, result) = match answer {
            Ok(reply) => {
                let (at, shard) = when_and_where(command, &reply, asked_at, self.engine.shards());
                let outcome = match notes::answer(&reply) {
                    Ok(answer) => Outcome::Acked { at, shard, answer },
                    Err(code) => refused(code),
                };
                (outcome, Ok(Some(reply)))
            }
            Err(
                error @ (EngineError::Overloaded
                | EngineError::TooManyWaiting
                | EngineError::DiskFull
                | EngineError::NoDescriptors
                | EngineError::TooLarge { .. }
                | EngineError::AtomicSpansShards
                | EngineError::ConcernsEveryShard
                | EngineError::TooFewConsumers { .. }),
            ) => (refused(error.to_string()), Ok(None)),
            Err(error) => (Outcome::Unknown, Err(error).context("the engine stopped")),
        };
        self.ledger.heard(outcome).context("cannot write the ledger")?;
        result
    }
}

/// A runtime for the engine's reads and claims.
pub fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_time().build()
}

/// A task as the ledger stores it.
pub fn listed(task: &Task, result: Option<&ResultRecord>) -> Listed {
    Listed {
        task: notes::seen(task),
        dead: task.place == codeq_core::place::Place::Dead,
        result: result.map(notes::record_digest),
        callback: false,
    }
}

/// Time and shard of an answer. If the answer has no time, the time of the request stands in, because it is not later.
fn when_and_where(
    command: &Command,
    reply: &Reply,
    asked_at: Millis,
    shards: u16,
) -> (Millis, ShardId) {
    let of = |task: &Task| (task.updated_at, task.id.shard(shards));
    let by_id = |id: codeq_core::id::TaskId| (asked_at, id.shard(shards));
    match (reply, command) {
        (Reply::Enqueued(made), _) => made
            .iter()
            .find_map(|made| match made {
                Enqueued::Created(task) => Some(of(task)),
                _ => None,
            })
            .unwrap_or((asked_at, ShardId(0))),
        (Reply::Claimed(tasks), _) => tasks.first().map_or((asked_at, ShardId(0)), of),
        (Reply::Cancelled(task) | Reply::CancelRequested(task) | Reply::Replayed(task), _) => {
            of(task)
        }
        (Reply::Submitted(record), _) => (record.completed_at, record.id.shard(shards)),
        (Reply::Extended { lease_until, .. }, Command::Heartbeat(beat)) => {
            (lease_until.saturating_sub(beat.extend), beat.id.shard(shards))
        }
        (_, Command::Nack(command)) => by_id(command.id),
        (_, Command::Abandon(command)) => by_id(command.id),
        _ => (asked_at, ShardId(0)),
    }
}
