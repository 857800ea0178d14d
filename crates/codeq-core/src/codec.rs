//! How rows and commands become bytes: one version byte, then postcard.
//!
//! The rule for changing a format: postcard is not self-describing, so a struct or enum that has been
//! released is never changed in place, except by adding enum variants at the end. To add a field, raise
//! the version of that kind of row, keep the old struct under the name `…V1`, and convert on read. The
//! fixtures of the log and the store, written by version 1, are opened by their tests for ever.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::command::{Command, Millis};
use crate::kv::{Key, KvError, Table};

const VERSION: u8 = 1;

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

pub(crate) fn encode_row<T: Serialize>(row: &T, capacity: usize) -> Bytes {
    encode_row_as(VERSION, row, capacity)
}

/// A row of a kind that is no longer written in its first version.
pub(crate) fn encode_row_as<T: Serialize>(version: u8, row: &T, capacity: usize) -> Bytes {
    let mut buffer = Vec::with_capacity(capacity);
    buffer.push(version);
    // Encoding into memory cannot fail for our types. An empty row would be refused on read, loudly.
    Bytes::from(postcard::to_extend(row, buffer).unwrap_or_default())
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    decode_body(strip_version(bytes)?)
}

/// Decodes what follows a version byte.
pub(crate) fn decode_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, DecodeError> {
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
    decode(bytes).map_err(|error| KvError::Corrupt { table, key, reason: error.to_string() })
}

/// Starts a group: what one shard applied at one moment. `buffer` is the record's future content.
pub fn begin_group(now: Millis, buffer: &mut Vec<u8>) {
    buffer.push(VERSION);
    buffer.extend_from_slice(&now.to_le_bytes());
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
pub fn read_group(bytes: &[u8]) -> Result<(Millis, Vec<Command>), DecodeError> {
    let body = strip_version(bytes)?;
    let (now, mut rest) =
        body.split_first_chunk::<8>().ok_or(DecodeError::Malformed("group without time"))?;
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
    Ok((Millis::from_le_bytes(*now), commands))
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
        begin_group(42, &mut bytes);
        commands.iter().for_each(|command| push_command(command, &mut bytes));
        assert_eq!(read_group(&bytes), Ok((42, commands)));
    }

    #[test]
    fn no_cut_group_decodes_to_something_else() {
        let mut bytes = Vec::new();
        begin_group(42, &mut bytes);
        push_command(&Command::Sweep(Sweep { limit: 1, seed: u64::MAX }), &mut bytes);
        // Nine bytes are a whole (empty) group; every other cut is an error.
        for cut in (0..bytes.len()).filter(|cut| *cut != 9) {
            assert!(read_group(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        bytes[0] = 9;
        assert_eq!(read_group(&bytes), Err(DecodeError::Version(9)));
    }
}
