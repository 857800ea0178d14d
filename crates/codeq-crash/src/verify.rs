//! Opens a directory after a crash and compares it with the ledger.
//!
//! The expectations are stored next to the ledger, so that each cycle only adds its own part. Unless a clean shutdown is
//! requested, the process ends without one, so that the next cycle does not always begin with a fresh checkpoint.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use codeq_core::command::{
    BulkFilter, BulkFrom, BulkPart, BulkWork, Callback, Claim, Command, Delivery, Enqueue, Millis,
    NewTask, Outcome, Selector, Submit,
};
use codeq_core::id::ShardId;
use codeq_core::limits::{BULK_LOOK_MAX, BULK_TAKE_MAX};
use codeq_core::reply::Reply;
use codeq_disk::RealDisk;
use codeq_engine::clock::Clock;
use codeq_engine::{Call, Engine};
use codeq_sim::ledger::digest;
use codeq_sim::rng::Rng;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::client::{Client, runtime};
use crate::expectations::Expectations;
use crate::held_clock::HeldClock;
use crate::judge::{check_structure, judge, list_all};
use crate::ledger;
use crate::setup::{Setup, TENANTS, command, payload};

/// Number of keys that each verification uses again.
const KEYS_TRIED: usize = 200;
/// Time limit for a drain: the last leases end after two seconds, retry delays after 0.2 s.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);
/// Clients of a drain.
const DRAINERS: usize = 16;

/// Settings of a verification.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verify {
    /// The engine to open.
    pub setup: Setup,
    /// When the power was cut: answers at this time or later count as unknown.
    pub cut: Option<u64>,
    /// Finish, recount and remove all tasks.
    pub drain: bool,
    /// Shut the engine down at the end.
    pub clean: bool,
}

/// Outcome of a verification.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    /// What is wrong.
    pub violations: Vec<String>,
    /// Operations acknowledged so far.
    pub acked: u64,
    /// Operations so far whose outcome is unknown.
    pub unknown: u64,
    /// Tasks in the engine.
    pub tasks: usize,
    /// How long opening took.
    pub open_ms: u64,
    /// How long the first write took afterwards.
    pub first_write_ms: u64,
}

/// Verifies. Returns the engine, so that the caller decides how it ends.
pub fn run(verify: &Verify) -> anyhow::Result<(Report, Engine)> {
    let setup = &verify.setup;
    let runtime = runtime()?;
    let path = setup.ledger_dir.join("expectations");
    let mut expected = match fs::read(&path) {
        Ok(bytes) => postcard::from_bytes(&bytes).context("parse the expectations")?,
        Err(_) => Expectations::default(),
    };
    let clock = HeldClock::new();
    let start = Instant::now();
    let shared: Arc<dyn Clock> = clock.clone();
    let disk = Arc::new(RealDisk);
    let engine = Engine::open_with(disk, &setup.data_dir, setup.options(), shared, setup.seed)
        .context("verify: the engine does not open")?;
    let mut report = Report { open_ms: start.elapsed().as_millis() as u64, ..Report::default() };
    expected.add(&ledger::load(&setup.cycle_dir(), verify.cut)?);
    let now = settled(&engine, &runtime)?;
    let shown = list_all(&engine, &runtime)?;
    report.tasks = shown.len();
    report.violations = judge(&mut expected, &shown, now);
    report.violations.extend(check_structure(&engine, &runtime, &shown)?);
    drop(shown);
    clock.release();
    let start = Instant::now();
    let dir = setup.cycle_dir().join("verify");
    write_again(&engine, setup, &expected, dir.clone(), &mut report, start)?;
    expected.add(&ledger::load(&dir, None)?);
    report.violations.append(&mut expected.wrong);
    if verify.drain {
        drain(&engine, &runtime, setup, &mut expected, &mut report)?;
    }
    (report.acked, report.unknown) = (expected.acked, expected.unknown);
    fs::write(&path, postcard::to_allocvec(&expected)?)?;
    Ok((report, engine))
}

/// Waits until the shards have done everything that was due when the clock was stopped.
fn settled(engine: &Engine, runtime: &Runtime) -> anyhow::Result<Millis> {
    let limit = Instant::now() + Duration::from_secs(60);
    let now = engine.now();
    for shard in ShardId::all(engine.shards()) {
        while runtime.block_on(engine.read(shard, |reader| Ok(reader.state.is_due(now))))? {
            if Instant::now() > limit {
                bail!("shard {shard} does not finish what is due; it is {now:?}");
            }
            std::thread::yield_now();
        }
    }
    Ok(now.wall)
}

/// The first writes after the crash: a new task, and keys that must return the same task as before.
fn write_again(
    engine: &Engine,
    setup: &Setup,
    expected: &Expectations,
    dir: PathBuf,
    report: &mut Report,
    start: Instant,
) -> anyhow::Result<()> {
    let mut client = Client::new(engine, &dir, 0)?;
    let mut rng = Rng::new(setup.seed).fork("keys");
    let probe = format!("probe-{}", setup.cycle);
    client.ask(&enqueue(TENANTS[0], &probe, None, rng.draw()))?;
    report.first_write_ms = start.elapsed().as_millis() as u64;
    let usual: Vec<_> = expected
        .keys
        .iter()
        .filter(|((_, key), id)| {
            let own = |payload| payload == digest(&self::payload(key));
            expected.tasks.get(id).is_some_and(|known| own(known.payload))
        })
        .collect();
    for _ in 0..KEYS_TRIED.min(usual.len()) {
        let Some(((tenant, key), _)) = rng.pick(&usual) else {
            break;
        };
        // If a key returns a different task than before, reading the ledger shows it.
        client.ask(&enqueue(tenant, key, Some(key), rng.draw()))?;
    }
    Ok(())
}

