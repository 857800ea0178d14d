//! Reads of results and waits for them, most of them by clients that hang up: what they leave behind in the server, and
//! whether full cycles are as fast after them. A store that has grown makes cycles slower by itself, so a second server
//! runs the same cycles without the waits, and the two are compared.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::client::{Client, task_ids};
use super::{Clients, Load, Row, cycle, histogram};

/// Clients at once.
const CLIENTS: usize = 64;
/// Tasks that are asked for, finished and unfinished.
const TASKS: usize = 100;
/// Waits of a client before one that it wakes itself, by cancelling its task.
const CANCEL_EVERY: usize = 50;
const BATCH: &str = "/v1/codeq/tasks/batch";
const GAUGE: &str = "codeq_result_waiters ";

/// The tasks that results are asked for.
struct Asked {
    finished: Vec<String>,
    unfinished: Vec<String>,
    /// One more of the unfinished kind.
    body: String,
}

pub async fn run(load: &Load<'_>, control: Option<&Load<'_>>) -> anyhow::Result<Vec<Row>> {
    let before = Row { what: "cycles before", ..cycle::run(load).await? };
    if let Some(control) = control {
        cycle::run(control).await?;
    }
    let mut client = Client::connect(load.target.addr, load.token).await?;
    let asked = Rc::new(Asked {
        finished: finished(load, &mut client).await?,
        unfinished: made(&mut client, &load.tasks("bench-waits-open", TASKS)).await?,
        body: load.tasks("bench-waits-open", 1),
    });
    let left = Rc::new(Cell::new(load.args.waits));
    let mut clients = Clients::default();
    let (start, cpu) = (Instant::now(), load.target.cpu());
    for _ in 0..CLIENTS {
        let (addr, token) = (load.target.addr, load.token.to_owned());
        let (asked, left) = (Rc::clone(&asked), Rc::clone(&left));
        clients.spawn(async move {
            let mut latencies = histogram()?;
            let mut client = Client::connect(addr, &token).await?;
            while let Some(number) = left.get().checked_sub(1) {
                left.set(number);
                let sent = Instant::now();
                client = match ask(client, &asked, number).await? {
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

/// One of the ways to ask for a result. Returns the client unless it hung up.
async fn ask(mut client: Client, asked: &Asked, number: usize) -> anyhow::Result<Option<Client>> {
    let path = |ids: &[String], wait: &str| {
        let id = ids.get(number / 4 % ids.len().max(1)).map_or("", String::as_str);
        format!("/v1/codeq/tasks/{id}/result{wait}")
    };
    match number % 4 {
        0 => drop(client.get(&path(&asked.finished, "?waitSeconds=60")).await?.expect(200)?),
        1 if number % CANCEL_EVERY == 1 => {
            // Answered by the end of its task.
            let id = made(&mut client, &asked.body).await?.pop().unwrap_or_default();
            let mut waiting = client.again().await?;
            waiting.ask(&format!("/v1/codeq/tasks/{id}/result?waitSeconds=60")).await?;
            client.post(&format!("/v1/codeq/tasks/{id}/cancel"), b"{}").await?.expect(200)?;
            waiting.answer().await?.expect(200)?;
        }
        1 => drop(client.get(&path(&asked.unfinished, "")).await?.expect(404)?),
        2 => {
            client.ask(&path(&asked.finished, "?waitSeconds=60")).await?;
            return client.hang_up().map(|()| None);
        }
        _ => {
            client.ask(&path(&asked.unfinished, "?waitSeconds=60")).await?;
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

/// Tasks that are made and cancelled.
async fn finished(load: &Load<'_>, client: &mut Client) -> anyhow::Result<Vec<String>> {
    let ids = made(client, &load.tasks("bench-waits-done", TASKS)).await?;
    for id in &ids {
        client.post(&format!("/v1/codeq/tasks/{id}/cancel"), b"{}").await?.expect(200)?;
    }
    Ok(ids)
}
