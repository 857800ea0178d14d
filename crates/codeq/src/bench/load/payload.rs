//! Payloads of an exact size that name their task: `{"n":123,"pad":"xxx"}`.

use std::fmt::Write;

use bytes::{Bytes, BytesMut};

/// The smallest payload: it has room for the largest task number of a run.
pub const LEAST: usize = 40;
/// Payloads are cut from blocks, so most of them cost no allocation.
const BLOCK: usize = 256 << 10;
const TAIL: &[u8] = b"\"}";

/// Makes payloads of one size.
pub struct Payloads {
    size: usize,
    block: BytesMut,
    fill: Vec<u8>,
}

impl Payloads {
    /// Payloads of this size, but at least [`LEAST`].
    pub fn new(size: usize) -> Payloads {
        let size = size.max(LEAST);
        Payloads { size, block: BytesMut::new(), fill: vec![b'x'; size] }
    }

    /// The payload of a task.
    pub fn make(&mut self, number: u64) -> Bytes {
        if self.block.capacity() < self.size {
            self.block = BytesMut::with_capacity(BLOCK.max(self.size));
        }
        // Writing to a buffer that grows cannot fail.
        let _ = write!(self.block, "{{\"n\":{number},\"pad\":\"");
        let room = self.size.saturating_sub(self.block.len() + TAIL.len());
        self.block.extend_from_slice(self.fill.get(..room).unwrap_or_default());
        self.block.extend_from_slice(TAIL);
        self.block.split().freeze()
    }
}

/// The task that a payload belongs to: the first number in the text, whether the server kept, reformatted or quoted it.
pub fn number(payload: &[u8]) -> Option<u64> {
    let digits = payload.split(|byte| !byte.is_ascii_digit()).find(|digits| !digits.is_empty());
    std::str::from_utf8(digits?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_size_and_its_number() {
        for size in [LEAST, 256, 300_000] {
            let mut payloads = Payloads::new(size);
            for n in [0, 9, 10, 123, 1_000, 99_999, 10_000_000_000, u64::MAX] {
                let payload = payloads.make(n);
                assert_eq!(payload.len(), size);
                assert_eq!(number(&payload), Some(n));
                let value: serde_json::Value = serde_json::from_slice(&payload).unwrap();
                assert_eq!(value["n"], n);
            }
        }
    }

    #[test]
    fn a_number_is_found_in_other_spellings() {
        assert_eq!(number(br#"{ "n" : 42 , "pad" : "x" }"#), Some(42));
        assert_eq!(number(br#""{\"n\":42,\"pad\":\"x\"}""#), Some(42));
        assert_eq!(number(b"{}"), None);
        assert_eq!(number(b"{\"n\":99999999999999999999999}"), None);
    }
}
