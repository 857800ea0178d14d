//! Worker operations.

use serde_json::json;

use super::operation::Operation;
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
        "Leases the task of highest priority, then the oldest, to the subject of the token. If there is \
         none it waits up to `waitSeconds` and wakes with the first that comes. The answer has the `fence` of \
         the lease: send it with everything about the task.",
    )
    .optional_body("ClaimRequest", example)
    .answers(200, "The task, leased.", "Task")
    .answers_nothing(204, "There is none.")
    .leads_to(200, "/id", NEXT)
    .refuses(CLAIM)
}

fn claim_batch() -> Operation {
    let example = json!({ "count": 10, "commands": ["GENERATE_MASTER"], "leaseSeconds": 60 });
    Operation::new(
        "task",
        "Claim several tasks",
        "As many as there are, up to `count`. It waits for the first only.",
    )
    .body("ClaimBatchRequest", example)
    .answers(200, "The tasks, leased.", "ClaimedTasks")
    .answers_nothing(204, "There are none.")
    .leads_to(200, "/tasks/0/id", NEXT)
    .refuses(CLAIM)
    .refuses(&[Code::InvalidCount])
}

fn heartbeat() -> Operation {
    Operation::new(
        "task",
        "Extend a lease",
        "Sets the end of the lease to now + `extendSeconds`. A lease that has ended is not extended.",
    )
    .optional_body("HeartbeatRequest", json!({ "extendSeconds": 60, "fence": 1 }))
    .answers(200, "The new end, and whether to stop.", "Lease")
    .refuses(LEASED)
    .refuses(&[Code::InvalidLease])
}

fn abandon() -> Operation {
    Operation::new(
        "task",
        "Give a task back",
        "It returns to its queue at once, and an attempt is spent unless `penalty` is false. With its \
         last attempt it becomes a dead letter.",
    )
    .optional_body("AbandonRequest", json!({ "penalty": false }))
    .answers(200, "Where it went.", "Abandoned")
    .refuses(LEASED)
}

fn nack() -> Operation {
    Operation::new(
        "task",
        "Report a failed execution",
        "The task is tried again after a pause; with its last attempt it becomes a dead letter.",
    )
    .optional_body("NackRequest", json!({ "delaySeconds": 30, "reason": "upstream unavailable" }))
    .answers(200, "Where it went, and after which pause it comes back.", "Nacked")
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
        "Checked in this order: the task exists (404), it has not been claimed again since the `fence` (409), \
         it is in progress (409), the caller has the lease (403), the result is right (400). Artifacts that come with their content are stored then, all or \
         none. The same submit again answers the stored record.",
    )
    .body("Submission", example)
    .answers(200, "The result as stored.", "ResultRecord")
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
        "Each result stands for itself: what is wrong with one is answered in its place.",
    )
    .body("Submissions", example)
    .answers(200, "What became of each result, in order.", "SubmitBatch")
    .refuses(&[Code::InvalidBatch])
}
