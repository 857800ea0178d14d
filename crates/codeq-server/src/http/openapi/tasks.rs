//! Producer operations, and operations that read tasks.

use codeq_core::limits::LIST_MAX;
use codeq_core::place::TaskState;
use serde_json::{Value, json};

use super::operation::{Operation, query_flag, text};
use crate::http::enqueue::{BatchAnswer, BatchRequest, TaskRequest};
use crate::http::events::EventBody;
use crate::http::reschedule::ChangeRequest;
use crate::http::schema::statuses;
use crate::http::tasks::{Finished, HistoryBody, Page};
use crate::http::wire::TaskBody;
use crate::service::Code;
use crate::service::filter::FILTER_BYTES_MAX;
use crate::service::tasks::PAGE_DEFAULT;

/// Error codes of creating a task.
const NEW_TASK: &[Code] = &[
    Code::InvalidCommand,
    Code::InvalidPayload,
    Code::InvalidWebhook,
    Code::InvalidRunAt,
    Code::InvalidDelay,
    Code::InvalidMaxRun,
    Code::InvalidIdempotencyKey,
    Code::InvalidTenant,
    Code::TooManyQueues,
    Code::IdempotencyConflict,
    Code::QuotaExceeded,
];

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![
        ("enqueueTask", enqueue()),
        ("enqueueTasks", enqueue_batch()),
        ("listTasks", list()),
        ("getTask", get()),
        ("getResult", result()),
        ("getHistory", history()),
        ("getArtifact", artifact()),
        ("changeTask", change()),
        ("cancelTask", cancel()),
        ("streamEvents", events()),
    ]
}

/// Adds the parameters of a page of tasks.
pub fn paged(operation: Operation) -> Operation {
    let limit =
        json!({ "type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": PAGE_DEFAULT });
    let about = "Terms separated by spaces: `worker=w-1`, `created>2026-01-31T00:00:00Z` (also `>=`, `<`, `<=`), \
                 `error~refused` (contains). Tasks must match all terms. Put values with spaces in double quotes.";
    operation
        .query("filter", about, filter())
        .query(
            "limit",
            "The maximum number of tasks on the page. A page has at most 4 MiB of tasks.",
            limit,
        )
        .query("cursor", "`nextCursor` of the previous page. Keep the other parameters.", text())
        .answers::<Page>(200, "A page of tasks. The last page has no `nextCursor`.")
        .refuses(&[
            Code::InvalidParameter,
            Code::InvalidFilter,
            Code::InvalidLimit,
            Code::InvalidCursor,
        ])
}

/// The `filter` of lists: terms separated by spaces.
fn filter() -> Value {
    let value = r#"("([^"\\]|\\.)*"|[^"\s]\S*)"#;
    let day =
        "[0-9]{4}-((0[1-9]|1[0-2])-(0[1-9]|[12][0-9])|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)";
    let time = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?";
    let zone = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    let term = format!("((worker=|error~){value}|created[<>]=?{day}T{time}{zone})");
    let pattern = format!(r"^ *({term}( +{term})*)? *$");
    json!({ "type": "string", "maxLength": FILTER_BYTES_MAX, "pattern": pattern })
}

fn idempotency_key() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-~]([ -~]*[!-~])?$" })
}

fn enqueue() -> Operation {
    let example = json!({
        "command": "GENERATE_MASTER",
        "payload": { "jobId": "j-123" },
        "priority": 5,
        "webhook": "https://example.com/hooks/codeq",
    });
    Operation::new(
        "task",
        "Enqueue a task",
        "The task is durable when the response arrives. With an idempotency key, in the header or in the body, a \
         repeated request returns the task that the first one created, with `Idempotent-Replayed: true`.",
    )
    .header("Idempotency-Key", "The same as `idempotencyKey` in the body.", idempotency_key())
    .body::<TaskRequest>(example)
    .answers::<TaskBody>(202, "The task, created now or by the first request with this key.")
    .with_header(202, "Idempotent-Replayed", "IdempotentReplayed")
    .leads_to(202, "/id", &["getTask", "getResult", "getHistory", "cancelTask"])
    .refuses(NEW_TASK)
}

fn enqueue_batch() -> Operation {
    let example = json!({ "tasks": [
        { "command": "GENERATE_MASTER", "payload": { "jobId": "j-123" } },
        { "command": "GENERATE_MASTER", "payload": { "jobId": "j-124" }, "delaySeconds": 60 },
    ]});
    Operation::new(
        "task",
        "Enqueue several tasks",
        "Each task is independent: a refused one has its error in its place in the response. With `atomic=true`, \
         either all tasks are created or none, and the error names the first invalid task. With an \
         `Idempotency-Key` header, each task without its own key gets the key `<header>/<index>`.",
    )
    .query("atomic", "Create all tasks or none.", query_flag())
    .header("Idempotency-Key", "A key for the whole batch.", idempotency_key())
    .body::<BatchRequest>(example)
    .answers::<BatchAnswer>(200, "The outcome for each task, in order.")
    .with_header(200, "Idempotent-Replayed", "IdempotentReplayed")
    .refuses(NEW_TASK)
    .refuses(&[Code::InvalidParameter, Code::InvalidBatch, Code::AtomicSpansShards])
}

