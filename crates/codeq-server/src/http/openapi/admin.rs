//! Admin operations.

use serde_json::json;

use super::kinds::query_flag;
use super::operation::{JSON, Operation, reference};
use super::tasks::paged;
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
    let either = json!({ "oneOf": [reference("QueueMap"), reference("QueueList")] });
    Operation::new(
        "queue",
        "List queues",
        "Without `format` a flat map of the lists that are not empty; with `format=list` one item for each \
         queue.",
    )
    .query("format", "How the answer looks.", format)
    .query("allTenants", "Queues of all tenants; needs the scope `codeq:operator`.", query_flag())
    .answers_as(200, "The queues.", JSON, either)
    .refuses(&[Code::InvalidParameter])
}

fn get_queue() -> Operation {
    Operation::new(
        "queue",
        "Read a queue",
        "A queue that does not exist has zeros and is not paused.",
    )
    .answers(200, "Its numbers.", "Queue")
    .refuses(&[Code::InvalidCommand])
}

fn pause() -> Operation {
    Operation::new(
        "queue",
        "Pause a queue",
        "Claims find nothing in it; enqueues go on. A queue may be paused before its first task.",
    )
    .answers(200, "It is paused.", "Paused")
    .refuses(&[Code::InvalidCommand, Code::TooManyQueues, Code::InvalidTenant])
}

fn resume() -> Operation {
    Operation::new("queue", "Resume a queue", "Claims find its tasks again.")
        .answers(200, "It is not paused any more.", "Paused")
        .refuses(&[Code::InvalidCommand, Code::NotFound, Code::InvalidTenant])
}

fn purge_queue() -> Operation {
    Operation::new(
        "queue",
        "Purge a queue",
        "Cancels waiting and delayed tasks that match, up to `limit` in one call. A call works for a \
         quarter of a second at most. Repeat while some remain, with `cursor` if `nextCursor` was answered. \
         Ask with `dryRun` first.",
    )
    .optional_body("PurgeRequest", json!({ "before": "2026-01-31T00:00:00Z", "dryRun": true }))
    .answers(200, "How many are gone.", "Purged")
    .refuses(&BULK)
}

fn list_dead_letters() -> Operation {
    let operation =
        Operation::new("dlq", "List dead letters", "Tasks whose attempts are spent, newest first.");
    paged(operation).refuses(&[Code::InvalidCommand])
}

fn replay_dead_letters() -> Operation {
    Operation::new(
        "dlq",
        "Replay dead letters",
        "Returns dead letters that match to their queue with no attempts spent, oldest first, up to `limit` in \
         one call; with `from` failed or cancelled tasks. Their results are removed, their histories stay. A call \
         works for a quarter of a second at most, and stops at the tenant's limits. Repeat while some remain, with \
         `cursor` if `nextCursor` was answered. Ask with `dryRun` first.",
    )
    .optional_body("ReplayRequest", json!({ "errorContains": "timeout", "dryRun": true }))
    .answers(200, "How many are back.", "Replayed")
    .refuses(&BULK)
    .refuses(&[Code::QuotaExceeded])
}

fn purge_dead_letters() -> Operation {
    Operation::new(
        "dlq",
        "Purge dead letters",
        "Removes dead letters that match for good, up to `limit` in one call. A call works for a \
         quarter of a second at most. Repeat while some remain, with `cursor` if `nextCursor` was answered. \
         Ask with `dryRun` first.",
    )
    .optional_body("PurgeDeadLettersRequest", json!({ "errorContains": "timeout", "dryRun": true }))
    .answers(200, "How many are gone.", "Purged")
    .refuses(&BULK)
}

fn replay_task() -> Operation {
    Operation::new(
        "dlq",
        "Replay one task",
        "Returns a dead-lettered, failed or cancelled task to its queue with no attempts spent. Its result is \
         removed, its history stays.",
    )
    .answers(200, "The task, pending again.", "Task")
    .refuses(&[Code::NotFound, Code::Completed, Code::NotFinished, Code::QuotaExceeded])
}

fn cleanup() -> Operation {
    let example = json!({ "before": "2026-01-31T00:00:00Z", "dryRun": true });
    Operation::new(
        "task",
        "Remove finished tasks",
        "Removes tasks of the tenant, dead letters included, that finished before a moment, or without one those \
         whose retention has ended; up to `limit` in one call. A call works for a quarter of a second at most. \
         Repeat with `cursor` as long as `nextCursor` is answered. Ask with `dryRun` first.",
    )
    .optional_body("CleanupRequest", example)
    .answers(200, "How many are gone.", "CleanedUp")
    .refuses(&[Code::InvalidBefore, Code::InvalidFilter, Code::InvalidCursor, Code::InvalidTenant])
}

fn list_topics() -> Operation {
    Operation::new("topic", "List topics", "The queues that have a policy, by name.")
        .answers(200, "The topics.", "TopicList")
}

fn put_topic() -> Operation {
    let example =
        json!({ "maxAttempts": 3, "maxConsumers": 20, "deadLetterTopicRef": "failed-mails" });
    Operation::new(
        "topic",
        "Write a topic's policy",
        "The policy holds for the queue of that name. The same policy again changes nothing; another one \
         grows the version by one.",
    )
    .body("TopicPolicyRequest", example)
    .answers(200, "It was changed, or was like this already.", "Topic")
    .answers(201, "It was created.", "Topic")
    .refuses(&[Code::InvalidTopicName, Code::InvalidTopicPolicy, Code::TooManyQueues, Code::InvalidTenant])
}

fn get_topic() -> Operation {
    Operation::new("topic", "Read a topic's policy", "The policy and its version.")
        .answers(200, "The topic.", "Topic")
        .refuses(&[Code::InvalidTopicName, Code::NotFound])
}

fn delete_topic() -> Operation {
    let policy = json!({ "type": "string", "enum": ["Delete"] });
    Operation::new(
        "topic",
        "Remove a topic's policy",
        "The queue and its tasks stay; the server's defaults hold again.",
    )
    .required_query("deletionPolicy", "Says that this is meant.", policy)
    .answers_nothing(204, "It is gone.")
    .refuses(&[Code::InvalidParameter, Code::InvalidTopicName, Code::InvalidTenant])
}
