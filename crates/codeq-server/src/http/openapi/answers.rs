//! Schemas of responses.

use serde_json::{Value, json};

use super::kinds::{count, ending, event, flag, list, moment, object, place, status, text, word};
use super::operation::{reference, set};

/// The schemas, by name.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("Task", task()),
        ("ResultRecord", result_record()),
        ("Artifact", artifact()),
        ("FinishedTask", finished_task()),
        ("TaskPage", task_page()),
        ("History", history()),
        ("EnqueueBatch", enqueue_batch()),
        ("ClaimedTasks", claimed_tasks()),
        ("SubmitBatch", submit_batch()),
        ("Lease", lease()),
        ("Abandoned", abandoned()),
        ("Nacked", nacked()),
        ("QueueMap", queue_map()),
        ("QueueList", queue_list()),
        ("Queue", queue()),
        ("QueueItem", queue_item()),
        ("Paused", paused()),
        ("Purged", purged()),
        ("Replayed", replayed()),
        ("CleanedUp", cleaned_up()),
        ("Topic", topic()),
        ("TopicList", topic_list()),
        ("TaskEvent", task_event()),
        ("RaftStatus", raft_status()),
        ("Index", index()),
        ("ResultCallback", result_callback()),
        ("Problem", problem()),
    ]
}

fn id(description: &str) -> Value {
    json!({ "type": "string", "format": "uuid", "description": description })
}

fn task() -> Value {
    let required = [
        "id",
        "command",
        "payload",
        "status",
        "lastKnownLocation",
        "tenantId",
        "createdAt",
        "updatedAt",
    ];
    let positive = |description: &str, max: u32| json!({ "type": "integer", "minimum": 1, "maximum": max, "description": description });
    let properties = json!({
        "id": id("Opaque to clients."),
        "command": text("The kind of work, as sent."),
        "payload": text("The producer's JSON as a text, byte for byte."),
        "priority": positive("Higher first. Absent when 0.", 9),
        "webhook": text("Where the result is posted."),
        "traceParent": text("W3C trace context of the enqueue."),
        "traceState": text("W3C trace state of the enqueue."),
        "status": status("How far the task is."),
        "lastKnownLocation": place("Where the task is."),
        "workerId": text("Who has the lease."),
        "leaseUntil": moment("When the lease ends."),
        "fence": count("Grows with every claim of the task; present while it is leased."),
        "attempts": positive("Failed executions so far. Absent when 0.", 1_000),
        "maxAttempts": positive("The ceiling of `attempts`.", 1_000),
        "error": text("The last failure; kept across retries."),
        "resultKey": text("`codeq/results/<id>` once there is a result."),
        "tenantId": text("From the token."),
        "createdAt": moment("When it was made."),
        "updatedAt": moment("When it last changed."),
        "visibleAt": moment("When a delayed task becomes claimable."),
        "originTaskId": id("The dead letter that this task was made for."),
        "cancelRequested": flag("True if the producer wants the work to stop; absent otherwise."),
    });
    object("A task. Empty texts, zeros and absent values are left out.", &required, properties)
}

fn artifact() -> Value {
    let properties = json!({ "name": text("Its name."), "url": text("Where it lies.") });
    object("An output of a task.", &["name", "url"], properties)
}

fn result_record() -> Value {
    let properties = json!({
        "taskId": id("The task."),
        "status": ending("How it ended."),
        "result": { "type": "object", "description": "The worker's object as sent. Always there with `COMPLETED`." },
        "error": text("What went wrong. Always there with `FAILED`."),
        "artifacts": list(reference("Artifact"), "Absent when there are none."),
        "completedAt": moment("When it ended."),
    });
    object("A result. Written once.", &["taskId", "status", "completedAt"], properties)
}

fn finished_task() -> Value {
    let properties = json!({ "task": reference("Task"), "result": reference("ResultRecord") });
    object("A finished task and its result.", &["task", "result"], properties)
}

