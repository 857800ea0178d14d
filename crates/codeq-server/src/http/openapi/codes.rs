//! Every problem `code` that the server can answer, with what it means and what to do.
//!
//! The `type` of a problem is `/docs#<code>`: the page has an anchor for each. A test reads the sources and
//! fails for a code that is missing here, and for one that nothing answers any more.

/// A code of a problem.
#[derive(Debug, Clone, Copy)]
pub struct Code {
    /// The stable slug.
    pub code: &'static str,
    /// The statuses that it comes with.
    pub statuses: &'static [u16],
    /// What happened.
    pub meaning: &'static str,
    /// What the client can do.
    pub remedy: &'static str,
}

macro_rules! codes {
    ($($code:literal $($status:literal)+, $meaning:literal, $remedy:literal;)*) => {
        &[$(Code { code: $code, statuses: &[$($status),+], meaning: $meaning, remedy: $remedy }),*]
    };
}

/// All codes, in the order of the page.
pub static CODES: &[Code] = codes! {
    "missing_token" 401, "The request has no `Authorization: Bearer` header.",
        "Send a token.";
    "invalid_token" 401, "No validator accepts the token: it is malformed, has ended, or is signed by somebody else.",
        "Get a new token. A producer's token is not good for the routes of workers, nor the other way round.";
    "forbidden" 403, "The token is good, but may not do this: a scope, an event type or the admin role is missing, or its tenant claims disagree.",
        "Use a token with what `detail` names.";
    "identity_unavailable" 503, "The issuer's keys cannot be fetched, and none are known from before.",
        "Try again after `Retry-After` seconds. If it lasts, the operator must look at the identity provider.";
    "rate_limited" 429, "The tenant asks more often than it may.",
        "Wait `retryAfterSeconds`, then go on at the rate that `RateLimit-Policy` names.";
    "quota_exceeded" 429, "The tenant holds as many unfinished tasks, or as many bytes of them or of all its tasks, as it may.",
        "Wait until tasks are finished or removed, or ask the operator for more room.";

    "no_such_route" 404, "There is nothing at this path.",
        "Check the path against this page.";
    "method_not_allowed" 405, "The path exists, but not with this method.",
        "Use a method of the `Allow` header.";
    "invalid_path" 400, "The path is not UTF-8 once its percent signs are decoded.",
        "Encode names as UTF-8, then as percent signs.";
    "invalid_parameter" 400, "A parameter of the query is not what it should be; `field` names it.",
        "Correct it.";
    "body_too_large" 413, "The body is larger than this route takes; `detail` names the limit.",
        "Send less at a time.";
    "body_timeout" 408, "The body did not arrive in time.",
        "Send it again on a new connection.";
    "unsupported_encoding" 415, "The body has a `Content-Encoding`.",
        "Send it as it is.";
    "invalid_body" 400, "The body is not the JSON that this route takes: malformed, a field missing or of another type.",
        "`detail` says what and where. Compare the body with the schema of the request.";
    "unknown_field" 400, "The body has a field, or the query a parameter, that this route does not know. Nothing was done.",
        "`field` names it, `detail` the one that was probably meant. Correct the name, or leave it out.";
    "too_deep" 400, "The JSON is nested deeper than 100 levels.",
        "Flatten it, or send it as a string.";

    "not_found" 404, "There is no such task, result, artifact, queue, topic or subscription in the tenant of the token, or it is somebody else's.",
        "Check the id and the tenant. Finished tasks are removed when their retention ends.";
    "not_in_progress" 409, "The task is not leased, or the lease has ended.",
        "Drop the work: the task was finished, given back, or is somebody else's by now.";
    "not_owner" 403, "Another worker has the lease.",
        "Drop the work: the task was handed on after the lease ended.";
    "lease_lost" 409, "The task has been claimed again since the claim with this `fence`.",
        "Drop the work: whoever claimed the task later does it.";
    "finished" 409, "The task is finished already.",
        "Read its result instead.";
    "completed" 409, "The task ended well, so it cannot be replayed.",
        "Enqueue a new task to do the work again.";
    "not_finished" 409, "The task has not ended, so it cannot be replayed.",
        "Look where it is with `GET /v1/codeq/tasks/{id}`; cancel it first to start over.";
    "no_callback" 404, "No callback is kept for this task.",
        "Check that the task has a `webhook` and is finished.";

    "invalid_command" 400, "A command is not 1 to 128 bytes of UTF-8 without control characters.",
        "Correct the name.";
    "invalid_payload" 413, "The payload is larger than the server takes: 1 MiB, unless it is configured otherwise.",
        "Store it elsewhere and send its address.";
    "invalid_webhook" 400, "The webhook is not an http or https URL of at most 2,048 bytes, or leads where webhooks may not go.",
        "Correct the URL; `detail` says what is wrong. It must not have a user or password, and its address must be public unless the operator has opened it.";
    "invalid_secret" 400, "The secret is too short, too long or not well formed.",
        "Send `whsec_` and base64 of 24 to 64 bytes, 16 to 128 visible letters, or none: the server makes one.";
    "invalid_overlap" 400, "`overlapSeconds` is more than thirty days.",
        "Send 0 to 2592000.";
    "invalid_run_at" 400, "`runAt` is not a moment in RFC 3339.",
        "Write it like `2026-01-31T08:00:00Z`.";
    "invalid_delay" 400, "The delay of a new task is negative, or ends more than ten years from now.",
        "Send 0 or more seconds, or a nearer moment.";
    "invalid_idempotency_key" 400, "The idempotency key is longer than 256 bytes, is not visible text, or header and body disagree.",
        "Send one key, in the header or in the body.";
    "idempotency_conflict" 422, "The idempotency key was used before for another command or payload. Payloads are compared as JSON values: the order of members, whitespace and the way numbers are written do not matter, and numbers are compared exactly.",
        "Use a new key for new work.";
    "atomic_spans_shards" 400, "An atomic batch has idempotency keys that live in different shards.",
        "Send it without keys, or not atomic.";
    "invalid_batch" 400, "The batch has more items than allowed.",
        "Split it.";
    "too_many_queues" 400, "The tenant has as many queues as it may.",
        "Reuse commands; a queue without tasks, policy or pause goes away by itself.";
    "too_large" 413, "The request as a whole takes more than the log stores at once.",
        "Send fewer items at a time.";

    "invalid_lease" 400, "The lease is longer than 43,200 seconds.",
        "Choose a length in this range; 0 and less mean the default. Heartbeats make it longer.";
    "invalid_count" 400, "More tasks were asked for than one claim gives.",
        "Ask for fewer at a time.";
    "too_many_commands" 400, "A claim names more than 1,000 commands.",
        "Name fewer; none means all that the token allows.";
    "too_many_waiting" 503, "As many claims wait for a task as the server keeps, or half as many of this tenant.",
        "Try again after `Retry-After` seconds, or wait with fewer claims.";
    "invalid_status" 400, "The status of a result is neither `COMPLETED` nor `FAILED`.",
        "Send one of the two.";
    "error_required" 400, "A result with status `FAILED` has no error, or a blank one.",
        "Say in `error` what went wrong.";
    "invalid_result" 400 413, "The result is not a JSON object, or is larger than the server takes: 1 MiB, unless it is configured otherwise.",
        "Wrap it in an object; store large outputs elsewhere and list them as artifacts.";
    "invalid_artifacts" 400, "An artifact has no name, or not exactly one of URL and content; a name, URL, type or content is not fit or too large; two have the same name; or there are more than 64. `detail` says which.",
        "Correct the list.";
    "artifact_upload_failed" 503, "An artifact could not be stored. None of them is, and the task is still the worker's.",
        "Submit again after `Retry-After` seconds, and extend the lease meanwhile.";
    "artifact_unavailable" 503, "The store of artifacts does not answer.",
        "Try again after `Retry-After` seconds.";

    "invalid_limit" 400, "`limit` is not in its range.",
        "Send 1 to 1,000.";
    "invalid_cursor" 400, "The cursor was made for another list, or was changed.",
        "Pass `nextCursor` on as it is, with the same parameters; or begin anew without a cursor.";
    "invalid_filter" 400, "The filter has a term that is not understood or can never hold; `detail` or `field` says which.",
        "Write terms like `worker=w-1 created>2026-01-31T00:00:00Z error~\"connection refused\"`.";
    "invalid_before" 400, "`before` is not a moment in RFC 3339.",
        "Write it like `2026-01-31T08:00:00Z`.";
    "invalid_event_id" 400, "`Last-Event-ID` is not one that this stream sent.",
        "Send the id of the last event as it came, or none.";
    "too_many_streams" 503, "As many event streams are open as the server keeps, or half as many of this tenant.",
        "Try again after `Retry-After` seconds, or share one stream.";
    "invalid_topic_name" 422, "The name of the topic is not a DNS label of at most 63 characters.",
        "Use lower-case letters, digits and inner hyphens.";
    "invalid_topic_policy" 422, "A value of the policy is out of its range; `field` names it.",
        "Correct the field.";

    "invalid_callback_url" 400, "`callbackUrl` is not an address that the server may post to; `detail` says why.",
        "Give an http or https URL of a public address, or ask the operator to open the network.";
    "invalid_subscription" 400, "A value of the subscription is out of its range or missing; `field` names it.",
        "Correct the field.";
    "invalid_record" 400, "What is to be kept has a name or a value that is too long.",
        "Shorten it.";
    "too_many_records" 409, "The tenant has as many of these as it may; `detail` names the limit.",
        "Remove some, or let them end.";
    "record_changed" 409, "Somebody else has changed it meanwhile.",
        "Read it again and repeat.";

    "invalid_tenant" 400, "The tenant of the token is empty, too long, or has control characters.",
        "Correct the token's claims.";
    "invalid_worker" 400, "The subject of the token, or `workerId` with the subject before it, is too long or has control characters.",
        "Shorten `workerId`, or correct the token's claims.";
    "invalid_setting" 400, "A setting of the server is out of its range.",
        "Clients do not meet this: the operator must correct the configuration.";

    "backup_not_configured" 409, "The server has no place for backups.",
        "Set `backup.target` in its configuration and reload it.";
    "backup_running" 409, "Another backup is being made.",
        "Wait until it is done: there is one at a time.";
    "backup_failed" 503, "The backup was not made; `detail` and the server's log say why. Nothing of it is left that could be taken for a backup.",
        "Mend the cause, such as a full disk or a bucket that refuses, and try again.";
    "invalid_configuration" 422, "The configuration that was read again is not one to work with; `detail` says what is wrong, and where. Nothing was changed.",
        "Correct the file, look it over with `codeq config check`, and reload again.";

    "overloaded" 503, "More work is waiting than the server holds. Nothing was done.",
        "Try again after `Retry-After` seconds, with growing pauses.";
    "disk_full" 503, "The disk has no room: writes are refused, reads go on. Nothing was done.",
        "Try again later; the operator must make room.";
    "shutting_down" 503, "The server is about to stop. Nothing was done.",
        "Try again: another one, or the same one soon, will answer.";
    "failed" 503, "The storage failed and the server has stopped working on it. Whether the request took place is not known.",
        "Try again with the same idempotency key; the operator must look at the log.";
    "internal" 500, "A mistake of the server's.",
        "Report it with the `requestId`.";
};

/// The entry of a code.
pub fn find(code: &str) -> Option<&'static Code> {
    CODES.iter().find(|entry| entry.code == code)
}
