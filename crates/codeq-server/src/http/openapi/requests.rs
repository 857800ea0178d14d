//! Schemas of requests. The document closes them all, because the server refuses unknown fields.
//!
//! Bounds that an operator can configure are those of the default configuration, and their
//! descriptions say so.

use codeq_core::limits::{
    ARTIFACT_FIELD_BYTES_MAX, ARTIFACTS_MAX, BULK_MAX, CLAIM_COMMANDS_MAX, DELAY_MS_MAX,
    ERROR_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, LEASE_MS_MAX, RETENTION_MS_MAX, TOPIC_ATTEMPTS_MAX,
    TOPIC_CONSUMERS_MAX, TOPIC_TIER_MAX, TOPIC_TIERS_MAX, WEBHOOK_BYTES_MAX, WORKER_BYTES_MAX,
};
use serde_json::{Value, json};

use super::kinds::{
    command, ending, form_or_blank, label, list, number_or_null, object, text_or_null,
};
use super::operation::{reference, set};
use crate::config::Config;

const LEASE_SECONDS_MAX: i64 = (LEASE_MS_MAX / 1_000) as i64;
const DELAY_SECONDS_MAX: i64 = (DELAY_MS_MAX / 1_000) as i64;
const RETENTION_SECONDS_MAX: i64 = (RETENTION_MS_MAX / 1_000) as i64;

/// The schemas, by name.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("NewTask", new_task()),
        ("NewTasks", batch("tasks", "NewTask")),
        ("ClaimRequest", claim(false)),
        ("ClaimBatchRequest", claim(true)),
        ("HeartbeatRequest", heartbeat()),
        ("AbandonRequest", abandon()),
        ("NackRequest", nack()),
        ("Submission", submission(false)),
        ("SubmissionItem", submission(true)),
        ("Submissions", batch("results", "SubmissionItem")),
        ("PurgeRequest", purge()),
        ("PurgeDeadLettersRequest", purge_dead()),
        ("ReplayRequest", replay()),
        ("CleanupRequest", cleanup()),
        ("TopicPolicyRequest", policy()),
    ]
}

fn new_task() -> Value {
    // No `format`: non-ASCII names are allowed here, and `uri` forbids them.
    let url = json!({
        "type": "string", "pattern": r"^https?://[^/?#\s]", "maxLength": WEBHOOK_BYTES_MAX,
    });
    let run_at = json!({ "type": "string", "format": "date-time" });
    let properties = json!({
        "command": command(),
        "payload": {
            "not": { "type": "null" },
            "description": "Any JSON but null, up to 1 MiB unless the server is configured otherwise (up to 16 MiB). Kept byte for byte; answers hold it as a text.",
        },
        "priority": number_or_null(i64::MIN, i64::MAX,
            "0 to 9, higher first; what lies outside is moved to the nearer end. Default 0."),
        "maxAttempts": number_or_null(i64::MIN, i64::MAX,
            "Failed executions before the task is dead-lettered; 0 and less mean the default, more than 1,000 counts as 1,000."),
        "webhook": form_or_blank(url, "Where the result is posted: http or https, to a public address unless the operator has opened others."),
        "idempotencyKey": text_or_null(IDEMPOTENCY_KEY_BYTES_MAX,
            "A repeat with the same key answers the task that was made first, if command and payload are the same; payloads are compared as JSON values. At most 256 bytes."),
        "runAt": form_or_blank(run_at,
            "Not before this moment, at most ten years from now. Wins over `delaySeconds`."),
        "delaySeconds": number_or_null(0, DELAY_SECONDS_MAX, "Not before so many seconds from now."),
    });
    object("A task to be made.", &["command", "payload"], properties)
}

fn batch(field: &str, of: &str) -> Value {
    let mut items = list(
        reference(of),
        "100 at most, unless the server is configured otherwise (up to 1,000).",
    );
    set(&mut items, "minItems", json!(1));
    set(&mut items, "maxItems", json!(Config::default().max_batch_size));
    object("Several at once. Each stands for itself.", &[field], json!({ field: items }))
}

