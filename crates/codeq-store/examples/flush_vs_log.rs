//! Measures how checkpoints affect the log's syncs on the same device.
//!
//! `cargo run --release -p codeq-store --example flush_vs_log -- [directory] [seconds] [rounds] [MiB between syncs]`
//!
//! One thread writes groups of 4 to 40 KiB to a file that has been written before, as the log does, and syncs each. A
//! second thread fills memtables. Rounds alternate: in one, the memtables are discarded ("without checkpoints"); in the
//! next, they are flushed one after the other, 64 MiB each ("with checkpoints"). (Without a second thread, the first
//! one's CPU goes to sleep during syncs, and a sync takes 3.6 ms on a virtual machine instead of 0.3 ms: that would
//! make checkpoints look good.) Prints the medians over the rounds.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use codeq_core::kv::{Key, Kv, Table};
use codeq_disk::RealDisk;
use codeq_store::{Options, Store};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LOG: u64 = 64 << 20;
const MEMTABLE: usize = 64 << 20;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or_else(|| "/tmp".into()));
    let seconds: f64 = args.next().map_or(Ok(5.0), |n| n.parse())?;
    let rounds: usize = args.next().map_or(Ok(3), |n| n.parse())?;
    let mut options = Options::default();
    if let Some(mib) = args.next() {
        options.sync_every = mib.parse::<u64>()? << 20;
    }
    let path = dir.join(format!("flush-vs-log-{}", std::process::id()));
    let log_path = path.with_extension("log");
    let log = std::fs::File::create(&log_path)?;
    let block = vec![1; 1 << 20];
    for offset in (0..LOG).step_by(block.len()) {
        log.write_all_at(&block, offset)?;
    }
    log.sync_all()?;

    let mut store = Store::create(Arc::new(RealDisk), &path, options)?;
    let mut next = 0;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (latencies, _) = round(&log, seconds, fill_until)?;
        without.push(latencies);
        let (latencies, times) =
            round(&log, seconds, |stop| flush_until(&mut store, &mut next, stop))?;
        println!("{} flushes, median {:.2} s", times.len(), median(times));
        with.push(latencies);
    }
    report("without checkpoints", &without);
    report("with checkpoints   ", &with);
    drop(store);
    remove(&path)?;
    remove(&log_path)
}

/// Runs the log on this thread and `work` on another. Returns the log's latencies and the result of `work`.
fn round(
    log: &std::fs::File,
    seconds: f64,
    work: impl FnOnce(&AtomicBool) -> Result<Vec<f64>> + Send,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&stop));
        let latencies = log_round(log, seconds);
        stop.store(true, Ordering::Relaxed);
        let times = worker.join().map_err(|_| "the worker panicked")??;
        Ok((latencies?, times))
    })
}

/// Only fills memtables.
fn fill_until(stop: &AtomicBool) -> Result<Vec<f64>> {
    while !stop.load(Ordering::Relaxed) {
        let mut store = codeq_store::MemStore::new();
        for key in 0..10_000 {
            store.insert(Table::Body, key, Bytes::from(vec![7; 330]));
        }
    }
    Ok(Vec::new())
}

/// Fills and flushes memtables one after the other, at least one.
fn flush_until(store: &mut Store, next: &mut Key, stop: &AtomicBool) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    loop {
        while store.active_bytes() < MEMTABLE {
            store.insert(Table::Body, *next, Bytes::from(vec![7; 330]));
            store.insert(Table::Task, *next, Bytes::from(vec![9; 250]));
            store.insert(Table::Pending, *next, Bytes::new());
            store.insert(Table::Timer, *next << 64, Bytes::new());
            // Retention runs some 400,000 tasks behind.
            if let Some(old) = next.checked_sub(400_000) {
                for table in [Table::Body, Table::Task, Table::Pending] {
                    store.delete(table, old);
                }
                store.delete(Table::Timer, old << 64);
            }
            *next += 1;
        }
        let job = store.freeze(0).ok_or("a job is out")?;
        let start = Instant::now();
        let mut flushed = job.run();
        times.push(start.elapsed().as_secs_f64());
        store.take_back(&mut flushed)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(times);
        }
    }
}

/// The latencies of the log's groups in µs, sorted.
fn log_round(log: &std::fs::File, seconds: f64) -> Result<Vec<f64>> {
    let mut latencies = Vec::new();
    let group = vec![2; 40 << 10];
    let (mut offset, mut turn) = (0, 0usize);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        turn += 1;
        let len = (4 << 10) * (1 + turn * 7 % 10);
        let start = Instant::now();
        log.write_all_at(group.get(..len).unwrap_or(&group), offset)?;
        log.sync_data()?;
        latencies.push(start.elapsed().as_secs_f64() * 1e6);
        offset = (offset + len as u64) % (LOG - (40 << 10));
        // The log sometimes waits for commands: at most one sync per millisecond.
        std::thread::sleep(Duration::from_micros(300));
    }
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}

fn report(name: &str, rounds: &[Vec<f64>]) {
    let at = |share: f64| {
        let pick = |round: &Vec<f64>| {
            let place = (round.len() as f64 * share) as usize;
            round.get(place.min(round.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        median(rounds.iter().map(pick).collect())
    };
    let count: usize = rounds.iter().map(Vec::len).sum();
    println!(
        "{name}: p50 {:.0} µs, p99 {:.0}, p99.9 {:.0}, {count} groups",
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn remove(path: &Path) -> Result<()> {
    Ok(std::fs::remove_file(path)?)
}
