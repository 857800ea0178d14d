//! `codeq restore`: a data directory from a backup.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use codeq_engine::Options;
use tempfile::TempDir;

/// Options of `codeq restore`.
#[derive(Parser)]
#[command(after_help = "\
The backup is verified while it is copied, and stays as it is. The new directory is one of its own: both
can be used, and neither knows of the other.

A backup in a bucket is downloaded first, beside the new directory, which needs room for both.
Credentials, region and endpoint are those of the environment, as for the server.

Examples:
  codeq restore /backup/2026-01-31 /var/lib/codeq
  codeq restore s3://backups/codeq/codeq-20260131T080000.000Z /var/lib/codeq")]
pub struct Args {
    /// The backup: a directory, or the address that the server answered (file:, s3:, gs:, az:).
    backup: String,
    /// The new data directory: empty or not there yet.
    dir: PathBuf,
}

/// Restores.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { backup, dir } = args;
    if backup.contains("://") {
        let downloaded = download(backup, dir)?;
        restore(downloaded.path(), dir)?;
    } else {
        restore(Path::new(backup), dir)?;
    }
    println!("restored {} from {backup}", dir.display());
    Ok(())
}

/// Downloads a backup beside the new directory. It goes when it is dropped.
fn download(url: &str, dir: &Path) -> anyhow::Result<TempDir> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let to = tempfile::tempdir_in(parent)
        .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let got = runtime.block_on(codeq_server::backup::download(url, to.path()));
    got.map_err(anyhow::Error::msg)?;
    Ok(to)
}

fn restore(backup: &Path, dir: &Path) -> anyhow::Result<()> {
    Ok(codeq_engine::backup::restore(backup, dir, Options::default().segment_bytes)?)
}
