//! One task a request, on many keep-alive connections, each with one request in flight.

use std::rc::Rc;
use std::time::Instant;

use super::client::Client;
use super::{Clients, Load, Row, histogram};

pub async fn run(load: &Load<'_>) -> anyhow::Result<Row> {
    let body: Rc<str> = load.task("bench").into();
    let mut connected = Vec::new();
    for _ in 0..load.args.connections {
        connected.push(Client::connect(load.target.addr, load.token).await?);
    }
    let (start, cpu) = (Instant::now(), load.target.cpu());
    let end = start + load.time;
    let mut clients = Clients::default();
    for mut client in connected {
        let body = Rc::clone(&body);
        clients.spawn(async move {
            let mut latencies = histogram()?;
            while Instant::now() < end {
                let sent = Instant::now();
                client.post("/v1/codeq/tasks", body.as_bytes()).await?.expect(202)?;
                latencies.record(sent.elapsed().as_micros() as u64)?;
            }
            Ok(latencies)
        });
    }
    let latencies = clients.latencies().await?;
    Ok(load.row("enqueue", latencies.len(), start.elapsed(), &latencies, cpu))
}
