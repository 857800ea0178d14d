//! `codeq bench scenarios`: long queues, long runs, many timers, checkpoints.

use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use codeq_core::settings::Settings;
use codeq_engine::{Engine, Options};
use hdrhistogram::Histogram;

use super::cycle::{Load, runtime};
use super::process::{machine, peak_rss, rss};

const BATCH: usize = 500;
const MIB: f64 = 1_048_576.0;

#[derive(Parser)]
#[command(
    after_help = "Example:\n  codeq bench scenarios backlog --backlog 1000000 --dir /var/lib/codeq"
)]
pub struct Args {
    /// Scenarios to run; all by default.
    #[arg(value_enum)]
    names: Vec<Name>,
    /// Tasks waiting in `backlog`.
    #[arg(long, default_value_t = 10_000_000)]
    backlog: usize,
    /// Tasks that pass through one queue in `churn`.
    #[arg(long, default_value_t = 5_000_000)]
    churn: u64,
    /// Tasks that stay in the store during `churn`.
    #[arg(long, default_value_t = 1_000_000)]
    live: usize,
    /// Tasks that come due together in `delayed`.
    #[arg(long, default_value_t = 1_000_000)]
    delayed: usize,
    /// Directory on the disk to measure; the data goes into a temporary directory inside it.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Internal: fill this directory and wait to be killed.
    #[arg(long, hide = true)]
    fill: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Millions of tasks waiting: memory, start after kill -9, claim latency.
    Backlog,
    /// Millions of tasks through one queue: does it slow down, is disk space freed.
    Churn,
    /// A million delayed tasks due in one second: none early, no other operation stalled.
    Delayed,
    /// Operation latency with and without checkpoints.
    Checkpoints,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(dir) = &args.fill {
        return fill_and_wait(dir, args.backlog);
    }
    println!("{}", machine());
    let all = [Name::Checkpoints, Name::Delayed, Name::Churn, Name::Backlog];
    for name in all.into_iter().filter(|name| args.names.is_empty() || args.names.contains(name)) {
        let dir = tempfile::Builder::new().prefix("codeq-bench-").tempdir_in(&args.dir)?;
        match name {
            Name::Backlog => backlog(args, &dir.path().join("data"))?,
            Name::Churn => churn(args, &dir.path().join("data"))?,
            Name::Delayed => delayed(args, &dir.path().join("data"))?,
            Name::Checkpoints => checkpoints(dir.path())?,
        }
    }
    Ok(())
}

fn open(dir: &Path, retention: u64) -> anyhow::Result<Arc<Engine>> {
    let settings = Settings { retention, ..Settings::default() };
    Ok(Arc::new(Engine::open(dir, Options { settings, ..Options::default() })?))
}

/// Enqueues many tasks, several batches at a time.
async fn fill(load: &Load, count: usize, run_at: Option<u64>) -> anyhow::Result<()> {
    let mut batches = tokio::task::JoinSet::new();
    for n in 0..count.div_ceil(BATCH) {
        let load = load.clone();
        let size = BATCH.min(count - n * BATCH);
        batches.spawn(async move { load.enqueue_at(size, run_at, n as u64).await });
        if batches.len() >= 8
            && let Some(done) = batches.join_next().await
        {
            done??;
        }
    }
    while let Some(done) = batches.join_next().await {
        done??;
    }
    Ok(())
}

async fn claim_latency(load: &Load, claims: usize) -> anyhow::Result<Histogram<u64>> {
    let mut latency = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3)?;
    for _ in 0..claims {
        let start = Instant::now();
        let claimed = load.claim(1).await?;
        latency.saturating_record(start.elapsed().as_micros() as u64);
        ensure!(claimed.len() == 1, "nothing to claim");
    }
    Ok(latency)
}

fn fill_and_wait(dir: &Path, count: usize) -> anyhow::Result<()> {
    let engine = open(dir, 86_400_000)?;
    let load = Load::new(engine, 256);
    let start = Instant::now();
    runtime()?.block_on(fill(&load, count, None))?;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    println!("filled {rate:.0} {} {}", rss(), peak_rss());
    loop {
        std::thread::park();
    }
}