fn task_page() -> Value {
    let properties = json!({
        "items": list(reference("Task"), "Newest first."),
        "nextCursor": text("Where the next page begins; absent on the last one."),
    });
    object("A page of tasks.", &["items"], properties)
}

fn history() -> Value {
    let entry = json!({
        "at": moment("When."),
        "event": event("What happened."),
        "from": place("Where the task was; absent for the first, and after a gap."),
        "to": place("Where it went."),
        "status": status("Its status since."),
        "who": text("Who did it; absent for the server itself."),
        "why": text("The reason, if one was given."),
    });
    let entry = object("A transition.", &["at", "event", "to", "status"], entry);
    let properties = json!({
        "taskId": text("The task."),
        "items": list(entry, "Oldest first."),
        "dropped": { "type": "integer", "minimum": 1, "description": "Transitions after the first that gave way to newer ones. Absent when 0." },
    });
    object("The transitions of a task.", &["taskId", "items"], properties)
}

const ITEM_PROBLEM: [&str; 3] = ["error", "code", "detail"];

/// The schema of a refused item's error.
fn item_problem() -> Value {
    json!({
        "error": text("Why it was refused, in short."),
        "code": text("The same for programs."),
        "detail": text("What is wrong with this very item."),
        "field": text("The field that is wrong, if one is."),
    })
}

fn enqueue_batch() -> Value {
    let made = object("It was made.", &["task"], json!({ "task": reference("Task") }));
    let refused = object("It was refused.", &ITEM_PROBLEM, item_problem());
    let results = list(json!({ "oneOf": [made, refused] }), "In the order of the request.");
    object("What became of each task.", &["results"], json!({ "results": results }))
}

fn claimed_tasks() -> Value {
    let mut tasks = list(reference("Task"), "The tasks, at least one.");
    set(&mut tasks, "minItems", json!(1));
    object("Leased tasks.", &["tasks"], json!({ "tasks": tasks }))
}

fn submit_batch() -> Value {
    let mut item = item_problem();
    set(&mut item, "taskId", text("The task, as sent; empty if the item names none."));
    set(&mut item, "result", reference("ResultRecord"));
    let mut item = object("A result, or an error.", &["taskId"], item);
    set(&mut item, "oneOf", json!([{ "required": ["result"] }, { "required": ITEM_PROBLEM }]));
    let results = list(item, "In the order of the request.");
    object("What became of each result.", &["results"], json!({ "results": results }))
}

fn lease() -> Value {
    let properties = json!({
        "ok": { "type": "boolean", "const": true },
        "leaseUntil": moment("When the lease ends now."),
        "cancelRequested": flag("The producer wants the work to stop."),
    });
    object("A lease that was extended.", &["ok", "leaseUntil", "cancelRequested"], properties)
}

fn went_to() -> Value {
    let words = ["requeued", "dlq", "cancelled"];
    word(
        &words,
        "Where the task went: to its queue, to the dead letters, or nowhere because it was cancelled.",
    )
}

fn abandoned() -> Value {
    object("Where the task went.", &["status"], json!({ "status": went_to() }))
}

fn nacked() -> Value {
    let delay = count("The pause that was applied, in seconds, rounded up.");
    let properties = json!({ "status": went_to(), "delaySeconds": delay });
    object("Where the task went.", &["status", "delaySeconds"], properties)
}

fn queue_map() -> Value {
    json!({
        "type": "object",
        "description": "One entry `codeq:q:<command>:<tenant>:<list>` for every list that is not empty; the list is `pending:<0-9>`, `inprog`, `delayed` or `dlq`.",
        "propertyNames": { "pattern": "^codeq:q:" },
        "additionalProperties": { "type": "integer", "minimum": 1 },
    })
}

const QUEUE_FIELDS: [&str; 6] = ["command", "ready", "delayed", "inProgress", "dlq", "paused"];

