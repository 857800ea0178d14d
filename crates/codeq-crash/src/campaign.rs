//! What the kill loop and the power-cut loop share: child processes, cycles, totals.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use codeq_sim::rng::Rng;
use serde::Serialize;

use crate::setup::Setup;
use crate::verify::{Report, Verify};

/// Cycles between two drains, which finish, recount and remove all tasks.
const DRAIN_EVERY: u64 = 10;
/// Number of violations to print; the rest are only counted.
const PRINTED: usize = 20;

/// Time limit for a verification including a drain: an engine that does not answer has failed, too.
const VERIFY_LIMIT: Duration = Duration::from_secs(240);

/// Totals of a campaign.
#[derive(Debug, Default)]
pub struct Tally {
    /// Cycles that were run.
    pub cycles: u64,
    /// Crashes, including those during a start.
    pub crashes: u64,
    /// `acked` and `unknown` of the last report, and the highest of every other number.
    pub report: Report,
    /// Total number of violations.
    pub violations: usize,
}

/// A campaign on one data directory.
pub struct Campaign {
    /// Setup of the next cycle.
    pub setup: Setup,
    /// Random numbers of the campaign.
    pub rng: Rng,
    /// Totals so far.
    pub tally: Tally,
    /// Set to end the campaign early.
    pub stop: Arc<AtomicBool>,
    /// The last cycle: always drained.
    pub last_cycle: u64,
}

impl Campaign {
    /// A campaign of `cycles` cycles on the directories of `setup`.
    pub fn new(mut setup: Setup, seed: u64, cycles: u64, stop: Arc<AtomicBool>) -> Campaign {
        let mut rng = Rng::new(seed);
        setup.shards = rng.pick(&[1, 1, 2, 4]).copied();
        Campaign { setup, rng, tally: Tally::default(), stop, last_cycle: cycles }
    }

    /// Starts the next cycle: new sizes, an empty part of the ledger.
    pub fn next_cycle(&mut self) -> anyhow::Result<()> {
        self.setup.cycle += 1;
        self.setup.draw(&mut self.rng);
        self.tally.cycles += 1;
        let dir = self.setup.cycle_dir();
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        Ok(fs::create_dir_all(&dir)?)
    }

    /// Starts the process that will be crashed.
    pub fn start_driver(&self, start_only: bool) -> anyhow::Result<Driver> {
        let setup = Setup { start_only, ..self.setup.clone() };
        let log = setup.ledger_dir.join("driver.log");
        let out = File::options().create(true).append(true).open(&log)?;
        let mut driver = child("driver", &setup)?;
        let child = driver.stdout(Stdio::null()).stderr(out).spawn().context("start the driver")?;
        Ok(Driver { child, log })
    }

    /// Waits until the driver's clients are working.
    pub fn wait_until_open(&self, driver: &mut Driver) -> anyhow::Result<()> {
        let limit = Instant::now() + Duration::from_secs(60);
        let mark = self.setup.cycle_dir().join("open");
        while !mark.exists() {
            driver.check()?;
            if Instant::now() > limit {
                bail!("the driver is not ready after a minute");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits a random time before the crash.
    pub fn pause(&mut self, low_ms: u64, high_ms: u64) {
        let micros = self.rng.between(low_ms * 1_000, high_ms * 1_000);
        std::thread::sleep(Duration::from_micros(micros));
    }

    /// Verifies in a separate process and adds the outcome to the totals.
    pub fn verify(&mut self, cut: Option<u64>) -> anyhow::Result<()> {
        let cycle = self.setup.cycle;
        let drain = cycle.is_multiple_of(DRAIN_EVERY) || cycle == self.last_cycle;
        let verify = Verify { setup: self.setup.clone(), cut, drain, clean: self.rng.chance(20) };
        let mut command = child("verify", &verify)?;
        let (out, err) = (self.setup.ledger_dir.join("out"), self.setup.ledger_dir.join("err"));
        command.stdout(File::create(&out)?).stderr(File::create(&err)?);
        let ended = wait(&mut command.spawn().context("start verify")?, VERIFY_LIMIT)?;
        let report: Report = match serde_json::from_str(&fs::read_to_string(&out)?) {
            Ok(report) if ended => report,
            _ => {
                self.tally.violations += 1;
                let ended = if ended { "" } else { "the verification timed out " };
                bail!("cycle {cycle}: {ended}{}", tail(&err));
            }
        };
        let sum = &mut self.tally.report;
        (sum.acked, sum.unknown) = (report.acked, report.unknown);
        sum.tasks = sum.tasks.max(report.tasks);
        sum.open_ms = sum.open_ms.max(report.open_ms);
        sum.first_write_ms = sum.first_write_ms.max(report.first_write_ms);
        self.tally.violations += report.violations.len();
        for violation in report.violations.iter().take(PRINTED) {
            println!("cycle {cycle}: {violation}");
        }
        if !report.violations.is_empty() {
            bail!("cycle {cycle}: {} violations", report.violations.len());
        }
        if drain {
            self.forget()?;
        }
        Ok(())
    }

    /// Removes the ledgers of finished cycles: the expectations contain what is still needed.
    fn forget(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.setup.ledger_dir)? {
            let path = entry?.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    /// Whether the campaign should end early.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The totals in one line.
    pub fn summary(&self, name: &str, seed: u64) -> String {
        let Tally { cycles, crashes, report, violations } = &self.tally;
        format!(
            "{name}: cycles={cycles} crashes={crashes} shards={} acked={} unknown={} violations={violations} \
             tasks_max={} open_ms_max={} first_write_ms_max={} seed={seed}",
            self.setup.shards.unwrap_or(1),
            report.acked,
            report.unknown,
            report.tasks,
            report.open_ms,
            report.first_write_ms
        )
    }
}

/// A running driver. Dropping it kills the process.
pub struct Driver {
    child: Child,
    log: PathBuf,
}

impl Driver {
    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Fails if the process has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the driver ended by itself ({status}): {}", tail(&self.log));
        }
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a child; false if it had to be killed.
fn wait(child: &mut Child, limit: Duration) -> anyhow::Result<bool> {
    let limit = Instant::now() + limit;
    while child.try_wait()?.is_none() {
        if Instant::now() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(true)
}

fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join("\n")
}

/// This program as a child that does one part of the work.
fn child(part: &str, setup: &impl Serialize) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(part).arg(serde_json::to_string(setup)?).stdin(Stdio::null());
    Ok(command)
}

/// A flag that Ctrl-C and SIGTERM set, so that guards still clean up.
pub fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let flag = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&flag);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        raised.store(true, Ordering::Relaxed);
    });
    Ok(flag)
}
