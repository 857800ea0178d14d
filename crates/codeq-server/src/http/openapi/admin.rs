//! Admin operations.

use serde_json::json;

use super::operation::{JSON, Operation, query_flag, reference};
use super::tasks::paged;
use crate::http::cleanup::{CleanedUp, CleanupRequest};
use crate::http::dead_letters::{PurgeDeadLettersRequest, ReplayRequest, Replayed};
use crate::http::queues::{
    CancelRequest, Cancelled, Paused, PurgeRequest, Purged, QueueBody, QueueList, QueueMap,
};
use crate::http::topics::{TopicBody, TopicList, TopicPolicyRequest};
use crate::http::wire::TaskBody;
use crate::service::Code;

/// Error codes of bulk operations on a queue.
const BULK: [Code; 6] = [
    Code::InvalidCommand,
    Code::InvalidBefore,
    Code::InvalidFilter,
    Code::InvalidCursor,
    Code::InvalidLimit,
    Code::InvalidTenant,
];

/// The documentation of each operation, by operation id.
pub fn operations() -> Vec<(&'static str, Operation)> {
    vec![
        ("listQueues", list_queues()),
        ("getQueue", get_queue()),
        ("pauseQueue", pause()),
        ("resumeQueue", resume()),
        ("purgeQueue", purge_queue()),
        ("cancelTasks", cancel_tasks()),
        ("listDeadLetters", list_dead_letters()),
        ("replayDeadLetters", replay_dead_letters()),
        ("purgeDeadLetters", purge_dead_letters()),
        ("replayTask", replay_task()),
        ("cleanupTasks", cleanup()),
        ("listTopics", list_topics()),
        ("putTopic", put_topic()),
        ("getTopic", get_topic()),
        ("deleteTopic", delete_topic()),
    ]
}

fn list_queues() -> Operation {
    let format = json!({ "type": "string", "enum": ["list"] });
    let either = json!({ "oneOf": [reference::<QueueMap>(), reference::<QueueList>()] });
    Operation::new(
        "queue",
        "List queues",
        "Without `format`, a flat map of the lists that are not empty. With `format=list`, one item per queue.",
    )
    .query("format", "The shape of the response.", format)
    .query("allTenants", "Queues of all tenants. Requires the scope `codeq:operator`.", query_flag())
    .answers_as(200, "The queues.", JSON, either)
    .sends::<QueueMap>()
    .sends::<QueueList>()
    .refuses(&[Code::InvalidParameter])
}

fn get_queue() -> Operation {
    Operation::new(
        "queue",
        "Get a queue",
        "If the queue does not exist, all counts are 0 and `paused` is false.",
    )
    .answers::<QueueBody>(200, "The state of the queue.")
    .refuses(&[Code::InvalidCommand])
}

fn pause() -> Operation {
    Operation::new(
        "queue",
        "Pause a queue",
        "Claims skip a paused queue; enqueues still work. A queue can be paused before its first task.",
    )
    .answers::<Paused>(200, "The queue is paused.")
    .refuses(&[Code::InvalidCommand, Code::TooManyQueues, Code::InvalidTenant])
}

fn resume() -> Operation {
    Operation::new("queue", "Resume a queue", "Claims no longer skip the queue.")
        .answers::<Paused>(200, "The queue is no longer paused.")
        .refuses(&[Code::InvalidCommand, Code::NotFound, Code::InvalidTenant])
}

fn purge_queue() -> Operation {
    Operation::new(
        "queue",
        "Purge a queue",
        "Cancels matching tasks that are ready or delayed, up to `limit` per call. The same as \"Cancel tasks of a queue\" \
         without `includeRunning`, except that the response has `purged` instead of `cancelled` and `cancelRequested`, \
         and each task's history gives `purge` as the reason (`why`). A call works for at most a quarter of a second. \
         Repeat with `cursor` as long as the response has `nextCursor`. Use `dryRun` first.",
    )
    .optional_body::<PurgeRequest>(json!({ "before": "2026-01-31T00:00:00Z", "dryRun": true }))
    .answers::<Purged>(200, "How many tasks were cancelled.")
    .refuses(&BULK)
}

fn cancel_tasks() -> Operation {
    Operation::new(
        "queue",
        "Cancel tasks of a queue",
        "Cancels matching tasks that are ready or delayed, up to `limit` per call: they finish at once, as `FAILED` \
         with the error `CANCELLED`. With `includeRunning`, it then asks the workers of matching running tasks to stop. \
         A call works for at most a quarter of a second. Repeat with `cursor` as long as the response has \
         `nextCursor`. Use `dryRun` first.",
    )
    .optional_body::<CancelRequest>(json!({ "errorContains": "timeout", "dryRun": true }))
    .answers::<Cancelled>(200, "How many tasks were cancelled or asked to stop.")
    .refuses(&BULK)
}

