//! Little-endian numbers in byte slices that may be hostile: every read is checked.

/// The four bytes at `at` as a number, if the slice reaches that far.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The eight bytes at `at` as a number, if the slice reaches that far.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
