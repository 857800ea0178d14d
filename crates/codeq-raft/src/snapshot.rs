//! The rows of all shards, on their way to another node.

/// The rows of all shards as of an entry.
#[derive(Debug, Default)]
pub struct SnapshotRows;