fn queue() -> Value {
    let properties = json!({
        "command": text("The queue."),
        "ready": count("Claimable tasks."),
        "delayed": count("Tasks that wait for their time."),
        "inProgress": count("Leased tasks."),
        "dlq": count("Dead letters."),
        "paused": flag("Claims are stopped."),
    });
    object("The numbers of a queue.", &QUEUE_FIELDS, properties)
}

fn queue_item() -> Value {
    let required = [
        "tenantId",
        "completed",
        "failed",
        "bytes",
        "oldestReadySeconds",
        "enqueuedPerSecond",
        "claimedPerSecond",
        "finishedPerSecond",
    ];
    let properties = json!({
        "tenantId": text("Its tenant."),
        "completed": count("Finished tasks that are kept, completed."),
        "failed": count("Finished tasks that are kept, failed."),
        "bytes": count("Payload bytes of unfinished tasks."),
        "oldestReadySeconds": { "type": "number", "minimum": 0, "description": "Age of the oldest claimable task; 0 if there is none." },
        "enqueuedPerSecond": { "type": "number", "minimum": 0, "description": "Tasks made, over the last minute." },
        "claimedPerSecond": { "type": "number", "minimum": 0, "description": "Tasks claimed, over the last minute." },
        "finishedPerSecond": { "type": "number", "minimum": 0, "description": "Tasks finished, over the last minute." },
    });
    let mut schema = object("A queue.", &required, properties);
    set(&mut schema, "allOf", json!([reference("Queue")]));
    schema
}

fn queue_list() -> Value {
    let items = list(reference("QueueItem"), "The queues.");
    object("The queues of the tenant.", &["items"], json!({ "items": items }))
}

fn paused() -> Value {
    let properties =
        json!({ "command": text("The queue."), "paused": flag("Claims are stopped.") });
    object("Whether claims are stopped.", &["command", "paused"], properties)
}

/// Adds the response fields of a dry run.
fn with_dry_run(mut properties: Value) -> Value {
    set(&mut properties, "dryRun", flag("Only in the answer of a dry run: nothing was touched."));
    set(&mut properties, "matched", count("Only in the answer of a dry run: tasks that match."));
    set(&mut properties, "nextCursor", text("Where to go on, if not all were looked at."));
    properties
}

fn purged() -> Value {
    let properties = json!({
        "purged": count("Tasks that are gone from the place."),
        "remaining": count("Tasks that are still there: call again."),
    });
    object("What a purge did.", &["purged", "remaining"], with_dry_run(properties))
}

fn replayed() -> Value {
    let properties = json!({
        "replayed": count("Tasks that are back in their queue."),
        "remaining": count("Dead letters that are left in the queue; with `from`, failed and cancelled tasks together."),
    });
    object("What a replay did.", &["replayed", "remaining"], with_dry_run(properties))
}

fn cleaned_up() -> Value {
    let properties = json!({
        "before": moment("The moment that was used: tasks had finished before it, or had expired by then."),
        "deleted": count("Tasks that are gone."),
        "limit": count("How many could have gone."),
    });
    object("What a cleanup did.", &["before", "deleted", "limit"], with_dry_run(properties))
}

fn topic_list() -> Value {
    let items = list(reference("Topic"), "The topics, by name.");
    object("The topics of the tenant.", &["items"], json!({ "items": items }))
}

