//! Task ids: a UUID (version 8) that carries the task's number and 62 random bits.
//!
//! The number is the key of the task's rows, so no index from ids to rows is needed. The random bits make an id
//! unguessable and let the creating shard choose an id that hashes to itself.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::keys::Seq;

/// How many bits of an id hold the task number.
pub const SEQ_BITS: u32 = 60;
const SALT_MASK: u64 = (1 << 62) - 1;

/// A task's id, as clients see it.
///
/// It is two words in memory and one number on disk: a `u128` would align every struct that has an id to 16 bytes, and
/// the allocator is slower for those.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "u128", into = "u128")]
pub struct TaskId {
    high: u64,
    low: u64,
}

impl From<u128> for TaskId {
    fn from(number: u128) -> TaskId {
        TaskId { high: (number >> 64) as u64, low: number as u64 }
    }
}

impl From<TaskId> for u128 {
    fn from(id: TaskId) -> u128 {
        (u128::from(id.high) << 64) | u128::from(id.low)
    }
}

number! {
    /// The number of a shard, from 0 on.
    ShardId(u16)
}

impl ShardId {
    /// The number of every shard, if there are `shards` of them.
    pub fn all(shards: u16) -> impl Iterator<Item = ShardId> {
        (0..shards).map(ShardId)
    }

    /// The shard of a hash.
    pub fn of(hash: u64, shards: u16) -> ShardId {
        ShardId((hash % u64::from(shards.max(1))) as u16)
    }
}

impl From<ShardId> for usize {
    fn from(shard: ShardId) -> usize {
        usize::from(shard.0)
    }
}

/// The text is not a task id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a task id")]
pub struct InvalidTaskId;

impl TaskId {
    /// The id of task number `seq` with the random bits `salt`, of which 62 are used.
    pub fn new(seq: Seq, salt: u64) -> TaskId {
        let seq = seq.0 & ((1 << SEQ_BITS) - 1);
        let high = ((seq >> 12) << 16) | 0x8000 | (seq & 0xfff);
        let low = (0b10 << 62) | (salt & SALT_MASK);
        TaskId { high, low }
    }

    /// The task's number in its shard.
    pub fn seq(self) -> Seq {
        Seq(((self.high >> 16) << 12) | (self.high & 0xfff))
    }

    /// The random bits.
    pub fn salt(self) -> u64 {
        self.low & SALT_MASK
    }

    /// The shard that holds this task: FNV-1a 64 of the id's text, modulo the number of shards.
    pub fn shard(self, shards: u16) -> ShardId {
        if shards <= 1 {
            return ShardId(0);
        }
        let mut text = [0; 36];
        self.write_text(&mut text);
        ShardId::of(fnv1a64(&text), shards)
    }

    /// Mints the id of task number `seq` that hashes to `shard`, drawing salts from `seed`.
    pub fn mint(seq: Seq, seed: u64, shard: ShardId, shards: u16) -> TaskId {
        let mut draw = seed ^ seq.0;
        loop {
            draw = split_mix64(draw);
            let id = TaskId::new(seq, draw);
            if id.shard(shards) == shard {
                return id;
            }
        }
    }

    #[allow(clippy::indexing_slicing, reason = "a hex digit is below 16")]
    fn write_text(self, out: &mut [u8; 36]) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let bytes = u128::from(self).to_be_bytes();
        let mut at = 0;
        for (i, byte) in bytes.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                put(out, &mut at, b'-');
            }
            put(out, &mut at, HEX[usize::from(byte >> 4)]);
            put(out, &mut at, HEX[usize::from(byte & 0xf)]);
        }
    }
}

fn put(out: &mut [u8; 36], at: &mut usize, byte: u8) {
    if let Some(slot) = out.get_mut(*at) {
        *slot = byte;
    }
    *at += 1;
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 36];
        self.write_text(&mut text);
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TaskId {
    type Err = InvalidTaskId;

    fn from_str(text: &str) -> Result<TaskId, InvalidTaskId> {
        let bytes: &[u8; 36] = text.as_bytes().try_into().map_err(|_| InvalidTaskId)?;
        let mut value: u128 = 0;
        for (i, byte) in bytes.iter().enumerate() {
            if matches!(i, 8 | 13 | 18 | 23) {
                if *byte != b'-' {
                    return Err(InvalidTaskId);
                }
                continue;
            }
            let digit = (*byte as char).to_digit(16).ok_or(InvalidTaskId)?;
            value = (value << 4) | u128::from(digit);
        }
        let id = TaskId::from(value);
        // Accept only ids that `new` can produce: version 8, standard variant.
        if id == TaskId::new(id.seq(), id.salt()) { Ok(id) } else { Err(InvalidTaskId) }
    }
}

/// FNV-1a, 64 bits: maps a task to its shard. Part of the on-disk format.
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in bytes {
        hash ^= u64::from(*byte);
        hash = hash.wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// SplitMix64: derives as many random draws as needed from a command's seed.
pub fn split_mix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_its_number_and_salt() {
        for seq in [0, 1, 4095, 4096, u64::from(u32::MAX), (1 << SEQ_BITS) - 1].map(Seq) {
            let id = TaskId::new(seq, 0x1234_5678_9abc_def0);
            assert_eq!(id.seq(), seq);
            assert_eq!(id.salt(), 0x1234_5678_9abc_def0 & SALT_MASK);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn is_a_version_8_uuid() {
        let text = TaskId::new(Seq(0xabc_def0_1234), 42).to_string();
        assert_eq!(text.as_bytes()[14], b'8');
        assert!(matches!(text.as_bytes()[19], b'8' | b'9' | b'a' | b'b'));
    }

    #[test]
    fn foreign_texts_are_refused() {
        for text in [
            "",
            "x",
            "00000000-0000-4000-8000-000000000000",
            "00000000-0000-8000-0000-000000000000",
            "00000000+0000-8000-8000-000000000000",
            "0000000000000-8000-8000-000000000000",
            "zzzzzzzz-0000-8000-8000-000000000000",
        ] {
            assert_eq!(text.parse::<TaskId>(), Err(InvalidTaskId), "{text}");
        }
    }

    #[test]
    fn ids_sort_by_number() {
        assert!(TaskId::new(Seq(1), u64::MAX) < TaskId::new(Seq(2), 0));
        assert!(TaskId::new(Seq(4095), u64::MAX) < TaskId::new(Seq(4096), 0));
    }

    #[test]
    fn the_minter_hits_every_shard() {
        for shards in [1, 2, 3, 7, 16] {
            for shard in ShardId::all(shards) {
                assert_eq!(TaskId::mint(Seq(77), 5, shard, shards).shard(shards), shard);
            }
        }
    }

    #[test]
    fn the_shard_hash_is_the_published_one() {
        assert_eq!(fnv1a64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
