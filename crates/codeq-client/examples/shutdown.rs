//! Graceful shutdown: on Ctrl-C the worker takes no more tasks, lets handlers finish for a while, and returns the rest
//! without a penalty.
//!
//! With a local server (`codeq dev`): `CODEQ_TOKEN=dev-token cargo run -p codeq-client --example shutdown`.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use codeq_client::{Options, Outcome, Task, Worker, WorkerStats};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let ctrl_c = async {
        // Without a signal handler, keep working.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    };
    println!("{:?}", run(Options::from_env()?, ctrl_c).await?);
    Ok(())
}

/// Works until `stop` completes, and returns the worker's statistics.
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
                // A chance to clean up after a cancellation or a lost lease.
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
