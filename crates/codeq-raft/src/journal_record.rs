//! The bytes of the journal's records and of the entries in them.
//!
//! Pure functions on slices. Decoders take any bytes: they allocate in proportion to the input, and accept exactly
//! what the encoders write.
//!
//! All numbers are little-endian. A record has a header of 28 bytes, then its payload:
//!
//! | Offset | Bytes | Field |
//! |---|---|---|
//! | 0 | 1 | format version, 1 |
//! | 1 | 1 | kind: 1 entry, 2 truncate, 3 jump, 4 committed |
//! | 2 | 2 | group, 0 |
//! | 4 | 8 | term |
//! | 12 | 8 | node |
//! | 20 | 8 | index |
//! | 28 | … | an entry's payload; empty for the other kinds |
//!
//! Term and node name the leader of the entry at the index. The payload of an entry starts with its kind (1 byte):
//!
//! - 0, blank: nothing follows.
//! - 1, proposal: term, node, incarnation and number of its origin (8 bytes each); 1 byte that says whether digests
//!   follow, and if so their index (8), their count (2) and the digests (8 each); the number of shards (2), and for each
//!   its number (2), the length of its record (4) and the record.
//! - 2, membership: the number of configurations (1), and for each the number of voters (2) and their ids (8 each,
//!   ascending); the number of members (2), and for each, ascending by id, its id (8), the length of its address (2) and
//!   the address.
//!
//! # Changing the format
//!
//! - A change that a version 1 program would misread gets the next version, in the first byte. A new program reads all
//!   older versions. It must not write its own while the cluster has members that cannot read it.
//! - Kinds and the group are never reused for something else. Unknown ones are refused, not skipped: a replica that
//!   ignores a record differs from the others.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use codeq_core::id::ShardId;
use codeq_log::{FRAME_HEADER_BYTES, RECORD_HEADER_BYTES};
use openraft::{CommittedLeaderId, EntryPayload, Membership};

use crate::types::{
    Digests, Entry, LogId, Member, NodeId, Origin, Proposal, StoredMembership, Vote,
};

/// The version that is written, and the newest that can be read.
pub const FORMAT: u8 = 1;

/// The group of all shards. The number is in every record so that several groups stay possible.
pub const GROUP: u16 = 0;

/// Length of a record's header.
pub const HEADER_BYTES: usize = 28;

/// The most members of a cluster (voters and learners together), and the most voters of a configuration.
pub const MEMBERS_MAX: usize = 64;

/// The longest address of a member: a host name of 253 characters and a port.
pub const ADDRESS_BYTES_MAX: usize = 259;

/// The longest encoding of a membership. It has to fit in the note of an installation
/// ([`codeq_engine::install::NOTE_BYTES_MAX`]) and a slot of the state file.
pub const MEMBERSHIP_BYTES_MAX: usize = 12 << 10;

/// The most configurations in a membership. While the members change, openraft holds the old and the new one.
const CONFIGS_MAX: usize = 4;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The entry at the index. Whatever earlier records say about this and later indexes is void.
    Entry,
    /// The entries from the index on are void.
    Truncate,
    /// The log continues after a snapshot that ends at the index. Later entries stay if the entry at the index is the
    /// same; otherwise all entries are void.
    Jump,
    /// The entries up to the index are committed.
    Committed,
}

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the record says.
    pub kind: Kind,
    /// The entry that the record is about.
    pub log_id: LogId,
}

/// Why bytes are not a record, an entry or a membership.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A newer program wrote it.
    #[error("record format version {found}, this program reads up to {FORMAT}")]
    Newer {
        /// Its version.
        found: u8,
    },
    /// Not what any encoder writes.
    #[error("{0} in a record of the journal")]
    Invalid(&'static str),
    /// More than the format can hold.
    #[error("{what}: {found}, at most {max}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: usize,
        /// The limit.
        max: usize,
    },
}

const SHORT: RecordError = RecordError::Invalid("missing bytes");

/// Names a log entry.
pub fn log_id(term: u64, node: NodeId, index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(term, node), index)
}

/// Encodes a record without a payload.
pub fn encode_mark(kind: Kind, log_id: LogId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    put_header(&mut bytes, kind, log_id);
    bytes
}

