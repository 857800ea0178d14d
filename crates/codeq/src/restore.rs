//! `codeq restore`: a data directory from a backup.

use std::path::PathBuf;

use clap::Parser;
use codeq_engine::Options;

/// Options of `codeq restore`.
#[derive(Parser)]
#[command(after_help = "\
The backup is verified while it is copied, and stays as it is. The new directory is one of its own: both
can be used, and neither knows of the other.

Example:
  codeq restore /backup/2026-01-31 /var/lib/codeq")]
pub struct Args {
    /// The backup.
    backup: PathBuf,
    /// The new data directory: empty or not there yet.
    dir: PathBuf,
}

/// Restores.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { backup, dir } = args;
    codeq_engine::backup::restore(backup, dir, Options::default().segment_bytes)?;
    println!("restored {} from {}", dir.display(), backup.display());
    Ok(())
}
