//! The power-cut loop: everything that was not synced is lost.
//!
//! Killing a process proves nothing about syncs, because the page cache survives. Here the file system itself stops,
//! without writing its journal; then the process is killed and the image mounted again.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::campaign::{Campaign, Driver, stop_flag};
use crate::mount::LoopMount;
use crate::setup::{Durable, Setup};
use crate::sys::monotonic_ns;

/// Exit code of a campaign that could not run because loop mounts are not possible.
pub const SKIPPED: u8 = 77;

/// Settings of a power-cut campaign.
#[derive(Debug, Args)]
pub struct Power {
    /// Cycles.
    #[arg(long, default_value_t = 60)]
    pub cycles: u64,
    /// Seed for sizes and moments.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The longest time before a cut, in milliseconds.
    #[arg(long, default_value_t = 1_000)]
    pub max_ms: u64,
    /// Where to create the image.
    #[arg(long, default_value = "/tmp")]
    pub image_root: PathBuf,
    /// The size of the image in MiB.
    #[arg(long, default_value_t = 512)]
    pub image_mib: u64,
    /// Where to create the ledger: not on the image's file system.
    #[arg(long, default_value = "/dev/shm")]
    pub ledger_root: PathBuf,
    /// When operations are acknowledged. `os` must lose some, which proves that the harness notices.
    #[arg(long, value_enum, default_value = "fsync")]
    pub durability: Durable,
}

/// Runs the campaign and prints a summary.
pub fn run(power: &Power) -> anyhow::Result<()> {
    let ledger = tempfile::tempdir_in(&power.ledger_root).context("make the ledger's directory")?;
    let mut mount = LoopMount::create(&power.image_root, power.image_mib << 20)?;
    let (data_dir, ledger_dir) = (mount.path().join("data"), ledger.path().to_owned());
    let setup = Setup { data_dir, ledger_dir, durability: power.durability, ..Setup::default() };
    let mut campaign = Campaign::new(setup, power.seed, power.cycles, stop_flag()?);
    let outcome = cycles(&mut campaign, power, &mut mount);
    println!("{}", campaign.summary("power", power.seed));
    outcome.with_context(|| {
        format!(
            "replay: codeq-crash power --cycles {} --seed {} --max-ms {} --durability {}",
            power.cycles, power.seed, power.max_ms, power.durability
        )
    })
}

fn cycles(campaign: &mut Campaign, power: &Power, mount: &mut LoopMount) -> anyhow::Result<()> {
    while campaign.setup.cycle < power.cycles {
        if campaign.stopped() {
            break;
        }
        campaign.next_cycle()?;
        let mut driver = campaign.start_driver(false)?;
        campaign.wait_until_open(&mut driver)?;
        campaign.pause(10, power.max_ms.max(10));
        driver.check()?;
        let last = campaign.setup.cycle == campaign.last_cycle;
        if !last && campaign.rng.chance(25) {
            // Kill the process first: what the next one recovers from the page cache and shows must be on disk by then.
            // The next process is a cycle of its own, so the last cycle does not do this.
            driver.kill()?;
            campaign.tally.crashes += 1;
            campaign.verify(None)?;
            campaign.next_cycle()?;
            driver = campaign.start_driver(false)?;
            campaign.wait_until_open(&mut driver)?;
            campaign.pause(0, 30);
        }
        let cut = monotonic_ns();
        cut_power(mount, driver)?;
        campaign.tally.crashes += 1;
        while campaign.rng.chance(20) {
            let driver = campaign.start_driver(true)?;
            campaign.pause(0, 60);
            cut_power(mount, driver)?;
            campaign.tally.crashes += 1;
        }
        campaign.verify(Some(cut))?;
    }
    Ok(())
}

/// Stops the file system under the process, and mounts it again without the process.
fn cut_power(mount: &mut LoopMount, mut driver: Driver) -> anyhow::Result<()> {
    mount.cut_power()?;
    driver.kill()?;
    drop(driver);
    mount.unmount()?;
    mount.mount()
}
