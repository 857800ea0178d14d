//! `codeq bench http`: a server over HTTP, on this machine.

pub(super) mod client;
mod cycle;
mod enqueue;
mod list;
mod polls;
mod target;
mod waits;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::task::{JoinHandle, LocalSet};

use super::process;
use target::Target;

/// What is measured by default: on a server that this command starts, and on one that is already running.
const STARTED: [What; 4] = [What::Start, What::Enqueue, What::Cycle, What::Polls];
const RUNNING: [What; 3] = [What::Enqueue, What::Cycle, What::Polls];

/// A measurement to make.
#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    pub target: &'a Target,
    pub token: &'a str,
    pub time: Duration,
    pub args: &'a Args,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  codeq bench http enqueue cycle")]
pub struct Args {
    /// What to measure; by default start (not with --addr), enqueue, cycle and polls
    #[arg(value_enum)]
    what: Vec<What>,
    /// Address of a running server; by default, one is started on a fresh directory
    #[arg(long, value_name = "HOST:PORT")]
    addr: Option<SocketAddr>,
    /// Process id of the server, to report its memory and CPU time
    #[arg(long, value_name = "PID", requires = "addr")]
    server_pid: Option<u32>,
    /// Token with every role
    #[arg(long, default_value = "dev-token")]
    token: String,
    /// Seconds per measurement
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Measurements per benchmark; prints the median
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Connections for enqueue
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Payload size in bytes
    #[arg(long, default_value_t = 256)]
    payload: usize,
    /// Waiting claims
    #[arg(long, default_value_t = 10_000)]
    polls: usize,
    /// Result reads and waits
    #[arg(long, default_value_t = 200_000)]
    waits: usize,
    /// Tasks in the store for `list`
    #[arg(long, default_value_t = 5_000_000)]
    tasks: usize,
    /// fsync or os, for the server that is started
    #[arg(long, default_value = "fsync")]
    durability: String,
    /// Directory for the data of the server that is started
    #[arg(long, default_value = "target/bench", value_name = "DIR")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// from process start until ready, on an empty directory
    Start,
    /// one task per request, on many connections
    Enqueue,
    /// full cycles: enqueue 100, claim 10, submit 100
    Cycle,
    /// waiting claims, and how fast one wakes
    Polls,
    /// pages of lists and searches in a full store
    List,
    /// result reads and waits by clients that hang up, between full cycles
    Waits,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub what: &'static str,
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    pub server_cpu_us: Option<f64>,
    pub server_rss_mib: Option<f64>,
    pub note: String,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let what: &[What] = match args.what.as_slice() {
        [] if args.addr.is_some() => &RUNNING,
        [] => &STARTED,
        chosen if args.addr.is_some() && chosen.contains(&What::Start) => {
            anyhow::bail!("start cannot be measured with --addr: that server is already running")
        }
        chosen => chosen,
    };
    for what in what {
        let mut rows = Vec::new();
        let rounds = if *what == What::List { 1 } else { args.rounds.max(1) };
        for _ in 0..rounds {
            rows.push(measure(args, *what, &runtime)?);
        }
        // Prints the median row of each kind, with the spread of its rates.
        for at in 0..rows.first().map_or(0, Vec::len) {
            let mut same: Vec<&Row> = rows.iter().filter_map(|round| round.get(at)).collect();
            same.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
            if let Some(median) = same.get(same.len() / 2) {
                print(args, median, same.first().zip(same.last()));
            }
        }
    }
    println!("{}", process::machine());
    Ok(())
}

