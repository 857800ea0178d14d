//! `codeq restore`: creates a data directory from a backup.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use codeq_engine::Options;
use tempfile::TempDir;

#[derive(Parser)]
#[command(after_help = "\
The backup is verified as it is copied, and does not change. The new directory is independent of it.

A backup in a bucket is first downloaded next to the new directory, which needs room for both.
Credentials, region and endpoint come from the environment, as for the server.

Examples:
  codeq restore /backup/2026-01-31 /var/lib/codeq
  codeq restore s3://backups/codeq/codeq-20260131T080000.000Z /var/lib/codeq")]
pub struct Args {
    /// The backup: a directory, or the URL that the server reported (file:, s3:, gs:, az:).
    backup: String,
    /// New data directory: empty or missing.
    dir: PathBuf,
}

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

/// Downloads a backup next to the new directory. The copy is deleted on drop.
fn download(url: &str, dir: &Path) -> anyhow::Result<TempDir> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)
        .with_context(|| format!("cannot create {}", parent.display()))?;
    let to = tempfile::tempdir_in(parent)
        .with_context(|| format!("cannot create a directory in {}", parent.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let got = runtime.block_on(codeq_server::backup::download(url, to.path()));
    got.map_err(anyhow::Error::msg)?;
    Ok(to)
}

fn restore(backup: &Path, dir: &Path) -> anyhow::Result<()> {
    Ok(codeq_engine::backup::restore(backup, dir, Options::default().segment_bytes)?)
}
