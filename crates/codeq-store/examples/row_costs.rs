//! Measures the cost of a row: CPU time to write, read, flush and delete it, memory, and the time to open a store.
//!
//! `cargo run --release -p codeq-store --example row_costs -- [directory] [tasks] [tasks per checkpoint]`
//!
//! A task is four rows: a body of 330 bytes, a state of 250 bytes, and two keys without a value. They are
//! checkpointed, and deleted again some checkpoints later, as retention does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use codeq_core::kv::{Direction, Key, Kv, KvRead, Table};
use codeq_disk::RealDisk;
use codeq_store::{Options, Store};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or_else(|| "/tmp".into()));
    let tasks: u64 = args.next().map_or(Ok(400_000), |n| n.parse())?;
    let batch: u64 = args.next().map_or(Ok(50_000), |n| n.parse())?;
    let path = dir.join(format!("row-costs-{}", std::process::id()));
    let mut store = Store::create(Arc::new(RealDisk), &path, Options::default())?;

    let mut write = Cost::default();
    let mut flush = Cost::default();
    let mut frozen = 0;
    for position in 1..=tasks / batch {
        write.time(batch, || {
            for number in (position - 1) * batch..position * batch {
                insert_task(&mut store, number);
            }
        });
        frozen = frozen.max(store.active_bytes());
        checkpoint(&mut store, position, batch, &mut flush)?;
    }
    println!("memtable        {:>8.0} ns CPU a task (4 inserts)", write.each());
    println!("flush inserts   {:>8.0} ns CPU a task (4 rows)", flush.each());
    println!("memtable size   {:>8.1} MiB counted at {batch} tasks", mib(frozen as u64));
    println!(
        "file            {:>8.1} MiB, {:.1} live",
        mib(store.disk_bytes()),
        mib(store.live_bytes())
    );

    let mut get = Cost::default();
    let mut found = 0;
    get.time(200_000, || {
        for i in 0..200_000u64 {
            let key = Key::from((i * 7919) % tasks);
            found += usize::from(matches!(store.get(Table::Body, key), Ok(Some(_))));
        }
    });
    println!("get, any row    {:>8.0} ns CPU ({found} found)", get.each());
    let mut near = Cost::default();
    near.time(200_000, || {
        for i in 0..200_000u64 {
            let key = Key::from(tasks - 1 - i % 20_000);
            found += usize::from(matches!(store.get(Table::Task, key), Ok(Some(_))));
        }
    });
    println!("get, cached     {:>8.0} ns CPU", near.each());
    let mut scan = Cost::default();
    let mut out = Vec::new();
    scan.time(50_000, || {
        for i in 0..50_000u64 {
            out.clear();
            let from = Key::from(tasks - 1 - i % 20_000);
            let _ = store.scan(Table::Pending, from, Key::MAX, Direction::Forward, 1, &mut out);
        }
    });
    println!("scan, one row   {:>8.0} ns CPU", scan.each());
    println!("memory          {}", memory()?);

    drop(store);
    let start = Instant::now();
    let mut store = Store::open(Arc::new(RealDisk), &path, Options::default())?;
    println!("open            {:>8.1} ms", start.elapsed().as_secs_f64() * 1e3);

    let size = mib(store.disk_bytes());
    let start = Instant::now();
    codeq_store::check(&(Arc::new(RealDisk) as codeq_disk::SharedDisk), &path)?;
    let each = start.elapsed().as_secs_f64() * 1e3 * 100.0 / size;
    println!("verify          {each:>8.0} ms for 100 MiB ({size:.0} MiB)");

    let mut delete = Cost::default();
    for position in 1..=tasks / batch {
        for number in (position - 1) * batch..position * batch {
            delete_task(&mut store, number);
        }
        checkpoint(&mut store, position + tasks / batch, batch, &mut delete)?;
    }
    println!("flush deletes   {:>8.0} ns CPU a task (4 rows, in order)", delete.each());

    let start = Instant::now();
    let mut steps = 0;
    while let Some(job) = store.maintain() {
        store.take_back(&mut job.run())?;
        steps += 1;
    }
    let millis = start.elapsed().as_secs_f64() * 1e3;
    println!(
        "maintenance     {steps} steps, {millis:.0} ms, file {:.1} MiB",
        mib(store.disk_bytes())
    );
    println!("memory          {}", memory()?);
    drop(store);
    std::fs::remove_file(path)?;
    Ok(())
}

fn insert_task(store: &mut Store, number: u64) {
    let key = Key::from(number);
    store.insert(Table::Body, key, Bytes::from(vec![7; 330]));
    store.insert(Table::Task, key, Bytes::from(vec![9; 250]));
    store.insert(Table::Pending, key, Bytes::new());
    store.insert(Table::Timer, key << 64 | key, Bytes::new());
}

fn delete_task(store: &mut Store, number: u64) {
    let key = Key::from(number);
    store.delete(Table::Body, key);
    store.delete(Table::Task, key);
    store.delete(Table::Pending, key);
    store.delete(Table::Timer, key << 64 | key);
}

fn checkpoint(store: &mut Store, position: u64, tasks: u64, cost: &mut Cost) -> Result<()> {
    let job = store.freeze(position).ok_or("a job is out")?;
    let mut flushed = cost.time(tasks, || job.run());
    store.take_back(&mut flushed)?;
    Ok(())
}

/// CPU time of this thread, divided by a number of operations.
#[derive(Default)]
struct Cost {
    nanos: u64,
    things: u64,
}

impl Cost {
    fn time<T>(&mut self, things: u64, work: impl FnOnce() -> T) -> T {
        let before = thread_cpu();
        let value = work();
        self.nanos += thread_cpu() - before;
        self.things += things;
        value
    }

    fn each(&self) -> f64 {
        self.nanos as f64 / self.things as f64
    }
}

fn thread_cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or_default()
}

fn memory() -> Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let lines =
        status.lines().filter(|line| line.starts_with("VmHWM") || line.starts_with("VmRSS"));
    Ok(lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join(", "))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}
