//! What the rules need from a store: ordered tables with small keys, accessed by one thread.
//!
//! The rules keep every durable fact in one of ten tables and see only these traits; whether rows are in memory or in a
//! B-tree on disk is up to the store. Keys are 16-byte numbers, so that no tenant or command name can collide with
//! another one's rows.

use std::borrow::Cow;

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
    /// (queue, list, task number) → nothing: lists of tasks by command and status, and of callbacks.
    Index = 3,
    /// (kind, deadline, number) → what that kind of timer needs; see [`TimerKind`](crate::keys::TimerKind).
    Timer = 4,
    /// Hash of (tenant, key) → the task created with the key.
    Idempotency = 5,
    /// Queue number → its name, tenant, counters and policy.
    Queue = 6,
    /// Task number → a result callback that is not delivered yet.
    Outbox = 7,
    /// A single row with the shard's counters and settings.
    Meta = 8,
    /// Number → a record: data that the server keeps for a tenant and the rules do not interpret.
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

/// The store could not be read. The shard stops, because its state can no longer be trusted.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The disk failed.
    #[error("store read failed: {0}")]
    Read(String),
    /// The file under the store is damaged.
    #[error(
        "store {path} is damaged ({reason}): restore it from a backup or rebuild it from the log; \
         the file has been left as it is"
    )]
    Damaged {
        /// The store's file.
        path: String,
        /// How the damage showed.
        reason: String,
    },
    /// A newer version of codeQ wrote the row.
    #[error(
        "the row in table {table:?} at key {key:#x} has version {version}, which this version of codeq does not know: \
         run the version that wrote it, or a later one"
    )]
    TooNew {
        /// The table of the row.
        table: Table,
        /// The key of the row.
        key: Key,
        /// The version of the row.
        version: u8,
    },
    /// A row does not decode: the store is damaged.
    #[error("corrupt row in table {table:?} at key {key:#x}: {reason}")]
    Corrupt {
        /// The table of the row.
        table: Table,
        /// The key of the row.
        key: Key,
        /// Why it does not decode.
        reason: String,
    },
}

/// Read access to the tables.
pub trait KvRead {
    /// The row at `key`, borrowed if it is in memory.
    fn borrow(&self, table: Table, key: Key) -> Result<Option<Cow<'_, Bytes>>, KvError>;

    /// The row at `key`.
    fn get(&self, table: Table, key: Key) -> Result<Option<Bytes>, KvError> {
        Ok(self.borrow(table, key)?.map(Cow::into_owned))
    }

    /// Appends at most `limit` rows with `from <= key <= to` to `out`, in the given direction.
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

/// Write access to the tables. Later reads see a write at once. Writes cannot fail, because they only reach memory;
/// the log and the checkpoint make them durable.
pub trait Kv: KvRead {
    /// Sets the row at `key`.
    fn put(&mut self, table: Table, key: Key, value: Bytes);

    /// Sets a row whose key was never in the table before. If such a row is deleted before it reaches the disk, the
    /// store can forget it without a trace.
    fn insert(&mut self, table: Table, key: Key, value: Bytes);

    /// Removes the row at `key`, if there is one.
    fn delete(&mut self, table: Table, key: Key);
}

/// Visits the rows of a range in order, reading a bounded number at a time.
pub fn for_each<K: KvRead + ?Sized>(
    kv: &K,
    table: Table,
    from: Key,
    to: Key,
    mut visit: impl FnMut(Key, &[u8]) -> Result<(), KvError>,
) -> Result<(), KvError> {
    const CHUNK: usize = 1_024;
    let mut next = from;
    let mut rows = Vec::with_capacity(CHUNK);
    loop {
        rows.clear();
        kv.scan(table, next, to, Direction::Forward, CHUNK, &mut rows)?;
        for (key, value) in &rows {
            visit(*key, value)?;
        }
        match rows.last() {
            Some((last, _)) if rows.len() == CHUNK && *last < to => next = last + 1,
            _ => return Ok(()),
        }
    }
}
