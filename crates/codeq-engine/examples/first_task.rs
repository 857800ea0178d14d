//! A task from enqueue to result: `cargo run -p codeq-engine --example first_task`.

use std::error::Error;
use std::path::Path;

use codeq_core::command::{Claim, Command, Enqueue, NewTask, Outcome, Selector, Submit};
use codeq_core::reply::Reply;
use codeq_engine::{Engine, Options};

fn main() -> Result<(), Box<dyn Error>> {
    first_task(Path::new("target/first-task"))
}

/// Enqueues a task, claims it, and submits its result. Each reply means that the change is on disk.
pub fn first_task(dir: &Path) -> Result<(), Box<dyn Error>> {
    let engine = Engine::open(dir, Options::default())?;

    let task = NewTask {
        command: "resize".into(),
        payload: r#"{"image": 7}"#.into(),
        ..NewTask::default()
    };
    engine.propose_blocking(Command::Enqueue(Enqueue {
        tenant: "acme".into(),
        tasks: vec![task],
        atomic: false,
        seed: 0x5eed, // The random part of the id: use a random number.
    }))?;

    let claim = Claim {
        tenant: "acme".into(),
        worker: "worker-1".into(),
        from: Selector::Commands(vec!["resize".into()]),
        lease: 60_000,
        count: 1,
    };
    let Reply::Claimed(tasks) = engine.claim_blocking(claim)? else {
        return Err("the claim was refused".into());
    };
    for task in tasks {
        println!("{} {} {:?}", task.id, task.command, task.payload);
        let reply = engine.propose_blocking(Command::Submit(Submit {
            tenant: "acme".into(),
            id: task.id,
            worker: "worker-1".into(),
            outcome: Outcome::Completed(r#"{"width": 640}"#.into()),
            artifacts: Vec::new(),
        }))?;
        println!("{reply:?}");
    }
    engine.shutdown();
    Ok(())
}
