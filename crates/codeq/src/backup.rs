//! `codeq backup`: asks a running server for a backup, or copies a data directory that is not in use.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use codeq_client::Backup;
use codeq_disk::SharedDisk;
use codeq_engine::dir_lock::share;
use codeq_engine::layout::Manifest;
use codeq_engine::{Engine, OpenError, Options};
use serde::Serialize;

use crate::cli::{
    About, Connection, Done, Exit, Failure, Show, bytes_below, ended, run as connected, span, talk,
    waiting, watched,
};
use crate::fsck::{ScratchDisk, open_in_memory, without_manifest};

#[derive(clap::Args)]
#[command(after_help = "\
Without directories, a running server makes the backup and keeps serving. It writes the backup under a new name
below its backup.target, a directory on its machine or a bucket, and verifies it. The token needs the scope
codeq:operator.

With two directories, the first one must not be in use. It is opened as a server would open it: recovery
runs, and deadlines that have passed (leases, delays, retention) take effect.

Either way, the backup contains everything acknowledged before it started.

Examples:
  codeq backup --profile prod
  codeq backup --url https://codeq.example.com --token-file operator.token
  codeq backup /var/lib/codeq /backup/2026-01-31
  codeq fsck /backup/2026-01-31")]
pub struct Args {
    /// Data directory that is not in use. Default: the running server makes the backup.
    #[arg(requires = "target")]
    dir: Option<PathBuf>,
    /// Where to write the backup: an empty or missing directory.
    target: Option<PathBuf>,
    #[command(flatten)]
    connection: Connection,
}

/// A finished backup.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    location: String,
    bytes: u64,
    tasks: u64,
    shards: u16,
    took_ms: u64,
}

impl Show for Made {
    const COLUMNS: &'static [&'static str] = &["LOCATION", "SHARDS", "TASKS", "BYTES", "TOOK"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.location.clone(),
            self.shards.to_string(),
            self.tasks.to_string(),
            self.bytes.to_string(),
            span(std::time::Duration::from_millis(self.took_ms)),
        ]
    }

    fn name(&self) -> String {
        self.location.clone()
    }
}

pub fn run(args: Args, top: &Connection) -> ExitCode {
    let connection = args.connection.over(top);
    let (Some(dir), Some(target)) = (args.dir, args.target) else {
        return connected(&connection, async |session| {
            let made = waiting("the server makes the backup", session.http.backup()).await;
            let Backup { location, bytes, tasks, shards, took_ms, .. } = made.about("backup")?;
            session.out.item(&Made { location, bytes, tasks, shards, took_ms })
        });
    };
    ended(match connection.names_server() {
        true => Err(Failure::usage(
            "a data directory is copied without a server",
            "name either two directories, or a server",
        )),
        false => copy(&dir, &target).and_then(|made| connection.output().item(&made)),
    })
}

/// Copies a data directory that is not in use.
fn copy(dir: &Path, target: &Path) -> Done<Made> {
    let began = Instant::now();
    let engine = Engine::open(dir, existing(dir)?)?;
    for rebuilt in engine.rebuilt() {
        talk(&rebuilt.to_string());
    }
    let (total, to) = (bytes_below(dir) >> 20, target.to_owned());
    let measure = move || Some((bytes_below(&to) >> 20, Some(total)));
    let made = watched("MiB copied", measure, || engine.backup(target)).map_err(|error| {
        let hint =
            "choose another target, or check its disk; nothing in the data directory is lost";
        Failure::error(error.to_string(), hint)
    })?;
    engine.shutdown();
    let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let location = target.display().to_string();
    Ok(Made { location, bytes: made.bytes, tasks: made.tasks, shards: made.shards, took_ms })
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let (exit, hint) = match &error {
            OpenError::InUse(_) => {
                (Exit::Conflict, "back up a running server instead: codeq backup --url URL")
            }
            OpenError::Foreign { dir, .. } if !dir.exists() => (Exit::NotFound, "check the path"),
            OpenError::Foreign { .. } => (Exit::Error, "check the path"),
            _ => (Exit::Error, "see what is wrong with it: codeq fsck DIR"),
        };
        Failure::new(exit, error.to_string(), hint)
    }
}

/// Options with the directory's own settings: opening it with others would change them.
fn existing(dir: &Path) -> Result<Options, OpenError> {
    let disk: SharedDisk = Arc::new(ScratchDisk::default());
    let _lock = share(dir)?;
    if Manifest::load(&*disk, dir)?.is_none() {
        let reason = "it has no MANIFEST".to_owned();
        let missing = || OpenError::Foreign { dir: dir.to_owned(), reason };
        return Err(without_manifest(&*disk, dir)?.unwrap_or_else(missing));
    }
    let node = open_in_memory(&disk, dir)?;
    let mut options = Options::default();
    if let Some(shard) = node.shards.first() {
        options.settings = shard.data().read().state.settings().clone();
    }
    Ok(options)
}
