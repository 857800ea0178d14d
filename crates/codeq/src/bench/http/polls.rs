//! Waiting claims: what each costs, and how fast one is answered when a task arrives.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::client::{Client, task_ids};
use super::{Load, Row, histogram};

/// Waits as long as the server allows, so that claims are answered by tasks and do not time out.
const CLAIM: &[u8] = br#"{"commands":["bench-polls"],"waitSeconds":30,"leaseSeconds":600}"#;
/// Connections opened at once.
const CHUNK: usize = 500;
/// Tasks per second while the claims wait.
const RATE: u64 = 200;

struct Woken {
    at: Instant,
    id: String,
}

pub async fn run(load: &Load<'_>) -> anyhow::Result<Row> {
    let before = load.target.rss();
    let woken = Rc::new(RefCell::new(Vec::new()));
    let tasks = tokio::task::LocalSet::new();
    let mut clients = Vec::new();
    let mut producer = Client::connect(load.target.addr, load.token).await?;
    for at in 1..=load.args.polls {
        let mut client = Client::connect(load.target.addr, load.token).await?;
        client.send("/v1/codeq/tasks/claim", CLAIM).await?;
        clients.push(client);
        // Let the server accept these before others connect: of too many waiting connections, the system would drop some
        // and retry them seconds later.
        if at % CHUNK == 0 || at == load.args.polls {
            let all = |waiting| waiting >= at as f64;
            producer.wait_for_gauge("codeq_claims_waiting ", all).await?;
        }
    }
    let waiting = load.target.rss();
    for mut client in clients {
        let woken = Rc::clone(&woken);
        tasks.spawn_local(async move {
            let answer = client.answer().await?;
            let at = Instant::now();
            let ids = task_ids(answer.body);
            woken.borrow_mut().extend(ids.into_iter().map(|id| Woken { at, id }));
            anyhow::Ok(())
        });
    }
    let body = load.task("bench-polls");
    let wanted = (load.args.polls as u64).min(RATE * load.time.as_secs().clamp(1, 20));
    let cpu = load.target.cpu();
    let start = Instant::now();
    let mut sent = std::collections::HashMap::new();
    tasks
        .run_until(async {
            let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / RATE));
            for _ in 0..wanted {
                tick.tick().await;
                let at = Instant::now();
                let answer = producer.post("/v1/codeq/tasks", body.as_bytes()).await?;
                let ids = task_ids(answer.expect(202)?);
                sent.extend(ids.into_iter().map(|id| (id, at)));
            }
            // For answers in flight.
            tokio::time::sleep(Duration::from_millis(500)).await;
            anyhow::Ok(())
        })
        .await?;
    let mut latencies = histogram()?;
    let woken = woken.borrow();
    for Woken { at, id } in woken.iter() {
        let from =
            sent.remove(id).ok_or_else(|| anyhow::anyhow!("task {id} was handed out twice"))?;
        latencies.record(at.duration_since(from).as_micros() as u64)?;
    }
    anyhow::ensure!(sent.is_empty(), "{} tasks woke nobody", sent.len());
    let mut row = load.row("polls", woken.len() as u64, start.elapsed(), &latencies, cpu);
    let each = waiting.zip(before).map(|(waiting, before)| waiting.saturating_sub(before));
    let each = each.map_or(0, |bytes| bytes / load.args.polls.max(1) as u64 / 1_024);
    row.note = format!("{} claims wait, {each} KiB each; one woke per task", load.args.polls);
    Ok(row)
}
