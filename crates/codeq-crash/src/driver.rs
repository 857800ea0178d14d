//! The process that gets killed: an engine, and clients that keep it busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail};
use bytes::Bytes;
use codeq_core::command::{
    Abandon, Cancel, Claim, Command, Enqueue, Heartbeat, Nack, NewTask, Outcome, Selector, Submit,
};
use codeq_core::id::TaskId;
use codeq_core::reply::{Enqueued, Reply};
use codeq_core::view::Task;
use codeq_engine::Engine;
use codeq_sim::rng::Rng;
use parking_lot::Mutex;

use crate::client::Client;
use crate::setup::{COMMANDS, LEASE_MS, Setup, TENANTS, WEBHOOK, command, payload};

/// Clients that create tasks.
const PRODUCERS: usize = 8;
/// Clients that work on them.
const WORKERS: usize = 8;
/// Number of recent ids that producers may cancel.
const RECENT: usize = 256;

/// What the clients of a run share.
struct Shared<'a> {
    setup: &'a Setup,
    /// The next idempotency key.
    next_key: AtomicU64,
    recent: Mutex<Vec<(&'static str, TaskId)>>,
}

/// Runs until it is killed, or until the engine fails.
pub fn run(setup: &Setup) -> anyhow::Result<()> {
    let engine = Engine::open(&setup.data_dir, setup.options()).context("driver: open")?;
    if setup.start_only {
        loop {
            std::thread::park();
        }
    }
    let shared = Shared { setup, next_key: AtomicU64::new(0), recent: Mutex::new(Vec::new()) };
    let dir = setup.cycle_dir();
    // This file shows that the workload has started.
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("open"), b"")?;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..PRODUCERS + WORKERS)
            .map(|number| {
                let (engine, shared, dir) = (&engine, &shared, &dir);
                scope.spawn(move || -> anyhow::Result<()> {
                    let rng = Rng::new(setup.seed ^ number as u64);
                    let mut client = Client::new(engine, dir, number)?;
                    if number < PRODUCERS {
                        produce(&mut client, shared, number, rng)
                    } else {
                        work(&mut client, number, rng)
                    }
                })
            })
            .collect();
        // They work until the end; of those that stopped early, the first in this order says why the run is over.
        let ended = clients.into_iter().map(|client| client.join());
        for ended in ended {
            if let Ok(Err(stop)) = ended {
                bail!("driver: {stop:#}");
            }
        }
        bail!("driver: the clients ended")
    })
}

fn produce(
    client: &mut Client<'_>,
    shared: &Shared<'_>,
    number: usize,
    mut rng: Rng,
) -> anyhow::Result<()> {
    // Before anything new is durable, read what recovery brought back: whatever was shown has to stay.
    for tenant in TENANTS {
        client.look(tenant, 100)?;
    }
    for round in 0_u64.. {
        let tenant = TENANTS.get(number % TENANTS.len()).copied().unwrap_or_default();
        match rng.below(100) {
            0..=9 => {
                let recent = rng.pick(&shared.recent.lock()).copied();
                if let Some((tenant, id)) = recent {
                    let by = Arc::from(format!("producer-{number}"));
                    let tenant = tenant.into();
                    client.ask(&Command::Cancel(Cancel { tenant, id, by }))?;
                }
            }
            10..=11 => client.look(tenant, 20)?,
            draw => {
                let label = format!("c{}p{number}n{round}", shared.setup.cycle);
                let tasks = match draw {
                    12..=24 => (0..rng.between(2, 20))
                        .map(|at| plain(&format!("{label}b{at}"), &mut rng))
                        .collect(),
                    25..=44 => vec![keyed(shared, &label, &mut rng)],
                    _ => vec![plain(&label, &mut rng)],
                };
                let command = Command::Enqueue(Enqueue {
                    tenant: tenant.into(),
                    tasks,
                    atomic: rng.chance(50),
                    seed: rng.draw(),
                });
                if let Some(Reply::Enqueued(made)) = client.ask(&command)? {
                    remember(shared, tenant, &made, &mut rng);
                }
            }
        }
    }
    Ok(())
}

