//! Task ids as numbers: 64 bits identify an id within a run, and are compared and looked up without touching the text.

use std::hash::{DefaultHasher, Hasher};

/// The 64 bits that identify an id. Never 0.
pub fn key(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(id.as_bytes());
    hasher.finish().max(1)
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
