//! `codeq bench`: speed, measured by the same binary on the machine at hand.

mod bare;
mod cycle;
mod engine;
mod http;
mod load;
mod process;
mod scenarios;

use std::process::ExitCode;

use clap::Subcommand;

/// A server under load, or one of the other measurements.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = load::HELP)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    load: load::Args,
}

/// What to measure instead.
#[derive(Subcommand)]
enum What {
    /// The engine without a network: full cycles (enqueue, claim, submit) against the bare disk.
    Engine(engine::Args),
    /// A server over HTTP.
    Http(http::Args),
    /// Long queues, long runs, many timers, checkpoints.
    Scenarios(scenarios::Args),
}

/// Runs the benchmark. Some say more by their exit code.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.what {
        None => return load::run(&args.load),
        Some(What::Engine(args)) => engine::run(args)?,
        Some(What::Http(args)) => http::run(args)?,
        Some(What::Scenarios(args)) => scenarios::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}
