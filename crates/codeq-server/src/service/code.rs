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
    InvalidToken "invalid_token" Unauthenticated, "No validator accepts the token: it is malformed, has ended, or is signed by somebody else.",
        "Get a new token. A producer's token is not good for the routes of workers, nor the other way round.";
    Forbidden "forbidden" Forbidden, "The token is good, but may not do this: a scope, an event type or the admin role is missing, or its tenant claims disagree.",
        "Use a token with what `detail` names.";
    IdentityUnavailable "identity_unavailable" Unavailable, "The issuer's keys cannot be fetched, and none are known from before.",
        "Try again after `Retry-After` seconds. If it lasts, the operator must look at the identity provider.";
    RateLimited "rate_limited" TooMany, "The tenant asks more often than it may.",
        "Wait `retryAfterSeconds`, then go on at the rate that `RateLimit-Policy` names.";
    QuotaExceeded "quota_exceeded" TooMany, "The tenant holds as many unfinished tasks, or as many bytes of them or of all its tasks, as it may.",
        "Wait until tasks are finished or removed, or ask the operator for more room.";

    NoSuchRoute "no_such_route" NotFound, "There is nothing at this path.",
        "Check the path against this page.";
    MethodNotAllowed "method_not_allowed" MethodNotAllowed, "The path exists, but not with this method.",
        "Use a method of the `Allow` header.";
    InvalidPath "invalid_path" Invalid, "The path is not UTF-8 once its percent signs are decoded.",
        "Encode names as UTF-8, then as percent signs.";
    InvalidParameter "invalid_parameter" Invalid, "A parameter of the query is not what it should be; `field` names it.",
        "Correct it.";
    BodyTooLarge "body_too_large" TooLarge, "The body is larger than this route takes; `detail` names the limit.",
        "Send less at a time.";
    BodyTimeout "body_timeout" TimedOut, "The body did not arrive in time.",
        "Send it again on a new connection.";
    UnsupportedEncoding "unsupported_encoding" Unsupported, "The body has a `Content-Encoding`.",
        "Send it as it is.";
    InvalidBody "invalid_body" Invalid, "The body is not the JSON that this route takes: malformed, a field missing or of another type.",
        "`detail` says what and where. Compare the body with the schema of the request.";
    UnknownField "unknown_field" Invalid, "The body has a field, or the query a parameter, that this route does not know. Nothing was done.",
        "`field` names it, `detail` the one that was probably meant. Correct the name, or leave it out.";
    TooDeep "too_deep" Invalid, "The JSON is nested deeper than 100 levels.",
        "Flatten it, or send it as a string.";

    NotFound "not_found" NotFound, "There is no such task, result, artifact, queue, topic or subscription in the tenant of the token, or it is somebody else's.",
        "Check the id and the tenant. Finished tasks are removed when their retention ends.";
    NotInProgress "not_in_progress" Conflict, "The task is not leased, or the lease has ended.",
        "Drop the work: the task was finished, given back, or is somebody else's by now.";
    NotOwner "not_owner" Forbidden, "Another worker has the lease.",
        "Drop the work: the task was handed on after the lease ended.";
    LeaseLost "lease_lost" Conflict, "The task has been claimed again since the claim with this `fence`.",
        "Drop the work: whoever claimed the task later does it.";
    Finished "finished" Conflict, "The task is finished already.",
        "Read its result instead.";
    Completed "completed" Conflict, "The task ended well, so it cannot be replayed.",
        "Enqueue a new task to do the work again.";
    NotFinished "not_finished" Conflict, "The task has not ended, so it cannot be replayed.",
        "Look where it is with `GET /v1/codeq/tasks/{id}`; cancel it first to start over.";
    NoCallback "no_callback" NotFound, "No callback is kept for this task.",
        "Check that the task has a `webhook` and is finished.";

    InvalidCommand "invalid_command" Invalid, "A command is not 1 to 128 bytes of UTF-8 without control characters.",
        "Correct the name.";
    InvalidPayload "invalid_payload" TooLarge, "The payload is larger than the server takes: 1 MiB, unless it is configured otherwise.",
        "Store it elsewhere and send its address.";
    InvalidWebhook "invalid_webhook" Invalid, "The webhook is not an http or https URL of at most 2,048 bytes, or leads where webhooks may not go.",
        "Correct the URL; `detail` says what is wrong. It must not have a user or password, and its address must be public unless the operator has opened it.";
    InvalidSecret "invalid_secret" Invalid, "The secret is too short, too long or not well formed.",
        "Send `whsec_` and base64 of 24 to 64 bytes, 16 to 128 visible letters, or none: the server makes one.";
    InvalidOverlap "invalid_overlap" Invalid, "`overlapSeconds` is more than thirty days.",
        "Send 0 to 2592000.";
    InvalidRunAt "invalid_run_at" Invalid, "`runAt` is not a moment in RFC 3339.",
        "Write it like `2026-01-31T08:00:00Z`.";
    InvalidDelay "invalid_delay" Invalid, "The delay of a new task is negative, or ends more than ten years from now.",
        "Send 0 or more seconds, or a nearer moment.";
    InvalidIdempotencyKey "invalid_idempotency_key" Invalid, "The idempotency key is longer than 256 bytes, is not visible text, or header and body disagree.",
        "Send one key, in the header or in the body.";
    IdempotencyConflict "idempotency_conflict" Unprocessable, "The idempotency key was used before for another command or payload. Payloads are compared as JSON values: the order of members, whitespace and the way numbers are written do not matter, and numbers are compared exactly.",
        "Use a new key for new work.";
    AtomicSpansShards "atomic_spans_shards" Invalid, "An atomic batch has idempotency keys that live in different shards.",
        "Send it without keys, or not atomic.";
    InvalidBatch "invalid_batch" Invalid, "The batch has more items than allowed.",
        "Split it.";
    TooManyQueues "too_many_queues" Invalid, "The tenant has as many queues as it may.",
        "Reuse commands; a queue without tasks, policy or pause goes away by itself.";
    TooLarge "too_large" TooLarge, "The request as a whole takes more than the log stores at once.",
        "Send fewer items at a time.";

    InvalidLease "invalid_lease" Invalid, "The lease is longer than 43,200 seconds.",
        "Choose a length in this range; 0 and less mean the default. Heartbeats make it longer.";
    InvalidCount "invalid_count" Invalid, "More tasks were asked for than one claim gives.",
        "Ask for fewer at a time.";
    TooManyCommands "too_many_commands" Invalid, "A claim names more than 1,000 commands.",
        "Name fewer; none means all that the token allows.";
    TooManyWaiting "too_many_waiting" Unavailable, "As many claims wait for a task as the server keeps, or half as many of this tenant.",
        "Try again after `Retry-After` seconds, or wait with fewer claims.";
    InvalidStatus "invalid_status" Invalid, "The status of a result is neither `COMPLETED` nor `FAILED`.",
        "Send one of the two.";
    ErrorRequired "error_required" Invalid, "A result with status `FAILED` has no error, or a blank one.",
        "Say in `error` what went wrong.";
    InvalidResult "invalid_result" Invalid, "The result is not a JSON object.",
        "Wrap it in an object.";
    ResultTooLarge "invalid_result" TooLarge, "The result is larger than the server takes: 1 MiB, unless it is configured otherwise.",
        "Store large outputs elsewhere and list them as artifacts.";
    InvalidArtifacts "invalid_artifacts" Invalid, "An artifact has no name, or not exactly one of URL and content; a name, URL, type or content is not fit or too large; two have the same name; or there are more than 64. `detail` says which.",
        "Correct the list.";
    ArtifactUploadFailed "artifact_upload_failed" Unavailable, "An artifact could not be stored. None of them is, and the task is still the worker's.",
        "Submit again after `Retry-After` seconds, and extend the lease meanwhile.";
    ArtifactUnavailable "artifact_unavailable" Unavailable, "The store of artifacts does not answer.",
        "Try again after `Retry-After` seconds.";

    InvalidLimit "invalid_limit" Invalid, "`limit` is not in its range.",
        "Send 1 to 1,000.";
    InvalidCursor "invalid_cursor" Invalid, "The cursor was made for another list, or was changed.",
        "Pass `nextCursor` on as it is, with the same parameters; or begin anew without a cursor.";
    InvalidFilter "invalid_filter" Invalid, "The filter has a term that is not understood or can never hold; `detail` or `field` says which.",
        "Write terms like `worker=w-1 created>2026-01-31T00:00:00Z error~\"connection refused\"`.";
    InvalidBefore "invalid_before" Invalid, "`before` is not a moment in RFC 3339.",
        "Write it like `2026-01-31T08:00:00Z`.";
    InvalidEventId "invalid_event_id" Invalid, "`Last-Event-ID` is not one that this stream sent.",
        "Send the id of the last event as it came, or none.";
    TooManyStreams "too_many_streams" Unavailable, "As many event streams are open as the server keeps, or half as many of this tenant.",
        "Try again after `Retry-After` seconds, or share one stream.";
    InvalidTopicName "invalid_topic_name" Unprocessable, "The name of the topic is not a DNS label of at most 63 characters.",
        "Use lower-case letters, digits and inner hyphens.";
    InvalidTopicPolicy "invalid_topic_policy" Unprocessable, "A value of the policy is out of its range; `field` names it.",
        "Correct the field.";

    InvalidCallbackUrl "invalid_callback_url" Invalid, "`callbackUrl` is not an address that the server may post to; `detail` says why.",
        "Give an http or https URL of a public address, or ask the operator to open the network.";
    InvalidSubscription "invalid_subscription" Invalid, "A value of the subscription is out of its range or missing; `field` names it.",
        "Correct the field.";
    InvalidRecord "invalid_record" Invalid, "What is to be kept has a name or a value that is too long.",
        "Shorten it.";
    TooManyRecords "too_many_records" Conflict, "The tenant has as many of these as it may; `detail` names the limit.",
        "Remove some, or let them end.";
    RecordChanged "record_changed" Conflict, "Somebody else has changed it meanwhile.",
        "Read it again and repeat.";

    InvalidTenant "invalid_tenant" Invalid, "The tenant of the token is empty, too long, or has control characters.",
        "Correct the token's claims.";
    InvalidWorker "invalid_worker" Invalid, "The subject of the token, or `workerId` with the subject before it, is too long or has control characters.",
        "Shorten `workerId`, or correct the token's claims.";
    InvalidSetting "invalid_setting" Invalid, "A setting of the server is out of its range.",
        "Clients do not meet this: the operator must correct the configuration.";

    BackupNotConfigured "backup_not_configured" Conflict, "The server has no place for backups.",
        "Set `backup.target` in its configuration and reload it.";
    BackupRunning "backup_running" Conflict, "Another backup is being made.",
        "Wait until it is done: there is one at a time.";
    BackupFailed "backup_failed" Unavailable, "The backup was not made; `detail` and the server's log say why. Nothing of it is left that could be taken for a backup.",
        "Mend the cause, such as a full disk or a bucket that refuses, and try again.";
    InvalidConfiguration "invalid_configuration" Unprocessable, "The configuration that was read again is not one to work with; `detail` says what is wrong, and where. Nothing was changed.",
        "Correct the file, look it over with `codeq config check`, and reload again.";

    Overloaded "overloaded" Unavailable, "More work is waiting than the server holds. Nothing was done.",
        "Try again after `Retry-After` seconds, with growing pauses.";
    DiskFull "disk_full" Unavailable, "The disk has no room: writes are refused, reads go on. Nothing was done.",
        "Try again later; the operator must make room.";
    ShuttingDown "shutting_down" Unavailable, "The server is about to stop. Nothing was done.",
        "Try again: another one, or the same one soon, will answer.";
    Failed "failed" Unavailable, "The storage failed and the server has stopped working on it. Whether the request took place is not known.",
        "Try again with the same idempotency key; the operator must look at the log.";
    Internal "internal" Internal, "A mistake of the server's.",
        "Report it with the `requestId`.";
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
        }
    }
}
