//! How rows and commands become bytes: one version byte, then postcard.
//!
//! The rule for changing a format: postcard is not self-describing, so a struct or enum that has been
//! released is never changed in place, except by adding enum variants at the end. To add a field, raise
//! the version of that kind of row and put the field at the end, as a number: a row of the version before
//! is then read as one whose new fields are 0, and `rows` gives them their meaning. Anything else needs the
//! old struct under the name `…V1`, converted on read. The fixtures of the log and the store, written by
//! version 1, are opened by their tests for ever.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::command::{Command, Millis};
use crate::kv::{Key, KvError, Table};
use crate::moment::Moment;

/// The version of every row that does not say otherwise.
pub(crate) const VERSION: u8 = 1;
/// The version of a group: since the second it says what the wall clock showed.
const GROUP_VERSION: u8 = 2;
/// The length of a group without commands.
pub const GROUP_HEADER_BYTES: usize = 17;

/// Bytes that do not decode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer version.
    #[error("format version {0} is not known to this version of codeq: upgrade it")]
    Version(u8),
    /// Not what was written.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

pub(crate) fn encode_row<T: Serialize>(row: &T, version: u8, capacity: usize) -> Bytes {
    let mut buffer = Vec::with_capacity(capacity);
    buffer.push(version);
    // Encoding into memory cannot fail for our types. An empty row would be refused on read, loudly.
    Bytes::from(postcard::to_extend(row, buffer).unwrap_or_default())
}

pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
    let (value, rest) =
        postcard::take_from_bytes(body).map_err(|_| DecodeError::Malformed("does not decode"))?;
    if rest.is_empty() { Ok(value) } else { Err(DecodeError::Malformed("trailing bytes")) }
}

pub(crate) fn strip_version(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    match bytes.split_first() {
        Some((&VERSION, body)) => Ok(body),
        Some((version, _)) => Err(DecodeError::Version(*version)),
        None => Err(DecodeError::Malformed("empty")),
    }
}

pub(crate) fn decode_row<T: DeserializeOwned>(
    table: Table,
    key: Key,
    bytes: &[u8],
) -> Result<T, KvError> {
    let row = strip_version(bytes).and_then(decode);
    row.map_err(|error| KvError::Corrupt { table, key, reason: error.to_string() })
}

/// Reads a row of version 2, or one of version 1, which lacks the last `added` fields: they are 0.
pub(crate) fn decode_grown<T: DeserializeOwned>(
    table: Table,
    key: Key,
    bytes: &[u8],
    added: usize,
) -> Result<T, KvError> {
    let row = match bytes.split_first() {
        Some((2, body)) => decode(body),
        _ => strip_version(bytes).and_then(|body| {
            let mut body = body.to_vec();
            body.resize(body.len() + added, 0);
            decode(&body)
        }),
    };
    row.map_err(|error| KvError::Corrupt { table, key, reason: error.to_string() })
}

/// Starts a group: what one shard applied at one moment. `buffer` is the record's future content.
pub fn begin_group(at: Moment, buffer: &mut Vec<u8>) {
    buffer.push(GROUP_VERSION);
    buffer.extend_from_slice(&at.now.to_le_bytes());
    buffer.extend_from_slice(&at.wall.to_le_bytes());
}

/// Adds a command to a group. Its length is written before it, so that a reader can bound it.
pub fn push_command(command: &Command, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    // Encoding into memory cannot fail for our types; a lost command would surface as an empty slot.
    let taken = std::mem::take(buffer);
    *buffer = postcard::to_extend(command, taken).unwrap_or_default();
    let length = (buffer.len() - start - 4) as u32;
    if let Some(slot) = buffer.get_mut(start..start + 4) {
        slot.copy_from_slice(&length.to_le_bytes());
    }
}

/// Reads a group back: its moment, and its commands in order.
pub fn read_group(bytes: &[u8]) -> Result<(Moment, Vec<Command>), DecodeError> {
    let (at, mut rest) = match bytes.split_first() {
        Some((&GROUP_VERSION, body)) => {
            let (now, body) = read_millis(body)?;
            let (wall, body) = read_millis(body)?;
            (Moment { now, wall }, body)
        }
        // Version 1 had one clock, which followed the wall clock.
        _ => {
            let (now, body) = read_millis(strip_version(bytes)?)?;
            (Moment::agreed(now), body)
        }
    };
    let mut commands = Vec::new();
    while !rest.is_empty() {
        let (length, tail) = rest
            .split_first_chunk::<4>()
            .ok_or(DecodeError::Malformed("command without length"))?;
        let (command, tail) = tail
            .split_at_checked(u32::from_le_bytes(*length) as usize)
            .ok_or(DecodeError::Malformed("command cut short"))?;
        let command = postcard::from_bytes(command)
            .map_err(|_| DecodeError::Malformed("command does not decode"))?;
        commands.push(command);
        rest = tail;
    }
    Ok((at, commands))
}

fn read_millis(bytes: &[u8]) -> Result<(Millis, &[u8]), DecodeError> {
    let (number, rest) =
        bytes.split_first_chunk::<8>().ok_or(DecodeError::Malformed("group without time"))?;
    Ok((Millis::from_le_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Sweep;

    #[test]
    fn groups_come_back() {
        let commands: Vec<Command> =
            (0..3).map(|seed| Command::Sweep(Sweep { limit: 1, seed })).collect();
        let mut bytes = Vec::new();
        let at = Moment { now: 42, wall: 4_200 };
        begin_group(at, &mut bytes);
        assert_eq!(bytes.len(), GROUP_HEADER_BYTES);
        commands.iter().for_each(|command| push_command(command, &mut bytes));
        assert_eq!(read_group(&bytes), Ok((at, commands)));
    }

    #[test]
    fn no_cut_group_decodes_to_something_else() {
        let mut bytes = Vec::new();
        begin_group(Moment::agreed(42), &mut bytes);
        push_command(&Command::Sweep(Sweep { limit: 1, seed: u64::MAX }), &mut bytes);
        // The header is a whole (empty) group; every other cut is an error.
        for cut in (0..bytes.len()).filter(|cut| *cut != GROUP_HEADER_BYTES) {
            assert!(read_group(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        bytes[0] = 9;
        assert_eq!(read_group(&bytes), Err(DecodeError::Version(9)));
    }
}
