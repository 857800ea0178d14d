//! What the rules need of a store: ordered tables of small keys, read and written in one thread.
//!
//! The rules keep every durable fact in one of ten tables. They see only these traits; whether the rows
//! lie in memory or in a B-tree on disk is the store's business. Keys are fixed 16-byte numbers, so that
//! no name of a tenant or command can ever run into another one's rows.

use bytes::Bytes;

/// A row's key. [`crate::keys`] is the only place that builds one.
pub type Key = u128;

/// The tables. The numbers are part of the on-disk format: never reuse or reorder them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// Task number → what the producer sent. Written once.
    Body = 0,
    /// Task number → the task's changing part, its result and its history.
    Task = 1,
    /// (queue, priority, order) → task number, for tasks that can be claimed.
    Pending = 2,
    /// (queue, state, task number) → nothing: the lists by command and status, and those of callbacks.
    Index = 3,
    /// (kind, deadline, number) → what else its kind needs: delays, retention, keys, callbacks, records.
    Timer = 4,
    /// (tenant, hash of the key) → the task that the key made.
    Idempotency = 5,
    /// Queue number → its name, tenant, counters and policy.
    Queue = 6,
    /// Task number → a result callback that is not delivered yet.
    Outbox = 7,
    /// Single rows: the shard's counters and settings.
    Meta = 8,
    /// Number → a record: what the server keeps for a tenant and the rules do not look into.
    Record = 9,
}

impl Table {
    /// Every table, in the order of the numbers.
    pub const ALL: [Table; 10] = [
        Table::Body,
        Table::Task,
        Table::Pending,
        Table::Index,
        Table::Timer,
        Table::Idempotency,
        Table::Queue,
        Table::Outbox,
        Table::Meta,
        Table::Record,
    ];
}

/// The direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key up.
    Forward,
    /// From the largest key down.
    Reverse,
}

/// The store could not be read. The shard that sees this stops: its state can no longer be trusted.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The disk or the file under the store failed.
    #[error("store read failed: {0}")]
    Read(String),
    /// A row does not decode: the store is damaged or written by another version.
    #[error("corrupt row in table {table:?} at key {key:#x}: {reason}")]
    Corrupt {
        /// The table of the row.
        table: Table,
        /// The key of the row.
        key: Key,
        /// What was wrong with it.
        reason: String,
    },
}

/// Reading the tables.
pub trait KvRead {
    /// The row at `key`.
    fn get(&self, table: Table, key: Key) -> Result<Option<Bytes>, KvError>;

    /// Appends to `out` at most `limit` rows with `from <= key <= to`, in the direction asked for.
    fn scan(
        &self,
        table: Table,
        from: Key,
        to: Key,
        direction: Direction,
        limit: usize,
        out: &mut Vec<(Key, Bytes)>,
    ) -> Result<(), KvError>;
}

/// Writing the tables. Writes are seen at once by the reads that follow; they cannot fail, because they
/// only reach memory here. Making them durable is the log's and the checkpoint's work.
pub trait Kv: KvRead {
    /// Sets the row at `key`.
    fn put(&mut self, table: Table, key: Key, value: Bytes);

    /// Sets a row whose key has never been in the table before. A store may use this to forget the row
    /// without a trace when it is deleted before it ever reached the disk.
    fn insert(&mut self, table: Table, key: Key, value: Bytes);

    /// Removes the row at `key`, if there is one.
    fn delete(&mut self, table: Table, key: Key);
}
