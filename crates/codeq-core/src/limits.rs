//! The limits of the rules, by name.
//!
//! An unnamed number elsewhere that limits something is a mistake.

/// Longest command name in bytes.
pub const COMMAND_BYTES_MAX: usize = 128;
/// Longest tenant name in bytes.
pub const TENANT_BYTES_MAX: usize = 256;
/// Longest worker identity in bytes.
pub const WORKER_BYTES_MAX: usize = 256;
/// Longest idempotency key in bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// Longest webhook URL in bytes.
pub const WEBHOOK_BYTES_MAX: usize = 2_048;
/// Longest `traceparent` in bytes; a longer one is ignored.
pub const TRACE_PARENT_BYTES_MAX: usize = 128;
/// Longest `tracestate` in bytes; W3C requires support for 512.
pub const TRACE_STATE_BYTES_MAX: usize = 512;
/// Largest payload in bytes. Servers accept less unless configured otherwise.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// Largest payload of [`Enqueue`](crate::command::Enqueue). Fixed since the first version: logs depend on it.
pub const ENQUEUE_PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Largest result in bytes. Servers accept less unless configured otherwise.
pub const RESULT_BYTES_MAX: usize = 16 << 20;
/// Longest error or reason that is kept; a longer one is cut at a character boundary.
pub const ERROR_BYTES_MAX: usize = 4_096;
/// Maximum number of artifacts of one result.
pub const ARTIFACTS_MAX: usize = 64;
/// Longest name or URL of an artifact in bytes.
pub const ARTIFACT_FIELD_BYTES_MAX: usize = 2_048;

/// Bytes that a task's rows count against its tenant's quota, besides payload and result.
pub const TASK_ROWS_BYTES: u64 = 512;

/// Highest priority.
pub const PRIORITY_MAX: u8 = 9;
/// Number of priorities.
pub const PRIORITIES: usize = PRIORITY_MAX as usize + 1;

/// Attempts of a task that does not set a number.
pub const ATTEMPTS_DEFAULT: u32 = 5;
/// Maximum number of attempts of a task.
pub const ATTEMPTS_MAX: u32 = 1_000;

/// Shortest lease in milliseconds.
pub const LEASE_MS_MIN: u64 = 1_000;
/// Longest lease in milliseconds: twelve hours.
pub const LEASE_MS_MAX: u64 = 43_200_000;
/// Shortest maximum run time of a task in milliseconds.
pub const MAX_RUN_MS_MIN: u64 = 1_000;
/// Longest maximum run time of a task in milliseconds: 30 days.
pub const MAX_RUN_MS_MAX: u64 = 30 * 86_400_000;
/// How far in the future a task may be scheduled, in milliseconds: ten years.
pub const DELAY_MS_MAX: u64 = 10 * 366 * 86_400_000;
/// Longest retention in milliseconds (`2^31 - 1` seconds).
pub const RETENTION_MS_MAX: u64 = 2_147_483_647_000;
/// Minimum lifetime of an idempotency key, counted from the creation of its task.
pub const IDEMPOTENCY_MS_MIN: u64 = 86_400_000;

/// Maximum number of tasks in one enqueue.
pub const BATCH_MAX: usize = 1_000;
/// Maximum number of tasks that one claim returns.
pub const CLAIM_MAX: usize = 1_000;
/// A claim takes no further task once its tasks carry this many payload bytes. With the last task included, a reply
/// stays below 4 MiB, the default limit of gRPC clients, unless the server is configured to accept larger payloads.
pub const CLAIM_BYTES_MAX: usize = 2 << 20;
/// Maximum number of command names in one claim.
pub const CLAIM_COMMANDS_MAX: usize = 1_000;
/// Maximum number of queues of one tenant in one shard.
pub const QUEUES_PER_TENANT_MAX: usize = 10_000;

