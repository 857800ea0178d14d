//! Operations that explain what the server does: reasons, workers and the audit log.

use codeq_core::limits::LIST_MAX;
use serde_json::{Value, json};

use super::kinds::{
    count, event, flag, list, moment, object, place, query_flag, status, text, word,
};
use super::operation::{Operation, reference};
use crate::service::Code;
use crate::service::tasks::PAGE_DEFAULT;

/// The codes of reasons.
const REASONS: [&str; 19] = [
    "queue_paused",
    "max_consumers_reached",
    "delayed",
    "waits_for_retry",
    "tasks_ahead",
    "next",
    "no_worker",
    "workers",
    "leased",
    "cancel_requested",
    "completed",
    "failed",
    "cancelled",
    "dead_lettered",
    "ready_tasks",
    "delayed_tasks",
    "leased_tasks",
    "dead_letters",
    "empty",
];

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![
        ("explainTask", explain_task()),
        ("explainQueue", explain_queue()),
        ("listWorkers", list_workers()),
        ("listActions", list_actions()),
    ]
}

/// The schemas, by name.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("Reason", reason()),
        ("TaskWhy", task_why()),
        ("QueueWhy", queue_why()),
        ("Worker", worker()),
        ("WorkerList", worker_list()),
        ("AdminAction", action()),
        ("AuditPage", audit_page()),
    ]
}

fn explain_task() -> Operation {
    Operation::new(
        "task",
        "Explain a task",
        "Why the task is where it is: what it waits for, which tasks are claimed before it, whether workers ask for its \
         queue, who holds its lease, or how its attempts failed. With several shards, the tasks before it and the \
         limit of consumers are those of its shard.",
    )
    .answers(200, "The reasons, the strongest first.", "TaskWhy")
    .refuses(&[Code::NotFound])
}

fn explain_queue() -> Operation {
    Operation::new(
        "queue",
        "Explain a queue",
        "Why the queue does or does not move: whether it is paused or at its limit of consumers, what it holds, and when \
         a worker last asked for it. Claims are remembered since the server started.",
    )
    .answers(200, "The reasons, the strongest first.", "QueueWhy")
    .refuses(&[Code::InvalidCommand])
}

fn list_workers() -> Operation {
    let limit =
        json!({ "type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": PAGE_DEFAULT });
    Operation::new(
        "server",
        "List workers",
        "Workers of the tenant that have a stream, hold a task, or asked for tasks within the last hour; the latest claim \
         first. Claims are remembered since the server started, to the second, for up to 2,048 workers of a tenant.",
    )
    .query("limit", "The maximum number of workers.", limit)
    .answers(200, "The workers.", "WorkerList")
    .refuses(&[Code::InvalidParameter, Code::InvalidLimit])
}

fn list_actions() -> Operation {
    let limit =
        json!({ "type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": PAGE_DEFAULT });
    let after = json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX });
    Operation::new(
        "server",
        "Read the audit log",
        "What the tenant's admins did, oldest first: every call of an admin's or operator's route that changes something. \
         Without `after`, the newest entries. The newest 32 MiB of all tenants' entries are kept.",
    )
    .query("limit", "The maximum number of entries.", limit)
    .query("after", "Only entries with a larger `id`: `nextAfter` of the response before.", after)
    .query("allTenants", "Entries of all tenants. Requires the scope `codeq:operator`.", query_flag())
    .answers(200, "The entries.", "AuditPage")
    .refuses(&[Code::InvalidParameter, Code::InvalidLimit])
}

fn worker() -> Value {
    let properties = json!({
        "workerId": text("The subject of its token, and its instance if it names one: `subject/instance`."),
        "queues": list(text("A command."), "What its last claim named, at most 16."),
        "moreQueues": count("How many more its last claim named. Absent when 0."),
        "allQueues": flag("Whether its last claim was for all queues."),
        "streams": count("Its open streams."),
        "slots": count("Tasks that its streams could take now."),
        "tasksHeld": count("Tasks whose lease it holds."),
        "lastClaimAt": moment("When it last asked for tasks. Absent if not since the server started."),
        "lastError": text("The last failure it reported, or why its claim was refused."),
        "lastErrorAt": moment("When that was."),
    });
    let required = ["workerId", "queues", "allQueues", "streams", "slots", "tasksHeld"];
    object("A worker.", &required, properties)
}

