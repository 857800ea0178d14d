//! The `codeq` binary.

/// A reader that has seen enough (`codeq … | head`) is no reason to panic, as the standard macros do.
macro_rules! print {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!($($text)*));
    }};
}

/// The same, with the end of the line.
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
mod restore;
mod serve;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A durable, multi-tenant task queue in one binary.
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
    /// Run a server to try things out.
    Dev(dev::Args),
    /// Run a server.
    Serve(serve::Args),
    /// Print or check the configuration.
    #[command(subcommand)]
    Config(config::Config),
    /// Put a server under load, or measure this machine.
    Bench(Box<bench::Args>),
    /// Verify a data directory, changing nothing.
    Fsck(fsck::Args),
    /// Back up a running server, or a data directory that is not in use.
    Backup(backup::Args),
    /// Make a data directory from a backup.
    Restore(restore::Args),
    /// Run the simulator: seeded clients, crashes and disk faults, with every promise checked.
    Sim(sim::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Dev(args) => dev::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Serve(args) => return serve::run(&args),
        Command::Config(config) => return config.run(),
        // These say more by their exit code.
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

/// Says why the process ends, and does not wait long for somebody to read it: a full pipe must not keep a server that
/// has failed from being started again.
fn say_last(text: String) {
    let (done, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Whoever has closed it does not want to know.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        let _ = done.send(());
    });
    let _ = said.recv_timeout(std::time::Duration::from_secs(1));
}
