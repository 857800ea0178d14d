//! A small directory with exactly known contents, for damaged logs and disk faults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::Args;
use codeq_core::command::{Claim, Command, Enqueue, NewTask, Outcome, Selector, Submit};
use codeq_core::id::TaskId;
use codeq_core::reply::{Enqueued, Reply};
use codeq_engine::{Engine, EngineError, Options};
use codeq_sim::ledger::{Digest, digest, result_digest};
use codeq_sim::notes;
use tokio::runtime::Runtime;

use crate::client::runtime;
use crate::judge::{Shown, check_structure, list_all};
use crate::setup::{TENANTS, WEBHOOK, payload, settings};

/// What is known of each task: its payload, and its result once it has one.
pub type Contents = BTreeMap<TaskId, (Digest, Option<Digest>)>;

/// Options so small that a few hundred operations span several segments and checkpoints.
pub fn options() -> Options {
    Options {
        shards: Some(1),
        settings: settings(),
        segment_bytes: 64 << 10,
        memtable_bytes: 32 << 10,
        checkpoint_log_bytes: 128 << 10,
        ..Options::default()
    }
}

/// A client that knows what was acknowledged.
pub struct SmallClient {
    /// What must be there.
    pub acked: Contents,
    runtime: Runtime,
    made: u64,
}

impl SmallClient {
    /// A client that knows nothing yet. `start` makes its tasks differ from those of an earlier client.
    pub fn new(start: u64) -> anyhow::Result<SmallClient> {
        Ok(SmallClient { acked: Contents::new(), runtime: runtime()?, made: start })
    }

    /// Creates one task.
    pub fn enqueue(&mut self, engine: &Engine) -> Result<TaskId, EngineError> {
        self.made += 1;
        let command = new_task(self.made);
        let reply = engine.propose_blocking(command)?;
        if let Reply::Enqueued(made) = &reply
            && let Some(Enqueued::Created(task)) = made.first()
        {
            self.acked.insert(task.id, (digest(&task.payload), None));
            return Ok(task.id);
        }
        Err(unexpected(&format!("{reply:?}")))
    }

    /// Claims a task and finishes it.
    pub fn finish_one(&mut self, engine: &Engine) -> Result<(), EngineError> {
        let claim = Claim {
            tenant: TENANTS[0].into(),
            worker: "worker".into(),
            from: Selector::Any,
            lease: 600_000,
            count: 1,
        };
        let Reply::Claimed(tasks) = self.runtime.block_on(engine.claim(claim, 0))? else {
            return Err(unexpected("claim"));
        };
        for task in tasks {
            let result = Bytes::from(format!("{{\"done\":{}}}", task.id.seq()));
            let digest = result_digest(&result);
            let submit = Submit {
                tenant: task.tenant,
                id: task.id,
                worker: "worker".into(),
                outcome: Outcome::Completed(result),
                artifacts: Vec::new(),
            };
            engine.propose_blocking(Command::Submit(submit))?;
            if let Some((_, slot)) = self.acked.get_mut(&task.id) {
                *slot = Some(digest);
            }
        }
        Ok(())
    }

    /// Everything that the engine shows.
    pub fn contents(&self, engine: &Engine) -> Result<Contents, EngineError> {
        Ok(contents(&list_all(engine, &self.runtime)?))
    }

    /// Acknowledged tasks that are missing or changed, and whatever the checkers find.
    pub fn missing(&self, engine: &Engine) -> Result<Vec<String>, EngineError> {
        let shown = list_all(engine, &self.runtime)?;
        let mut found = missing(&self.acked, &contents(&shown));
        found.extend(check_structure(engine, &self.runtime, &shown)?);
        Ok(found)
    }

    /// Fails if anything is missing.
    pub fn check(&self, engine: &Engine) -> anyhow::Result<()> {
        let lost = self.missing(engine)?;
        ensure!(lost.is_empty(), "lost: {}", lost.join("; "));
        Ok(())
    }
}

fn contents(shown: &[Shown]) -> Contents {
    let contents = shown.iter().map(|one| {
        let result = one.result.as_ref().map(notes::record_digest);
        (one.task.id, (digest(&one.task.payload), result))
    });
    contents.collect()
}

/// Acknowledged tasks that are missing or changed. A task without a known result may have one by now.
pub fn missing(acked: &Contents, shown: &Contents) -> Vec<String> {
    let kept = |id: &TaskId, (payload, result): &(Digest, Option<Digest>)| {
        shown.get(id).is_some_and(|(p, r)| p == payload && (result.is_none() || r == result))
    };
    let lost = acked.iter().filter(|(id, known)| !kept(id, known));
    lost.map(|(id, known)| format!("task {id} was {known:?}, is {:?}", shown.get(id))).collect()
}

/// The enqueue of task number `number`.
pub fn new_task(number: u64) -> Command {
    let label = format!("small-{number}");
    let content = payload(&label);
    Command::Enqueue(Enqueue {
        tenant: TENANTS[0].into(),
        tasks: vec![NewTask {
            command: "small".into(),
            payload: content.slice(..content.len().min(300)),
            webhook: number.is_multiple_of(5).then(|| WEBHOOK.into()),
            idempotency_key: number.is_multiple_of(3).then(|| Arc::from(label)),
            ..NewTask::default()
        }],
        atomic: true,
        seed: codeq_core::id::split_mix64(number),
    })
}

fn unexpected(what: &str) -> EngineError {
    EngineError::Failed(format!("unexpected answer: {what}").into())
}

/// Where to make copies of a directory, and the seed for their damage.
#[derive(Debug, Args)]
pub struct Copies {
    /// Seed for the damage.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where to make the copies.
    #[arg(long, default_value = "/dev/shm")]
    pub root: PathBuf,
}

/// Copies a directory tree, replacing an earlier copy.
pub fn copy_anew(from: &Path, to: &Path) -> anyhow::Result<()> {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    copy_dir(from, to)
}

/// Copies a directory tree.
pub fn copy_dir(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
