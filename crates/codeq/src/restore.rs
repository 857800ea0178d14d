//! `codeq restore`: creates a data directory from a backup.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use codeq_disk::RealDisk;
use codeq_engine::{OpenError, Options, incomplete};
use tempfile::TempDir;

use crate::cli::{Done, Exit, Failure, bytes_below, ended, talk, watched};

#[derive(clap::Args)]
#[command(after_help = "\
The backup is verified as it is copied, and does not change. The new directory is independent of it.

A backup in a bucket is first downloaded next to the new directory, so the filesystem needs room for both.
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

pub fn run(args: &Args) -> ExitCode {
    let Args { backup, dir } = args;
    let restored = match backup.contains("://") {
        true => download(backup, dir).and_then(|downloaded| restore(downloaded.path(), dir)),
        false => restore(Path::new(backup), dir),
    };
    ended(restored.map(|()| talk(&format!("restored {backup} into {}", dir.display()))))
}

/// Downloads a backup next to the new directory. The copy is deleted on drop.
fn download(url: &str, dir: &Path) -> Done<TempDir> {
    let hint = "check the URL, the credentials in the environment, and the room on the disk";
    let failed = |what: String| Failure::error(what, hint);
    let parent = codeq_disk::containing_dir(dir).unwrap_or(dir);
    std::fs::create_dir_all(parent)
        .map_err(|error| failed(format!("cannot create {}: {error}", parent.display())))?;
    let to = tempfile::tempdir_in(parent).map_err(|error| {
        failed(format!("cannot create a directory in {}: {error}", parent.display()))
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(format!("cannot start: {error}")))?;
    let into = to.path().to_owned();
    let measure = move || Some((bytes_below(&into) >> 20, None));
    let got = watched("MiB downloaded", measure, || {
        runtime.block_on(codeq_server::backup::download(url, to.path()))
    });
    got.map_err(failed)?;
    Ok(to)
}

fn restore(backup: &Path, dir: &Path) -> Done {
    match std::fs::read_dir(backup) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let what = format!("{} does not exist", backup.display());
            return Err(Failure::new(Exit::NotFound, what, "check the path of the backup"));
        }
        Err(error) => {
            let what = format!("cannot read {}: {error}", backup.display());
            return Err(Failure::error(what, "run this as a user who may read the backup"));
        }
    }
    let (total, to) = (bytes_below(backup) >> 20, dir.to_owned());
    let measure = move || Some((bytes_below(&to) >> 20, Some(total)));
    let segment_bytes = Options::default().segment_bytes;
    watched("MiB restored", measure, || codeq_engine::backup::restore(backup, dir, segment_bytes))
        .map_err(|error| {
            let left = incomplete::refusal(&RealDisk, dir);
            let hint = match (&error, left) {
                // What is there is not from this restore.
                (OpenError::Unfinished { .. } | OpenError::InUse(_), _) => {
                    "neither directory was changed".to_owned()
                }
                (_, Ok(Some(OpenError::Unfinished { .. }))) => {
                    format!("the copy is incomplete: remove {} before you try again", dir.display())
                }
                _ => {
                    "name a complete backup and an empty or missing directory; neither was changed"
                        .to_owned()
                }
            };
            Failure::error(error.to_string(), hint)
        })
}