fn worker_list() -> Value {
    let properties = json!({
        "items": list(reference("Worker"), "The latest claim first."),
        "total": count("Number of workers, including those beyond the limit."),
        "tasksHeldExact": flag("False if not all leases could be counted in a quarter of a second."),
    });
    object("Workers.", &["items", "total", "tasksHeldExact"], properties)
}

fn action() -> Value {
    let open = |description: &str| json!({ "type": "object", "description": description });
    let properties = json!({
        "id": count("Grows with every entry."),
        "at": moment("When the request came."),
        "tenantId": text("The tenant of the token."),
        "subject": text("The subject of the token."),
        "operation": text("The operation's id."),
        "parameters": open("Parameters of path and query. Absent if there are none."),
        "body": { "description": "The body, with secrets masked. Absent if it is empty or longer than 4 KiB." },
        "remoteAddress": text("Where the request came from."),
        "requestId": text("The id of the request."),
        "status": count("The status of the response. Absent if the client left before it."),
        "code": text("The error code of a refusal."),
    });
    let required = ["id", "at", "tenantId", "subject", "operation", "requestId"];
    object("An action of an admin.", &required, properties)
}

fn audit_page() -> Value {
    let properties = json!({
        "items": list(reference("AdminAction"), "Oldest first."),
        "nextAfter": count("Send as `after` to get newer entries."),
    });
    object("Entries of the audit log.", &["items", "nextAfter"], properties)
}

fn reason() -> Value {
    let failure = json!({
        "at": moment("When."),
        "event": event("How the attempt ended."),
        "who": text("The worker; absent if the server ended the attempt."),
        "why": text("The reason, if one was given."),
    });
    let failure = object("A failed attempt.", &["at", "event"], failure);
    let properties = json!({
        "code": word(&REASONS, "The kind of reason."),
        "text": text("The reason in words."),
        "at": moment("When it happened."),
        "until": moment("When the delay, the wait or the lease ends."),
        "since": moment("When the queue was paused, the oldest task created, or the server started."),
        "by": text("Who did it."),
        "error": text("The last error."),
        "attempts": count("Failed attempts."),
        "maxAttempts": count("The limit of attempts."),
        "inProgress": count("Tasks of the queue that are in progress."),
        "maxConsumers": count("The limit of tasks in progress."),
        "higherPriority": count("Tasks of a higher priority that are claimed first."),
        "older": count("Older tasks of the same priority, which are claimed first."),
        "exact": flag("False if `older` is a lower bound."),
        "lastClaimAt": moment("When a worker last asked for the queue; to the second."),
        "waitingWorkers": count("Workers whose streams could take a task of the queue now."),
        "workerId": text("The worker that holds the lease."),
        "heartbeatAt": moment("When the worker last claimed or extended the lease."),
        "heartbeatAgeSeconds": count("How long ago that was."),
        "count": count("Number of tasks."),
        "failures": list(failure, "The failed attempts that the history has, oldest first."),
        "dropped": count("Transitions that the history no longer has. Absent when 0."),
    });
    object("A reason. The other fields depend on `code`.", &["code", "text"], properties)
}

fn task_why() -> Value {
    let properties = json!({
        "taskId": text("The task."),
        "command": text("Its command."),
        "status": status("Its status."),
        "lastKnownLocation": place("Where it is."),
        "summary": text("All reasons in one sentence."),
        "reasons": list(reference("Reason"), "The strongest first."),
    });
    let required = ["taskId", "command", "status", "lastKnownLocation", "summary", "reasons"];
    object("Why a task is where it is.", &required, properties)
}

fn queue_why() -> Value {
    let properties = json!({
        "command": text("The queue."),
        "ready": count("Claimable tasks."),
        "delayed": count("Tasks that are not due yet."),
        "inProgress": count("Leased tasks."),
        "dlq": count("Dead letters."),
        "paused": flag("Whether claims are paused."),
        "summary": text("All reasons in one sentence."),
        "reasons": list(reference("Reason"), "The strongest first."),
    });
    let required =
        ["command", "ready", "delayed", "inProgress", "dlq", "paused", "summary", "reasons"];
    object("Why a queue does or does not move.", &required, properties)
}
