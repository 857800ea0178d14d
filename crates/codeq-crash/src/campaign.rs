//! What the kill loop and the power-cut loop share: children, cycles, the tally.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use codeq_sim::rng::Rng;

use crate::setup::Setup;
use crate::verify::{Report, Verify};

/// Every so many cycles everything is finished, recounted and removed.
const DRAIN_EVERY: u64 = 10;
/// Violations that are printed; the rest is counted.
const PRINTED: usize = 20;

/// Longest that a verification may take, a drain included: an engine that answers nobody is a failure too.
const VERIFY_LIMIT: Duration = Duration::from_secs(240);

/// What a campaign came to.
#[derive(Debug, Default)]
pub struct Tally {
    /// Cycles that were run.
    pub cycles: u64,
    /// Crashes, those during a start included.
    pub crashes: u64,
    /// The last report's sums, and the longest times.
    pub report: Report,
    /// Violations found in all.
    pub violations: usize,
}

/// A campaign on one data directory.
pub struct Campaign {
    /// What the next cycle runs with.
    pub setup: Setup,
    /// Draws of the campaign.
    pub rng: Rng,
    /// What it has come to.
    pub tally: Tally,
    /// Somebody wants it to end.
    pub stop: Arc<AtomicBool>,
    /// The last cycle: drained whatever its number.
    pub last_cycle: u64,
}

impl Campaign {
    /// A campaign that writes its ledger into `ledger_dir`.
    pub fn new(mut setup: Setup, seed: u64, cycles: u64, stop: Arc<AtomicBool>) -> Campaign {
        let mut rng = Rng::new(seed);
        setup.shards = rng.pick(&[1, 1, 2, 4]).copied();
        Campaign { setup, rng, tally: Tally::default(), stop, last_cycle: cycles }
    }

    /// Begins the next cycle: new sizes, an empty part of the ledger.
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

    /// Starts the process that is to be crashed.
    pub fn start_driver(&self, start_only: bool) -> anyhow::Result<Driver> {
        let setup = Setup { start_only, ..self.setup.clone() };
        let log = setup.ledger_dir.join("driver.log");
        let out = File::options().create(true).append(true).open(&log)?;
        let child = Command::new(own_program()?)
            .arg("driver")
            .args(setup.to_args())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(out)
            .spawn()
            .context("start the driver")?;
        Ok(Driver { child, log })
    }

    /// Waits until the clients of the driver are at work.
    pub fn wait_until_open(&self, driver: &mut Driver) -> anyhow::Result<()> {
        let limit = Instant::now() + Duration::from_secs(60);
        let mark = self.setup.cycle_dir().join("open");
        while !mark.exists() {
            driver.check()?;
            if Instant::now() > limit {
                bail!("the driver is not open after a minute");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A moment in which the crash is due: the nemesis itself.
    pub fn pause(&mut self, low_ms: u64, high_ms: u64) {
        let micros = self.rng.between(low_ms * 1_000, high_ms * 1_000);
        std::thread::sleep(Duration::from_micros(micros));
    }

    /// Verifies in a process of its own; what it found goes into the tally.
    pub fn verify(&mut self, cut: Option<u64>) -> anyhow::Result<()> {
        let cycle = self.setup.cycle;
        let drain = cycle.is_multiple_of(DRAIN_EVERY) || cycle == self.last_cycle;
        let verify = Verify { setup: self.setup.clone(), cut, drain, clean: self.rng.chance(20) };
        let mut command = Command::new(own_program()?);
        command.arg("verify").args(verify.setup.to_args());
        command.args(cut.map(|cut| format!("--cut={cut}")));
        command.args(drain.then_some("--drain"));
        command.args(verify.clean.then_some("--clean"));
        let (out, err) = (self.setup.ledger_dir.join("out"), self.setup.ledger_dir.join("err"));
        command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
        let ended = wait(&mut command.spawn().context("start verify")?, VERIFY_LIMIT)?;
        let report: Report = match serde_json::from_str(&fs::read_to_string(&out)?) {
            Ok(report) if ended => report,
            _ => {
                self.tally.violations += 1;
                let ended = if ended { "" } else { "the verification does not come to an end " };
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

    /// Removes the ledger of cycles that are closed: the book holds what is still of use.
    fn forget(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.setup.ledger_dir)? {
            let path = entry?.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?;
            }
        }
        Ok(())
    }

    /// Whether somebody wants the campaign to end.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The campaign in one line.
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

/// A running driver. It is killed when this is dropped.
pub struct Driver {
    child: Child,
    log: PathBuf,
}

impl Driver {
    /// Kills it, without a chance to do anything about it.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Fails if it has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the driver ended by itself ({status}): {}", tail(&self.log));
        }
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It may have ended already.
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
    let mut text = String::new();
    if let Ok(mut file) = File::open(path) {
        // Whatever can be read helps.
        let _ = file.read_to_string(&mut text);
    }
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// The program to start children from. Tests name it, since they are another program.
fn own_program() -> anyhow::Result<PathBuf> {
    Ok(std::env::current_exe()?)
}

/// A flag that ctrl-c and a termination request raise, so that guards still clean up.
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
