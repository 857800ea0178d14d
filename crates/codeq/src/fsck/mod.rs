//! `codeq fsck`: is this data directory sound? Looks at everything and changes nothing.
//!
//! First the files: manifest, log, stores. Then what opening would make of them: the engine's own recovery
//! runs on a [`ScratchDisk`], whose writes stay in memory, and the simulator's checkers judge the rows.

mod report;
mod scratch;

use codeq_core::id::ShardId;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use codeq_disk::{Disk, SharedDisk};
use codeq_engine::dir_lock::share;
use codeq_engine::layout::{self, Manifest};
use codeq_engine::recover::OpenedDir;
use codeq_engine::{OpenError, Options, incomplete};
use codeq_log::{FrameIndex, LogError, LogReport};
use codeq_sim::invariants::check_all;
use codeq_store::{CheckReport, StoreError};

use crate::cli::{Failure, talk, watched};
use report::Report;
pub use scratch::ScratchDisk;

#[derive(Parser)]
#[command(after_help = "\
The directory is not changed. It must not be in use; to check a running server, check a backup.

fsck holds in memory what is in the log but not yet in the stores, and the rows of one shard at a time without their
payloads; --files-only needs little memory.

Exit code: 0 no problems, 1 problems found, 2 could not check (no such directory, in use, newer format).

Example:
  codeq fsck /var/lib/codeq")]
pub struct Args {
    /// Data directory.
    dir: PathBuf,
    /// Check only the files, not the rows against the invariants.
    #[arg(long)]
    files_only: bool,
}

/// The exit code when the directory cannot be checked, whatever its state.
const NOT_CHECKED: u8 = 2;

pub fn run(args: &Args) -> ExitCode {
    let mut report = Report::default();
    match check(args, &mut report) {
        Ok(()) => report.finish(),
        Err(error) => {
            let hint = "name a data directory that no server uses, or a backup";
            talk(&Failure::error(format!("{error:#}"), hint).to_string());
            ExitCode::from(NOT_CHECKED)
        }
    }
}

/// An error means that the directory could not be checked; problems in the directory go into the report.
fn check(args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let dir = args.dir.as_path();
    let metadata = dir.metadata().with_context(|| format!("cannot open {}", dir.display()))?;
    anyhow::ensure!(metadata.is_dir(), "{} is not a directory", dir.display());
    let _lock = share(dir)?;
    let disk: SharedDisk = Arc::new(ScratchDisk::default());
    let Some(manifest) = check_manifest(&disk, dir, report)? else {
        return Ok(());
    };
    if let Err(error) = manifest.check_shards(&*disk, dir) {
        report.problem("shards", error);
    }
    let log = check_log(&disk, dir, manifest, report)?;
    for shard in ShardId::all(manifest.shards) {
        let store = check_store(&disk, dir, manifest, shard, report)?;
        if let (Some(log), Some(store)) = (&log, &store) {
            check_position(log, store, shard, report);
        }
    }
    if args.files_only {
        report.note("the rows were not checked");
    } else if report.is_sound() {
        check_rows(&disk, dir, report)?;
    } else {
        report.note("the rows were not checked, because the files have problems");
    }
    Ok(())
}

