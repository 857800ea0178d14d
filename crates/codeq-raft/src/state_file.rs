//! `raft/state`: what a node must not forget besides its log.
//!
//! The file has two slots of 16 KiB. Every change writes the first slot, syncs, writes the second, and syncs again before
//! it counts as done. From then on both are equal, so damage to either does no harm: the other holds everything that was
//! ever acted upon. A torn slot has a wrong checksum.
//!
//! | Offset | Bytes | Field |
//! |---|---|---|
//! | 0 | 8 | `codeQrft` |
//! | 8 | 4 | format version, 1 |
//! | 12 | 4 | length of the content |
//! | 16 | 4 | CRC32C of bytes 0 to 15 and the content |
//! | 20 | … | the content |
//!
//! The content, little-endian: cluster id, node id, log id, number of the change, first frame (8 bytes each); the vote (a
//! byte that says whether there is one; term, node, a byte that says whether it is committed); the entry that the log
//! is purged up to (a byte that says whether there is one; term, node, index); the membership, see [`crate::journal_record`].
//!
//! # Changing the format
//!
//! Magic, version, length and CRC stay where they are, so every program can tell a newer file from a damaged one. Any
//! other change gets the next version; a new program reads all older versions and writes its own.

use std::io;
use std::path::{Path, PathBuf};

use codeq_disk::{Disk, DiskFile};

use crate::journal_record::{self, Input, RecordError};
use crate::types::{LogId, NodeId, StoredMembership, Vote};

const DIR: &str = "raft";
const NAME: &str = "state";
const UNFINISHED: &str = "state.new";

const MAGIC: [u8; 8] = *b"codeQrft";
const FORMAT: u32 = 1;
const CRC_OFFSET: usize = 16;
const HEADER: usize = 20;
/// Length of a slot: the longest membership and the rest, in whole pages.
const SLOT: usize = 16 << 10;

/// What a node must not forget besides its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Drawn when the cluster was made; all of its nodes have it.
    pub cluster_id: u64,
    /// Drawn when the directory was made.
    pub node_id: NodeId,
    /// The log that belongs to this file.
    pub log_id: u64,
    /// The first frame of the log that the journal needs. Earlier ones may be gone.
    pub first_frame: u64,
    /// The last vote.
    pub vote: Option<Vote>,
    /// The entries up to here may be gone.
    pub purged: Option<LogId>,
    /// The last applied membership.
    pub membership: StoredMembership,
}

/// Why the state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A system call failed.
    #[error("cannot {action} {}: {source}", file.display())]
    Io {
        /// The attempted operation.
        action: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Neither slot is valid.
    #[error(
        "{} is damaged, so it is unknown what this node has promised; nothing was changed: remove the \
         node from its cluster and add a new one",
        file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
    },
    /// A newer version of codeQ wrote the file.
    #[error(
        "{} has format version {found}, this program reads up to {FORMAT}; run the version that wrote \
         it, or a later one",
        file.display()
    )]
    Newer {
        /// The file.
        file: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The membership does not fit.
    #[error("the membership cannot be kept: {0}")]
    Membership(#[from] RecordError),
    /// An earlier write or sync failed, so it is unknown what the file holds.
    #[error(
        "the state file was stopped by an earlier failure: {reason}; restart to recover what is durable"
    )]
    Stopped {
        /// The first failure.
        reason: String,
    },
}

impl StateError {
    fn io(action: &'static str, file: &Path) -> impl FnOnce(io::Error) -> StateError {
        move |source| StateError::Io { action, file: file.to_owned(), source }
    }
}

/// The path of the file in a data directory.
pub fn path(dir: &Path) -> PathBuf {
    dir.join(DIR).join(NAME)
}

/// The file, open for writing.
pub struct StateFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    state: State,
    /// Counts the changes.
    number: u64,
    stopped: Option<String>,
}

/// A valid slot.
#[derive(PartialEq)]
struct Slot {
    number: u64,
    state: State,
}

impl StateFile {
    /// Whether a data directory has the file.
    pub fn exists(disk: &dyn Disk, dir: &Path) -> Result<bool, StateError> {
        let path = path(dir);
        disk.exists(&path).map_err(StateError::io("look for", &path))
    }

    /// Creates the file in a data directory, durably and with its directory. An interrupted creation can be repeated.
    pub fn create(disk: &dyn Disk, dir: &Path, state: State) -> Result<StateFile, StateError> {
        let (parent, path) = (dir.join(DIR), path(dir));
        let unfinished = parent.join(UNFINISHED);
        let slot = encode(&Slot { number: 1, state })?;
        let write = || {
            disk.create_dir_all(&parent)?;
            if disk.exists(&unfinished)? {
                disk.remove(&unfinished)?;
            }
            let file = disk.create(&unfinished)?;
            // In full, so that no later change needs space.
            for at in [0, SLOT] {
                file.write_all_at(&slot, at as u64)?;
            }
            file.sync_data()?;
            disk.rename(&unfinished, &path)?;
            disk.sync_dir(&parent)?;
            disk.sync_dir(dir)
        };
        write().map_err(StateError::io("create", &path))?;
        StateFile::open(disk, dir)?.ok_or(StateError::Damaged { file: path })
    }

