//! Worker operations.

use serde_json::json;

use super::operation::Operation;
use crate::http::wire::{ResultBody, TaskBody};
use crate::http::{abandon, claim, heartbeat, nack, submit};
use crate::service::Code;

/// The operations that can follow a claim.
const NEXT: &[&str] = &["heartbeatTask", "submitResult", "nackTask", "abandonTask"];
/// Error codes of every operation on a leased task.
const LEASED: &[Code] = &[
    Code::NotFound,
    Code::LeaseLost,
    Code::NotInProgress,
    Code::NotOwner,
    Code::InvalidTenant,
    Code::InvalidWorker,
];
/// Error codes of a claim.
const CLAIM: &[Code] = &[
    Code::InvalidCommand,
    Code::InvalidLease,
    Code::TooManyCommands,
    Code::TooManyWaiting,
    Code::InvalidTenant,
    Code::InvalidWorker,
];

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![
        ("claimTask", claim()),
        ("claimTasks", claim_batch()),
        ("heartbeatTask", heartbeat()),
        ("abandonTask", abandon()),
        ("nackTask", nack()),
        ("submitResult", submit()),
        ("submitResults", submit_batch()),
    ]
}

fn claim() -> Operation {
    let example = json!({
        "commands": ["GENERATE_MASTER"], "workerId": "w-1", "leaseSeconds": 60, "waitSeconds": 20,
    });
    Operation::new(
        "task",
        "Claim a task",
        "Leases one task to the caller: of the tasks with the highest priority, the one that became claimable \
         first. If there is none, waits up to `waitSeconds` for one. The response contains the `fence` of the lease: send it with every \
         later request about the task.",
    )
    .optional_body::<claim::OneRequest>(example)
    .answers::<TaskBody>(200, "The task, now leased.")
    .answers_nothing(204, "No task is available.")
    .leads_to(200, "/id", NEXT)
    .refuses(CLAIM)
}

fn claim_batch() -> Operation {
    let example = json!({ "count": 10, "commands": ["GENERATE_MASTER"], "leaseSeconds": 60 });
    Operation::new(
        "task",
        "Claim several tasks",
        "Leases as many tasks as are available, up to `count`. Waits for the first one only.",
    )
    .body::<claim::Request>(example)
    .answers::<claim::Claimed>(200, "The tasks, now leased.")
    .answers_nothing(204, "No task is available.")
    .leads_to(200, "/tasks/0/id", NEXT)
    .refuses(CLAIM)
    .refuses(&[Code::InvalidCount])
}

fn heartbeat() -> Operation {
    Operation::new(
        "task",
        "Extend a lease",
        "The lease then ends `extendSeconds` from now. An expired lease cannot be extended.",
    )
    .optional_body::<heartbeat::HeartbeatRequest>(json!({ "extendSeconds": 60, "fence": 1 }))
    .answers::<heartbeat::Extended>(200, "The new end of the lease, and whether to stop working.")
    .refuses(LEASED)
    .refuses(&[Code::InvalidLease])
}

fn abandon() -> Operation {
    Operation::new(
        "task",
        "Return a task to its queue",
        "The task can be claimed again at once. This counts as a failed attempt unless `penalty` is false. \
         After its last attempt, the task becomes a dead letter.",
    )
    .optional_body::<abandon::AbandonRequest>(json!({ "penalty": false }))
    .answers::<abandon::Abandoned>(200, "Where the task went.")
    .refuses(LEASED)
}

fn nack() -> Operation {
    let example = json!({ "delaySeconds": 30, "reason": "upstream unavailable" });
    Operation::new(
        "task",
        "Report a failed attempt",
        "The task is retried after a delay. After its last attempt, it becomes a dead letter.",
    )
    .optional_body::<nack::NackRequest>(example)
    .answers::<nack::Nacked>(200, "Where the task went, and the delay before the next attempt.")
    .refuses(LEASED)
}

/// Error codes of a result.
const SUBMIT: &[Code] = &[
    Code::InvalidStatus,
    Code::ErrorRequired,
    Code::InvalidResult,
    Code::ResultTooLarge,
    Code::InvalidArtifacts,
];

fn submit() -> Operation {
    let example = json!({ "status": "COMPLETED", "result": { "url": "https://example.com/out.mp4" }, "fence": 1 });
    Operation::new(
        "task",
        "Finish a task",
        "The server checks in this order: the task exists (404), it has not been claimed again since the claim \
         with this `fence` (409), it is in progress (409), the caller holds the lease (403), the result is valid \
         (400). Then it stores the artifacts that were sent with their content, all or none. The same request \
         again returns the stored result.",
    )
    .body::<submit::OneRequest>(example)
    .answers::<ResultBody>(200, "The stored result.")
    .leads_to(200, "/taskId", &["getResult", "getHistory"])
    .refuses(LEASED)
    .refuses(SUBMIT)
    .refuses(&[Code::ArtifactUploadFailed])
}

fn submit_batch() -> Operation {
    let id = "01890f3e-7b4c-7cc0-98c4-dc0c0c07398f";
    let example = json!({ "results": [
        { "taskId": id, "status": "FAILED", "error": "no such file" },
    ]});
    Operation::new(
        "task",
        "Finish several tasks",
        "Each result is independent: a refused one has its error in its place in the response.",
    )
    .body::<submit::BatchRequest>(example)
    .answers::<submit::BatchAnswer>(200, "The outcome for each result, in order.")
    .refuses(&[Code::InvalidBatch])
}
