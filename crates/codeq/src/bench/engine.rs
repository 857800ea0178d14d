//! `codeq bench engine`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use codeq_core::settings::Settings;
use codeq_engine::{Engine, Options};
use serde::Serialize;

use super::bare::Bare;
use super::cycle::{Load, Measured};
use super::process::{Usage, machine, peak_rss, rss};

#[derive(Parser)]
#[command(
    after_help = "Example: codeq bench engine --in-flight 1,64,256 --seconds 2 --dir /var/lib/codeq"
)]
pub struct Args {
    /// Cycles in flight; one row per value.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256,1024,4096")]
    in_flight: Vec<usize>,
    /// Start this many cycles per second instead (open loop, latency from the moment each was due).
    #[arg(long)]
    rate: Option<u64>,
    /// Payload size in bytes.
    #[arg(long, default_value_t = 256)]
    payload: usize,
    /// Number of shards.
    #[arg(long, default_value_t = 1)]
    shards: u16,
    /// When an operation is acknowledged.
    #[arg(long, default_value = "fsync")]
    durability: Durability,
    /// Seconds per row.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Runs per row; the row is the run with the median rate.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Keep finished tasks this long, in milliseconds. A short time makes their removal part of the measurement.
    #[arg(long, default_value_t = 86_400_000)]
    retention_ms: u64,
    /// Checkpoint when unwritten rows take this many MiB.
    #[arg(long)]
    memtable_mib: Option<usize>,
    /// Directory on the disk to measure; the data goes into a temporary directory inside it.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Durability {
    Fsync,
    Os,
}

#[derive(Serialize)]
struct Report {
    machine: String,
    payload: usize,
    shards: u16,
    durability: &'static str,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    in_flight: usize,
    rate: Option<u64>,
    cycles_per_second: f64,
    bare_cycles_per_second: f64,
    ratio: f64,
    operation_p50_us: u64,
    operation_p99_us: u64,
    operation_p999_us: u64,
    cycle_p50_us: u64,
    cycle_p99_us: u64,
    cycle_p999_us: u64,
    cpu_us_per_cycle: f64,
    log_bytes_per_cycle: f64,
    disk_bytes_per_cycle: f64,
    operations_per_sync: f64,
    rss_mib: f64,
    peak_rss_mib: f64,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let header = !args.json;
    if header {
        println!("{}", machine());
        println!(
            "{:>9} {:>10} {:>10} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7}",
            "in flight",
            "cycles/s",
            "bare",
            "ratio",
            "op p50",
            "op p99",
            "op p99.9",
            "cyc p50",
            "cyc p99",
            "cpu us",
            "log B",
            "ops/syn",
            "rss MiB"
        );
    }
    for in_flight in &args.in_flight {
        let row = median(args, *in_flight)?;
        if header {
            println!(
                "{:>9} {:>10.0} {:>10.0} {:>6.2} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7.1} {:>7.0} {:>7.1} {:>7.0}",
                row.in_flight,
                row.cycles_per_second,
                row.bare_cycles_per_second,
                row.ratio,
                row.operation_p50_us,
                row.operation_p99_us,
                row.operation_p999_us,
                row.cycle_p50_us,
                row.cycle_p99_us,
                row.cpu_us_per_cycle,
                row.log_bytes_per_cycle,
                row.operations_per_sync,
                row.rss_mib,
            );
        }
        rows.push(row);
    }
    if args.json {
        let durability = match args.durability {
            Durability::Fsync => "fsync",
            Durability::Os => "os",
        };
        let (payload, shards) = (args.payload, args.shards);
        let report = Report { machine: machine(), payload, shards, durability, rows };
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    Ok(())
}

fn median(args: &Args, in_flight: usize) -> anyhow::Result<Row> {
    let rounds = args.rounds.max(1);
    let rows: anyhow::Result<Vec<Row>> = (0..rounds).map(|_| measure(args, in_flight)).collect();
    let mut rows = rows?;
    rows.sort_by(|a, b| a.cycles_per_second.total_cmp(&b.cycles_per_second));
    Ok(rows.swap_remove(rounds / 2))
}

fn measure(args: &Args, in_flight: usize) -> anyhow::Result<Row> {
    let dir = tempfile::Builder::new().prefix("codeq-bench-").tempdir_in(&args.dir)?;
    let mut bare = Bare::new(dir.path())?;
    let mut options = Options {
        shards: Some(args.shards),
        durability: match args.durability {
            Durability::Fsync => codeq_engine::Durability::Fsync,
            Durability::Os => codeq_engine::Durability::Os,
        },
        settings: Settings { retention: args.retention_ms, ..Settings::default() },
        ..Options::default()
    };
    if let Some(mib) = args.memtable_mib {
        options.memtable_bytes = mib << 20;
    }
    let engine = Arc::new(Engine::open(&dir.path().join("data"), options)?);
    let load = Load::new(Arc::clone(&engine), args.payload);
    let time = Duration::from_secs_f64(args.seconds);
    let run = |time| match args.rate {
        Some(rate) => load.open(rate, time),
        None => load.closed(in_flight, time),
    };
    run(time / 5)?;
    // The bare rate before and after: the machine's speed may change during the run.
    let bytes_before = engine.stats();
    let usage = Usage::now();
    let measured = run(time)?;
    let used = Usage::now();
    let stats = engine.stats();
    let (rss, peak) = (rss(), peak_rss());
    let cycles = measured.cycles.max(1) as f64;
    let log_bytes = (stats.log_bytes - bytes_before.log_bytes) as f64 / cycles;
    let mut limit = 0.0;
    for _ in 0..2 {
        let operation_bytes = (log_bytes / 3.0).ceil() as usize;
        limit += bare.operations_per_second(in_flight, operation_bytes, time / 8)? / 3.0 / 2.0;
    }
    drop(load);
    engine.shutdown();
    let Measured { operations, full, .. } = &measured;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    Ok(Row {
        in_flight,
        rate: args.rate,
        cycles_per_second: measured.rate(),
        bare_cycles_per_second: limit,
        ratio: measured.rate() / limit,
        operation_p50_us: operations.value_at_quantile(0.5),
        operation_p99_us: operations.value_at_quantile(0.99),
        operation_p999_us: operations.value_at_quantile(0.999),
        cycle_p50_us: full.value_at_quantile(0.5),
        cycle_p99_us: full.value_at_quantile(0.99),
        cycle_p999_us: full.value_at_quantile(0.999),
        cpu_us_per_cycle: (used.cpu - usage.cpu).as_micros() as f64 / cycles,
        log_bytes_per_cycle: log_bytes,
        disk_bytes_per_cycle: (used.written - usage.written) as f64 / cycles,
        operations_per_sync: cycles * 3.0 / (stats.syncs - bytes_before.syncs).max(1) as f64,
        rss_mib: mib(rss),
        peak_rss_mib: mib(peak),
    })
}
