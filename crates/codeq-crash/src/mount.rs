//! An ext4 file system in a file, mounted through a loop device, whose power can be cut.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::sys::cut_power;

/// A mounted image. Dropping it unmounts and removes the image.
pub struct LoopMount {
    dir: TempDir,
    mounted: bool,
}

/// The image could not be made or mounted, usually for lack of a permission or a tool, so nothing was tested.
#[derive(Debug)]
pub struct MountUnavailable(pub String);

impl std::fmt::Display for MountUnavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "loop mounts are not possible here: {}", self.0)
    }
}

impl std::error::Error for MountUnavailable {}

impl LoopMount {
    /// Creates an image of this size under `root` and mounts it.
    pub fn create(root: &Path, bytes: u64) -> anyhow::Result<LoopMount> {
        let dir = tempfile::tempdir_in(root).context("make a directory for the image")?;
        let mut mount = LoopMount { dir, mounted: false };
        File::create(mount.image())?.set_len(bytes)?;
        let image = mount.image().display().to_string();
        std::fs::create_dir(mount.path())?;
        // No lazy initialisation: the kernel would keep writing to the image in the background.
        let options = "lazy_itable_init=0,lazy_journal_init=0";
        let format = ["-q", "-F", "-m", "0", "-E", options, &image];
        command("mkfs.ext4", &format).map_err(unavailable)?;
        mount.mount().map_err(unavailable)?;
        Ok(mount)
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Mounts it.
    pub fn mount(&mut self) -> anyhow::Result<()> {
        let (image, point) = (self.image(), self.path());
        let (image, point) = (image.display().to_string(), point.display().to_string());
        command("mount", &["-t", "ext4", "-o", "loop", &image, &point])?;
        self.mounted = true;
        Ok(())
    }

    /// Unmounts the image, which also removes the loop device.
    pub fn unmount(&mut self) -> anyhow::Result<()> {
        if self.mounted {
            command("umount", &[&self.path().display().to_string()])?;
            self.mounted = false;
        }
        Ok(())
    }

    /// From now on nothing reaches the image, whatever a sync reports.
    pub fn cut_power(&self) -> anyhow::Result<()> {
        cut_power(&self.path()).context("cut the power")
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        if self.mounted {
            // Lazily, if it is still in use: the loop device disappears with its last user.
            let path = self.path().display().to_string();
            if command("umount", &[&path]).is_err() {
                let _ = command("umount", &["-l", &path]);
            }
        }
    }
}

fn command(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(args).output();
    let output = output.with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("{program}: {}", text.trim());
    }
    Ok(())
}

fn unavailable(error: anyhow::Error) -> anyhow::Error {
    MountUnavailable(format!("{error:#}")).into()
}
