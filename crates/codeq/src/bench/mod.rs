//! `codeq bench`: speed, measured by the same binary on the machine at hand.

mod bare;
mod cycle;
mod engine;
mod http;
mod process;
mod scenarios;

use clap::Subcommand;

/// What to measure.
#[derive(Subcommand)]
pub enum Bench {
    /// The engine without a network: full cycles (enqueue, claim, submit) against the bare disk.
    Engine(engine::Args),
    /// A server over HTTP.
    Http(http::Args),
    /// Long queues, long runs, many timers, checkpoints.
    Scenarios(scenarios::Args),
}

impl Bench {
    /// Runs the benchmark.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Bench::Engine(args) => engine::run(&args),
            Bench::Http(args) => http::run(&args),
            Bench::Scenarios(args) => scenarios::run(&args),
        }
    }
}
