//! `codeq bench engine`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use codeq_core::settings::Settings;
use codeq_engine::{Engine, Options};
use hdrhistogram::Histogram;

use super::bare::Bare;
use super::cycle::Load;
use super::process::{cpu_of, machine, rss};

#[derive(Parser)]
#[command(
    after_help = "Example:\n  codeq bench engine --in-flight 1,64,256 --seconds 2 --dir /var/lib/codeq"
)]
pub struct Args {
    /// Cycles in flight; one row per value.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256,1024,4096")]
    in_flight: Vec<usize>,
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
    /// Runs per row; the row shows the run with the median rate.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Keep finished tasks this long, in milliseconds. A short time makes their removal part of the measurement.
    #[arg(long, default_value_t = 86_400_000)]
    retention_ms: u64,
    /// Directory on the disk to measure; the data goes into a temporary directory inside it.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Durability {
    Fsync,
    Os,
}

struct Row {
    in_flight: usize,
    cycles_per_second: f64,
    bare_cycles_per_second: f64,
    operations: Histogram<u64>,
    cycles: Histogram<u64>,
    cpu_us_per_cycle: f64,
    log_bytes_per_cycle: f64,
    operations_per_sync: f64,
    rss_mib: f64,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    println!("{}", machine());
    println!(
        "in flight   cycles/s       bare  ratio   op p50   op p99 op p99.9  cyc p50  cyc p99  cpu us   log B ops/syn rss MiB"
    );
    for in_flight in &args.in_flight {
        let row = median(args, *in_flight)?;
        let (cycles, bare) = (row.cycles_per_second, row.bare_cycles_per_second);
        println!(
            "{:>9} {cycles:>10.0} {bare:>10.0} {:>6.2} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7.1} {:>7.0} {:>7.1} {:>7.0}",
            row.in_flight,
            cycles / bare,
            row.operations.value_at_quantile(0.5),
            row.operations.value_at_quantile(0.99),
            row.operations.value_at_quantile(0.999),
            row.cycles.value_at_quantile(0.5),
            row.cycles.value_at_quantile(0.99),
            row.cpu_us_per_cycle,
            row.log_bytes_per_cycle,
            row.operations_per_sync,
            row.rss_mib,
        );
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
    let options = Options {
        shards: Some(args.shards),
        durability: match args.durability {
            Durability::Fsync => codeq_engine::Durability::Fsync,
            Durability::Os => codeq_engine::Durability::Os,
        },
        settings: Settings { retention: args.retention_ms, ..Settings::default() },
        ..Options::default()
    };
    let engine = Arc::new(Engine::open(&dir.path().join("data"), options)?);
    let load = Load::new(Arc::clone(&engine), args.payload);
    let time = Duration::from_secs_f64(args.seconds);
    load.closed(in_flight, time / 5)?;
    let (before, cpu_before) = (engine.stats(), cpu_of("self"));
    let measured = load.closed(in_flight, time)?;
    let (stats, cpu, rss) = (engine.stats(), cpu_of("self") - cpu_before, rss());
    let cycles = measured.cycles.max(1) as f64;
    let log_bytes = (stats.log_bytes - before.log_bytes) as f64 / cycles;
    let mut limit = 0.0;
    for _ in 0..2 {
        let operation_bytes = (log_bytes / 3.0).ceil() as usize;
        limit += bare.operations_per_second(in_flight, operation_bytes, time / 8)? / 3.0 / 2.0;
    }
    drop(load);
    engine.shutdown();
    Ok(Row {
        in_flight,
        cycles_per_second: measured.rate(),
        bare_cycles_per_second: limit,
        operations: measured.operations,
        cycles: measured.full,
        cpu_us_per_cycle: cpu.as_micros() as f64 / cycles,
        log_bytes_per_cycle: log_bytes,
        operations_per_sync: cycles * 3.0 / (stats.syncs - before.syncs).max(1) as f64,
        rss_mib: rss as f64 / f64::from(1 << 20),
    })
}