fn claim(batch: bool) -> Value {
    let mut commands = list(
        command(),
        "Only tasks of these commands. Empty or absent: all that the token allows.",
    );
    set(&mut commands, "type", json!(["array", "null"]));
    set(&mut commands, "maxItems", json!(CLAIM_COMMANDS_MAX));
    let mut properties = json!({
        "commands": commands,
        "leaseSeconds": number_or_null(i64::MIN, LEASE_SECONDS_MAX, "Length of the lease; 0 and less mean the default."),
        "waitSeconds": number_or_null(i64::MIN, i64::MAX,
            "Wait so long for a task if there is none; less than 0 counts as 0, more than 30 as 30."),
        "workerId": text_or_null(WORKER_BYTES_MAX,
            "Names this process among those that share the token: the lease is then given to `subject/workerId`. With the subject it may have 253 bytes."),
    });
    if !batch {
        return object("What a worker asks for.", &[], properties);
    }
    let count = json!({
        "type": "integer", "format": "int64", "minimum": 1, "maximum": Config::default().max_claim_batch_size,
        "description": "At most so many; 10 at most, unless the server is configured otherwise (up to 1,000).",
    });
    set(&mut properties, "count", count);
    object("What a worker asks for.", &["count"], properties)
}

fn heartbeat() -> Value {
    let extend = number_or_null(
        i64::MIN,
        LEASE_SECONDS_MAX,
        "The lease ends so many seconds from now; 0 and less mean the default.",
    );
    let properties = under_lease(json!({ "extendSeconds": extend }));
    object("How long the lease is to last.", &[], properties)
}

fn abandon() -> Value {
    let penalty = json!({
        "type": ["boolean", "null"],
        "description": "Whether this spends an attempt. Default true.",
    });
    let properties = under_lease(json!({ "penalty": penalty }));
    object("How the task is given back.", &[], properties)
}

/// Adds the fields that name the lease.
fn under_lease(mut properties: Value) -> Value {
    let fence = json!({
        "type": ["integer", "null"], "format": "int64", "minimum": 0,
        "description": "The `fence` that the claim answered. If the task has been claimed again since, the answer is 409 `lease_lost`. Absent: not compared.",
    });
    let worker_id = json!({
        "type": ["string", "null"],
        "description": "The `workerId` of the claim. Not compared if the claim had none.",
    });
    set(&mut properties, "fence", fence);
    set(&mut properties, "workerId", worker_id);
    properties
}

fn nack() -> Value {
    let properties = json!({
        "delaySeconds": number_or_null(i64::MIN, i64::MAX,
            "The pause before the next try, up to the server's longest; 0 means at once, less and absent the backoff policy."),
        "reason": { "type": ["string", "null"], "description": "Kept as the task's error; cut at 4,096 bytes." },
    });
    object("Why and until when.", &[], under_lease(properties))
}

fn submission(in_batch: bool) -> Value {
    let field =
        || json!({ "type": "string", "minLength": 1, "maxLength": ARTIFACT_FIELD_BYTES_MAX });
    let content_type = json!({
        "type": ["string", "null"], "maxLength": 255,
        "description": "With `contentBase64`: what the download is answered with. Default `application/octet-stream`.",
    });
    let mut artifact = object(
        "An output: one that lies elsewhere, or one to be stored here.",
        &["name"],
        json!({
            "name": field(),
            "url": field(),
            "contentBase64": {
                "type": "string", "contentEncoding": "base64",
                "description": "The bytes, up to 64 MiB unless the server is configured otherwise. The name \
                    then has at most 255 bytes, no control characters and no slashes.",
            },
            "contentType": content_type,
        }),
    );
    let either = json!([{ "required": ["url"] }, { "required": ["contentBase64"] }]);
    set(&mut artifact, "oneOf", either);
    let mut artifacts = list(artifact, "Outputs. No two of them have the same name.");
    set(&mut artifacts, "type", json!(["array", "null"]));
    set(&mut artifacts, "maxItems", json!(ARTIFACTS_MAX));
    let mut properties = json!({
        "status": ending("How the task ended. `FAILED` is final; to have it tried again, nack."),
        "result": {
            "type": ["object", "null"],
            "description": "Any object up to 1 MiB, unless the server is configured otherwise (up to 16 MiB), kept as sent. With `COMPLETED`, absent counts as `{}`.",
        },
        "error": { "type": ["string", "null"], "description": "Required with `FAILED`, kept with `COMPLETED` too; cut at 4,096 bytes." },
        "artifacts": artifacts,
    });
    properties = under_lease(properties);
    let mut required = vec!["status"];
    if in_batch {
        set(&mut properties, "taskId", json!({ "type": "string", "description": "The task." }));
        required.insert(0, "taskId");
    }
    let mut schema = object("How a task ended.", &required, properties);
    let failed = json!({ "properties": { "status": { "const": "FAILED" } } });
    let error = json!({ "required": ["error"], "properties": { "error": { "type": "string", "pattern": r"\S" } } });
    set(&mut schema, "if", failed);
    set(&mut schema, "then", error);
    schema
}