/// Encodes the record of an entry.
pub fn encode_entry(entry: &Entry) -> Result<Vec<u8>, RecordError> {
    let mut bytes = Vec::with_capacity(entry_bytes(entry));
    put_header(&mut bytes, Kind::Entry, entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => bytes.push(0),
        EntryPayload::Normal(proposal) => {
            bytes.push(1);
            put_proposal(&mut bytes, proposal)?;
        }
        EntryPayload::Membership(membership) => {
            bytes.push(2);
            put_membership(&mut bytes, membership)?;
        }
    }
    Ok(bytes)
}

/// The most that an entry takes in the log, if it has a frame of its own.
pub fn entry_bytes(entry: &Entry) -> usize {
    let payload = match &entry.payload {
        EntryPayload::Blank => 1,
        EntryPayload::Normal(proposal) => {
            let records = proposal.records.iter().map(|(_, record)| 6 + record.len());
            let digests = proposal.digests.as_ref().map_or(0, |it| 10 + 8 * it.by_shard.len());
            36 + digests + records.sum::<usize>()
        }
        EntryPayload::Membership(_) => 1 + MEMBERSHIP_BYTES_MAX,
    };
    (FRAME_HEADER_BYTES + RECORD_HEADER_BYTES) as usize + HEADER_BYTES + payload
}

/// Decodes the header of a record. Refuses a payload in a record whose kind has none; does not decode an entry's
/// payload.
pub fn decode_header(bytes: &[u8]) -> Result<Header, RecordError> {
    let mut input = Input(bytes);
    let version = input.u8()?;
    if version != FORMAT {
        return match version {
            0 => Err(RecordError::Invalid("version 0")),
            found => Err(RecordError::Newer { found }),
        };
    }
    let kind = match input.u8()? {
        1 => Kind::Entry,
        2 => Kind::Truncate,
        3 => Kind::Jump,
        4 => Kind::Committed,
        _ => return Err(RecordError::Invalid("an unknown kind")),
    };
    if input.u16()? != GROUP {
        return Err(RecordError::Invalid("an unknown group"));
    }
    let log_id = input.log_id()?;
    match (kind, input.0.is_empty()) {
        (Kind::Entry, true) => Err(SHORT),
        (Kind::Entry, false) | (_, true) => Ok(Header { kind, log_id }),
        (_, false) => Err(RecordError::Invalid("a payload that does not belong")),
    }
}

/// Decodes the record of an entry. The records of a proposal are parts of `bytes`, not copies.
pub fn decode_entry(bytes: &Bytes) -> Result<Entry, RecordError> {
    let header = decode_header(bytes)?;
    if header.kind != Kind::Entry {
        return Err(RecordError::Invalid("not an entry"));
    }
    let mut input = Input(bytes.get(HEADER_BYTES..).ok_or(SHORT)?);
    let payload = match input.u8()? {
        0 => EntryPayload::Blank,
        1 => EntryPayload::Normal(input.proposal(bytes)?),
        2 => EntryPayload::Membership(input.membership()?),
        _ => return Err(RecordError::Invalid("an unknown kind of entry")),
    };
    input.end()?;
    Ok(Entry { log_id: header.log_id, payload })
}

/// Encodes a membership and the entry that it comes from.
pub fn encode_membership(membership: &StoredMembership) -> Result<Vec<u8>, RecordError> {
    let mut bytes = Vec::new();
    put_option(&mut bytes, membership.log_id().as_ref(), |bytes, log_id| {
        put_log_id(bytes, *log_id)
    });
    put_membership(&mut bytes, membership.membership())?;
    Ok(bytes)
}

/// Decodes what [`encode_membership`] wrote.
pub fn decode_membership(bytes: &[u8]) -> Result<StoredMembership, RecordError> {
    let mut input = Input(bytes);
    let log_id = input.option(Input::log_id)?;
    let membership = input.membership()?;
    input.end()?;
    Ok(StoredMembership::new(log_id, membership))
}

/// Encodes the note of an installation: the last entry that the rows include, and the members at that point.
pub fn encode_note(
    at: Option<LogId>,
    membership: &StoredMembership,
) -> Result<Vec<u8>, RecordError> {
    let mut bytes = vec![FORMAT];
    put_option(&mut bytes, at, put_log_id);
    bytes.extend_from_slice(&encode_membership(membership)?);
    Ok(bytes)
}

