//! Cursors: where the next page of a list begins, for this list and no other.
//!
//! A cursor names positions, nothing more: the tenant always comes from the token. The checksum over tenant
//! and query makes a cursor of another list, or one that was tampered with, an error instead of nonsense.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use codeq_core::read::ListQuery;
use sha2::{Digest, Sha256};

use super::ServiceError;

const CHECK: usize = 8;

/// The cursor for positions in the shards.
pub fn encode(positions: &[u64], query: &ListQuery) -> String {
    let mut bytes: Vec<u8> = positions.iter().flat_map(|at| at.to_be_bytes()).collect();
    let check = checksum(&bytes, query);
    bytes.extend_from_slice(&check);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The positions of a cursor that was made for this query.
pub fn decode(text: &str, query: &ListQuery, shards: u16) -> Result<Vec<u64>, ServiceError> {
    let invalid = || ServiceError::invalid("invalid_cursor", "invalid cursor");
    let want = usize::from(shards) * 8 + CHECK;
    // Before decoding: a text of any length comes from outside.
    if text.len() > want * 2 {
        return Err(invalid());
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
    let (positions, check) = bytes.split_last_chunk::<CHECK>().ok_or_else(invalid)?;
    let (positions, rest) = positions.as_chunks::<8>();
    let joined: Vec<u8> = positions.iter().flatten().copied().collect();
    if bytes.len() != want || !rest.is_empty() || *check != checksum(&joined, query) {
        return Err(invalid());
    }
    Ok(positions.iter().map(|at| u64::from_be_bytes(*at)).collect())
}

fn checksum(positions: &[u8], query: &ListQuery) -> [u8; CHECK] {
    let mut hash = Sha256::new();
    let status = query.status.map(|status| format!("{status:?}"));
    let number = |at: Option<u64>| at.map(|at| at.to_string());
    let fields = [
        Some(query.tenant.to_string()),
        query.command.as_ref().map(|text| text.to_ascii_lowercase()),
        status,
        Some(query.dead_only.to_string()),
        query.worker.as_ref().map(|text| text.to_string()),
        number(query.created_from),
        number(query.created_before),
        query.error_contains.as_ref().map(|text| text.to_string()),
    ];
    for field in &fields {
        let text = field.as_deref().unwrap_or_default();
        hash.update([u8::from(field.is_some())]);
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.update(positions);
    let digest = hash.finalize();
    let mut check = [0; CHECK];
    for (to, from) in check.iter_mut().zip(digest) {
        *to = from;
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_good_for_its_own_list_only() {
        let query = |tenant: &str, command: Option<&str>| ListQuery {
            tenant: tenant.into(),
            command: command.map(Into::into),
            ..ListQuery::default()
        };
        let mine = query("a", Some("c"));
        let text = encode(&[7, u64::MAX], &mine);
        assert_eq!(decode(&text, &mine, 2), Ok(vec![7, u64::MAX]));
        assert!(decode(&text, &mine, 1).is_err());
        for other in [query("b", Some("c")), query("a", None), query("ac", Some(""))] {
            assert!(decode(&text, &other, 2).is_err());
        }
        let mut tampered = text.into_bytes();
        tampered[0] ^= 1;
        assert!(decode(std::str::from_utf8(&tampered).unwrap(), &mine, 2).is_err());
        for junk in ["", "A", "%", &"A".repeat(10_000)] {
            assert!(decode(junk, &mine, 2).is_err(), "{junk}");
        }
    }
}