fn check_manifest(
    disk: &SharedDisk,
    dir: &Path,
    report: &mut Report,
) -> anyhow::Result<Option<Manifest>> {
    match Manifest::load(&**disk, dir) {
        Ok(Some(manifest)) => {
            let Manifest { shards, log_id, .. } = manifest;
            report.fine("manifest", format!("{shards} shard(s), log id {log_id:016x}"));
            if manifest.format < layout::FORMAT {
                report.note("the manifest has no checksum yet; the next start adds one");
            }
            Ok(Some(manifest))
        }
        Ok(None) => {
            let Some(refusal) = without_manifest(&**disk, dir)? else {
                anyhow::bail!("{} is not a codeQ data directory: it is empty", dir.display());
            };
            report.problem("manifest", refusal);
            Ok(None)
        }
        Err(error @ OpenError::Foreign { .. }) => {
            report.problem("manifest", error);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Why a directory without MANIFEST is of no use to a command that reads it; `None` if it is empty.
pub fn without_manifest(disk: &dyn Disk, dir: &Path) -> Result<Option<OpenError>, OpenError> {
    Ok(match incomplete::refusal(disk, dir)? {
        // The engine advises to choose an empty directory, which helps only whoever wants to create a data directory.
        Some(OpenError::Foreign { dir, .. }) if !layout::log_dir(&dir).exists() => {
            let reason =
                "it has no MANIFEST, so it is neither a data directory nor a complete backup";
            Some(OpenError::Foreign { dir, reason: reason.to_owned() })
        }
        other => other,
    })
}

fn check_log(
    disk: &SharedDisk,
    dir: &Path,
    manifest: Manifest,
    report: &mut Report,
) -> anyhow::Result<Option<LogReport>> {
    let log = match watched(
        "checking the log",
        || None,
        || codeq_log::verify(&**disk, &layout::log_dir(dir)),
    ) {
        Ok(log) => log,
        Err(error @ LogError::NewerFormat { .. }) => return Err(error.into()),
        Err(LogError::Io { action, file, source }) if is_refusal(&source) => {
            return Err(LogError::Io { action, file, source }.into());
        }
        Err(error) => {
            report.problem("log", error);
            return Ok(None);
        }
    };
    let frames = match log.last_index {
        last if last < log.first_index => format!("empty, the next frame is {}", log.first_index),
        last => format!("frames {} to {last}", log.first_index),
    };
    let (segments, synced) = (log.segments.len(), log.watermark);
    report.fine("log", format!("{frames}, synced up to {synced}, {segments} segment(s)"));
    if log.log_id != manifest.log_id {
        let (found, expected) = (log.log_id, manifest.log_id);
        let text = format!("its id is {found:016x}, but the manifest says {expected:016x}");
        report.problem("log", text);
    }
    if log.torn_bytes > 0 {
        report.note(format!(
            "the log ends with {} bytes of a write that a crash interrupted; it was never \
             acknowledged, and the next start removes it",
            log.torn_bytes
        ));
    }
    Ok(Some(log))
}

fn check_store(
    disk: &SharedDisk,
    dir: &Path,
    manifest: Manifest,
    shard: ShardId,
    report: &mut Report,
) -> anyhow::Result<Option<CheckReport>> {
    let part = format!("shard {shard}");
    let what = format!("checking {part}");
    match watched(&what, || None, || codeq_store::check(disk, &layout::store_path(dir, shard))) {
        Ok(store) => {
            let wanted = manifest.owner(shard);
            match store.owner {
                Some(found) if found != wanted => {
                    let text = format!("its store belongs to {found}, expected {wanted}");
                    report.problem(&part, text);
                }
                Some(_) => {}
                None => report.note(format!(
                    "the store of shard {shard} does not name its owner yet; the next checkpoint adds it"
                )),
            }
            let rows: u64 = store.rows.iter().map(|(_, count)| count).sum();
            let (bytes, position) = (store.live_bytes, store.position);
            report.fine(&part, format!("store up to frame {position}, {rows} rows, {bytes} bytes"));
            Ok(Some(store))
        }
        Err(error @ StoreError::TooNew { .. }) => Err(error.into()),
        Err(StoreError::Io { path, source }) if is_refusal(&source) => {
            Err(StoreError::Io { path, source }.into())
        }
        Err(error) => {
            report.problem(&part, error);
            Ok(None)
        }
    }
}

/// The log must continue where the store ends.
fn check_position(log: &LogReport, store: &CheckReport, shard: ShardId, report: &mut Report) {
    let (position, first, last) = (FrameIndex(store.position), log.first_index, log.last_index);
    let part = format!("shard {shard}");
    if position > last {
        let text = format!("its store is at frame {position}, but the log ends at frame {last}");
        report.problem(&part, text);
    } else if position.next() < first {
        let text = format!("its store is at frame {position}, but the log starts at frame {first}");
        report.problem(&part, text);
    }
}

/// Opens the directory in memory, as a server would, and checks the rows against the invariants.
fn check_rows(disk: &SharedDisk, dir: &Path, report: &mut Report) -> anyhow::Result<()> {
    let opened = match watched("opening in memory", || None, || open_in_memory(disk, dir)) {
        Ok(opened) => opened,
        Err(error) => {
            report.problem("opening", error);
            return Ok(());
        }
    };
    for shard in &opened.shards {
        let data = shard.data().read();
        let part = format!("shard {}", shard.number);
        let what = format!("checking the rows of {part}");
        match watched(&what, || None, || check_all(&data.state, &data.store)) {
            Ok(violations) if violations.is_empty() => {
                let tasks: u64 = data.state.queues().map(|(_, row)| row.counts.total()).sum();
                let queues = data.state.queues().count();
                let frames = opened.log.last_index().0.saturating_sub(data.store.position());
                let text = format!(
                    "{tasks} task(s) in {queues} queue(s), after replaying {frames} frame(s) of the log"
                );
                report.fine(&part, text);
            }
            Ok(violations) => {
                violations.iter().for_each(|violation| report.problem(&part, violation));
            }
            Err(error) => report.problem(&part, error),
        }
    }
    Ok(())
}

/// Opens the directory; recovery writes to the scratch disk.
pub fn open_in_memory(disk: &SharedDisk, dir: &Path) -> Result<OpenedDir, OpenError> {
    // No checkpoint on the way: it would only move rows from one place in memory to another.
    let options = Options { memtable_bytes: usize::MAX, ..Options::default() };
    OpenedDir::open(disk, dir, &options, 0)
}

/// The system refuses access, which says nothing about the directory.
fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}
