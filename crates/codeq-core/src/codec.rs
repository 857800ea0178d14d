//! How rows and log records are encoded. A row is one version byte, then the content in postcard. A record is one version
//! byte, then two timestamps of fixed length, then each command in postcard after its length.
//!
//! Changing a format: postcard is not self-describing, so never change a released struct or enum in place, except to
//! add enum variants at the end. To add a field, raise the version of that row kind and append the field as a number:
//! rows of the previous version decode with the new fields set to 0, and `rows` interprets that. Any other change keeps
//! the old struct as `…V1` and converts on read. Tests open a log and a store written by version 1, and always will.

use bytes::Bytes;
use postcard::ser_flavors::Flavor;
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};

use crate::command::Command;
use crate::kv::{Key, KvError, Table};
use crate::moment::{Millis, Moment};

/// Version of every row kind that does not define its own.
pub(crate) const VERSION: u8 = 1;
/// Version of a log record. Version 2 added the wall clock.
const RECORD_VERSION: u8 = 2;
/// Length of a record without commands.
pub const RECORD_HEADER_BYTES: usize = 17;

/// Why bytes did not decode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer version.
    #[error("format version {0} is not known to this version of codeq: upgrade it")]
    Version(u8),
    /// Damaged, or never written by codeQ.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// The longest encoding of a `u64`.
const NUMBER_BYTES_MAX: usize = 10;

/// Collects encoded bytes. Postcard's own collector accepts any `Extend` and is slower for every byte.
struct Collector<'a>(&'a mut Vec<u8>);

impl Flavor for Collector<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if bytes.len() > NUMBER_BYTES_MAX {
            self.0.extend_from_slice(bytes);
        } else {
            // A loop is faster for the few bytes of a number than a call that copies them (32 ns instead of 45 for the
            // numbers of a row).
            bytes.iter().for_each(|byte| self.0.push(*byte));
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Encodes a value at the end of a buffer.
pub(crate) fn append<T: Serialize + ?Sized>(value: &T, buffer: &mut Vec<u8>) {
    // Encoding our types into memory cannot fail. If it did, readers would reject the incomplete bytes.
    let _ = postcard::serialize_with_flavor(value, Collector(buffer));
}

/// Serialises bytes in one write. The default writes the same bytes one number at a time, which is slower.
pub(crate) fn as_bytes<S: Serializer>(
    bytes: &impl AsRef<[u8]>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes.as_ref())
}

pub(crate) fn encode_row<T: Serialize>(row: &T, version: u8, capacity: usize) -> Bytes {
    let mut buffer = Vec::with_capacity(capacity);
    buffer.push(version);
    append(row, &mut buffer);
    Bytes::from(buffer)
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

/// The error for a row that does not decode.
pub(crate) fn row_error(table: Table, key: Key, error: DecodeError) -> KvError {
    match error {
        DecodeError::Version(version) => KvError::TooNew { table, key, version },
        malformed => KvError::Corrupt { table, key, reason: malformed.to_string() },
    }
}

pub(crate) fn decode_row<T: DeserializeOwned>(
    table: Table,
    key: Key,
    bytes: &[u8],
) -> Result<T, KvError> {
    strip_version(bytes).and_then(decode).map_err(|error| row_error(table, key, error))
}

/// Reads a row whose later versions only appended numbers: `added` says how many in version 2, in version 3, and so on.
/// Those that the row's version lacks read as 0.
pub(crate) fn decode_grown<T: DeserializeOwned>(
    table: Table,
    key: Key,
    bytes: &[u8],
    added: &[usize],
) -> Result<T, KvError> {
    let row = match bytes.split_first() {
        Some((version, body)) => match usize::from(*version).checked_sub(1).map(|n| added.get(n..))
        {
            Some(Some([])) => decode(body),
            Some(Some(missing)) => {
                let mut body = body.to_vec();
                body.resize(body.len() + missing.iter().sum::<usize>(), 0);
                decode(&body)
            }
            _ => Err(DecodeError::Version(*version)),
        },
        None => Err(DecodeError::Malformed("empty")),
    };
    row.map_err(|error| row_error(table, key, error))
}

/// Starts a log record at the end of a buffer: the commands that one shard applied at one moment.
pub fn begin_record(at: Moment, buffer: &mut Vec<u8>) {
    buffer.push(RECORD_VERSION);
    buffer.extend_from_slice(&at.now.to_le_bytes());
    buffer.extend_from_slice(&at.wall.to_le_bytes());
}

/// Appends a command to a record, prefixed with its length so that a reader can bound it.
pub fn push_command(command: &Command, buffer: &mut Vec<u8>) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 4]);
    append(command, buffer);
    let length = (buffer.len() - start - 4) as u32;
    if let Some(slot) = buffer.get_mut(start..start + 4) {
        slot.copy_from_slice(&length.to_le_bytes());
    }
}