fn list_dead_letters() -> Operation {
    let about = "Tasks that have used all their attempts, newest first.";
    paged(Operation::new("dlq", "List dead letters", about)).refuses(&[Code::InvalidCommand])
}

fn replay_dead_letters() -> Operation {
    Operation::new(
        "dlq",
        "Replay dead letters",
        "Returns matching dead letters (with `from`, failed or cancelled tasks) to their queue and resets their \
         attempts, oldest first, up to `limit` per call. Their results are removed and their histories kept. A call \
         works for at most a quarter of a second and stops at the tenant's limits. Repeat with `cursor` as long as the \
         response has `nextCursor`. Use `dryRun` first.",
    )
    .optional_body::<ReplayRequest>(json!({ "errorContains": "timeout", "dryRun": true }))
    .answers::<Replayed>(200, "How many tasks were replayed.")
    .refuses(&BULK)
    .refuses(&[Code::QuotaExceeded])
}

fn purge_dead_letters() -> Operation {
    Operation::new(
        "dlq",
        "Purge dead letters",
        "Permanently removes matching dead letters, up to `limit` per call. A call works for at most a quarter of a \
         second. Repeat with `cursor` as long as the response has `nextCursor`. Use `dryRun` first.",
    )
    .optional_body::<PurgeDeadLettersRequest>(json!({ "errorContains": "timeout", "dryRun": true }))
    .answers::<Purged>(200, "How many dead letters were removed.")
    .refuses(&BULK)
}

fn replay_task() -> Operation {
    Operation::new(
        "dlq",
        "Replay a task",
        "Returns a dead letter, a failed or a cancelled task to its queue and resets its attempts. Its result is \
         removed and its history kept.",
    )
    .answers::<TaskBody>(200, "The task, back in its queue.")
    .refuses(&[Code::NotFound, Code::Completed, Code::NotFinished, Code::QuotaExceeded])
}

fn cleanup() -> Operation {
    let example = json!({ "before": "2026-01-31T00:00:00Z", "dryRun": true });
    Operation::new(
        "task",
        "Remove finished tasks",
        "Removes matching finished tasks of the tenant, including dead letters, up to `limit` per call. Without \
         `before`, only tasks whose retention has ended. A call works for at most a quarter of a second. Repeat with \
         `cursor` as long as the response has `nextCursor`. Use `dryRun` first.",
    )
    .optional_body::<CleanupRequest>(example)
    .answers::<CleanedUp>(200, "How many tasks were removed.")
    .refuses(&[
        Code::InvalidBefore,
        Code::InvalidFilter,
        Code::InvalidCursor,
        Code::InvalidLimit,
        Code::InvalidTenant,
    ])
}

fn list_topics() -> Operation {
    Operation::new("topic", "List topics", "The queues that have a policy, by name.")
        .answers::<TopicList>(200, "The topics.")
}

fn put_topic() -> Operation {
    let example =
        json!({ "maxAttempts": 3, "maxConsumers": 20, "deadLetterTopicRef": "failed-mails" });
    Operation::new(
        "topic",
        "Create or replace a topic's policy",
        "The policy applies to the queue of the same name. The same policy again changes nothing; a different one \
         increases the version by one.",
    )
    .body::<TopicPolicyRequest>(example)
    .answers::<TopicBody>(200, "The policy was changed, or was the same already.")
    .answers::<TopicBody>(201, "The policy was created.")
    .refuses(&[Code::InvalidTopicName, Code::InvalidTopicPolicy, Code::TooManyQueues, Code::InvalidTenant])
}

fn get_topic() -> Operation {
    Operation::new("topic", "Get a topic's policy", "The policy and its version.")
        .answers::<TopicBody>(200, "The topic.")
        .refuses(&[Code::InvalidTopicName, Code::NotFound])
}

fn delete_topic() -> Operation {
    let policy = json!({ "type": "string", "enum": ["Delete"] });
    Operation::new(
        "topic",
        "Remove a topic's policy",
        "The queue and its tasks stay. The server's defaults apply again.",
    )
    .required_query("deletionPolicy", "`Delete` confirms the removal.", policy)
    .answers_nothing(204, "The policy was removed.")
    .refuses(&[Code::InvalidParameter, Code::InvalidTopicName, Code::InvalidTenant])
}
