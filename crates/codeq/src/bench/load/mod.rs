//! `codeq bench`: loads any server that speaks codeQ's streams or HTTP, and accounts for every task.
//!
//! The client usually shares the machine with the server, so it must cost a fraction of what the server costs: one thread,
//! no task or channel per message, and no map keyed by text.

mod http;
mod ids;
mod ledger;
mod payload;
mod plan;
mod report;
mod run;
mod schedule;
mod state;
mod streams;
mod tracker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::process;
use ledger::Ledger;
use plan::Plan;
use report::{Row, Spread, summary, summary_text};

/// The exit code when the server disappears during a run.
const AWAY: u8 = 3;

pub const HELP: &str = "\
Creates tasks, claims and completes them, and measures full cycles: a cycle counts once its completion is
acknowledged. By default, each answer triggers the next task (closed loop). With --rate, tasks arrive at a
fixed rate, and latency counts from the moment a task was due. At the end, tasks in flight finish, and every
acknowledged create must have been assigned and completed exactly once.

Exit code: 0 success, 1 the server is unreachable or refuses requests, or a task is missing or was done twice,
2 wrong usage, 3 the server disappeared during the run.

Examples:
  codeq bench --seconds 10 --runs 3
  codeq bench --create-batch 100 --in-flight 800 --ready-batch 10 --result-batch 100 --json
  codeq bench --rate 5000 --server-pid $(pidof codeq)
  codeq bench --http-url http://127.0.0.1:8080 --in-flight 16 --slots 16";

#[derive(clap::Args, Debug)]
// Otherwise clap would make a group named after this type: `Args`, which `bench::Args` makes as well.
#[group(skip)]
pub struct Args {
    /// Address of the server's producer stream
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    producer_addr: String,
    /// Address of the server's worker stream
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9091")]
    worker_addr: String,
    /// Use HTTP at this URL instead of the streams
    #[arg(long, value_name = "URL", conflicts_with_all = ["producer_addr", "worker_addr"])]
    http_url: Option<String>,
    /// Token that may create and process tasks
    #[arg(long, default_value = "dev-token")]
    token: String,
    /// Prefix of the command; every run adds a random suffix
    #[arg(long, default_value = "bench")]
    command: String,
    /// Creates in flight per producer [default: 32, or 10000 with --rate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    in_flight: Option<u32>,
    /// Tasks that each worker is ready for
    #[arg(long, value_name = "N", default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    slots: u32,
    /// Maximum tasks between create and completion [default: enough to fill both sides, or 200000 with --rate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    ahead: Option<u64>,
    /// Tasks per create message
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    create_batch: u32,
    /// Tasks that a worker asks for at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    ready_batch: u32,
    /// Results per message
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    result_batch: u32,
    /// Producer streams, each on its own connection
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    producers: u32,
    /// Worker streams, each on its own connection
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: u32,
    /// Run one task at a time, from create to completion: latency without load
    #[arg(long, conflicts_with_all = ["in_flight", "slots", "ahead", "producers", "workers"])]
    #[arg(conflicts_with_all = ["create_batch", "ready_batch", "result_batch", "rate"])]
    one_at_a_time: bool,
    /// Payload size in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u32).range(payload::LEAST as i64..=16 << 20))]
    payload: u32,
    /// Webhook URL for every task
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// Seconds to measure
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Seconds to run before measuring
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    warm_up: f64,
    /// Seconds to wait at the end for tasks in flight
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    drain: u64,
    /// Open loop: tasks arrive at this rate per second, however fast the server is
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: Option<u64>,
    /// Process id of the server, to report its CPU time and memory
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Number of runs; prints the median with the minimum and maximum
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// Write `C <task id>` for each acked create and `D <task id>` for each acked completion
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Print one JSON document to stdout
    #[arg(long)]
    json: bool,
    /// Do not print a progress line per second to stderr
    #[arg(long)]
    quiet: bool,
}

/// Parses a duration of up to a day.
fn seconds(text: &str) -> Result<f64, String> {
    const DAY: f64 = 86_400.0;
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    (0.0..=DAY).contains(&seconds).then_some(seconds).ok_or(format!("not between 0 and {DAY}"))
}

/// All runs, as JSON.
#[derive(Serialize)]
struct Document<'a> {
    mode: &'static str,
    /// The options, after defaults and corrections.
    settings: Plan,
    summary: BTreeMap<&'static str, Option<Spread>>,
    verified: bool,
    server_went_away: bool,
    runs: &'a [Row],
    machine: String,
}

/// Runs and prints; the exit code says how it went.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(pid) = args.server_pid {
        let process = PathBuf::from(format!("/proc/{pid}/stat"));
        anyhow::ensure!(process.exists(), "--server-pid {pid}: there is no such process");
    }
    let mut ledger = args.ledger.as_deref().map(Ledger::create).transpose()?;
    let mut rows: Vec<Row> = Vec::new();
    for number in 1..=args.runs {
        let row = one(args, &mut ledger)?;
        if args.json && !row.verified {
            eprintln!("codeq: {}", row.verdict());
        } else if !args.json {
            let which = if args.runs > 1 { format!("run {number}: ") } else { String::new() };
            print!("{which}{}", row.text());
        }
        let away = row.server_went_away;
        rows.push(row);
        if away {
            break;
        }
    }
    print(args, &rows);
    Ok(match rows.iter().all(|row| row.verified) {
        true => ExitCode::SUCCESS,
        false if rows.iter().any(|row| row.server_went_away) => ExitCode::from(AWAY),
        false => ExitCode::FAILURE,
    })
}

/// One run, with its own runtime, so nothing is left over when the next one starts.
fn one(args: &Args, ledger: &mut Option<Ledger>) -> anyhow::Result<Row> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, run::run(args, ledger))
}

fn print(args: &Args, rows: &[Row]) {
    if !args.json {
        if rows.len() > 1 {
            print!("{}", summary_text(rows));
        }
        println!("{}", process::machine());
        return;
    }
    let document = Document {
        mode: if args.http_url.is_some() { "http" } else { "grpc" },
        settings: Plan::new(args),
        summary: summary(rows),
        verified: rows.iter().all(|row| row.verified),
        server_went_away: rows.iter().any(|row| row.server_went_away),
        runs: rows,
        machine: process::machine(),
    };
    // Serialising a plain struct cannot fail.
    println!("{}", serde_json::to_string_pretty(&document).unwrap_or_default());
}