fn cursor() -> Value {
    json!({
        "type": ["string", "null"], "minLength": 1,
        "description": "`nextCursor` of the call before, to go on where it stopped.",
    })
}

/// The fields of purge, replay and cleanup. `date` says which date of a task counts.
fn filter(date: &str) -> Value {
    let moment = |text: String| json!({ "type": ["string", "null"], "format": "date-time", "description": text });
    // The limit is in bytes, and a character has at most four.
    let part = |bytes: usize, text: &str| json!({ "type": ["string", "null"], "minLength": 1, "maxLength": bytes / 4, "description": text });
    json!({
        "limit": {
            "type": ["integer", "null"], "minimum": 1,
            "description": format!("At most this many tasks per call; absent and larger values mean {BULK_MAX}."),
        },
        "cursor": cursor(),
        "errorContains": part(ERROR_BYTES_MAX, "Only tasks whose last error contains this."),
        "before": moment(format!("Only tasks that {date} before this moment.")),
        "after": moment(format!("Only tasks that {date} at this moment or later. Must be earlier than `before`.")),
        "worker": part(WORKER_BYTES_MAX, "Only tasks whose latest claim was this worker's."),
        "dryRun": {
            "type": ["boolean", "null"],
            "description": "Touch nothing and answer in `matched` how many tasks match: up to `limit` if there is \
                            one, or else all that are found within the time of a call.",
        },
    })
}

fn purge() -> Value {
    object("Which waiting tasks to cancel.", &[], filter("were created"))
}

fn purge_dead() -> Value {
    object("Which dead letters to remove.", &[], filter("were dead-lettered"))
}

fn replay() -> Value {
    let mut properties = filter("ended");
    let from = json!({
        "type": ["string", "null"], "enum": ["deadLetters", "failed", "cancelled", null],
        "description": "Which tasks: those whose attempts are spent (the default), those that a worker failed for \
                        good, or those that were cancelled, alone or with their queue.",
    });
    set(&mut properties, "from", from);
    object("Which tasks to replay.", &[], properties)
}

fn cleanup() -> Value {
    let mut properties = filter("finished");
    let before = json!({ "type": "string", "format": "date-time" });
    let text = "Only tasks that finished before this moment. Without it, only tasks whose retention has ended.";
    set(&mut properties, "before", form_or_blank(before, text));
    object("Which finished tasks to remove.", &[], properties)
}

fn policy() -> Value {
    let mut reference = label();
    set(&mut reference, "type", json!(["string", "null"]));
    set(
        &mut reference,
        "description",
        json!("A dead letter is also enqueued under this command. Not the topic itself."),
    );
    let properties = json!({
        "priorityTiers": {
            "type": ["array", "null"], "minItems": 1, "maxItems": TOPIC_TIERS_MAX, "uniqueItems": true,
            "items": { "type": "integer", "minimum": 0, "maximum": TOPIC_TIER_MAX },
            "description": "A task's priority is lowered to the nearest tier not above it, or raised to the lowest.",
        },
        "maxAttempts": number_or_null(1, TOPIC_ATTEMPTS_MAX.into(), "Default and ceiling for new tasks."),
        "deadLetterTopicRef": reference,
        "retentionSeconds": number_or_null(0, RETENTION_SECONDS_MAX, "How long finished tasks are kept, dead letters included unless they have a setting of their own; 0 means the server's setting."),
        "deadLetterRetentionSeconds": number_or_null(0, RETENTION_SECONDS_MAX, "How long dead letters are kept; 0 means `retentionSeconds` if the policy has it, or else the server's setting."),
        "maxConsumers": number_or_null(0, TOPIC_CONSUMERS_MAX.into(), "At most so many tasks in progress at once; 0 means no limit."),
    });
    object("The policy of a queue.", &[], properties)
}