fn topic() -> Value {
    let tier = json!({ "type": "integer", "minimum": 0, "maximum": 10 });
    let policy = json!({
        "priorityTiers": list(tier, "Absent when all priorities are allowed."),
        "maxAttempts": count("Default and ceiling for new tasks; absent when not set."),
        "deadLetterTopicRef": text("Dead letters are also enqueued under this command."),
        "retentionSeconds": count("0 means the server's setting."),
        "deadLetterRetentionSeconds": count("Absent when not set."),
        "maxConsumers": count("0 means no limit."),
    });
    let policy = object("The policy.", &["retentionSeconds", "maxConsumers"], policy);
    let properties = json!({
        "topicId": text("`<tenant>.<name>`."),
        "tenantId": text("The tenant."),
        "topicName": text("The name, which is the command of the queue."),
        "policy": policy,
        "version": { "type": "integer", "format": "int64", "minimum": 1, "description": "Grows by one with every change." },
        "createdAt": moment("When it was first written."),
        "updatedAt": moment("When it last changed."),
    });
    let required =
        ["topicId", "tenantId", "topicName", "policy", "version", "createdAt", "updatedAt"];
    object("A topic and its policy.", &required, properties)
}

fn task_event() -> Value {
    let properties = json!({
        "taskId": id("The task."),
        "command": text("Its queue."),
        "event": event("What happened."),
        "from": place("Where it was; absent when it was made."),
        "to": place("Where it went; absent when it was removed."),
        "status": status("Its status since; absent when it was removed."),
        "attempts": count("Failed executions so far."),
        "at": moment("When."),
    });
    let required = ["taskId", "command", "event", "attempts", "at"];
    object("The `data` of an event `task` of the stream.", &required, properties)
}

fn raft_status() -> Value {
    let group = json!({
        "shardIdx": count("The shard."),
        "isLeader": flag("This node leads it."),
        "selfId": text("This node."),
        "selfAddr": text("This node's address."),
        "leaderId": text("The leader."),
        "leaderAddr": text("The leader's address."),
        "leaderHTTPAddr": text("Where the leader serves HTTP."),
        "hasLeader": flag("A leader is known."),
    });
    let group = object("A replicated shard.", &[], group);
    let properties = json!({
        "enabled": flag("Whether this node is part of a cluster."),
        "numGroups": count("Replicated shards."),
        "groups": list(group, "One for each; empty on a single node."),
    });
    object("Where this node stands.", &["enabled", "numGroups", "groups"], properties)
}

fn index() -> Value {
    let properties = json!({
        "name": text("`codeQ`."),
        "version": text("The version of the server."),
        "api": text("Where the routes of the API begin."),
        "docs": text("The documentation as a page."),
        "openapi": text("The documentation as OpenAPI 3.1."),
    });
    object("Where to go from here.", &["name", "version", "api", "docs", "openapi"], properties)
}

fn result_callback() -> Value {
    let properties = json!({
        "taskId": id("The task. Deliveries may repeat: deduplicate by this."),
        "eventType": text("The task's command."),
        "status": ending("How it ended."),
        "result": { "type": ["object", "null"], "description": "The worker's object; null if there is none." },
        "error": text("Why it failed; empty if it did not."),
        "artifacts": list(reference("Artifact"), "Outputs of the task; empty if there are none."),
        "completedAt": moment("When it ended."),
    });
    let required = ["taskId", "eventType", "status", "result", "error", "artifacts", "completedAt"];
    object("What is posted to a task's `webhook`. Every key is there.", &required, properties)
}

fn problem() -> Value {
    let properties = json!({
        "type": { "type": "string", "format": "uri-reference", "description": "`/docs#<code>`." },
        "title": text("The name of the status."),
        "status": { "type": "integer", "minimum": 400, "maximum": 599 },
        "detail": text("What is wrong with this request."),
        "error": text("The same in short, as codeQ's clients read it."),
        "code": text("A stable slug for programs."),
        "requestId": text("The same as in `X-Request-Id`."),
        "field": text("The field or parameter that is wrong, if one is."),
        "scope": text("With 429: which limit was hit. With 403: the scope that the token lacks."),
        "operation": text("With 429: the operation id of the route."),
        "retryAfterSeconds": count("With 429 and 503: when to try again."),
    });
    let required = ["type", "title", "status", "detail", "error", "code", "requestId"];
    object("Why a request was not served (RFC 9457).", &required, properties)
}
