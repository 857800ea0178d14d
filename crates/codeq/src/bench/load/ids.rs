//! Task ids as numbers: 64 bits identify an id within a run, and are compared and looked up without touching the text.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The 64 bits that identify an id. Never 0.
pub fn key(id: &str) -> u64 {
    let mix = |state: u64, word: u64| {
        let product = u128::from(state ^ word) * u128::from(0x9E37_79B9_7F4A_7C15_u64);
        (product >> 64) as u64 ^ product as u64
    };
    let state = id.as_bytes().chunks(8).fold(0x51_7C_C1_B7_27_22_0A_95_u64, |state, chunk| {
        let word = chunk.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        mix(state.rotate_left(23), word)
    });
    mix(state, id.len() as u64).max(1)
}

/// Numbers of tasks by the keys of their ids.
pub type Numbers = HashMap<u64, u64, BuildHasherDefault<AsIs>>;

/// Keys are already random enough.
#[derive(Default)]
pub struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |state, byte| state << 8 ^ u64::from(*byte));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_differ_a_little_have_keys_that_differ() {
        let ids: Vec<String> =
            (0..100_000).map(|n| format!("0199a000-{:04x}-7000-8000-{n:012x}", n % 7)).collect();
        let keys: std::collections::HashSet<u64> = ids.iter().map(|id| key(id)).collect();
        assert_eq!(keys.len(), ids.len());
        assert_ne!(key(""), 0);
        assert_eq!(key("abc"), key("abc"));
    }
}
