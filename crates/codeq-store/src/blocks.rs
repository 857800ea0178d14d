//! The blocks of a store's file, each with a checksum that is verified on every read.
//!
//! The B-tree library trusts the pages it reads: a flipped bit in a branch page leads a search to the wrong leaf, and
//! one in the allocator's table lets the next checkpoint overwrite live pages. So this module stores the library's
//! pages as blocks and adds a checksum of each to the file:
//!
//! ```text
//! sums of blocks 0 to 1023 │ block 0 │ block 1 │ … │ block 1023 │ sums of blocks 1024 to 2047 │ block 1024 │ …
//! ```
//!
//! A block is 4096 bytes. Its sum is the CRC32C of its number and its bytes, 4 bytes little-endian, with 1 in place
//! of 0. A sum of 0 stands for a block that was never written and reads as zeros. Block 0 is the library's header,
//! the only live block that is ever overwritten, and has no sum: the four bytes where it would be, the first of the
//! file, hold `cQs` and the version of this layout. The first 508 bytes of block 0 are followed by their CRC32C, so that both are in
//! one sector, which the hardware writes atomically.
//!
//! After a crash, sums and blocks can disagree, but only for blocks that no durable checkpoint refers to: the library
//! never overwrites the others, and the sums are written before the sync that turns the blocks into a checkpoint.
//! Sums change in place, but even a torn or old sector has the right sums of the blocks that a durable checkpoint
//! refers to.
//!
//! Files of older releases begin with the library's header and are passed through unchanged.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;

use codeq_disk::DiskFile;
use parking_lot::RwLock;

use crate::error::StoreError;

/// The library's page size.
pub(crate) const BLOCK: usize = 4096;
const BLOCK_BYTES: u64 = BLOCK as u64;
/// Number of blocks whose sums fill one block.
const GROUP: u64 = BLOCK_BYTES / 4;
/// A block of sums and the blocks it covers.
const GROUP_BYTES: u64 = (GROUP + 1) * BLOCK_BYTES;
/// The used part of block 0.
const HEADER: usize = 512;
const HEADER_SUM: usize = HEADER - 4;

const MAGIC: [u8; 3] = *b"cQs";
const LAYOUT: u8 = 1;
/// First bytes of a plain redb file.
const PLAIN: [u8; 4] = *b"redb";

/// A file of checked blocks, or a plain file of an older release.
pub(crate) struct BlockFile {
    file: Box<dyn DiskFile>,
    /// `None` in a plain file.
    sums: Option<RwLock<Sums>>,
}

/// The sums needed so far: 1 KiB of memory per MiB of the file.
#[derive(Default)]
struct Sums(BTreeMap<u64, Group>);

struct Group {
    bytes: Box<[u8; BLOCK]>,
    dirty: bool,
}

impl BlockFile {
    /// Starts a new file of checked blocks.
    pub(crate) fn create(file: Box<dyn DiskFile>) -> BlockFile {
        let mut first = Group { bytes: Box::new([0; BLOCK]), dirty: true };
        let [a, b, c] = MAGIC;
        first.set(0, u32::from_le_bytes([a, b, c, LAYOUT]));
        let sums = Sums(BTreeMap::from([(0, first)]));
        BlockFile { file, sums: Some(RwLock::new(sums)) }
    }

