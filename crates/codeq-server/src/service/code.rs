//! Every error `code`, with its class, meaning and remedy.

use codeq_core::reply::Rejection;
use serde::{Serialize, Serializer};

use super::Kind;
use crate::observe::Refused;

macro_rules! codes {
    ($($code:ident $text:literal $kind:ident, $meaning:literal, $remedy:literal;)*) => {
        /// Machine-readable reason for a refusal.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $meaning] $code,)*
        }

        impl Code {
            /// All codes, in documentation order.
            pub const ALL: &[Code] = &[$(Code::$code),*];

            /// The slug on the wire.
            pub fn text(self) -> &'static str {
                match self { $(Code::$code => $text,)* }
            }

            /// The class of the failure.
            pub fn kind(self) -> Kind {
                match self { $(Code::$code => Kind::$kind,)* }
            }

            /// What happened.
            pub fn meaning(self) -> &'static str {
                match self { $(Code::$code => $meaning,)* }
            }

            /// What the client can do.
            pub fn remedy(self) -> &'static str {
                match self { $(Code::$code => $remedy,)* }
            }
        }
    };
}

codes! {
    MissingToken "missing_token" Unauthenticated, "The request has no `Authorization: Bearer` header.",
        "Send a token.";
    InvalidToken "invalid_token" Unauthenticated, "The server does not accept the token: it is unknown, malformed, expired, for another audience, or signed with an unknown key.",
        "Get a new token. If the token's signature is valid, `detail` says what is wrong; otherwise only the server's log does.";
    Forbidden "forbidden" Forbidden, "The token is valid but does not permit this: it lacks a scope, an event type or the admin role, is of the wrong kind (a worker's token on a producer's route, or the reverse), or its tenant claims contradict each other.",
        "Use a token that has what `detail` names.";
    IdentityUnavailable "identity_unavailable" Unavailable, "The issuer's keys cannot be fetched, and none are cached.",
        "Retry after `Retry-After` seconds. If the problem persists, the operator must check the identity provider.";
    RateLimited "rate_limited" TooMany, "The tenant has exceeded its rate limit.",
        "Wait `retryAfterSeconds`, then stay below the rate in `RateLimit-Policy`.";
    QuotaExceeded "quota_exceeded" TooMany, "The tenant has reached its limit of unfinished tasks, of their bytes, or of the bytes of all its tasks.",
        "Wait until tasks are finished or removed, or ask the operator for a higher limit.";

    NoSuchRoute "no_such_route" NotFound, "No route has this path.",
        "Check the path against the HTTP reference.";
    MethodNotAllowed "method_not_allowed" MethodNotAllowed, "The path does not support this method.",
        "Use one of the methods in the `Allow` header.";
    InvalidPath "invalid_path" Invalid, "The path is not valid UTF-8 after percent-decoding.",
        "Percent-encode the UTF-8 bytes of names.";
    InvalidParameter "invalid_parameter" Invalid, "A query parameter is invalid; `field` names it.",
        "Correct the parameter.";
    BodyTooLarge "body_too_large" TooLarge, "The body is larger than this route accepts; `detail` names the limit.",
        "Send smaller requests.";
    BodyTimeout "body_timeout" TimedOut, "The body did not arrive in time.",
        "Send the request again on a new connection.";
    UnsupportedEncoding "unsupported_encoding" Unsupported, "The body has a `Content-Encoding`.",
        "Send the body without an encoding.";
    InvalidBody "invalid_body" Invalid, "The body is not valid JSON, or a field is missing or has the wrong type.",
        "Correct the body: `detail` says what is wrong and where.";
    UnknownField "unknown_field" Invalid, "The body has a field, or the query has a parameter, that this route does not know. Nothing was changed.",
        "Correct or remove the field or parameter. `field` names it, and `detail` suggests a similar name.";
    TooDeep "too_deep" Invalid, "The JSON is nested deeper than 100 levels.",
        "Flatten the JSON, or send the nested part as a string.";

    NotFound "not_found" NotFound, "The token's tenant has no such task, result, artifact, queue, topic or subscription, or the caller may not see it.",
        "Check the id and the tenant. Finished tasks are removed when their retention ends.";
    NotInProgress "not_in_progress" Conflict, "The task is not leased, or its lease has ended.",
        "Stop working on the task: it is finished, or back in its queue.";
    NotOwner "not_owner" Forbidden, "The caller does not hold the lease: another worker does, or the task was claimed with a `workerId` that this request does not send.",
        "Send the `workerId` of the claim. If you did, stop working on the task: another worker has claimed it.";
    LeaseLost "lease_lost" Conflict, "The task has been claimed again since the claim with this `fence`.",
        "Stop working on the task: the later claim has it now.";
    Finished "finished" Conflict, "The task is already finished.",
        "Get the task's result instead.";
    InProgress "in_progress" Conflict, "A worker is running the task, so it cannot be changed.",
        "Wait until the attempt ends, or cancel the task.";
    Completed "completed" Conflict, "The task is completed, so it cannot be replayed.",
        "Enqueue a new task to do the work again.";
    NotFinished "not_finished" Conflict, "The task is not finished, so it cannot be replayed.",
        "Check its status with `GET /v1/codeq/tasks/{id}`. To start over, cancel it first.";
    NoCallback "no_callback" NotFound, "The task has no stored callback.",
        "Check that the task has a `webhook` and is finished.";

    InvalidCommand "invalid_command" Invalid, "A command is empty, longer than 128 bytes, or has control characters.",
        "Correct the command.";
    InvalidPayload "invalid_payload" TooLarge, "The payload is larger than the server accepts: 1 MiB unless configured otherwise.",
        "Store the data elsewhere and send its URL.";
    InvalidWebhook "invalid_webhook" Invalid, "The webhook is not an http or https URL of at most 2,048 bytes, or its address is not allowed.",
        "Correct the URL; `detail` says what is wrong. It must not contain a user or password, and its address must be public unless the operator allows it.";
    InvalidSecret "invalid_secret" Invalid, "The secret is too short, too long or malformed.",
        "Send `whsec_` and the base64 of 24 to 64 bytes, or 16 to 128 visible ASCII characters. Without a secret, the server creates one.";
    InvalidOverlap "invalid_overlap" Invalid, "`overlapSeconds` is more than thirty days.",
        "Send 0 to 2592000.";
    InvalidRunAt "invalid_run_at" Invalid, "`runAt` is not a date and time in RFC 3339.",
        "Use a format such as `2026-01-31T08:00:00Z`.";
    InvalidDelay "invalid_delay" Invalid, "The delay is negative, or ends more than ten years from now.",
        "Send a delay of 0 or more seconds, or an earlier time.";
    InvalidMaxRun "invalid_max_run" Invalid, "`maxRunSeconds` of a new task is negative, or more than 30 days.",
        "Send 1 to 2592000 seconds; 0 means the limit of the queue's policy, or none.";
    InvalidIdempotencyKey "invalid_idempotency_key" Invalid, "The idempotency key is longer than 256 bytes, has characters other than visible ASCII in the header, or differs between header and body.",
        "Send one key, in the header or in the body.";
    IdempotencyConflict "idempotency_conflict" Unprocessable, "The idempotency key was used before with a different command or payload. Payloads are compared as JSON values: the order of members, whitespace and the notation of numbers do not matter, and numbers are compared exactly.",
        "Use a new key for new work.";
    AtomicSpansShards "atomic_spans_shards" Invalid, "An atomic batch has idempotency keys that belong to different shards.",
        "Send the batch without keys, or without `atomic`.";
    InvalidBatch "invalid_batch" Invalid, "The batch has more items than allowed.",
        "Split the batch.";
    TooManyQueues "too_many_queues" Invalid, "The tenant has reached its limit of queues.",
        "Reuse commands. A queue without tasks, policy or pause disappears by itself.";
    TooLarge "too_large" TooLarge, "The request is larger than one log record can be.",
        "Send fewer items per request.";

    InvalidLease "invalid_lease" Invalid, "The lease is longer than 43,200 seconds.",
        "Choose a shorter lease and extend it with heartbeats. 0 or less means the default.";
    InvalidCount "invalid_count" Invalid, "`count` is larger than what one claim can return.",
        "Send a smaller `count`; `detail` names the maximum.";
    TooManyCommands "too_many_commands" Invalid, "A claim names more than 1,000 commands.",
        "Name fewer commands. Without `commands`, a claim covers all that the token allows.";
    TooManyWaiting "too_many_waiting" Unavailable, "Too many claims are waiting for a task, or too many clients for a result, in total or for this tenant. A tenant may have half of the total limit.",
        "Retry after `Retry-After` seconds, or use fewer waiting claims.";
    InvalidStatus "invalid_status" Invalid, "The status of a result is neither `COMPLETED` nor `FAILED`.",
        "Send `COMPLETED` or `FAILED`.";
    ErrorRequired "error_required" Invalid, "A result with status `FAILED` has no error, or a blank one.",
        "Describe the failure in `error`.";
    InvalidResult "invalid_result" Invalid, "The result is not a JSON object.",
        "Wrap the result in an object.";
    ResultTooLarge "invalid_result" TooLarge, "The result is larger than the server accepts: 1 MiB unless configured otherwise.",
        "Store large outputs elsewhere and list them as artifacts.";
    InvalidArtifacts "invalid_artifacts" Invalid, "An artifact has no name, or not exactly one of URL and content; a name, URL, type or content is invalid or too large; two artifacts have the same name; or there are more than 64. `detail` says which.",
        "Correct the list.";
    ArtifactUploadFailed "artifact_upload_failed" Unavailable, "An artifact could not be stored, so none was. The worker still holds the task.",
        "Submit again after `Retry-After` seconds. Extend the lease in the meantime.";
    ArtifactUnavailable "artifact_unavailable" Unavailable, "The artifact store is not responding.",
        "Retry after `Retry-After` seconds.";

    InvalidLimit "invalid_limit" Invalid, "`limit` is out of range.",
        "Send 1 to 1,000.";
    InvalidCursor "invalid_cursor" Invalid, "The cursor belongs to a different list or was modified.",
        "Send `nextCursor` unchanged and with the same parameters, or start again without a cursor.";
    InvalidFilter "invalid_filter" Invalid, "The filter has a term that is invalid or can never match; `detail` or `field` says which.",
        "Use terms such as `worker=w-1 created>2026-01-31T00:00:00Z error~\"connection refused\"`.";
    InvalidBefore "invalid_before" Invalid, "`before` is not a date and time in RFC 3339.",
        "Use a format such as `2026-01-31T08:00:00Z`.";
    InvalidEventId "invalid_event_id" Invalid, "`Last-Event-ID` is not an id from this stream.",
        "Send the id of the last event unchanged, or omit the header.";
    TooManyStreams "too_many_streams" Unavailable, "Too many event streams are open, in total or for this tenant. A tenant may have half of the total limit.",
        "Retry after `Retry-After` seconds, or share one stream.";
    InvalidTopicName "invalid_topic_name" Unprocessable, "The topic's name is not a DNS label of at most 63 characters.",
        "Use lowercase letters, digits and hyphens. A hyphen cannot be the first or last character.";
    InvalidTopicPolicy "invalid_topic_policy" Unprocessable, "A value of the policy is out of range; `field` names it.",
        "Correct the field.";

    InvalidCallbackUrl "invalid_callback_url" Invalid, "The server may not post to `callbackUrl`; `detail` says why.",
        "Use an http or https URL with a public address, or ask the operator to allow the network.";
    InvalidSubscription "invalid_subscription" Invalid, "A value of the subscription is out of range or missing; `field` names it.",
        "Correct the field.";
    InvalidRecord "invalid_record" Invalid, "The name or value of a subscription or secret is too long.",
        "Shorten the value.";
    TooManyRecords "too_many_records" Conflict, "The tenant has reached its limit of subscriptions or secrets; `detail` names the limit.",
        "Remove some, or wait until they expire.";
    RecordChanged "record_changed" Conflict, "Another request changed the subscription or secret at the same time.",
        "Read it again, then retry.";

    InvalidTenant "invalid_tenant" Invalid, "The tenant is empty, too long, or has control characters. No request gets this code today: a token with such a tenant is refused with `invalid_token` (401).",
        "Correct the token's claims.";
    InvalidWorker "invalid_worker" Invalid, "The worker's identity, `subject/workerId`, is too long or has control characters. A token whose own subject is invalid gets `invalid_token` (401) instead.",
        "Shorten or correct `workerId`.";
    InvalidSetting "invalid_setting" Invalid, "A setting of the server is out of range.",
        "The operator must correct the configuration.";

    BackupNotConfigured "backup_not_configured" Conflict, "The server has no backup target.",
        "Set `backup.target` in the configuration and reload it.";
    BackupRunning "backup_running" Conflict, "Another backup is running.",
        "Wait until it is complete. Only one backup runs at a time.";
    BackupFailed "backup_failed" Unavailable, "The backup failed; `detail` and the server's log say why. What was written of it is removed as far as possible.",
        "Fix the cause, such as a full disk or a missing bucket permission, and retry.";
    InvalidConfiguration "invalid_configuration" Unprocessable, "The new configuration is invalid; `detail` says what is wrong and where. No setting was changed.",
        "Correct the file, check it with `codeq config check`, and reload again.";

    Overloaded "overloaded" Unavailable, "The server has too much work waiting. Nothing was changed.",
        "Retry after `Retry-After` seconds, with exponential backoff.";
    DiskFull "disk_full" Unavailable, "The disk is full: the server refuses writes and still serves reads. Nothing was changed.",
        "Retry later. The operator must free disk space.";
    ShuttingDown "shutting_down" Unavailable, "The server is shutting down. The request may or may not have been carried out.",
        "Retry with the same idempotency key: another server, or this one after its restart, will handle the request.";
    Failed "failed" Unavailable, "The server's storage has failed, or one of several shards refused its part of the request. It may have been carried out, wholly or in part.",
        "Retry with the same idempotency key. If that fails too, the operator must check the log.";
    Internal "internal" Internal, "A bug in the server.",
        "Report the `requestId`.";
}

