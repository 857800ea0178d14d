//! `codeq worker`: programs as workers.

mod list;
mod program;
pub mod supervise;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
use codeq_client::{Task, Worker};
use codeq_server::Config;
use codeq_server::config::LogFormat;
use serde_json::value::RawValue;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Connection, Done, Failure, Noun, Session, duration, talk};

use program::Program;

#[derive(Subcommand)]
pub enum Verb {
    /// Run a program for every task of some queues.
    #[command(visible_alias = "start", after_help = HELP)]
    Run(Run),
    /// List the workers that have a stream, hold a task or asked for tasks within the last hour.
    #[command(after_help = "\
HELD counts the leases of a worker, FREE the tasks that its streams could take now.

Example:
  codeq worker list")]
    List {
        /// How many workers to list.
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
    },
}

const HELP: &str = "\
The program gets the payload on stdin. What it prints on stdout becomes the result: a JSON object as it is,
no output as {}, anything else as {\"output\": …}. Its stderr goes to this command's stderr. Exit code 0 completes the task.
Any other exit code nacks it: the task is retried and, after its last attempt, becomes a dead letter. The reason
is the last line on stderr, preceded by the exit code unless that is 75 (EX_TEMPFAIL). The outcome of a task is
printed once the server has acknowledged it.

The lease is extended while the program runs. If the task is cancelled or its lease is lost, the program gets
SIGTERM, and SIGKILL 5 s later. Processes that the program leaves behind in its process group are killed. If this
command itself is killed, the program and its process group are killed too.

Variables: CODEQ_TASK_ID, CODEQ_QUEUE, CODEQ_ATTEMPT (1 for the first), CODEQ_MAX_ATTEMPTS, CODEQ_PRIORITY,
CODEQ_FENCE, CODEQ_TENANT, and TRACEPARENT if the producer sent one.

Ctrl-C or SIGTERM stops claiming and lets running programs finish within --grace. A second signal stops at once.

Examples:
  codeq worker run resize -- ./resize.sh
  codeq worker run resize crop --concurrency 4 --lease 5m -- python3 worker.py
  codeq worker start --events resize,crop -- ./resize.sh";

#[derive(clap::Args)]
pub struct Run {
    /// The queues to work on.
    #[arg(value_name = "QUEUE", required_unless_present = "events")]
    queues: Vec<String>,
    /// The queues, under the name that the original codeQ's command line gives this option.
    #[arg(long, value_name = "QUEUE,…", value_delimiter = ',', hide = true)]
    events: Vec<String>,
    /// Programs that run at once.
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// How long a task stays with this worker if the server no longer hears from it. Extended while the program runs.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    lease: Duration,
    /// How long a shutdown waits for running programs.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    grace: Duration,
    /// Address of the worker stream. Default: that of --profile, CODEQ_WORKER_URL, the selected profile's, or port 9091
    /// of the URL's host.
    #[arg(long, value_name = "URL")]
    worker_url: Option<String>,
    /// Print no line per task.
    #[arg(long, short)]
    quiet: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub fn run(noun: Noun<Verb>, top: &Connection) -> ExitCode {
    noun.run(top, async |verb, session| match verb {
        Verb::Run(args) => args.run(session).await,
        Verb::List { limit } => list::run(&session, limit).await,
    })
}

impl Run {
    async fn run(self, session: Session) -> Done {
        let program = Arc::new(Program::find(self.program)?);
        let worker_url = self.worker_url.unwrap_or(session.worker_url);
        let mut builder = Worker::builder(session.options.worker_url(&worker_url))
            .concurrency(self.concurrency.into())
            .lease(self.lease)
            .grace(self.grace);
        let queues: Vec<String> = self.queues.into_iter().chain(self.events).collect();
        for queue in &queues {
            let program = Arc::clone(&program);
            builder = builder.handle(queue, move |task: Task<Box<RawValue>>| {
                let program = Arc::clone(&program);
                async move { Ok(program.run(task).await) }
            });
        }
        if !self.quiet {
            builder =
                builder.on_acknowledged(move |id, what| talk(&program.acknowledged(id, what)));
        }
        let worker = builder.build()?;
        // Lost connections are logged; with --quiet, lost leases too.
        let mut logs = Config::default();
        (logs.log_level, logs.log_format) = ("warn".to_owned(), LogFormat::Short);
        let _logs = codeq_server::observe::init_logs(&logs);
        talk(&format!("working on {} at {worker_url}; Ctrl-C stops", queues.join(", ")));
        until_stopped(worker).await.map_err(|failure| failure.about(&worker_url))
    }
}

/// Works until a signal, then drains. A second signal ends the drain.
async fn until_stopped(worker: Worker) -> Done {
    let failed = |error: std::io::Error| {
        Failure::error(format!("cannot listen for signals: {error}"), "try again")
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let handle = worker.handle();
    let working = worker.run();
    tokio::pin!(working);
    tokio::select! {
        done = &mut working => return Ok(done?),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    handle.shutdown();
    talk("stopping: no new tasks; another signal stops the running ones");
    tokio::select! {
        done = &mut working => {
            done?;
            let stats = handle.stats();
            talk(&format!("stopped: {} completed, {} nacked", stats.completed, stats.nacked));
            Ok(())
        }
        _ = terminate.recv() => Err(hurried()),
        _ = interrupt.recv() => Err(hurried()),
    }
}

fn hurried() -> Failure {
    Failure::error(
        "stopped without waiting for running programs",
        "their tasks are retried when their leases end",
    )
}
