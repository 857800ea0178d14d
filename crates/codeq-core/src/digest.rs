//! A digest of all durable state, to compare two shards or one shard before and after a restart.

use sha2::{Digest, Sha256};

use crate::keys;
use crate::kv::{Key, KvError, KvRead, Table, for_each};
use crate::state::State;

/// SHA-256 over the shard's rows as the next command would see them. Reads everything, so it is for tests, the
/// simulator and `fsck`, not for a running server.
pub fn digest<K: KvRead + ?Sized>(state: &State, kv: &K) -> Result<[u8; 32], KvError> {
    let mut hasher = Sha256::new();
    let mut feed = |table: Table, key: Key, value: &[u8]| {
        hasher.update([table as u8]);
        hasher.update(key.to_be_bytes());
        hasher.update((value.len() as u64).to_be_bytes());
        hasher.update(value);
    };
    for table in Table::ALL {
        match table {
            // Between checkpoints, the queue rows and the meta row are newer in memory than in the tables.
            Table::Queue => {
                state.queues().for_each(|(id, row)| feed(table, keys::queue(id), &row.encode()))
            }
            Table::Meta => feed(table, keys::META, &state.meta().encode()),
            _ => for_each(kv, table, 0, Key::MAX, |key, value| {
                feed(table, key, value);
                Ok(())
            })?,
        }
    }
    Ok(hasher.finalize().into())
}
