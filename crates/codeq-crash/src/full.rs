//! A full disk: writes are refused, reads continue, and writes resume once there is space.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use codeq_disk::{RealDisk, SharedDisk};
use codeq_engine::clock::SystemClock;
use codeq_engine::{Engine, EngineError};

use crate::faulty::{Faults, FaultyDisk};
use crate::mount::LoopMount;
use crate::small::{SmallClient, options};

/// Number of tasks after which a full disk must have been noticed.
const TASKS_MAX: u64 = 20_000;
/// Time limit for writes to resume; the engine checks for space once a second.
const BACK_WITHIN: Duration = Duration::from_secs(20);

/// Settings of a full-disk run.
#[derive(Debug, Args)]
pub struct Full {
    /// Where to create the image of the small file system.
    #[arg(long, default_value = "/tmp")]
    pub image_root: PathBuf,
}

/// Runs on a file system of 48 MiB.
pub fn run(full: &Full) -> anyhow::Result<String> {
    let mount = LoopMount::create(&full.image_root, 48 << 20)?;
    let ballast = mount.path().join("ballast");
    let fill = || fill(&ballast);
    let free = || Ok(fs::remove_file(&ballast)?);
    let data = mount.path().join("data");
    scenario(Arc::new(RealDisk), &data, fill, free)
}

/// Runs on a disk that only pretends to be full.
pub fn run_pretended(root: &Path) -> anyhow::Result<String> {
    let dir = tempfile::tempdir_in(root)?;
    let faults = Arc::new(Faults::default());
    let set = |full: bool| {
        faults.full.store(full, Ordering::SeqCst);
        Ok(())
    };
    let disk = Arc::new(FaultyDisk(Arc::clone(&faults)));
    scenario(disk, &dir.path().join("data"), || set(true), || set(false))
}

fn scenario(
    disk: SharedDisk,
    data: &Path,
    fill: impl Fn() -> anyhow::Result<()>,
    free: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let engine = Engine::open_with(disk, data, options(), SystemClock::new(), 1)?;
    let mut client = SmallClient::new(0)?;
    for _ in 0..50 {
        client.enqueue(&engine)?;
    }
    let mut rounds = Vec::new();
    for round in 0..2 {
        fill()?;
        let before = client.acked.len();
        until_full(&engine, &mut client).with_context(|| format!("round {round}"))?;
        rounds.push(client.acked.len() - before);
        client.check(&engine).with_context(|| format!("round {round}, on the full disk"))?;
        free()?;
        let limit = Instant::now() + BACK_WITHIN;
        while let Err(error) = client.enqueue(&engine) {
            if error != EngineError::DiskFull || Instant::now() > limit {
                bail!("round {round}: there is space again, but: {error}");
            }
            std::thread::yield_now();
        }
        for _ in 0..200 {
            client.enqueue(&engine)?;
            client.finish_one(&engine)?;
        }
        engine.checkpoint()?;
    }
    drop(engine);
    let engine = Engine::open(data, options())?;
    client.check(&engine).context("after the restart")?;
    let acked = client.acked.len();
    Ok(format!("full: acked={acked} taken_while_full={rounds:?} lost=0"))
}

fn until_full(engine: &Engine, client: &mut SmallClient) -> anyhow::Result<()> {
    for _ in 0..TASKS_MAX {
        match client.enqueue(engine) {
            Ok(_) => {}
            Err(EngineError::DiskFull) => return Ok(()),
            Err(error) => bail!("on a full disk: {error}"),
        }
    }
    bail!("{TASKS_MAX} tasks were accepted on a full disk")
}

/// Uses up all free space.
fn fill(path: &Path) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    let mut block = vec![7; 1 << 20];
    while !block.is_empty() {
        match file.write(&block) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(crate::faulty::ENOSPC) => {
                block.truncate(block.len() / 2);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
