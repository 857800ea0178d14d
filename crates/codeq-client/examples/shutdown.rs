//! A worker that ends well: on Ctrl-C it takes no more tasks, lets handlers finish for a while, and gives the
//! rest back without penalty.
//!
//! With a server on this machine (`codeq dev`): `CODEQ_TOKEN=dev-token cargo run --example shutdown`.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use codeq_client::{Options, Outcome, Task, Worker, WorkerStats};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let ctrl_c = async {
        // Without a way to be told, it works on.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    };
    println!("{:?}", run(Options::from_env()?, ctrl_c).await?);
    Ok(())
}

/// Works until it is told to stop, and returns what it has done.
pub async fn run(
    options: Options,
    stop: impl Future<Output = ()>,
) -> Result<WorkerStats, Box<dyn Error>> {
    let worker = Worker::builder(options)
        .grace(Duration::from_secs(10))
        .handle("resize", |task: Task<u64>| async move {
            let work = tokio::time::sleep(Duration::from_millis(task.payload));
            tokio::select! {
                () = work => Ok(Outcome::done()),
                // A chance to tidy up, if the producer wants no result or the lease is lost.
                reason = task.cancellation.cancelled() => Ok(Outcome::fail(format!("{reason:?}"))),
            }
        })
        .build()?;
    let handle = worker.handle();
    let working = worker.run();
    tokio::pin!(working);
    tokio::select! {
        ended = &mut working => ended?,
        () = stop => {
            handle.shutdown();
            working.await?;
        }
    }
    Ok(handle.stats())
}
