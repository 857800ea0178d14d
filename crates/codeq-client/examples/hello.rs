//! A producer and a worker in one process.
//!
//! With a local server (`codeq dev`): `CODEQ_TOKEN=dev-token cargo run -p codeq-client --example hello`.

use std::error::Error;
use std::time::Duration;

use codeq_client::{NewTask, Options, Outcome, Producer, Task, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Greeting {
    text: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{}", run(Options::from_env()?).await?);
    Ok(())
}

/// Enqueues a task, works on it, and returns its result.
pub async fn run(options: Options) -> Result<String, Box<dyn Error>> {
    let worker = Worker::builder(options.clone())
        .handle("hello", |task: Task<String>| async move {
            Outcome::complete(&Greeting { text: format!("Hello, {}!", task.payload) })
        })
        .build()?;
    let handle = worker.handle();
    let working = tokio::spawn(worker.run());

    let producer = Producer::connect(options).await?;
    let enqueued = producer.enqueue(NewTask::new("hello", &"world")?).await?;
    let result = producer.wait_result(&enqueued.task_id, Duration::from_secs(30)).await?;
    let greeting: Greeting = result.json()?;

    handle.shutdown();
    working.await??;
    Ok(greeting.text)
}
