//! Operations that explain what the server does: reasons, workers and the audit log.

use codeq_core::limits::LIST_MAX;
use serde_json::{Value, json};

use super::operation::{Operation, query_flag};
use crate::http::audit::AuditBody;
use crate::http::why::{QueueWhyBody, TaskWhyBody};
use crate::http::workers::WorkerList;
use crate::service::Code;
use crate::service::tasks::PAGE_DEFAULT;

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![
        ("explainTask", explain_task()),
        ("explainQueue", explain_queue()),
        ("listWorkers", list_workers()),
        ("listActions", list_actions()),
    ]
}

fn explain_task() -> Operation {
    Operation::new(
        "task",
        "Explain a task",
        "Why the task is where it is: what it waits for, which tasks are claimed before it, whether workers ask for tasks \
         of its queue, who holds its lease, or how its attempts failed. With several shards, the tasks before it and \
         the limit of consumers are those of its own shard.",
    )
    .answers::<TaskWhyBody>(200, "The reasons, the strongest first.")
    .refuses(&[Code::NotFound])
}

fn explain_queue() -> Operation {
    Operation::new(
        "queue",
        "Explain a queue",
        "Why the queue does or does not move: whether it is paused or at its limit of consumers, what it holds, and when \
         a worker last asked for it. Claims are remembered since the server started.",
    )
    .answers::<QueueWhyBody>(200, "The reasons, the strongest first.")
    .refuses(&[Code::InvalidCommand])
}

fn list_workers() -> Operation {
    Operation::new(
        "server",
        "List workers",
        "Workers of the tenant that have a stream, hold a task, or asked for tasks within the last hour; the latest claim \
         first. Claims are remembered since the server started, to the second, for up to 2,048 workers of a tenant.",
    )
    .query("limit", "The maximum number of workers.", limit())
    .answers::<WorkerList>(200, "The workers.")
    .refuses(&[Code::InvalidParameter, Code::InvalidLimit])
}

fn list_actions() -> Operation {
    let after = json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX });
    Operation::new(
        "server",
        "Read the audit log",
        "Calls by the tenant's admins that may change something, oldest first: every call to a route for admins or \
         operators that is not a GET and that passes the permission check and the rate limit, whatever its outcome \
         after that, and every subscription that an admin removed. Without `after`, the newest entries. About 32 MiB of \
         entries are kept, of which each tenant has a fair share.",
    )
    .query("limit", "The maximum number of entries.", limit())
    .query("after", "Only entries with a larger `id`: `nextAfter` of the previous response.", after)
    .query("allTenants", "Entries of all tenants. Requires the scope `codeq:operator`.", query_flag())
    .answers::<AuditBody>(200, "The entries.")
    .refuses(&[Code::InvalidParameter, Code::InvalidLimit])
}

fn limit() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": PAGE_DEFAULT })
}