    /// Opens the file of a data directory and repairs a torn slot; `None` if there is no file.
    pub fn open(disk: &dyn Disk, dir: &Path) -> Result<Option<StateFile>, StateError> {
        if !StateFile::exists(disk, dir)? {
            return Ok(None);
        }
        let path = path(dir);
        let file = disk.open(&path).map_err(StateError::io("open", &path))?;
        let (first, second) = (read(&*file, &path, 0)?, read(&*file, &path, SLOT)?);
        // What has to be written before anything relies on the state, in this order.
        let (slot, repair): (Slot, &[usize]) = match (first, second) {
            (None, None) => return Err(StateError::Damaged { file: path }),
            (None, Some(second)) => (second, &[0]),
            // It is durable: otherwise the second would not have been touched.
            (Some(first), None) => (first, &[SLOT]),
            (Some(first), Some(second)) if first == second => (first, &[]),
            // Perhaps only in the page cache: if a sync failed, another one could succeed without writing it.
            (Some(first), Some(second)) if first.number > second.number => (first, &[0, SLOT]),
            (Some(_), Some(second)) => (second, &[0]),
        };
        let bytes = encode(&slot)?;
        for at in repair {
            write(&*file, &path, &bytes, *at)?;
        }
        let Slot { number, state } = slot;
        Ok(Some(StateFile { path, file, state, number, stopped: None }))
    }

    /// What the file says, durably.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Changes the state, durably. Does nothing if the state stays the same.
    pub fn update(&mut self, change: impl FnOnce(&mut State)) -> Result<(), StateError> {
        if let Some(reason) = &self.stopped {
            return Err(StateError::Stopped { reason: reason.clone() });
        }
        let mut state = self.state.clone();
        change(&mut state);
        if state == self.state {
            return Ok(());
        }
        let slot = Slot { number: self.number.saturating_add(1), state };
        let bytes = encode(&slot)?;
        for at in [0, SLOT] {
            // Not repeated: a second sync may succeed without the data.
            write(&*self.file, &self.path, &bytes, at)
                .inspect_err(|error| self.stopped = Some(error.to_string()))?;
        }
        (self.number, self.state) = (slot.number, slot.state);
        Ok(())
    }
}

fn write(file: &dyn DiskFile, path: &Path, bytes: &[u8], at: usize) -> Result<(), StateError> {
    let write = || {
        file.write_all_at(bytes, at as u64)?;
        file.sync_data()
    };
    write().map_err(StateError::io("write", path))
}

/// Reads a slot; `None` if it is damaged or missing.
fn read(file: &dyn DiskFile, path: &Path, at: usize) -> Result<Option<Slot>, StateError> {
    let len = file.len().map_err(StateError::io("measure", path))?;
    let mut bytes = vec![0; SLOT.min(len.saturating_sub(at as u64) as usize)];
    file.read_exact_at(&mut bytes, at as u64).map_err(StateError::io("read", path))?;
    match decode(&bytes) {
        Decoded::Slot(slot) => Ok(Some(*slot)),
        Decoded::Newer(found) => Err(StateError::Newer { file: path.to_owned(), found }),
        Decoded::Damaged => Ok(None),
    }
}

fn encode(slot: &Slot) -> Result<Vec<u8>, RecordError> {
    let State { cluster_id, node_id, log_id, first_frame, vote, purged, membership } = &slot.state;
    let mut content = Vec::new();
    for field in [*cluster_id, *node_id, *log_id, slot.number, *first_frame] {
        content.extend_from_slice(&field.to_le_bytes());
    }
    journal_record::put_option(&mut content, vote.as_ref(), journal_record::put_vote);
    journal_record::put_option(&mut content, *purged, journal_record::put_log_id);
    content.extend_from_slice(&journal_record::encode_membership(membership)?);

    let mut bytes = Vec::with_capacity(SLOT);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), &content);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(&content);
    bytes.resize(SLOT, 0);
    Ok(bytes)
}

enum Decoded {
    Slot(Box<Slot>),
    Newer(u32),
    Damaged,
}

/// Looks at the checksum first: the version means something only in an intact slot.
fn decode(bytes: &[u8]) -> Decoded {
    let parts = || {
        let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
        let (covered, crc) = header.split_last_chunk::<4>()?;
        let len = u32::from_le_bytes(*covered.last_chunk()?);
        let version = u32::from_le_bytes(*covered.get(8..)?.first_chunk()?);
        let content = rest.get(..usize::try_from(len).ok()?)?;
        let sum = crc32c::crc32c_append(crc32c::crc32c(covered), content);
        (covered.starts_with(&MAGIC) && sum == u32::from_le_bytes(*crc))
            .then_some((version, content))
    };
    match parts() {
        None => Decoded::Damaged,
        Some((FORMAT, content)) => {
            decode_content(content).map_or(Decoded::Damaged, |slot| Decoded::Slot(Box::new(slot)))
        }
        Some((found, _)) => Decoded::Newer(found),
    }
}

fn decode_content(content: &[u8]) -> Result<Slot, RecordError> {
    let mut input = Input(content);
    let (cluster_id, node_id, log_id) = (input.u64()?, input.u64()?, input.u64()?);
    let (number, first_frame) = (input.u64()?, input.u64()?);
    let vote = input.option(Input::vote)?;
    let purged = input.option(Input::log_id)?;
    let membership = journal_record::decode_membership(input.0)?;
    let state = State { cluster_id, node_id, log_id, first_frame, vote, purged, membership };
    Ok(Slot { number, state })
}

const _: () = assert!(HEADER == CRC_OFFSET + 4);
const _: () = assert!(journal_record::MEMBERSHIP_BYTES_MAX + 512 < SLOT);
