//! The power-cut loop: everything that was not synced is gone.
//!
//! A killed process proves nothing about syncs, because the page cache survives it. Here the filesystem
//! itself stops, without writing its journal; then the process is killed and the image mounted again.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::campaign::{Campaign, Driver, stop_flag};
use crate::kill::new_setup;
use crate::mount::LoopMount;
use crate::setup::Durable;
use crate::sys::monotonic_ns;

/// The exit code of a campaign that could not be run for want of a loop mount.
pub const SKIPPED: u8 = 77;

/// A power-cut campaign.
#[derive(Debug, Args)]
pub struct Power {
    /// Cycles.
    #[arg(long, default_value_t = 60)]
    pub cycles: u64,
    /// The seed of sizes and moments.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The longest time before a cut, in milliseconds.
    #[arg(long, default_value_t = 1_000)]
    pub max_ms: u64,
    /// Where the image is made.
    #[arg(long, default_value = "/tmp")]
    pub image_root: PathBuf,
    /// The size of the image in MiB.
    #[arg(long, default_value_t = 512)]
    pub image_mib: u64,
    /// Where the ledger is made: another filesystem than the image's mount.
    #[arg(long, default_value = "/dev/shm")]
    pub ledger_root: PathBuf,
    /// When operations are acknowledged. `os` must lose some: the proof that the harness sees it.
    #[arg(long, value_enum, default_value = "fsync")]
    pub durability: Durable,
}

/// Runs the campaign; says what it came to.
pub fn run(power: &Power) -> anyhow::Result<String> {
    let ledger = tempfile::tempdir_in(&power.ledger_root).context("make the ledger's directory")?;
    let mut mount = LoopMount::create(&power.image_root, power.image_mib << 20)?;
    let setup = new_setup(&mount.path().join("data"), ledger.path(), power.durability);
    let mut campaign = Campaign::new(setup, power.seed, power.cycles, stop_flag()?);
    let outcome = cycles(&mut campaign, power, &mut mount);
    println!("{}", campaign.summary("power", power.seed));
    outcome.map(|()| campaign.summary("power", power.seed)).with_context(|| {
        let durability = match power.durability {
            Durable::Fsync => "fsync",
            Durable::Os => "os",
        };
        format!(
            "replay: codeq-crash power --cycles {} --seed {} --max-ms {} --durability {durability}",
            power.cycles, power.seed, power.max_ms
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
        if campaign.rng.chance(25) {
            // A killed process first: what the next one recovers from the page cache and shows must be
            // on the disk by then.
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

/// The filesystem stops under the process, and comes back without it.
fn cut_power(mount: &mut LoopMount, mut driver: Driver) -> anyhow::Result<()> {
    mount.cut_power()?;
    driver.kill()?;
    drop(driver);
    mount.unmount()?;
    mount.mount()
}
