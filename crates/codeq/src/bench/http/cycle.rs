//! Full cycles with batches: enqueue 100 at a time, claim 10 at a time, submit 100 results at a time.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use super::client::{Client, task_ids};
use super::{Clients, Load, Row, histogram};

const ENQUEUE: usize = 100;
const CLAIM: usize = 10;
const SUBMIT: usize = 100;
const PRODUCERS: usize = 4;
const WORKERS: usize = 16;
/// Producers stay this far ahead of the workers, so that the queue neither runs dry nor grows.
const AHEAD: u64 = 4_000;

pub async fn run(load: &Load<'_>) -> anyhow::Result<Row> {
    let batch: Rc<str> = load.tasks("bench", ENQUEUE).into();
    let (made, done) = (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(0_u64)));
    let mut clients = Clients::default();
    let (start, cpu) = (Instant::now(), load.target.cpu());
    let end = start + load.time;
    for _ in 0..PRODUCERS {
        let mut client = Client::connect(load.target.addr, load.token).await?;
        let (batch, made, done) = (Rc::clone(&batch), Rc::clone(&made), Rc::clone(&done));
        clients.spawn(async move {
            while Instant::now() < end {
                if made.get() > done.get() + AHEAD {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                    continue;
                }
                client.post("/v1/codeq/tasks/batch", batch.as_bytes()).await?.expect(200)?;
                made.set(made.get() + ENQUEUE as u64);
            }
            histogram()
        });
    }
    for _ in 0..WORKERS {
        let mut client = Client::connect(load.target.addr, load.token).await?;
        let done = Rc::clone(&done);
        clients.spawn(async move {
            let mut latencies = histogram()?;
            while Instant::now() < end {
                let sent = Instant::now();
                let ids = claim(&mut client).await?;
                if ids.is_empty() {
                    continue;
                }
                submit(&mut client, &ids).await?;
                latencies.record(sent.elapsed().as_micros() as u64)?;
                done.set(done.get() + ids.len() as u64);
            }
            Ok(latencies)
        });
    }
    let latencies = clients.latencies().await?;
    let mut row = load.row("cycle", done.get(), start.elapsed(), &latencies, cpu);
    row.note =
        format!("latency of {SUBMIT} tasks, claimed {CLAIM} at a time and submitted together");
    Ok(row)
}

async fn claim(client: &mut Client) -> anyhow::Result<Vec<String>> {
    let body = format!(r#"{{"count":{CLAIM},"waitSeconds":1}}"#);
    let mut ids = Vec::with_capacity(SUBMIT);
    while ids.len() < SUBMIT {
        let answer = client.post("/v1/codeq/tasks/claim/batch", body.as_bytes()).await?;
        if answer.status == 204 {
            break;
        }
        ids.extend(task_ids(answer.expect(200)?));
    }
    Ok(ids)
}

async fn submit(client: &mut Client, ids: &[String]) -> anyhow::Result<()> {
    let results: Vec<String> = ids
        .iter()
        .map(|id| format!(r#"{{"taskId":"{id}","status":"COMPLETED","result":{{"ok":true}}}}"#))
        .collect();
    let body = format!(r#"{{"results":[{}]}}"#, results.join(","));
    let answer = client.post("/v1/codeq/tasks/batch/results", body.as_bytes()).await?;
    let body = String::from_utf8_lossy(answer.expect(200)?);
    anyhow::ensure!(!body.contains("\"error\""), "a result was refused: {body}");
    Ok(())
}
