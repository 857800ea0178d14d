//! The kill loop: kill -9 at a random moment, and in a fifth of the cycles again during the start.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use crate::campaign::{Campaign, stop_flag};
use crate::setup::{Durable, Setup};

/// Settings of a kill campaign.
#[derive(Debug, Args)]
pub struct Kill {
    /// Cycles.
    #[arg(long, default_value_t = 100)]
    pub cycles: u64,
    /// Seed for sizes and moments.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The longest time before a kill, in milliseconds.
    #[arg(long, default_value_t = 1_500)]
    pub max_ms: u64,
    /// Where to create the data directory.
    #[arg(long, default_value = "/tmp")]
    pub data_root: PathBuf,
    /// Where to create the ledger: not on the data's file system.
    #[arg(long, default_value = "/dev/shm")]
    pub ledger_root: PathBuf,
    /// When operations are acknowledged; a kill loses nothing either way.
    #[arg(long, value_enum, default_value = "fsync")]
    pub durability: Durable,
}

/// Runs the campaign and prints a summary.
pub fn run(kill: &Kill) -> anyhow::Result<()> {
    let data = tempfile::tempdir_in(&kill.data_root).context("make the data directory")?;
    let ledger = tempfile::tempdir_in(&kill.ledger_root).context("make the ledger's directory")?;
    let (data_dir, ledger_dir) = (data.path().join("data"), ledger.path().to_owned());
    let setup = Setup { data_dir, ledger_dir, durability: kill.durability, ..Setup::default() };
    let mut campaign = Campaign::new(setup, kill.seed, kill.cycles, stop_flag()?);
    let outcome = cycles(&mut campaign, kill);
    println!("{}", campaign.summary("kill", kill.seed));
    outcome.with_context(|| {
        format!(
            "replay: codeq-crash kill --cycles {} --seed {} --max-ms {} --durability {}; kept: {} {}",
            kill.cycles,
            kill.seed,
            kill.max_ms,
            kill.durability,
            data.keep().display(),
            ledger.keep().display()
        )
    })
}

fn cycles(campaign: &mut Campaign, kill: &Kill) -> anyhow::Result<()> {
    for _ in 0..kill.cycles {
        if campaign.stopped() {
            break;
        }
        campaign.next_cycle()?;
        let mut driver = campaign.start_driver(false)?;
        campaign.wait_until_open(&mut driver)?;
        campaign.pause(10, kill.max_ms.max(10));
        driver.check()?;
        driver.kill()?;
        campaign.tally.crashes += 1;
        while campaign.rng.chance(20) {
            let mut driver = campaign.start_driver(true)?;
            campaign.pause(0, 60);
            driver.check()?;
            driver.kill()?;
            campaign.tally.crashes += 1;
        }
        campaign.verify(None)?;
    }
    Ok(())
}
