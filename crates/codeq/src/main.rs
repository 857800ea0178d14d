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

mod backup;
mod bench;
mod bulk;
mod cli;
mod completion;
mod config;
mod demo;
mod dev;
mod dlq;
mod doctor;
mod fsck;
mod http;
mod man;
mod probe;
mod profile;
mod queue;
mod restore;
mod search;
mod serve;
mod sim;
mod subscription;
mod task;
mod token;
mod top;
mod version;
mod webhook;
mod why;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use cli::{Connection, Failure, Noun, ended};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A durable, multi-tenant task queue: server, client and tools in a single binary.
#[derive(Parser)]
#[command(version, about, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

const EXAMPLES: &str = "\
Examples:
  codeq dev
  codeq task enqueue resize --payload '{\"image\": 7}'
  codeq queue list
  codeq serve --config codeq.yaml
  codeq bench --seconds 5
  codeq bench engine --seconds 1 --in-flight 1,64
  codeq fsck /var/lib/codeq
  codeq backup --profile prod
  codeq backup /var/lib/codeq /backup/2026-01-31
  codeq sim --seeds 1..101

Exit codes of the commands that talk to a server: 0 success, 1 error, 2 wrong usage, 3 not found,
4 conflict, 5 timeout, 6 not authenticated or not allowed.

Every command has its own --help.";

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Server(Server),
    #[command(flatten)]
    Client(Client),
    #[command(flatten)]
    Tool(Tool),
}

/// Commands that run a server.
#[derive(Subcommand)]
enum Server {
    /// Run a development server: one command, no configuration.
    Dev(dev::Args),
    /// Run a server for production.
    Serve(serve::Args),
}

/// Commands that talk to a server.
#[derive(Subcommand)]
enum Client {
    /// Enqueue tasks and follow them.
    Task(Noun<task::Verb>),
    /// Look at queues; pause, purge and configure them.
    Queue(Noun<queue::Verb>),
    /// Look at dead letters; replay and purge them.
    Dlq(Noun<dlq::Verb>),
    /// Run programs as workers.
    Worker(Noun<worker::Verb>),
    /// Manage notifications about new work.
    Subscription(Noun<subscription::Verb>),
    /// Look at undelivered callbacks; verify signatures; rotate secrets.
    Webhook(Noun<webhook::Verb>),
    /// Create and inspect JSON Web Tokens for development.
    Token(Noun<token::Verb>),
    /// Keep the URL and token of each environment.
    Profile(Noun<profile::Verb>),
    /// Show rates and depths of the queues, live.
    Top(top::Args),
    /// Enqueue and process tasks, to have something to look at.
    Demo(demo::Args),
    /// Find out why a server cannot be reached or used.
    Doctor(doctor::Args),
    /// Print the version.
    Version(version::Args),
}

/// Commands that work on this machine.
#[derive(Subcommand)]
enum Tool {
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
    /// Run a worker's program, which must not outlive the worker.
    #[command(hide = true)]
    Supervise(worker::supervise::Args),
    /// Run the simulator: seeded clients, crashes and disk faults, with every invariant checked.
    Sim(sim::Args),
    /// Print a script that completes commands in your shell.
    Completion(completion::Args),
}

/// The command line. Connection options before the command are not passed down to every command: only those that talk
/// to a server take them.
fn command_line() -> clap::Command {
    Cli::command().mut_args(|arg| arg.global(false))
}

fn main() -> ExitCode {
    let matches = command_line().get_matches();
    let Cli { command, connection: top } = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let done = match command {
        Command::Client(client) => return client.run(&top),
        Command::Tool(tool) => tool.run(&top),
        _ if top.is_given() => {
            return ended(Err(Failure::misplaced()));
        }
        Command::Server(Server::Serve(args)) => return serve::run(&args),
        Command::Server(Server::Dev(args)) => dev::run(&args).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            let hint = dev::hint(&error).map_or(String::new(), |hint| format!("hint: {hint}\n"));
            say_last(cli::printable_lines(&format!("codeq: {error:#}\n{hint}")));
            ExitCode::FAILURE
        }
    }
}

impl Client {
    fn run(self, top: &Connection) -> ExitCode {
        match self {
            Client::Task(noun) => task::run(noun, top),
            Client::Queue(noun) => queue::run(noun, top),
            Client::Dlq(noun) => dlq::run(noun, top),
            Client::Worker(noun) => worker::run(noun, top),
            Client::Subscription(noun) => subscription::run(noun, top),
            Client::Webhook(noun) => webhook::run(noun, top),
            Client::Token(noun) => token::run(noun, top),
            Client::Profile(noun) => profile::run(noun, top),
            Client::Top(args) => top::run(args, top),
            Client::Demo(args) => demo::run(args, top),
            Client::Doctor(args) => doctor::run(args, top),
            Client::Version(args) => version::run(args, top),
        }
    }
}

impl Tool {
    fn run(self, top: &Connection) -> anyhow::Result<ExitCode> {
        Ok(match self {
            // These may talk to a server.
            Tool::Backup(args) => backup::run(args, top),
            Tool::Config(config) => config.run(top),
            _ if top.is_given() => ended(Err(Failure::misplaced())),
            Tool::Bench(args) => bench::run(&args)?,
            Tool::Fsck(args) => fsck::run(&args),
            Tool::Restore(args) => restore::run(&args),
            Tool::Probe(args) => probe::run(&args),
            Tool::Man(args) => {
                man::run(&args, command_line())?;
                ExitCode::SUCCESS
            }
            Tool::Supervise(args) => worker::supervise::run(&args),
            Tool::Sim(args) => sim::run(&args),
            Tool::Completion(args) => completion::run(&args, command_line()),
        })
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