impl Code {
    /// The per-tenant refusal counter for this code, if it has one.
    pub fn refused(self) -> Option<Refused> {
        match self {
            Code::TooManyStreams => Some(Refused::EventStream),
            Code::TooManyWaiting => Some(Refused::WaitingClaim),
            Code::QuotaExceeded => Some(Refused::Quota),
            _ => None,
        }
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

impl From<&Rejection> for Code {
    fn from(rejection: &Rejection) -> Code {
        match rejection {
            Rejection::InvalidTenant => Code::InvalidTenant,
            Rejection::InvalidCommand => Code::InvalidCommand,
            Rejection::InvalidWorker => Code::InvalidWorker,
            Rejection::TooManyCommands { .. } => Code::TooManyCommands,
            Rejection::InvalidBatch { .. } => Code::InvalidBatch,
            Rejection::InvalidPayload { .. } => Code::InvalidPayload,
            Rejection::InvalidResult { .. } => Code::ResultTooLarge,
            Rejection::InvalidArtifacts => Code::InvalidArtifacts,
            Rejection::InvalidWebhook => Code::InvalidWebhook,
            Rejection::InvalidIdempotencyKey { .. } => Code::InvalidIdempotencyKey,
            Rejection::InvalidDelay { .. } => Code::InvalidDelay,
            Rejection::InvalidMaxRun { .. } => Code::InvalidMaxRun,
            Rejection::InvalidLease { .. } => Code::InvalidLease,
            Rejection::InvalidCount { .. } => Code::InvalidCount,
            Rejection::InvalidSetting { .. } => Code::InvalidSetting,
            Rejection::InvalidTopic { .. } => Code::InvalidTopicPolicy,
            Rejection::InvalidTopicName => Code::InvalidTopicName,
            Rejection::TooManyQueues { .. } => Code::TooManyQueues,
            Rejection::IdempotencyConflict => Code::IdempotencyConflict,
            Rejection::InBatch { reason, .. } => Code::from(&**reason),
            Rejection::NotFound => Code::NotFound,
            Rejection::NotInProgress => Code::NotInProgress,
            Rejection::NotOwner => Code::NotOwner,
            Rejection::LeaseLost => Code::LeaseLost,
            Rejection::ErrorRequired => Code::ErrorRequired,
            Rejection::Finished => Code::Finished,
            Rejection::Completed => Code::Completed,
            Rejection::NotFinished => Code::NotFinished,
            Rejection::NoCallback => Code::NoCallback,
            Rejection::InvalidRecord { .. } => Code::InvalidRecord,
            Rejection::TooManyRecords { .. } => Code::TooManyRecords,
            Rejection::RecordChanged => Code::RecordChanged,
            Rejection::InProgress => Code::InProgress,
        }
    }
}
