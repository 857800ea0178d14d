//! Digests, to compare two copies of a shard: of all rows at one moment, or of every write so far.

use std::borrow::Cow;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::keys;
use crate::kv::{Direction, Key, Kv, KvError, KvRead, Table, for_each};
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

/// A rolling hash over the rows that the rules write, in order. Two copies of a shard that applied the same commands
/// have the same digest; if a rule ever behaved differently on one of them, their digests differ from then on.
///
/// It does not cover [`State::write_back`], because copies checkpoint at different times. Whoever wants a digest passes
/// [`WriteDigest::over`] to [`State::apply`] instead of the tables, so that nobody else pays for it.
///
/// The function is part of the format: copies run by different releases compare their digests, and checkpoints keep
/// them. It guards against faults, not against forgery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteDigest(pub u64);

/// Odd constants from the digits of pi.
const KEY_A: u64 = 0x243f_6a88_85a3_08d3;
const KEY_B: u64 = 0x1319_8a2e_0370_7345;

/// The high bit of a write's first word.
const DELETED: u64 = 1 << 63;

impl WriteDigest {
    /// The tables, with every write added to the digest.
    pub fn over<'a, K: Kv>(&'a mut self, kv: &'a mut K) -> Digested<'a, K> {
        Digested { kv, digest: self }
    }

    /// Adds two words. One multiplication mixes them; the rotation keeps the past even if the product is 0.
    fn add(&mut self, a: u64, b: u64) {
        let product = u128::from(a ^ self.0 ^ KEY_A) * u128::from(b ^ KEY_B);
        self.0 = self.0.rotate_left(23) ^ (product as u64) ^ ((product >> 64) as u64);
    }

    fn write(&mut self, table: Table, key: Key, value: Option<&[u8]>) {
        let kind = value.map_or(DELETED, |value| (value.len() as u64) << 8);
        self.add(kind | u64::from(table as u8), key as u64);
        let mut rest = value.unwrap_or_default();
        let mut high = (key >> 64) as u64;
        // The key's high half shares a round with the value's first word, so a row without a value takes only two rounds.
        loop {
            let (word, tail) = split_word(rest);
            self.add(high, word);
            if tail.is_empty() {
                return;
            }
            (high, rest) = split_word(tail);
        }
    }
}

/// The first eight bytes, with zeros for missing ones, and the rest. Lengths are hashed too, so the zeros cannot be
/// confused with data.
fn split_word(bytes: &[u8]) -> (u64, &[u8]) {
    match bytes.split_first_chunk::<8>() {
        Some((word, rest)) => (u64::from_le_bytes(*word), rest),
        None => {
            let word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            (word, &[])
        }
    }
}

/// Tables whose writes are added to a [`WriteDigest`].
pub struct Digested<'a, K> {
    kv: &'a mut K,
    digest: &'a mut WriteDigest,
}

impl<K: Kv> KvRead for Digested<'_, K> {
    fn borrow(&self, table: Table, key: Key) -> Result<Option<Cow<'_, Bytes>>, KvError> {
        self.kv.borrow(table, key)
    }

    fn scan(
        &self,
        table: Table,
        from: Key,
        to: Key,
        direction: Direction,
        limit: usize,
        out: &mut Vec<(Key, Bytes)>,
    ) -> Result<(), KvError> {
        self.kv.scan(table, from, to, direction, limit, out)
    }
}

impl<K: Kv> Kv for Digested<'_, K> {
    fn put(&mut self, table: Table, key: Key, value: Bytes) {
        self.digest.write(table, key, Some(&value));
        self.kv.put(table, key, value);
    }

    // The same as a put: whether a key is new does not change what the rows say.
    fn insert(&mut self, table: Table, key: Key, value: Bytes) {
        self.digest.write(table, key, Some(&value));
        self.kv.insert(table, key, value);
    }

    fn delete(&mut self, table: Table, key: Key) {
        self.digest.write(table, key, None);
        self.kv.delete(table, key);
    }
}