fn remember(shared: &Shared<'_>, tenant: &'static str, made: &[Enqueued], rng: &mut Rng) {
    let mut recent = shared.recent.lock();
    for made in made {
        if let Enqueued::Created(task) = made {
            if recent.len() < RECENT {
                recent.push((tenant, task.id));
            } else if let Some(slot) = recent.get_mut(rng.below(RECENT as u64) as usize) {
                *slot = (tenant, task.id);
            }
        }
    }
}

fn plain(label: &str, rng: &mut Rng) -> NewTask {
    NewTask {
        command: command(label),
        payload: payload(label),
        priority: rng.below(10) as i32,
        max_attempts: rng.chance(30).then(|| rng.between(1, 3) as u32),
        webhook: rng.chance(20).then(|| WEBHOOK.into()),
        delay: rng.chance(10).then(|| rng.between(1, 200)),
        ..NewTask::default()
    }
}

/// A task with a key from a small window, so that producers collide, or with an older key.
fn keyed(shared: &Shared<'_>, label: &str, rng: &mut Rng) -> NewTask {
    let newest = shared.next_key.fetch_add(rng.below(2), Ordering::Relaxed);
    let number = newest.saturating_sub(rng.below(6));
    let cycle = shared.setup.cycle.saturating_sub(rng.below(2));
    let key = key_name(cycle, number);
    // Sometimes with different work, which must be refused unless it comes first.
    let content = if rng.chance(5) { label } else { &key };
    NewTask { idempotency_key: Some(Arc::from(&*key)), ..plain(content, rng) }
}

fn key_name(cycle: u64, number: u64) -> String {
    format!("key-{cycle}-{number}")
}

fn work(client: &mut Client<'_>, number: usize, mut rng: Rng) -> anyhow::Result<()> {
    let worker: Arc<str> = Arc::from(format!("worker-{number}"));
    loop {
        let tenant: Arc<str> = rng.pick(&TENANTS).copied().unwrap_or_default().into();
        let from = if rng.chance(70) {
            Selector::Any
        } else {
            Selector::Commands(
                rng.pick(&COMMANDS).map(|name| Arc::from(*name)).into_iter().collect(),
            )
        };
        let claim = Claim {
            tenant: tenant.clone(),
            worker: worker.clone(),
            from,
            lease: rng.between(LEASE_MS.0, LEASE_MS.1),
            count: rng.between(1, 8) as u32,
        };
        for task in client.claim(&claim, 5)? {
            act(client, &claim, &task, &mut rng)?;
        }
    }
}

/// What a worker does with a task; sometimes nothing, so that the lease expires.
fn act(client: &mut Client<'_>, claim: &Claim, task: &Task, rng: &mut Rng) -> anyhow::Result<()> {
    let (tenant, worker, id) = (claim.tenant.clone(), claim.worker.clone(), task.id);
    if rng.chance(15) {
        let extend = rng.between(LEASE_MS.0, LEASE_MS.1);
        client.ask(&Command::Heartbeat(Heartbeat {
            tenant: tenant.clone(),
            id,
            worker: worker.clone(),
            extend,
        }))?;
    }
    let command = match rng.below(100) {
        0..=4 => return Ok(()),
        5..=19 => Command::Nack(Nack {
            tenant,
            id,
            worker,
            delay: rng.chance(50).then(|| rng.below(100)),
            reason: rng.chance(50).then(|| "no luck".into()),
            seed: rng.draw(),
        }),
        20..=29 => {
            Command::Abandon(Abandon { tenant, id, worker, penalty: rng.chance(50), fence: None })
        }
        draw => {
            let outcome = if draw < 40 {
                Outcome::Failed(Arc::from(format!("failed {:x}", rng.draw())))
            } else {
                let pad = "r".repeat(rng.below(200) as usize);
                Outcome::Completed(Bytes::from(format!(
                    "{{\"r\":{},\"pad\":\"{pad}\"}}",
                    rng.draw()
                )))
            };
            Command::Submit(Submit { tenant, id, worker, outcome, artifacts: Vec::new() })
        }
    };
    client.ask(&command)?;
    Ok(())
}