fn enqueue(tenant: &str, label: &str, key: Option<&str>, seed: u64) -> Command {
    Command::Enqueue(Enqueue {
        tenant: tenant.into(),
        tasks: vec![NewTask {
            command: command(label),
            payload: payload(label),
            idempotency_key: key.map(Arc::from),
            ..NewTask::default()
        }],
        atomic: true,
        seed,
    })
}

/// Finishes every task, checks that all of them have ended, and removes them.
fn drain(
    engine: &Engine,
    runtime: &Runtime,
    setup: &Setup,
    expected: &mut Expectations,
    report: &mut Report,
) -> anyhow::Result<()> {
    let dir = setup.cycle_dir().join("drain");
    let done = AtomicBool::new(false);
    let limit = Instant::now() + DRAIN_LIMIT;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..DRAINERS)
            .map(|number| {
                let (done, dir) = (&done, &dir);
                scope.spawn(move || finish_all(engine, dir, number, done, limit))
            })
            .collect();
        clients.into_iter().try_for_each(|client| match client.join() {
            Ok(result) => result,
            Err(_) => bail!("a draining client panicked"),
        })
    })?;
    expected.add(&ledger::load(&dir, None)?);
    let shown = list_all(engine, runtime)?;
    let found = &mut report.violations;
    found.extend(judge(expected, &shown, engine.wall()));
    found.extend(check_structure(engine, runtime, &shown)?);
    for one in shown.iter().filter(|one| !one.task.place.is_terminal()) {
        let (id, place) = (one.task.id, one.task.place);
        found.push(format!("task {id} is {place:?} after a full drain"));
    }
    remove_all(engine, runtime)?;
    let left = list_all(engine, runtime)?;
    if !left.is_empty() {
        found.push(format!("{} tasks are left after a full cleanup", left.len()));
    }
    found.extend(check_structure(engine, runtime, &left)?);
    expected.close();
    Ok(())
}

fn finish_all(
    engine: &Engine,
    dir: &std::path::Path,
    number: usize,
    done: &AtomicBool,
    limit: Instant,
) -> anyhow::Result<()> {
    let mut client = Client::new(engine, dir, number)?;
    let runtime = runtime()?;
    let worker: Arc<str> = Arc::from(format!("drainer-{number}"));
    let tenant = TENANTS.get(number % TENANTS.len()).copied();
    while !done.load(Ordering::Relaxed) && Instant::now() < limit {
        let claim = Claim {
            tenant: tenant.unwrap_or_default().into(),
            worker: worker.clone(),
            from: Selector::Any,
            lease: 30_000,
            count: 32,
        };
        let tasks = client.claim(&claim, 50)?;
        if tasks.is_empty() && number == 0 && live(engine, &runtime)? == 0 {
            done.store(true, Ordering::Relaxed);
        }
        for task in tasks {
            client.ask(&Command::Submit(Submit {
                tenant: task.tenant,
                id: task.id,
                worker: worker.clone(),
                outcome: Outcome::Completed(Bytes::from_static(b"{\"drained\":true}")),
                artifacts: Vec::new(),
            }))?;
        }
    }
    Ok(())
}

fn live(engine: &Engine, runtime: &Runtime) -> Result<u64, codeq_engine::EngineError> {
    let mut live = 0;
    for tenant in TENANTS {
        for queue in runtime.block_on(engine.queues(tenant))? {
            let counts = queue.counts;
            live += counts.pending.iter().sum::<u64>() + counts.delayed + counts.in_progress;
        }
    }
    Ok(live)
}

/// Delivers the callbacks and removes all finished tasks.
fn remove_all(engine: &Engine, runtime: &Runtime) -> anyhow::Result<()> {
    for shard in ShardId::all(engine.shards()) {
        loop {
            let due = runtime.block_on(engine.callbacks_due(shard, Default::default(), 500))?;
            if due.is_empty() {
                break;
            }
            for due in due {
                let callback = runtime.block_on(engine.callback(shard, due.seq))?;
                let callback = callback.context("a callback without its task")?;
                engine.propose_blocking(Command::Callback(Callback {
                    tenant: callback.task.tenant,
                    id: callback.task.id,
                    completed_at: None,
                    delivery: Delivery::Delivered,
                }))?;
            }
        }
    }
    for tenant in TENANTS {
        for shard in ShardId::all(engine.shards()) {
            let mut next = Some(BulkFrom::default());
            while let Some(from) = next {
                let part = BulkPart {
                    tenant: tenant.into(),
                    work: BulkWork::Cleanup { expired: false },
                    filter: BulkFilter::default(),
                    from,
                    take: BULK_TAKE_MAX,
                    look: BULK_LOOK_MAX,
                    by: "verify".into(),
                };
                let part = Call::BulkPart { shard, part: Box::new(part) };
                next = match runtime.block_on(engine.call(part))? {
                    Reply::BulkPart(done) => done.next,
                    _ => None,
                };
            }
        }
    }
    Ok(())
}