/// Decodes what [`encode_note`] wrote.
pub fn decode_note(bytes: &[u8]) -> Result<(Option<LogId>, StoredMembership), RecordError> {
    let mut input = Input(bytes);
    match input.u8()? {
        FORMAT => {}
        0 => return Err(RecordError::Invalid("version 0")),
        found => return Err(RecordError::Newer { found }),
    }
    let at = input.option(Input::log_id)?;
    Ok((at, decode_membership(input.0)?))
}

pub(crate) fn put_log_id(bytes: &mut Vec<u8>, log_id: LogId) {
    for field in [log_id.leader_id.term, log_id.leader_id.node_id, log_id.index] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
}

pub(crate) fn put_vote(bytes: &mut Vec<u8>, vote: &Vote) {
    bytes.extend_from_slice(&vote.leader_id.term.to_le_bytes());
    bytes.extend_from_slice(&vote.leader_id.node_id.to_le_bytes());
    bytes.push(u8::from(vote.committed));
}

pub(crate) fn put_option<T>(
    bytes: &mut Vec<u8>,
    value: Option<T>,
    put: impl FnOnce(&mut Vec<u8>, T),
) {
    bytes.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(bytes, value);
    }
}

fn put_header(bytes: &mut Vec<u8>, kind: Kind, log_id: LogId) {
    let kind = match kind {
        Kind::Entry => 1,
        Kind::Truncate => 2,
        Kind::Jump => 3,
        Kind::Committed => 4,
    };
    bytes.extend_from_slice(&[FORMAT, kind]);
    bytes.extend_from_slice(&GROUP.to_le_bytes());
    put_log_id(bytes, log_id);
}

fn count(what: &'static str, found: usize, max: usize) -> Result<u16, RecordError> {
    u16::try_from(found).ok().filter(|_| found <= max).ok_or(RecordError::TooMany {
        what,
        found,
        max,
    })
}

