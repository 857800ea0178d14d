//! `codeq backup`: a copy of a data directory that no process has open.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use codeq_disk::SharedDisk;
use codeq_engine::layout::Manifest;
use codeq_engine::{Engine, OpenError, Options, incomplete};

use crate::fsck::{ScratchDisk, open_in_memory, share};

/// Options of `codeq backup`.
#[derive(Parser)]
#[command(after_help = "\
The directory must not be in use. It is opened as a server would open it: recovery runs, and what has
become due in the meantime (leases, delays, retention) is acted on. Everything that was acknowledged is
in the backup.

Example:
  codeq backup /var/lib/codeq /backup/2026-01-31
  codeq fsck /backup/2026-01-31")]
pub struct Args {
    /// The data directory.
    dir: PathBuf,
    /// Where the backup goes: a directory that is empty or does not exist.
    target: PathBuf,
}

/// Makes the backup.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { dir, target } = args;
    let options = existing(dir)?;
    let engine = Engine::open(dir, options)?;
    for rebuilt in engine.rebuilt() {
        eprintln!("codeq backup: {rebuilt}");
    }
    engine.backup(target)?;
    let shards = engine.shards();
    engine.shutdown();
    println!("backed up {} to {}: {shards} shard(s)", dir.display(), target.display());
    Ok(())
}

/// Options under which the directory keeps the settings that it has: opening it with others changes them.
fn existing(dir: &std::path::Path) -> Result<Options, OpenError> {
    let disk: SharedDisk = Arc::new(ScratchDisk::default());
    let _lock = share(dir)?;
    if Manifest::load(&*disk, dir)?.is_none() {
        let reason = "it has no MANIFEST".to_owned();
        let missing = || OpenError::Foreign { dir: dir.to_owned(), reason };
        return Err(incomplete::refusal(&*disk, dir)?.unwrap_or_else(missing));
    }
    let node = open_in_memory(&disk, dir)?;
    let mut options = Options::default();
    if let Some(shard) = node.shards.first() {
        options.settings = shard.data().read().state.settings().clone();
    }
    Ok(options)
}