    /// Opens a file of this release or an older one.
    pub(crate) fn open(file: Box<dyn DiskFile>, path: &Path) -> Result<BlockFile, StoreError> {
        let mut start = [0; 4];
        match file.read_exact_at(&mut start, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(StoreError::corrupt(path, "the file is too short"));
            }
            Err(error) => return Err(StoreError::io(path, error)),
        }
        match start {
            PLAIN => Ok(BlockFile { file, sums: None }),
            [a, b, c, LAYOUT] if [a, b, c] == MAGIC => {
                Ok(BlockFile { file, sums: Some(RwLock::default()) })
            }
            [a, b, c, layout] if [a, b, c] == MAGIC && layout > LAYOUT => Err(StoreError::TooNew {
                path: path.to_owned(),
                found: layout.into(),
                supported: LAYOUT.into(),
            }),
            _ => Err(StoreError::corrupt(path, "the file does not start like a store")),
        }
    }

    /// Whether an older release wrote the file, so that its blocks have no sums.
    pub(crate) fn is_plain(&self) -> bool {
        self.sums.is_none()
    }

    /// Syncs the file without writing the changed sums first.
    pub(crate) fn sync_blocks(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Writes the changed sums, and calls `each` after every block of them.
    pub(crate) fn write_sums(&self, mut each: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
        let Some(sums) = &self.sums else {
            return Ok(());
        };
        let held = sums.read();
        let dirty = held.0.iter().filter(|(_, group)| group.dirty).map(|(number, _)| *number);
        let dirty: Vec<u64> = dirty.collect();
        drop(held);
        for number in dirty {
            // Copied, so that readers do not wait for the disk.
            let mut bytes = [0; BLOCK];
            if let Some(group) = sums.write().0.get_mut(&number) {
                bytes = *group.bytes;
                group.dirty = false;
            }
            self.file.write_all_at(&bytes, number * GROUP_BYTES)?;
            each(BLOCK_BYTES)?;
        }
        Ok(())
    }

    /// The sum that the block should have.
    fn expected(&self, sums: &RwLock<Sums>, block: u64) -> io::Result<u32> {
        let number = block / GROUP;
        if let Some(group) = sums.read().0.get(&number) {
            return Ok(group.get(block % GROUP));
        }
        let group = self.load(number)?;
        let sum = group.get(block % GROUP);
        // Another thread may have loaded and changed it meanwhile.
        sums.write().0.entry(number).or_insert(group);
        Ok(sum)
    }

    fn load(&self, number: u64) -> io::Result<Group> {
        let mut bytes = Box::new([0; BLOCK]);
        let at = number * GROUP_BYTES;
        if self.file.len()? >= at + BLOCK_BYTES {
            self.file.read_exact_at(&mut bytes[..], at)?;
        }
        Ok(Group { bytes, dirty: false })
    }

    fn set_sum(&self, sums: &RwLock<Sums>, block: u64, sum: u32) -> io::Result<()> {
        self.expected(sums, block)?;
        if let Some(group) = sums.write().0.get_mut(&(block / GROUP)) {
            group.set(block % GROUP, sum);
            group.dirty = true;
        }
        Ok(())
    }

    /// The used part of block 0, with its checksum zeroed, because the library expects zeros where it never wrote.
    fn read_header(&self) -> io::Result<[u8; HEADER]> {
        let mut header = [0; HEADER];
        self.file.read_exact_at(&mut header, BLOCK_BYTES)?;
        let (used, sum) = header.split_at_mut(HEADER_SUM);
        let written = sum.iter().chain(used.iter()).any(|byte| *byte != 0);
        if written && crc32c::crc32c(used).to_le_bytes() != *sum {
            return Err(damaged("the header does not match its checksum"));
        }
        sum.fill(0);
        Ok(header)
    }

    fn write_header(&self, data: &[u8], offset: usize) -> io::Result<()> {
        let mut header = if offset == 0 { [0; HEADER] } else { self.read_header()? };
        let fits = |end: &usize| *end <= HEADER_SUM;
        let place =
            Some(offset + data.len()).filter(fits).and_then(|end| header.get_mut(offset..end));
        let place = place.ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
        place.copy_from_slice(data);
        let (used, sum) = header.split_at_mut(HEADER_SUM);
        sum.copy_from_slice(&crc32c::crc32c(used).to_le_bytes());
        self.file.write_all_at(&header, BLOCK_BYTES)
    }

    /// Reads whole blocks of one group.
    fn read_blocks(&self, sums: &RwLock<Sums>, first: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, place(first))?;
        for (block, bytes) in (first..).zip(out.chunks(BLOCK)) {
            let good = match self.expected(sums, block)? {
                0 => bytes.iter().all(|byte| *byte == 0),
                expected => expected == sum_of(block, bytes),
            };
            if !good {
                return Err(damaged(&format!(
                    "the block at byte {} does not match its checksum",
                    place(block)
                )));
            }
        }
        Ok(())
    }

    fn write_blocks(&self, sums: &RwLock<Sums>, first: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, place(first))?;
        for (block, bytes) in (first..).zip(data.chunks(BLOCK)) {
            self.set_sum(sums, block, sum_of(block, bytes))?;
        }
        Ok(())
    }
}

