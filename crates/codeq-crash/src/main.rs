//! The command line of the crash tests.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use codeq_crash::damage::Damage;
use codeq_crash::fault::Fault;
use codeq_crash::full::Full;
use codeq_crash::kill::Kill;
use codeq_crash::log_damage::LogDamage;
use codeq_crash::mount::MountUnavailable;
use codeq_crash::power::{Power, SKIPPED};
use codeq_crash::setup::Setup;
use codeq_crash::verify::Verify;
use codeq_crash::{damage, driver, fault, full, kill, log_damage, power, verify};
use serde::de::DeserializeOwned;

/// Crash tests of codeQ's engine.
#[derive(Parser)]
#[command(name = "codeq-crash")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run an engine and its clients until the process is killed.
    #[command(hide = true)]
    Driver {
        #[arg(value_parser = json::<Setup>)]
        setup: Setup,
    },
    /// Compare a directory with the ledger.
    #[command(hide = true)]
    Verify {
        #[arg(value_parser = json::<Verify>)]
        verify: Verify,
    },
    /// Kill -9 at random moments.
    Kill(Kill),
    /// Cut the power of a loop-mounted filesystem at random moments.
    Power(Power),
    /// Damage the log of copies of a directory.
    LogDamage(LogDamage),
    /// Damage the stores and the manifest of copies of a directory, remove files and swap them.
    Damage(Damage),
    /// Let every disk operation fail, one per run.
    Fault(Fault),
    /// Fill a small filesystem.
    Full(Full),
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(code) => code,
        Err(error) if error.is::<MountUnavailable>() => {
            eprintln!("skipped: {error:#}");
            ExitCode::from(SKIPPED)
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text)
}

fn run(task: Task) -> anyhow::Result<ExitCode> {
    match task {
        Task::Driver { setup } => driver::run(&setup)?,
        Task::Verify { verify: what } => {
            let (report, engine) = verify::run(&what)?;
            println!("{}", serde_json::to_string(&report)?);
            if what.clean {
                drop(engine);
            } else {
                // End like a crash: nothing is flushed on the way out.
                std::process::exit(i32::from(!report.violations.is_empty()));
            }
        }
        Task::Kill(what) => kill::run(&what)?,
        Task::Power(what) => power::run(&what)?,
        Task::LogDamage(what) => log_damage::run(&what)?,
        Task::Damage(what) => damage::run(&what)?,
        Task::Fault(what) => fault::run(&what)?,
        Task::Full(what) => println!("{}", full::run(&what)?),
    }
    Ok(ExitCode::SUCCESS)
}
