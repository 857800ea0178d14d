//! Pages of lists and searches of a store with many tasks.

use std::time::Instant;

use super::client::Client;
use super::{Clients, Load, Row, histogram};

const BATCH: usize = 100;
const PRODUCERS: usize = 8;
const PAGES: usize = 500;

/// What a console asks for: the newest tasks, those of a command, those of a status, a search.
const QUERIES: [(&str, &str); 4] = [
    ("list all", "/v1/codeq/tasks?limit=50"),
    ("list command", "/v1/codeq/tasks?limit=50&command=bench-1"),
    ("list status", "/v1/codeq/tasks?limit=50&command=bench-2&status=PENDING"),
    ("search", "/v1/codeq/tasks?limit=50&filter=created%3E2020-01-01T00:00:00Z"),
];

pub async fn run(load: &Load<'_>) -> anyhow::Result<Vec<Row>> {
    let tasks = fill(load).await?;
    let mut client = Client::connect(load.target.addr, load.token).await?;
    let mut rows = Vec::new();
    for (what, path) in QUERIES {
        let mut latencies = histogram()?;
        let (start, cpu) = (Instant::now(), load.target.cpu());
        let mut next = path.to_owned();
        for _ in 0..PAGES {
            let sent = Instant::now();
            let answer = client.get(&next).await?;
            latencies.record(sent.elapsed().as_micros() as u64)?;
            let page: serde_json::Value = serde_json::from_slice(answer.expect(200)?)?;
            let cursor = page.get("nextCursor").and_then(|cursor| cursor.as_str());
            next = cursor.map_or(path.to_owned(), |cursor| format!("{path}&cursor={cursor}"));
        }
        let mut row = load.row(what, PAGES as u64, start.elapsed(), &latencies, cpu);
        row.note = format!("pages of 50, one after the other, after enqueueing {tasks} tasks");
        rows.push(row);
    }
    Ok(rows)
}

/// Enqueues whole batches, the same number from each producer. Returns the number of tasks.
async fn fill(load: &Load<'_>) -> anyhow::Result<usize> {
    let each = load.args.tasks / PRODUCERS / BATCH;
    let mut clients = Clients::default();
    for producer in 0..PRODUCERS {
        let batch = load.tasks(&format!("bench-{producer}"), BATCH);
        let mut client = Client::connect(load.target.addr, load.token).await?;
        clients.spawn(async move {
            for _ in 0..each {
                client.post("/v1/codeq/tasks/batch", batch.as_bytes()).await?.expect(200)?;
            }
            histogram()
        });
    }
    clients.latencies().await?;
    Ok(each * PRODUCERS * BATCH)
}
