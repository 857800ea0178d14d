//! Cursors: where the next page of a list begins, valid for that list only.
//!
//! A cursor holds positions and nothing else. A checksum over tenant and query rejects a cursor
//! that belongs to another list or was truncated or altered. The checksum has no key, so clients
//! can forge cursors. That gains them nothing: the tenant comes from the token, the filter from the
//! request, each call's work is bounded wherever it begins, and every position is one the caller
//! could have been given.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use codeq_core::command::BulkFrom;
use codeq_core::id::ShardId;
use codeq_core::keys::Seq;
use codeq_core::limits::COMMAND_BYTES_MAX;
use codeq_core::read::ListQuery;
use sha2::{Digest, Sha256};

use super::{Code, ServiceError};

const CHECK: usize = 8;

/// Encodes one position per shard.
pub fn encode(positions: &[Seq], query: &ListQuery) -> String {
    let bytes: Vec<u8> = positions.iter().flat_map(|at| at.0.to_be_bytes()).collect();
    seal(&bytes, &about(query))
}

/// Decodes the positions of a cursor made for this query.
pub fn decode(text: &str, query: &ListQuery, shards: u16) -> Result<Vec<Seq>, ServiceError> {
    let want = usize::from(shards) * 8;
    let bytes = open(text, &about(query), want)?;
    let (positions, rest) = bytes.as_chunks::<8>();
    if bytes.len() != want || !rest.is_empty() {
        return Err(invalid());
    }
    Ok(positions.iter().map(|at| Seq(u64::from_be_bytes(*at))).collect())
}

/// Encodes the place in a walk over the queues, one shard after another.
pub fn encode_from(shard: ShardId, from: &BulkFrom, about: &[Option<String>]) -> String {
    let mut bytes = shard.0.to_be_bytes().to_vec();
    bytes.push(from.list);
    bytes.extend_from_slice(&from.after.0.to_be_bytes());
    bytes.extend_from_slice(from.queue.as_deref().unwrap_or_default().as_bytes());
    seal(&bytes, about)
}

/// Decodes the shard and place of a cursor made for these parameters.
pub fn decode_from(
    text: &str,
    about: &[Option<String>],
) -> Result<(ShardId, BulkFrom), ServiceError> {
    const FIXED: usize = 11;
    let bytes = open(text, about, FIXED + COMMAND_BYTES_MAX)?;
    let decoded = || {
        let (shard, rest) = bytes.split_first_chunk::<2>()?;
        let (list, rest) = rest.split_first()?;
        let (after, name) = rest.split_first_chunk::<8>()?;
        let name = std::str::from_utf8(name).ok()?;
        let queue = (!name.is_empty()).then(|| name.into());
        let from = BulkFrom { queue, list: *list, after: Seq(u64::from_be_bytes(*after)) };
        Some((ShardId(u16::from_be_bytes(*shard)), from))
    };
    decoded().ok_or_else(invalid)
}

/// Appends a checksum that binds `position` to `about`.
fn seal(position: &[u8], about: &[Option<String>]) -> String {
    let check = checksum(position, about);
    URL_SAFE_NO_PAD.encode([position, &check].concat())
}

/// Verifies a cursor against `about` and returns its position, at most `max` bytes.
fn open(text: &str, about: &[Option<String>], max: usize) -> Result<Vec<u8>, ServiceError> {
    // Check before decoding: clients can send text of any length.
    if text.len() > (max + CHECK) * 2 {
        return Err(invalid());
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
    let (position, check) = bytes.split_last_chunk::<CHECK>().ok_or_else(invalid)?;
    if position.len() > max || *check != checksum(position, about) {
        return Err(invalid());
    }
    Ok(position.to_vec())
}

/// The error for a cursor that is malformed or belongs to another call.
fn invalid() -> ServiceError {
    ServiceError::new(Code::InvalidCursor, "invalid cursor")
}

fn about(query: &ListQuery) -> Vec<Option<String>> {
    let number = |at: Option<u64>| at.map(|at| at.to_string());
    vec![
        Some(query.tenant.to_string()),
        query.command.as_ref().map(|text| text.to_ascii_lowercase()),
        query.status.map(|status| format!("{status:?}")),
        query.state.map(|state| state.as_str().to_owned()),
        Some(query.dead_only.to_string()),
        query.worker.as_ref().map(|text| text.to_string()),
        number(query.created_from),
        number(query.created_before),
        query.error_contains.as_ref().map(|text| text.to_string()),
    ]
}

fn checksum(position: &[u8], about: &[Option<String>]) -> [u8; CHECK] {
    let mut hash = Sha256::new();
    for field in about {
        let text = field.as_deref().unwrap_or_default();
        hash.update([u8::from(field.is_some())]);
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.update(position);
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
        let text = encode(&[Seq(7), Seq::MAX], &mine);
        assert_eq!(decode(&text, &mine, 2), Ok(vec![Seq(7), Seq::MAX]));
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