fn put_proposal(bytes: &mut Vec<u8>, proposal: &Proposal) -> Result<(), RecordError> {
    const MOST: usize = u16::MAX as usize;
    let Origin { term, node, incarnation, number } = proposal.origin;
    for field in [term, node, incarnation, number] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.push(u8::from(proposal.digests.is_some()));
    if let Some(digests) = &proposal.digests {
        bytes.extend_from_slice(&digests.index.to_le_bytes());
        let shards = count("digests of shards", digests.by_shard.len(), MOST)?;
        bytes.extend_from_slice(&shards.to_le_bytes());
        for digest in &digests.by_shard {
            bytes.extend_from_slice(&digest.to_le_bytes());
        }
    }
    let shards = count("records of shards", proposal.records.len(), MOST)?;
    bytes.extend_from_slice(&shards.to_le_bytes());
    for (shard, record) in &proposal.records {
        let max = codeq_log::MAX_FRAME_BYTES as usize;
        let what = "bytes of a shard's record";
        let len = u32::try_from(record.len()).ok().filter(|_| record.len() <= max);
        let len = len.ok_or(RecordError::TooMany { what, found: record.len(), max })?;
        bytes.extend_from_slice(&shard.0.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(record);
    }
    Ok(())
}

fn put_membership(
    bytes: &mut Vec<u8>,
    membership: &Membership<NodeId, Member>,
) -> Result<(), RecordError> {
    let start = bytes.len();
    let configs = membership.get_joint_config();
    bytes.push(count("configurations", configs.len(), CONFIGS_MAX)? as u8);
    for config in configs {
        bytes.extend_from_slice(&count("voters", config.len(), MEMBERS_MAX)?.to_le_bytes());
        for voter in config {
            bytes.extend_from_slice(&voter.to_le_bytes());
        }
    }
    let members = count("members", membership.nodes().count(), MEMBERS_MAX)?;
    bytes.extend_from_slice(&members.to_le_bytes());
    for (id, member) in membership.nodes() {
        let len = count("bytes of an address", member.address.len(), ADDRESS_BYTES_MAX)?;
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(member.address.as_bytes());
    }
    let (found, max) = (bytes.len() - start, MEMBERSHIP_BYTES_MAX);
    if found > max {
        return Err(RecordError::TooMany { what: "bytes of a membership", found, max });
    }
    if membership.voter_ids().any(|voter| membership.get_node(&voter).is_none()) {
        return Err(RecordError::Invalid("a voter that is no member"));
    }
    Ok(())
}

/// Bytes that are still to be decoded.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], RecordError> {
        let (first, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(first)
    }

    fn u8(&mut self) -> Result<u8, RecordError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, RecordError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, RecordError> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, RecordError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(RecordError::Invalid("neither yes nor no")),
        }
    }

    pub(crate) fn option<T>(
        &mut self,
        decode: impl FnOnce(&mut Self) -> Result<T, RecordError>,
    ) -> Result<Option<T>, RecordError> {
        if self.flag()? { decode(self).map(Some) } else { Ok(None) }
    }

    pub(crate) fn log_id(&mut self) -> Result<LogId, RecordError> {
        Ok(log_id(self.u64()?, self.u64()?, self.u64()?))
    }

    pub(crate) fn vote(&mut self) -> Result<Vote, RecordError> {
        let mut vote = Vote::new(self.u64()?, self.u64()?);
        vote.committed = self.flag()?;
        Ok(vote)
    }

    pub(crate) fn end(&self) -> Result<(), RecordError> {
        if self.0.is_empty() { Ok(()) } else { Err(RecordError::Invalid("bytes after the end")) }
    }

    /// `whole` is what these bytes are a part of.
    fn proposal(&mut self, whole: &Bytes) -> Result<Proposal, RecordError> {
        let origin = Origin {
            term: self.u64()?,
            node: self.u64()?,
            incarnation: self.u64()?,
            number: self.u64()?,
        };
        let digests = self.option(|input| {
            let index = input.u64()?;
            let shards = usize::from(input.u16()?);
            let mut digests = Input(input.take(shards * 8)?);
            let by_shard = (0..shards).map(|_| digests.u64()).collect::<Result<_, _>>()?;
            Ok(Digests { index, by_shard })
        })?;
        let shards = usize::from(self.u16()?);
        // Each takes at least six bytes.
        let mut records = Vec::with_capacity(shards.min(self.0.len() / 6));
        for _ in 0..shards {
            let shard = ShardId(self.u16()?);
            let len = self.u32()? as usize;
            records.push((shard, whole.slice_ref(self.take(len)?)));
        }
        Ok(Proposal { origin, records, digests })
    }

    fn membership(&mut self) -> Result<Membership<NodeId, Member>, RecordError> {
        let bounded = |found: usize, max: usize| {
            if found <= max {
                Ok(found)
            } else {
                Err(RecordError::Invalid("a membership that is too large"))
            }
        };
        let before = self.0.len();
        let mut configs = Vec::new();
        for _ in 0..bounded(self.u8()?.into(), CONFIGS_MAX)? {
            let mut voters = BTreeSet::new();
            for _ in 0..bounded(self.u16()?.into(), MEMBERS_MAX)? {
                ascending(voters.last(), self.u64()?).map(|id| voters.insert(id))?;
            }
            configs.push(voters);
        }
        let mut members = BTreeMap::new();
        for _ in 0..bounded(self.u16()?.into(), MEMBERS_MAX)? {
            let last = members.last_key_value().map(|(id, _)| id);
            let id = ascending(last, self.u64()?)?;
            let len = bounded(self.u16()?.into(), ADDRESS_BYTES_MAX)?;
            let address = std::str::from_utf8(self.take(len)?)
                .map_err(|_| RecordError::Invalid("an address that is not text"))?;
            members.insert(id, Member { address: address.to_owned() });
        }
        bounded(before - self.0.len(), MEMBERSHIP_BYTES_MAX)?;
        if configs.iter().flatten().any(|voter| !members.contains_key(voter)) {
            return Err(RecordError::Invalid("a voter that is no member"));
        }
        Ok(Membership::new(configs, members))
    }
}

fn ascending(last: Option<&NodeId>, id: NodeId) -> Result<NodeId, RecordError> {
    match last {
        Some(last) if *last >= id => Err(RecordError::Invalid("ids that do not ascend")),
        _ => Ok(id),
    }
}