fn list() -> Operation {
    let operation = Operation::new(
        "task",
        "List and search tasks",
        "The tenant's tasks, newest first. Paging neither skips nor repeats tasks while others come and go. Empty \
         parameters count as absent. A page may contain fewer tasks than `limit` without being the last one.",
    )
    .query("command", "Only tasks of this queue.", text())
    .query("status", "Only tasks with this status.", json!({ "type": "string", "enum": statuses() }))
    .query(
        "state",
        "Only tasks in this state. The status `FAILED` covers `failed`, `cancelled` and `dead`.",
        json!({ "type": "string", "enum": TaskState::ALL.map(TaskState::as_str) }),
    );
    paged(operation)
}

fn get() -> Operation {
    Operation::new("task", "Get a task", "Tasks of other tenants are not found.")
        .answers::<TaskBody>(200, "The task.")
        .refuses(&[Code::NotFound])
}

fn result() -> Operation {
    let wait = json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX, "default": 0 });
    Operation::new(
        "task",
        "Get a result, or wait for it",
        "With `waitSeconds`, the response arrives when the task finishes or the time is up.",
    )
    .query("waitSeconds", "How long to wait for the result; more than 60 counts as 60.", wait)
    .answers::<Finished>(200, "The task and its result.")
    .refuses(&[Code::InvalidParameter, Code::NotFound, Code::TooManyWaiting])
}

fn history() -> Operation {
    Operation::new(
        "task",
        "Get a task's history",
        "Every transition of the task, with its time, cause and reason. If there are too many, the first and the \
         newest are kept.",
    )
    .answers::<HistoryBody>(200, "The transitions, oldest first.")
    .refuses(&[Code::NotFound])
}

fn artifact() -> Operation {
    Operation::new(
        "task",
        "Download an artifact",
        "An artifact that the server stores, with the content type that the worker sent, always as an attachment. \
         Artifacts that were submitted as a URL are not available here. Artifacts are removed together with their \
         task. The server ignores the query parameters.",
    )
    .query("v", "Part of the URL in the result.", text())
    .query("type", "Part of the URL in the result.", text())
    .query("sha256", "Part of the URL in the result.", text())
    .answers_as(200, "The content of the artifact.", "*/*", json!({}))
    .refuses(&[Code::NotFound, Code::ArtifactUnavailable])
}

fn change() -> Operation {
    Operation::new(
        "task",
        "Change a waiting task",
        "Changes the priority of a waiting task, or the time at which it becomes claimable: `delaySeconds` 0 makes it \
         claimable now, whether it is delayed or waits for its retry. A new time replaces the old delay and `runAt`. \
         A task that becomes claimable, or whose priority changes while it is claimable, goes to the back of its \
         priority. \
         A task that already has the requested values does not change, so you can repeat a call.",
    )
    .body::<ChangeRequest>(json!({ "priority": 9, "delaySeconds": 0 }))
    .answers::<TaskBody>(200, "The task.")
    .refuses(&[
        Code::InvalidDelay,
        Code::InvalidRunAt,
        Code::NotFound,
        Code::InProgress,
        Code::Finished,
    ])
}

fn cancel() -> Operation {
    Operation::new(
        "task",
        "Cancel a task",
        "A task that is not in progress finishes at once, as `FAILED` with the error `CANCELLED`. A task in progress \
         is marked: its worker sees `cancelRequested` in the response to its next heartbeat.",
    )
    .answers::<TaskBody>(200, "The task is finished.")
    .answers::<TaskBody>(202, "The task is in progress. Its worker is asked to stop.")
    .refuses(&[Code::NotFound, Code::Finished])
}

fn events() -> Operation {
    let schema = json!({ "type": "string", "contentMediaType": "text/event-stream" });
    let id = json!({ "type": "string", "pattern": "^[0-9]+(-[0-9]+)*$" });
    Operation::new(
        "event",
        "Stream task transitions",
        "Server-sent events. The `data` of each `task` event is a `TaskEvent` in JSON. A `missed` event means that \
         the stream has skipped transitions: list the tasks again. `Last-Event-ID` resumes after that event. The \
         server sends a comment at least every 15 seconds. The stream ends when its token expires or is revoked.",
    )
    .query("command", "Only tasks of this queue.", text())
    .header("Last-Event-ID", "Resume after this event.", id)
    .answers_as(200, "Server-sent events.", "text/event-stream", schema)
    .sends::<EventBody>()
    .refuses(&[Code::InvalidEventId, Code::TooManyStreams])
}
