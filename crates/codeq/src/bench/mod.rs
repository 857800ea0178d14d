//! `codeq bench`: benchmarks in the same binary, on this machine.

mod bare;
mod cycle;
mod engine;
mod http;
mod load;
mod process;
mod scenarios;

use std::process::ExitCode;

use clap::Subcommand;

/// Load-tests a server, or runs one of the other benchmarks.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = load::HELP)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    load: load::Args,
}

/// The other benchmarks.
#[derive(Subcommand)]
enum What {
    /// Benchmark the engine without a network: full cycles (enqueue, claim, submit) against the bare disk.
    Engine(engine::Args),
    /// Benchmark a server over HTTP.
    Http(http::Args),
    /// Benchmark long queues, long runs, many timers and checkpoints.
    Scenarios(scenarios::Args),
}

/// Runs the benchmark. Some have their own exit codes.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.what {
        None => return load::run(&args.load),
        Some(What::Engine(args)) => engine::run(args)?,
        Some(What::Http(args)) => http::run(args)?,
        Some(What::Scenarios(args)) => scenarios::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}
