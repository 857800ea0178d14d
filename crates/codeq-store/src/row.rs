//! The stored form of a row: its value, then four bytes of CRC32C over key and value.
//!
//! In a file of an older release these sums are the only check of what is read, because the B-tree library checks its
//! pages only when it repairs or verifies a whole file. In newer files, [`crate::blocks`] checks every block as well. The
//! sums take 2 % of the CPU time of a checkpoint.

use codeq_core::kv::Key;

/// Bytes that a stored row has beyond its value.
pub(crate) const TRAILER: usize = 4;

/// Replaces the contents of `out` with the stored form of a row.
pub(crate) fn encode(key: Key, value: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.reserve(value.len() + TRAILER);
    out.extend_from_slice(value);
    out.extend_from_slice(&checksum(key, value).to_le_bytes());
}

/// The value inside a stored row, or an error if it is damaged.
pub(crate) fn decode(key: Key, stored: &[u8]) -> Result<&[u8], &'static str> {
    let Some((value, sum)) = stored.split_last_chunk::<TRAILER>() else {
        return Err("shorter than its checksum");
    };
    if checksum(key, value) != u32::from_le_bytes(*sum) {
        return Err("checksum mismatch");
    }
    Ok(value)
}

/// The bytes that a row counts as live data.
pub(crate) fn live_bytes(stored: &[u8]) -> u64 {
    (size_of::<Key>() + stored.len()) as u64
}

fn checksum(key: Key, value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&key.to_le_bytes()), value)
}
