//! `codeq backup`: asks a running server for a backup, or copies a data directory that is not in use.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use codeq_disk::SharedDisk;
use codeq_engine::layout::Manifest;
use codeq_engine::{Engine, OpenError, Options, incomplete};
use serde::Deserialize;

use crate::admin::Access;
use crate::fsck::{ScratchDisk, open_in_memory, share};

#[derive(Parser)]
#[command(after_help = "\
With --url, a running server makes the backup and keeps serving. It writes the backup under a new name below
its backup.target, a directory on its machine or a bucket, and verifies it. The token needs the scope
codeq:operator.

With two directories, the first one must not be in use. It is opened as a server would open it: recovery
runs, and leases, delays and retention that have ended since take effect.

Either way, the backup contains everything acknowledged before it started.

Examples:
  codeq backup --url https://codeq.example.com --token-file operator.token
  codeq backup /var/lib/codeq /backup/2026-01-31
  codeq fsck /backup/2026-01-31")]
pub struct Args {
    /// Data directory.
    #[arg(required_unless_present = "url", conflicts_with = "url")]
    dir: Option<PathBuf>,
    /// Where to write the backup: an empty or missing directory.
    #[arg(required_unless_present = "url", conflicts_with = "url")]
    target: Option<PathBuf>,
    #[allow(rustdoc::bare_urls, reason = "this is the text of --help")]
    /// URL of a running server to back up, such as https://codeq.example.com.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    #[command(flatten)]
    access: Access,
}

/// The server's response.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FinishedBackup {
    location: String,
    bytes: u64,
    tasks: u64,
    shards: u16,
    took_ms: u64,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(url) = &args.url {
        return ask(url, &args.access);
    }
    // clap guarantees either both or a URL.
    let (Some(dir), Some(target)) = (&args.dir, &args.target) else {
        anyhow::bail!("expected a data directory and a target, or --url");
    };
    let options = existing(dir)?;
    let engine = Engine::open(dir, options)?;
    for rebuilt in engine.rebuilt() {
        eprintln!("codeq backup: {rebuilt}");
    }
    let made = engine.backup(target)?;
    engine.shutdown();
    let (shards, contents) = (made.shards, contents(made.tasks, made.bytes));
    println!("backed up {} to {}: {shards} shard(s), {contents}", dir.display(), target.display());
    Ok(())
}

fn ask(url: &str, access: &Access) -> anyhow::Result<()> {
    let answer = access.post(url, "admin/backup")?;
    let made: FinishedBackup = serde_json::from_str(&answer)
        .with_context(|| format!("{url} made a backup, but its response cannot be parsed"))?;
    let FinishedBackup { location, bytes, tasks, shards, took_ms } = made;
    let contents = contents(tasks, bytes);
    println!("backed up {url} to {location}: {shards} shard(s), {contents}, {took_ms} ms");
    Ok(())
}

fn contents(tasks: u64, bytes: u64) -> String {
    format!("{tasks} task(s), {bytes} bytes, verified")
}

/// Options with the directory's own settings: opening it with others would change them.
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