/// Maximum number of tasks that one sweep moves: about a millisecond of work, so that a sweep never stalls a claim.
pub const SWEEP_MAX: u32 = 512;
/// Maximum number of due tasks that a claim handles before it looks at the queue.
pub const CLAIM_REPAIR_MAX: u32 = 16;
/// Maximum number of tasks that one call of a bulk operation changes, and of callbacks that one call resends.
pub const BULK_MAX: u32 = 1_000;
/// Maximum number of tasks that one part of a bulk operation changes: about as much time as a sweep.
pub const BULK_TAKE_MAX: u32 = 128;
/// Maximum number of rows that one part of a bulk operation looks at, over all queues.
pub const BULK_LOOK_MAX: u32 = 512;
/// Lower bound on the rows a part may look at: with fewer it might make no progress.
pub const BULK_LOOK_MIN: u32 = 16;
/// Maximum number of rows of one list that a bulk command of an older log looks at.
pub const BULK_SCAN_MAX: usize = 10_240;

/// Maximum number of transitions kept in a task's history; beyond that, older ones except the first are dropped.
pub const HISTORY_MAX: u16 = 64;
/// Longest reason kept in the history, in bytes.
pub const HISTORY_REASON_BYTES_MAX: usize = 256;

/// Tasks per priority of a queue whose order is kept in memory.
pub const WINDOW_MAX: usize = 1_024;
/// The same, once all windows together hold [`WINDOW_TOTAL`] tasks.
pub const WINDOW_MIN: usize = 16;
/// Tasks in all windows of a shard beyond which windows are only filled to [`WINDOW_MIN`].
pub const WINDOW_TOTAL: usize = 1 << 20;

/// Upper limit for the configured delivery attempts of a result callback.
pub const CALLBACK_ATTEMPTS_MAX: u32 = 100;
/// Longest delay that a callback's receiver may ask for: a day. The task is kept meanwhile.
pub const CALLBACK_RETRY_AFTER_MS_MAX: u64 = 86_400_000;
/// Maximum number of callbacks, and of lists of callbacks, read in one access to the shard.
pub const CALLBACK_SCAN_MAX: usize = 256;
/// How long retention is postponed at a time for a callback that is still to be delivered.
pub const CALLBACK_RETENTION_STEP_MS: u64 = 60_000;

/// Longest name of a record in bytes.
pub const RECORD_NAME_BYTES_MAX: usize = 128;
/// Largest value of a record in bytes.
pub const RECORD_VALUE_BYTES_MAX: usize = 8 << 10;
/// Longest lifetime of a record that expires: a year.
pub const RECORD_TTL_MS_MAX: u64 = 366 * 86_400_000;
/// Maximum number of records of one kind per tenant.
pub const RECORDS_PER_KIND_MAX: usize = 1_000;
/// Maximum number of records per shard.
pub const RECORDS_PER_SHARD_MAX: usize = 100_000;

/// Topic policy: maximum number of priority tiers.
pub const TOPIC_TIERS_MAX: usize = 10;
/// Topic policy: largest tier number.
pub const TOPIC_TIER_MAX: u8 = 10;
/// Topic policy: maximum number of attempts.
pub const TOPIC_ATTEMPTS_MAX: u32 = 100;
/// Topic policy: maximum number of consumers.
pub const TOPIC_CONSUMERS_MAX: u32 = 10_000;
/// Topic names and references: longest DNS label.
pub const TOPIC_NAME_BYTES_MAX: usize = 63;
/// Maximum number of tasks on one page of a list.
pub const LIST_MAX: usize = 1_000;
/// A page of a list ends before the task that would push it beyond this many bytes, but has at least one task.
pub const LIST_BYTES_MAX: usize = 4 << 20;
/// Maximum number of tasks, and of lists, looked at for a page in one access to the shard: about a millisecond.
pub const LIST_SLICE_MAX: usize = 256;
/// Maximum number of rows of a shard that one page reads, a slice at a time, to find tasks that match its filter.
pub const LIST_SCAN_MAX: usize = 10_000;
/// Maximum number of rows read on either side of a task behind the window, to count the tasks that precede it.
pub const AHEAD_SCAN_MAX: usize = 512;
/// Maximum number of queues whose statistics are read in one access to the shard.
pub const QUEUES_SLICE_MAX: usize = 256;
