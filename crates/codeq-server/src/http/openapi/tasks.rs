//! Producer operations, and operations that read tasks.

use codeq_core::limits::LIST_MAX;
use codeq_core::place::Status;
use serde_json::{Value, json};

use super::kinds::{filter, query_flag, text};
use super::operation::Operation;
use crate::service::Code;
use crate::service::tasks::PAGE_DEFAULT;

/// Error codes of creating a task.
const NEW_TASK: &[Code] = &[
    Code::InvalidCommand,
    Code::InvalidPayload,
    Code::InvalidWebhook,
    Code::InvalidRunAt,
    Code::InvalidDelay,
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
        ("cancelTask", cancel()),
        ("streamEvents", events()),
    ]
}

/// Adds the parameters of a page of tasks.
pub fn paged(operation: Operation) -> Operation {
    let limit =
        json!({ "type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": PAGE_DEFAULT });
    let about = "Terms separated by spaces, all of which must hold: `worker=w-1`, \
                 `created>2026-01-31T00:00:00Z` (also `>=`, `<`, `<=`), `error~refused` (contains). \
                 A value with spaces stands in double quotes.";
    operation
        .query("filter", about, filter())
        .query("limit", "Tasks on the page. It ends before it has more than 4 MiB of them.", limit)
        .query(
            "cursor",
            "`nextCursor` of the page before, with the same other parameters.",
            cursor(),
        )
        .answers(200, "A page. Without `nextCursor` it is the last one.", "TaskPage")
        .refuses(&[
            Code::InvalidParameter,
            Code::InvalidFilter,
            Code::InvalidLimit,
            Code::InvalidCursor,
        ])
}

fn cursor() -> Value {
    json!({ "type": "string" })
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
        "Durable once it is answered. With an idempotency key, in the header or in the body, a repeat \
         answers the task that was made first, with `Idempotent-Replayed: true`.",
    )
    .header("Idempotency-Key", "The same as `idempotencyKey` in the body.", idempotency_key())
    .body("NewTask", example)
    .answers(202, "The task, made now or, for a repeated key, before.", "Task")
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
        "Each task stands for itself: what is wrong with one is answered in its place. With `atomic=true` \
         all are made or none, and the refusal names the first bad item. An `Idempotency-Key` header \
         gives each task without a key of its own the key `<header>/<index>`.",
    )
    .query("atomic", "All or nothing.", query_flag())
    .header("Idempotency-Key", "A key for the whole batch.", idempotency_key())
    .body("NewTasks", example)
    .answers(200, "What became of each task, in order.", "EnqueueBatch")
    .with_header(200, "Idempotent-Replayed", "IdempotentReplayed")
    .refuses(NEW_TASK)
    .refuses(&[Code::InvalidParameter, Code::InvalidBatch, Code::AtomicSpansShards])
}

fn list() -> Operation {
    let statuses = Status::ALL.map(Status::as_str);
    let operation = Operation::new(
        "task",
        "List and search tasks",
        "Tasks of the tenant, newest first, in pages that stay right while tasks come and go. An empty \
         parameter counts as absent. A page may have fewer tasks than its limit and still have a next one.",
    )
    .query("command", "Only this queue.", text(""))
    .query("status", "Only this status.", json!({ "type": "string", "enum": statuses }));
    paged(operation)
}

fn get() -> Operation {
    Operation::new("task", "Read a task", "A task of another tenant is not found.")
        .answers(200, "The task.", "Task")
        .refuses(&[Code::NotFound])
}

fn result() -> Operation {
    let wait = json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX, "default": 0 });
    Operation::new(
        "task",
        "Read a result, or wait for it",
        "With `waitSeconds` the answer comes as soon as the task is finished, or when the time is over.",
    )
    .query("waitSeconds", "Wait so long for the result; more than 60 counts as 60.", wait)
    .answers(200, "The task and its result.", "FinishedTask")
    .refuses(&[Code::InvalidParameter, Code::NotFound])
}

fn history() -> Operation {
    Operation::new(
        "task",
        "Read a task's history",
        "Every transition: when, from where to where, who and why. The first and the newest are kept.",
    )
    .answers(200, "The transitions, oldest first.", "History")
    .refuses(&[Code::NotFound])
}

fn artifact() -> Operation {
    Operation::new(
        "task",
        "Download an artifact",
        "What the server stored for a task, with the content type that its worker gave, always as an \
         attachment. Artifacts that came with a URL are not here. They are removed with their task. \
         The parameters that its URL has are not looked at.",
    )
    .query("v", "Part of the URL that the result has.", text(""))
    .query("type", "Part of the URL that the result has.", text(""))
    .query("sha256", "Part of the URL that the result has.", text(""))
    .answers_as(200, "The bytes.", "*/*", json!({}))
    .refuses(&[Code::NotFound, Code::ArtifactUnavailable])
}

fn cancel() -> Operation {
    Operation::new(
        "task",
        "Cancel a task",
        "A task that nobody runs is finished at once, as `FAILED` with the error `CANCELLED`. One in \
         progress is marked: its worker learns of it with the next heartbeat (`cancelRequested`).",
    )
    .answers(200, "The task is finished.", "Task")
    .answers(202, "The worker will be told.", "Task")
    .refuses(&[Code::NotFound, Code::Finished])
}

fn events() -> Operation {
    let mut schema = text("Server-sent events.");
    super::operation::set(&mut schema, "contentMediaType", json!("text/event-stream"));
    let id = json!({ "type": "string", "pattern": "^[0-9]+(-[0-9]+)*$" });
    Operation::new(
        "event",
        "Stream transitions of tasks",
        "Server-sent events. Each event `task` has as `data` one `TaskEvent` in JSON. An event `missed` \
         says that transitions were lost to this stream: list the tasks anew. `Last-Event-ID` resumes \
         after that event. A comment comes at least every 15 seconds. The stream ends with its token.",
    )
    .query("command", "Only this queue.", text(""))
    .header("Last-Event-ID", "Go on after this event.", id)
    .answers_as(200, "The stream.", "text/event-stream", schema)
    .refuses(&[Code::InvalidEventId, Code::TooManyStreams])
}