fn backlog(args: &Args, dir: &Path) -> anyhow::Result<()> {
    let mut child = Process::new(std::env::current_exe()?)
        .args(["bench", "scenarios", "--backlog", &args.backlog.to_string(), "--fill"])
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let output = child.stdout.take().context("no output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)?;
    child.kill()?;
    child.wait()?;
    let mut fields = line.split_whitespace().skip(1).map(str::parse::<f64>);
    let mut field = || fields.next().context("the filling process failed")?.context("bad number");
    let (rate, rss_full, peak) = (field()?, field()?, field()?);
    let start = Instant::now();
    let engine = open(dir, 86_400_000)?;
    let load = Load::new(Arc::clone(&engine), 256);
    let (ready, long) = runtime()?.block_on(async {
        ensure!(load.claim(1).await?.len() == 1, "nothing to claim");
        let ready = start.elapsed();
        anyhow::Ok((ready, claim_latency(&load, 5_000).await?))
    })?;
    let short_queue = Load { command: "short".into(), ..load.clone() };
    let short = runtime()?.block_on(async {
        fill(&short_queue, 6_000, None).await?;
        claim_latency(&short_queue, 5_000).await
    })?;
    println!(
        "backlog: {} tasks pending; enqueued {rate:.0}/s; rss {:.0} MiB (peak {:.0}), after restart {:.0} MiB",
        args.backlog,
        rss_full / MIB,
        peak / MIB,
        rss() as f64 / MIB
    );
    println!("backlog: ready {:.2} s after kill -9 (first task claimed)", ready.as_secs_f64());
    println!(
        "backlog: claim p50/p99 {}/{} us with {} pending, {}/{} us with 1,000 to 6,000 pending ({:.2}x at p99)",
        long.value_at_quantile(0.5),
        long.value_at_quantile(0.99),
        args.backlog,
        short.value_at_quantile(0.5),
        short.value_at_quantile(0.99),
        long.value_at_quantile(0.99) as f64 / short.value_at_quantile(0.99) as f64
    );
    Ok(())
}

fn churn(args: &Args, dir: &Path) -> anyhow::Result<()> {
    let retention = 2_000;
    let engine = open(dir, retention)?;
    let load = Load::new(Arc::clone(&engine), 256);
    let live = Load { command: "live".into(), ..load.clone() };
    runtime()?.block_on(fill(&live, args.live, None))?;
    engine.checkpoint()?;
    let mut rates = Vec::new();
    let (mut done, mut segment, mut begun) = (0, 0, Instant::now());
    let mut highest = 0;
    while done < args.churn {
        let measured = load.closed(1_024, Duration::from_millis(500))?;
        done += measured.cycles;
        segment += measured.cycles;
        highest = highest.max(directory_bytes(dir));
        if segment >= args.churn / 10 {
            rates.push(segment as f64 / begun.elapsed().as_secs_f64());
            (segment, begun) = (0, Instant::now());
        }
    }
    let (first, last) =
        (rates.first().copied().unwrap_or(0.0), rates.last().copied().unwrap_or(0.0));
    println!(
        "churn: {done} tasks; first tenth {first:.0} cycles/s, last tenth {last:.0} cycles/s ({:.2}x slower)",
        first / last.max(1.0)
    );
    // Waits until the sweep has removed all finished tasks, and then until checkpoints and rewrites have freed their space.
    let start = Instant::now();
    let finished = |engine: &Arc<Engine>| {
        let queue = runtime()?.block_on(engine.queue("bench", "bench"))?;
        anyhow::Ok(queue.map_or(0, |queue| queue.counts.completed))
    };
    while finished(&engine)? > 0 && start.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let removed = start.elapsed();
    let settled = Instant::now();
    let mut store = u64::MAX;
    while settled.elapsed() < Duration::from_secs(120) {
        engine.checkpoint()?;
        store = engine.stats().store_bytes;
        if store < engine.stats().live_bytes * 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let stats = engine.stats();
    println!(
        "churn: retention {:.1} s behind the last completion; store {:.0} MiB for {:.0} MiB of rows ({:.2}x), directory {:.0} MiB with the log (highest {:.0} MiB); rss {:.0} MiB",
        removed.as_secs_f64(),
        store as f64 / MIB,
        stats.live_bytes as f64 / MIB,
        store as f64 / stats.live_bytes as f64,
        directory_bytes(dir) as f64 / MIB,
        highest as f64 / MIB,
        rss() as f64 / MIB
    );
    Ok(())
}

fn delayed(args: &Args, dir: &Path) -> anyhow::Result<()> {
    let engine = open(dir, 86_400_000)?;
    let load = Load::new(Arc::clone(&engine), 256);
    // Far enough ahead that all of them are in before the first is due.
    let lead = 5_000 + args.delayed as u64 / 20;
    let due = engine.wall() + lead;
    let due = due - due % 1_000;
    let start = Instant::now();
    runtime()?.block_on(fill(&load, args.delayed, Some(due)))?;
    let filled = start.elapsed();
    ensure!(
        engine.wall() < due,
        "the machine is too slow: tasks came due while they were enqueued"
    );
    let stop = Arc::new(AtomicBool::new(false));
    let slowest = Arc::new(AtomicU64::new(0));
    let other = Load { command: "other".into(), ..load.clone() };
    let (others, early) = std::thread::scope(|scope| {
        let probe = scope.spawn(|| {
            runtime()?.block_on(async {
                let mut latency = Histogram::<u64>::new_with_bounds(1, 60_000_000, 3)?;
                let mut seed = 0;
                while !stop.load(Ordering::Acquire) {
                    seed += 1;
                    let begun = Instant::now();
                    other.enqueue(1, seed).await?;
                    let took = begun.elapsed().as_micros() as u64;
                    latency.saturating_record(took);
                    slowest.fetch_max(took, Ordering::AcqRel);
                }
                anyhow::Ok(latency)
            })
        });
        let watched = runtime().and_then(|runtime| {
            runtime.block_on(async {
                let mut early = 0;
                loop {
                    let queue = engine.queue("bench", "bench").await?.context("no queue")?;
                    let now = engine.wall();
                    if now < due {
                        early += queue.counts.ready();
                    }
                    if queue.counts.delayed == 0 {
                        return Ok((early, now.saturating_sub(due)));
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
        });
        stop.store(true, Ordering::Release);
        let others = probe.join().map_err(|_| anyhow::anyhow!("the probe failed"))??;
        anyhow::Ok((others, watched?))
    })?;
    let (early, drained) = early;
    println!(
        "delayed: {} tasks enqueued in {:.1} s, due in the same second; {early} early; all claimable {drained} ms after; other operations meanwhile p50 {} us, p99 {} us, slowest {:.1} ms",
        args.delayed,
        filled.as_secs_f64(),
        others.value_at_quantile(0.5),
        others.value_at_quantile(0.99),
        slowest.load(Ordering::Acquire) as f64 / 1_000.0
    );
    Ok(())
}

fn checkpoints(dir: &Path) -> anyhow::Result<()> {
    const ROUNDS: usize = 5;
    let measure = |round: usize, with: bool| {
        let options = Options {
            memtable_bytes: if with { Options::default().memtable_bytes } else { usize::MAX / 8 },
            checkpoint_log_bytes: if with {
                Options::default().checkpoint_log_bytes
            } else {
                u64::MAX
            },
            ..Options::default()
        };
        let engine = Arc::new(Engine::open(&dir.join(format!("{round}-{with}")), options)?);
        let load = Load::new(Arc::clone(&engine), 256);
        load.closed(256, Duration::from_millis(500))?;
        let before = engine.stats().live_bytes;
        let measured = load.closed(256, Duration::from_secs(4))?;
        let wrote = engine.stats().live_bytes != before;
        ensure!(wrote == with, "checkpoints did not happen as wanted: {with}");
        anyhow::Ok([0.5, 0.99, 0.999].map(|q| measured.operations.value_at_quantile(q)))
    };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        without.push(measure(round, false)?);
        with.push(measure(round, true)?);
    }
    let median = |rows: &[[u64; 3]], at: usize| {
        let mut values: Vec<u64> = rows.iter().filter_map(|row| row.get(at).copied()).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or(0)
    };
    for (at, name) in ["p50", "p99", "p99.9"].into_iter().enumerate() {
        let (with, without) = (median(&with, at), median(&without, at));
        println!(
            "checkpoints: operation {name} {with} us with, {without} us without ({:.2}x), medians of {ROUNDS} alternating runs, 256 in flight",
            with as f64 / without as f64
        );
    }
    Ok(())
}

fn directory_bytes(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::io::Result<std::fs::DirEntry>| {
        let Ok(entry) = entry else { return 0 };
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => directory_bytes(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        }
    };
    entries.map(size).sum()
}