/// Decodes a record: its moment, and its commands in order.
pub fn read_record(bytes: &[u8]) -> Result<(Moment, Vec<Command>), DecodeError> {
    let (at, commands) = open_record(bytes)?;
    Ok((at, commands.collect::<Result<_, _>>()?))
}

/// Decodes the moment of a record. Its commands follow one by one, so that a large record need not be in memory twice.
pub fn open_record(bytes: &[u8]) -> Result<(Moment, Commands<'_>), DecodeError> {
    let (at, rest) = match bytes.split_first() {
        Some((&RECORD_VERSION, body)) => {
            let (now, body) = read_millis(body)?;
            let (wall, body) = read_millis(body)?;
            (Moment { now, wall }, body)
        }
        // Version 1 had a single clock, which followed the wall clock.
        _ => {
            let (now, body) = read_millis(strip_version(bytes)?)?;
            (Moment::agreed(now), body)
        }
    };
    Ok((at, Commands { rest }))
}

/// The commands of a record; ends after the first one that does not decode.
pub struct Commands<'a> {
    rest: &'a [u8],
}

impl Commands<'_> {
    fn decode(&mut self) -> Result<Command, DecodeError> {
        let rest = std::mem::take(&mut self.rest);
        let (length, tail) = rest
            .split_first_chunk::<4>()
            .ok_or(DecodeError::Malformed("command without length"))?;
        let (command, tail) = tail
            .split_at_checked(u32::from_le_bytes(*length) as usize)
            .ok_or(DecodeError::Malformed("command cut short"))?;
        let command = postcard::from_bytes(command)
            .map_err(|_| DecodeError::Malformed("command does not decode"))?;
        self.rest = tail;
        Ok(command)
    }
}

impl Iterator for Commands<'_> {
    type Item = Result<Command, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.rest.is_empty()).then(|| self.decode())
    }
}

fn read_millis(bytes: &[u8]) -> Result<(Millis, &[u8]), DecodeError> {
    let (number, rest) =
        bytes.split_first_chunk::<8>().ok_or(DecodeError::Malformed("record without time"))?;
    Ok((Millis::from_le_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Sweep;

    #[test]
    fn records_survive_encoding() {
        let commands: Vec<Command> =
            (0..3).map(|seed| Command::Sweep(Sweep { limit: 1, seed })).collect();
        let mut bytes = Vec::new();
        let at = Moment { now: 42, wall: 4_200 };
        begin_record(at, &mut bytes);
        assert_eq!(bytes.len(), RECORD_HEADER_BYTES);
        commands.iter().for_each(|command| push_command(command, &mut bytes));
        assert_eq!(read_record(&bytes), Ok((at, commands)));
    }

    #[test]
    fn no_cut_record_decodes_to_something_else() {
        let mut bytes = Vec::new();
        begin_record(Moment::agreed(42), &mut bytes);
        push_command(&Command::Sweep(Sweep { limit: 1, seed: u64::MAX }), &mut bytes);
        // The header alone is a valid empty record; any other cut is an error.
        for cut in (0..bytes.len()).filter(|cut| *cut != RECORD_HEADER_BYTES) {
            assert!(read_record(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        bytes[0] = 9;
        assert_eq!(read_record(&bytes), Err(DecodeError::Version(9)));
    }
}
