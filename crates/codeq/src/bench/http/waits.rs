//! Clients read results and wait for them, and half of them hang up. Measures what that leaves behind in the server, and
//! whether full cycles are as fast afterwards. A store that has grown makes cycles slower by itself, so a second server
//! runs the same cycles without the waits, and the two are compared.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::client::{Client, task_ids};
use super::{Clients, Load, Row, cycle, histogram};

/// Concurrent clients.
const CLIENTS: usize = 64;
/// Tasks whose results are requested: this many finished ones, and this many unfinished ones.
const TASKS: usize = 100;
/// One request in this many is a wait that the client itself ends, by cancelling the task.
const CANCEL_EVERY: usize = 100;
const BATCH: &str = "/v1/codeq/tasks/batch";
const GAUGE: &str = "codeq_result_waiters ";

/// The tasks whose results are requested.
struct Tasks {
    finished: Vec<String>,
    unfinished: Vec<String>,
    /// The body that creates another unfinished task.
    body: String,
}

pub async fn run(load: &Load<'_>, control: Option<&Load<'_>>) -> anyhow::Result<Vec<Row>> {
    let before = Row { what: "cycles before", ..cycle::run(load).await? };
    if let Some(control) = control {
        cycle::run(control).await?;
    }
    let mut client = Client::connect(load.target.addr, load.token).await?;
    let tasks = Rc::new(Tasks {
        finished: finished(load, &mut client).await?,
        unfinished: made(&mut client, &load.tasks("bench-waits-open", TASKS)).await?,
        body: load.tasks("bench-waits-open", 1),
    });
    let left = Rc::new(Cell::new(load.args.waits));
    let mut clients = Clients::default();
    let (start, cpu) = (Instant::now(), load.target.cpu());
    for _ in 0..CLIENTS {
        let (addr, token) = (load.target.addr, load.token.to_owned());
        let (tasks, left) = (Rc::clone(&tasks), Rc::clone(&left));
        clients.spawn(async move {
            let mut latencies = histogram()?;
            let mut client = Client::connect(addr, &token).await?;
            while let Some(number) = left.get().checked_sub(1) {
                left.set(number);
                let sent = Instant::now();
                client = match ask(client, &tasks, number).await? {
                    Some(client) => client,
                    None => Client::connect(addr, &token).await?,
                };
                latencies.record(sent.elapsed().as_micros() as u64)?;
            }
            Ok(latencies)
        });
    }
    let latencies = clients.latencies().await?;
    let mut waits = load.row("waits", latencies.len(), start.elapsed(), &latencies, cpu);
    client.wait_for_gauge(GAUGE, |waiting| waiting == 0.0).await?;
    waits.note = format!("reads and waits of {CLIENTS} clients, half of which hang up; {GAUGE}0");
    let mut after = Row { what: "cycles after", ..cycle::run(load).await? };
    let Some(control) = control else {
        return Ok(vec![before, waits, after]);
    };
    let without = Row { what: "cycles without waits", ..cycle::run(control).await? };
    let percent = after.per_second / without.per_second.max(1.0) * 100.0;
    after.note = format!("{percent:.1} % of those on a server without waits");
    Ok(vec![before, waits, without, after])
}

/// Requests a result in one of four ways. Returns the client unless it hung up.
async fn ask(mut client: Client, tasks: &Tasks, number: usize) -> anyhow::Result<Option<Client>> {
    let path = |ids: &[String], wait: &str| {
        let id = ids.get(number / 4 % ids.len().max(1)).map_or("", String::as_str);
        format!("/v1/codeq/tasks/{id}/result{wait}")
    };
    match number % 4 {
        0 => drop(client.get(&path(&tasks.finished, "?waitSeconds=60")).await?.expect(200)?),
        1 if number % CANCEL_EVERY == 1 => {
            // This wait is answered when the task ends.
            let id = made(&mut client, &tasks.body).await?.pop().unwrap_or_default();
            let mut waiting = client.again().await?;
            waiting.ask(&format!("/v1/codeq/tasks/{id}/result?waitSeconds=60")).await?;
            client.post(&format!("/v1/codeq/tasks/{id}/cancel"), b"{}").await?.expect(200)?;
            waiting.answer().await?.expect(200)?;
        }
        1 => drop(client.get(&path(&tasks.unfinished, "")).await?.expect(404)?),
        2 => {
            client.ask(&path(&tasks.finished, "?waitSeconds=60")).await?;
            return client.hang_up().map(|()| None);
        }
        _ => {
            client.ask(&path(&tasks.unfinished, "?waitSeconds=60")).await?;
            if number % 8 == 3 {
                // Long enough for most to be in the middle of their wait.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            return client.hang_up().map(|()| None);
        }
    }
    Ok(Some(client))
}

async fn made(client: &mut Client, body: &str) -> anyhow::Result<Vec<String>> {
    Ok(task_ids(client.post(BATCH, body.as_bytes()).await?.expect(200)?))
}

/// Creates tasks and cancels them, which finishes them.
async fn finished(load: &Load<'_>, client: &mut Client) -> anyhow::Result<Vec<String>> {
    let ids = made(client, &load.tasks("bench-waits-done", TASKS)).await?;
    for id in &ids {
        client.post(&format!("/v1/codeq/tasks/{id}/cancel"), b"{}").await?.expect(200)?;
    }
    Ok(ids)
}