impl DiskFile for BlockFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let Some(sums) = &self.sums else {
            return self.file.read_exact_at(buf, offset);
        };
        let mut rest = buf;
        for piece in pieces(offset, rest.len()) {
            let (part, tail) = rest.split_at_mut(piece.len);
            if piece.block == 0 {
                let header = self.read_header()?;
                part.fill(0);
                let header = header.get(piece.skip..).unwrap_or_default();
                for (to, from) in part.iter_mut().zip(header) {
                    *to = *from;
                }
            } else if piece.is_whole() {
                self.read_blocks(sums, piece.block, part)?;
            } else {
                let mut block = [0; BLOCK];
                self.read_blocks(sums, piece.block, &mut block)?;
                part.copy_from_slice(
                    block.get(piece.skip..piece.skip + piece.len).unwrap_or_default(),
                );
            }
            rest = tail;
        }
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let Some(sums) = &self.sums else {
            return self.file.write_all_at(data, offset);
        };
        let mut rest = data;
        for piece in pieces(offset, data.len()) {
            let (part, tail) = rest.split_at(piece.len);
            if piece.block == 0 {
                self.write_header(part, piece.skip)?;
            } else if piece.is_whole() {
                self.write_blocks(sums, piece.block, part)?;
            } else {
                let mut block = [0; BLOCK];
                self.read_blocks(sums, piece.block, &mut block)?;
                if let Some(place) = block.get_mut(piece.skip..piece.skip + piece.len) {
                    place.copy_from_slice(part);
                }
                self.write_blocks(sums, piece.block, &block)?;
            }
            rest = tail;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.write_sums(|_| Ok(()))?;
        self.file.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let Some(sums) = &self.sums else {
            return self.file.set_len(len);
        };
        let blocks = len.div_ceil(BLOCK_BYTES);
        // Loads the sums of the first block that is cut off, so that they can be cleared below: cut blocks read as zeros
        // if the file grows again.
        self.expected(sums, blocks)?;
        self.file.set_len(len + blocks.div_ceil(GROUP) * BLOCK_BYTES)?;
        let mut sums = sums.write();
        drop(sums.0.split_off(&blocks.div_ceil(GROUP)));
        if let Some(group) = sums.0.get_mut(&(blocks / GROUP)) {
            group.clear_from(blocks % GROUP);
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let len = self.file.len()?;
        if self.is_plain() {
            return Ok(len);
        }
        let partial = (len % GROUP_BYTES).saturating_sub(BLOCK_BYTES);
        Ok(len / GROUP_BYTES * GROUP * BLOCK_BYTES + partial)
    }
}

impl Group {
    fn get(&self, place: u64) -> u32 {
        let sum = self.bytes.chunks_exact(4).nth(place as usize).unwrap_or_default();
        u32::from_le_bytes(sum.try_into().unwrap_or_default())
    }

    fn set(&mut self, place: u64, sum: u32) {
        if let Some(bytes) = self.bytes.chunks_exact_mut(4).nth(place as usize) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
    }

    fn clear_from(&mut self, place: u64) {
        if let Some(bytes) = self.bytes.get_mut(place as usize * 4..) {
            self.dirty |= bytes.iter().any(|byte| *byte != 0);
            bytes.fill(0);
        }
    }
}

/// A part of a range: whole blocks of one group, or part of one block.
struct Piece {
    block: u64,
    skip: usize,
    len: usize,
}

impl Piece {
    fn is_whole(&self) -> bool {
        self.skip == 0 && self.len.is_multiple_of(BLOCK)
    }
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (block, skip) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
        let whole = (end - end % BLOCK_BYTES).min((block / GROUP + 1) * GROUP * BLOCK_BYTES);
        let stop = if block == 0 || skip > 0 || whole <= at {
            end.min((block + 1) * BLOCK_BYTES)
        } else {
            whole
        };
        let piece = Piece { block, skip: skip as usize, len: (stop - at) as usize };
        at = stop;
        Some(piece)
    })
}

/// Offset of a block in the file.
fn place(block: u64) -> u64 {
    (block + block / GROUP + 1) * BLOCK_BYTES
}

fn sum_of(block: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block.to_le_bytes()), bytes).max(1)
}

fn damaged(reason: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason.to_owned())
}