fn measure(args: &Args, what: What, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Vec<Row>> {
    std::fs::create_dir_all(&args.dir)?;
    let dir = tempfile::tempdir_in(&args.dir)?;
    let target = match args.addr {
        Some(addr) => Target::running(addr, args.server_pid),
        None => Target::start(&dir.path().join("data"), &args.durability)?,
    };
    let time = Duration::from_secs(args.seconds);
    let load = Load { target: &target, token: &args.token, time, args };
    // A second server for `waits`, which runs the same cycles without the waits.
    let control = match (what, args.addr) {
        (What::Waits, None) => Some(Target::start(&dir.path().join("control"), &args.durability)?),
        _ => None,
    };
    let control = control.as_ref().map(|target| Load { target, ..load });
    runtime.block_on(async {
        match what {
            What::Start => Ok(vec![load.started()]),
            What::Enqueue => Ok(vec![enqueue::run(&load).await?]),
            What::Cycle => Ok(vec![cycle::run(&load).await?]),
            What::Polls => Ok(vec![polls::run(&load).await?]),
            What::List => list::run(&load).await,
            What::Waits => waits::run(&load, control.as_ref()).await,
        }
    })
}

fn print(args: &Args, row: &Row, spread: Option<(&&Row, &&Row)>) {
    if args.json {
        // A plain struct can always be written.
        println!("{}", serde_json::to_string(row).unwrap_or_default());
        return;
    }
    let Row { what, per_second, p50_ms, p99_ms, max_ms, note, .. } = row;
    let spread = spread.map_or(String::new(), |(low, high)| {
        format!(" ({:.0} to {:.0})", low.per_second, high.per_second)
    });
    println!(
        "{what}: {per_second:.0}/s{spread}, p50 {p50_ms:.2} ms, p99 {p99_ms:.2} ms, max {max_ms:.1} ms"
    );
    let cpu = row.server_cpu_us.map(|us| format!("server {us:.1} us of CPU each"));
    let rss = row.server_rss_mib.map(|mib| format!("{mib:.0} MiB"));
    let rest: Vec<String> =
        cpu.into_iter().chain(rss).chain((!note.is_empty()).then(|| note.clone())).collect();
    println!("  {}", rest.join(", "));
}

/// Latencies in microseconds.
pub(crate) fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new(3)?)
}

/// Clients that run side by side on this thread.
#[derive(Default)]
pub(crate) struct Clients {
    tasks: LocalSet,
    running: Vec<JoinHandle<anyhow::Result<Histogram<u64>>>>,
}

impl Clients {
    /// Adds a client. It starts with [`Clients::latencies`].
    pub(crate) fn spawn(
        &mut self,
        client: impl Future<Output = anyhow::Result<Histogram<u64>>> + 'static,
    ) {
        self.running.push(self.tasks.spawn_local(client));
    }

    /// Runs all clients to their end, and merges their latencies.
    pub(crate) async fn latencies(self) -> anyhow::Result<Histogram<u64>> {
        let mut latencies = histogram()?;
        let all = async {
            for client in self.running {
                latencies.add(client.await??)?;
            }
            anyhow::Ok(())
        };
        self.tasks.run_until(all).await?;
        Ok(latencies)
    }
}

impl Load<'_> {
    /// A row of `count` operations that took `time` in all.
    pub(crate) fn row(
        &self,
        what: &'static str,
        count: u64,
        time: Duration,
        latencies: &Histogram<u64>,
        cpu_before: Option<Duration>,
    ) -> Row {
        let ms = |quantile| latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        let cpu = self.target.cpu().zip(cpu_before).map(|(after, before)| after - before);
        Row {
            what,
            per_second: count as f64 / time.as_secs_f64(),
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            max_ms: latencies.max() as f64 / 1_000.0,
            server_cpu_us: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / count.max(1) as f64),
            server_rss_mib: self.target.rss().map(|bytes| bytes as f64 / f64::from(1 << 20)),
            note: String::new(),
        }
    }

    /// The row of a start.
    fn started(&self) -> Row {
        let ms = self.target.ready.as_secs_f64() * 1_000.0;
        Row {
            what: "start",
            per_second: 1_000.0 / ms.max(0.001),
            p50_ms: ms,
            p99_ms: ms,
            max_ms: ms,
            server_cpu_us: None,
            server_rss_mib: self.target.rss().map(|bytes| bytes as f64 / f64::from(1 << 20)),
            note: "from the start of the process to ready, on an empty directory".to_owned(),
        }
    }

    /// The body of one task.
    pub(crate) fn task(&self, command: &str) -> String {
        let payload = "x".repeat(self.args.payload.saturating_sub(8));
        format!(r#"{{"command":"{command}","payload":{{"a":"{payload}"}}}}"#)
    }

    /// The body of a batch of tasks.
    pub(crate) fn tasks(&self, command: &str, count: usize) -> String {
        format!(r#"{{"tasks":[{}]}}"#, vec![self.task(command); count].join(","))
    }
}
