//! The `codeq` binary.

/// Unlike the standard macro, does not panic when the reader closes the pipe (`codeq … | head`).
macro_rules! print {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!($($text)*));
    }};
}

/// The same, with a newline.
macro_rules! println {
    ($($text:tt)*) => {
        print!("{}\n", format_args!($($text)*))
    };
}

mod admin;
mod backup;
mod bench;
mod config;
mod dev;
mod fsck;
mod man;
mod probe;
mod restore;
mod serve;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A durable, multi-tenant task queue server in a single binary.
#[derive(Parser)]
#[command(version, about, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  codeq dev
  codeq serve --config codeq.yaml
  codeq bench --seconds 5
  codeq bench engine --seconds 1 --in-flight 1,64
  codeq fsck /var/lib/codeq
  codeq backup --url http://127.0.0.1:8080 --token-file operator.token
  codeq backup /var/lib/codeq /backup/2026-01-31
  codeq sim --seeds 1..101

Every command has its own --help.";

#[derive(Subcommand)]
enum Command {
    /// Run a development server: one command, no configuration.
    Dev(dev::Args),
    /// Run a server for production.
    Serve(serve::Args),
    /// Print, check or reload the configuration.
    #[command(subcommand)]
    Config(config::Config),
    /// Load-test a server, or benchmark this machine.
    Bench(Box<bench::Args>),
    /// Verify a data directory without changing it.
    Fsck(fsck::Args),
    /// Back up a running server, or a data directory that is not in use.
    Backup(backup::Args),
    /// Create a data directory from a backup.
    Restore(restore::Args),
    /// Ask a running server whether it is ready.
    Probe(probe::Args),
    /// Write the manual pages to a directory.
    #[command(hide = true)]
    Man(man::Args),
    /// Run the simulator: seeded clients, crashes and disk faults, with every invariant checked.
    Sim(sim::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Dev(args) => dev::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Man(args) => man::run(&args, <Cli as clap::CommandFactory>::command()),
        Command::Serve(args) => return serve::run(&args),
        Command::Config(config) => return config.run(),
        // These have their own exit codes.
        Command::Bench(args) => match bench::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Fsck(args) => return fsck::run(&args),
        Command::Sim(args) => return sim::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_last(format!("codeq: {error:#}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Prints why the process exits, with a short timeout: a full pipe must not keep a supervisor from restarting a failed
/// server.
fn say_last(text: String) {
    let (done, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Nobody is reading if stderr is closed.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        let _ = done.send(());
    });
    let _ = said.recv_timeout(std::time::Duration::from_secs(1));
}
