//! Typed payloads and results, and a handler that succeeds, fails for good or asks for a retry.
//!
//! With a local server (`codeq dev`): `CODEQ_TOKEN=dev-token cargo run -p codeq-client --example typed`.

use std::error::Error;
use std::time::Duration;

use codeq_client::{HandlerError, NewTask, Options, Outcome, Producer, Task, Worker};
use serde::{Deserialize, Serialize};

/// The payload of a `charge` task.
#[derive(Debug, Serialize, Deserialize)]
pub struct Charge {
    /// Who pays.
    pub account: String,
    /// How much.
    pub cents: u64,
}

/// The result of a `charge` task.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// Receipt number.
    pub number: String,
    /// How much was paid.
    pub cents: u64,
}

async fn charge(task: Task<Charge>) -> Result<Outcome, HandlerError> {
    let Charge { account, cents } = &task.payload;
    if *cents == 0 {
        // For good: another attempt would end the same way.
        return Ok(Outcome::fail(format!("nothing to charge to {account}")));
    }
    if *cents > 1_000_000 && task.attempts == 0 {
        // Retry at once. Returning an error also retries, after the server's backoff.
        return Ok(Outcome::nack_after(Duration::ZERO, "the bank wants to be asked twice"));
    }
    Outcome::complete(&Receipt { number: format!("{account}-{}", task.fence), cents: *cents })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for answer in run(Options::from_env()?).await? {
        println!("{answer:?}");
    }
    Ok(())
}

/// Charges one account three times, and returns a receipt or an error for each charge.
pub async fn run(options: Options) -> Result<Vec<Result<Receipt, String>>, Box<dyn Error>> {
    let worker = Worker::builder(options.clone())
        .concurrency(4)
        .lease(Duration::from_secs(30))
        .handle("charge", charge)
        .build()?;
    let handle = worker.handle();
    let working = tokio::spawn(worker.run());

    let producer = Producer::connect(options).await?;
    let new = |cents| {
        let payload = Charge { account: "acme".to_owned(), cents };
        Ok::<_, codeq_client::Error>(NewTask::new("charge", &payload)?.priority(5).max_attempts(3))
    };
    let tasks = vec![new(250)?, new(0)?, new(2_000_000)?];
    let mut answers = Vec::new();
    for enqueued in producer.enqueue_batch(tasks).await {
        let task_id = enqueued?.task_id;
        let result = producer.wait_result(&task_id, Duration::from_secs(30)).await?;
        answers.push(result.json::<Receipt>().map_err(|error| error.to_string()));
    }

    handle.shutdown();
    working.await??;
    Ok(answers)
}
