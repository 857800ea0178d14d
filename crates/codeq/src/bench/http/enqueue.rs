//! One task a request, on many keep-alive connections, each with one request in flight.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use super::client::Client;
use super::{Load, Row, histogram};

pub async fn run(load: &Load<'_>) -> anyhow::Result<Row> {
    let latencies = Rc::new(RefCell::new(histogram()?));
    let body: Rc<str> = load.task("bench").into();
    let mut clients = Vec::new();
    for _ in 0..load.args.connections {
        clients.push(Client::connect(load.target.addr, load.token).await?);
    }
    let (start, cpu) = (Instant::now(), load.target.cpu());
    let end = start + load.time;
    let tasks = tokio::task::LocalSet::new();
    let mut running = Vec::new();
    for mut client in clients {
        let (latencies, body) = (Rc::clone(&latencies), Rc::clone(&body));
        running.push(tasks.spawn_local(async move {
            while Instant::now() < end {
                let sent = Instant::now();
                client.post("/v1/codeq/tasks", body.as_bytes()).await?.expect(202)?;
                latencies.borrow_mut().record(sent.elapsed().as_micros() as u64)?;
            }
            anyhow::Ok(())
        }));
    }
    tasks
        .run_until(async {
            for task in running {
                task.await??;
            }
            anyhow::Ok(())
        })
        .await?;
    let latencies = latencies.borrow();
    Ok(load.row("enqueue", latencies.len(), start.elapsed(), &latencies, cpu))
}
