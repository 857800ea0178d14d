//! The N-th disk operation fails, for every N: nothing acknowledged is lost, and nothing that the disk refused is
//! acknowledged.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};

use anyhow::{Context, bail};
use clap::Args;
use codeq_core::reply::Reply;
use codeq_engine::clock::SystemClock;
use codeq_engine::{Engine, EngineError, OpenError};

use crate::faulty::{EIO, ENOSPC, Faults, FaultyDisk};
use crate::small::{SmallClient, new_task, options};

/// Rounds of the workload; a checkpoint is in the middle.
const ROUNDS: u64 = 24;
/// Number of proposals in one group whose sync fails.
const CROWD: u64 = 64;

/// Settings of a sweep over failing operations.
#[derive(Debug, Args)]
pub struct Fault {
    /// Distance between the operations to fail; 1 tries all.
    #[arg(long, default_value_t = 1)]
    pub step: u64,
    /// Where to create the directories.
    #[arg(long, default_value = "/dev/shm")]
    pub root: PathBuf,
}

/// Totals of a sweep.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Runs with a fault.
    pub runs: u64,
    /// The open itself failed.
    pub not_opened: u64,
    /// The engine stopped.
    pub stopped: u64,
    /// The engine continued, because it does not depend on the operation. Includes the last run, in which nothing failed.
    pub went_on: u64,
    /// Total number of acknowledged operations, in all these runs.
    pub acked: u64,
}

/// Runs the sweep with both errors, and then many proposals at once ([`crowd`]).
pub fn run(fault: &Fault) -> anyhow::Result<()> {
    let io = sweep(&fault.root, EIO, fault.step)?;
    let full = sweep(&fault.root, ENOSPC, fault.step)?;
    let crowd = crowd(&fault.root)?;
    println!("fault: eio={io:?} enospc={full:?} crowd_refused={crowd}");
    Ok(())
}

/// Fails operation 1, 1 + `step`, … until a run meets no fault.
pub fn sweep(root: &Path, errno: i32, step: u64) -> anyhow::Result<Tally> {
    let mut tally = Tally::default();
    let mut number = 1;
    while one(root, errno, number, &mut tally)
        .with_context(|| format!("errno {errno} at operation {number}"))?
    {
        number += step.max(1);
    }
    Ok(tally)
}

/// One run; false if the workload ended before the fault.
fn one(root: &Path, errno: i32, number: u64, tally: &mut Tally) -> anyhow::Result<bool> {
    let dir = tempfile::tempdir_in(root)?;
    let data = dir.path().join("data");
    let faults = Arc::new(Faults::default());
    faults.fail_at.store(number, Ordering::SeqCst);
    faults.errno.store(errno as u64, Ordering::SeqCst);
    let mut client = SmallClient::new(0)?;
    let opened = open(&faults, &data);
    let mut failure = None;
    match &opened {
        Err(_) => tally.not_opened += 1,
        Ok(engine) => {
            let worked = work(engine, &mut client);
            failure = engine.failure();
            match (&worked, &failure) {
                (Ok(()) | Err(EngineError::DiskFull), None) => tally.went_on += 1,
                (_, Some(_)) => tally.stopped += 1,
                (Err(error), None) => bail!("{error}, but the engine reports no failure"),
            }
            // Nothing may be acknowledged after a reported failure.
            if failure.is_some() && client.enqueue(engine).is_ok() {
                bail!("acknowledged after the failure");
            }
        }
    }
    drop(opened);
    tally.acked += client.acked.len() as u64;
    if !faults.tripped.load(Ordering::SeqCst) {
        return Ok(false);
    }
    tally.runs += 1;
    let engine = Engine::open(&data, options())
        .with_context(|| format!("open on a healthy disk, after {failure:?}"))?;
    client.check(&engine).with_context(|| format!("after {failure:?}"))?;
    SmallClient::new(1_000)?.enqueue(&engine).context("the first write on a healthy disk")?;
    Ok(true)
}

fn open(faults: &Arc<Faults>, data: &Path) -> Result<Engine, OpenError> {
    let disk = Arc::new(FaultyDisk(Arc::clone(faults)));
    Engine::open_with(disk, data, options(), SystemClock::new(), 1)
}

/// Continues after a full disk, as clients do; stops at anything else.
fn work(engine: &Engine, client: &mut SmallClient) -> Result<(), EngineError> {
    let mut first = Ok(());
    let mut note = |result: Result<(), EngineError>| match result {
        Err(EngineError::DiskFull) if first.is_ok() => {
            first = Err(EngineError::DiskFull);
            Ok(())
        }
        Err(EngineError::DiskFull) => Ok(()),
        other => other,
    };
    for round in 0..ROUNDS {
        note(client.enqueue(engine).map(drop))?;
        if round % 2 == 0 {
            note(client.finish_one(engine))?;
        }
        if round == ROUNDS / 2 {
            note(engine.checkpoint())?;
        }
    }
    first
}

/// Many proposals at once while every sync fails: none may be acknowledged. Returns how many were refused.
pub fn crowd(root: &Path) -> anyhow::Result<u64> {
    let dir = tempfile::tempdir_in(root)?;
    let data = dir.path().join("data");
    let faults = Arc::new(Faults::default());
    let engine = open(&faults, &data)?;
    let mut client = SmallClient::new(0)?;
    for _ in 0..10 {
        client.enqueue(&engine)?;
    }
    faults.fail_syncs.store(true, Ordering::SeqCst);
    let start = Barrier::new(CROWD as usize);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let proposals: Vec<_> = (0..CROWD)
            .map(|number| {
                let (engine, start) = (&engine, &start);
                scope.spawn(move || {
                    start.wait();
                    engine.propose_blocking(new_task(10_000 + number))
                })
            })
            .collect();
        proposals.into_iter().map(|proposal| proposal.join()).collect()
    });
    let mut refused = 0;
    for answer in answers {
        match answer {
            Ok(Err(EngineError::Failed(_))) => refused += 1,
            Ok(Ok(Reply::Enqueued(made))) if !made.is_empty() => {
                bail!("acknowledged although its sync failed: {made:?}");
            }
            Ok(other) => bail!("unexpected answer: {other:?}"),
            Err(_) => bail!("a proposal panicked"),
        }
    }
    if engine.failure().is_none() {
        bail!("every sync fails, but the engine reports no failure");
    }
    drop(engine);
    let engine = Engine::open(&data, options())?;
    client.check(&engine)?;
    Ok(refused)
}
