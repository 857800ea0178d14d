//! Keeps writes in memory instead of writing them to a file.
//!
//! A store must not change its file once a write has failed, or while the file is only being checked. But the B-tree
//! library still writes when it rolls back or closes, and those writes end up here.

use std::collections::BTreeMap;
use std::io;

use codeq_disk::DiskFile;

use crate::blocks::BLOCK;

/// Blocks written on top of an unchanged file.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    blocks: BTreeMap<u64, Vec<u8>>,
    /// The length the file would have.
    len: u64,
    /// Below this offset the file's bytes show through; above it are zeros.
    visible: u64,
}

impl Overlay {
    /// An empty overlay on a file of `len` bytes.
    pub(crate) fn over(len: u64) -> Self {
        Overlay { blocks: BTreeMap::new(), len, visible: len }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        self.len = len;
        self.visible = self.visible.min(len);
        // A block cut in the middle keeps its tail: the library never reads past the length, and writes whole pages
        // when it grows the file again.
        self.blocks.retain(|start, _| *start < len);
    }

    pub(crate) fn read(&self, file: &dyn DiskFile, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let start = at - at % BLOCK as u64;
            let skip = (at - start) as usize;
            let (part, tail) = rest.split_at_mut(rest.len().min(BLOCK - skip));
            match self.blocks.get(&start).and_then(|block| block.get(skip..skip + part.len())) {
                Some(bytes) => part.copy_from_slice(bytes),
                None => self.read_below(file, at, part)?,
            }
            at += part.len() as u64;
            rest = tail;
        }
        Ok(())
    }

    pub(crate) fn write(
        &mut self,
        file: &dyn DiskFile,
        offset: u64,
        data: &[u8],
    ) -> io::Result<()> {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let start = at - at % BLOCK as u64;
            let skip = (at - start) as usize;
            let (part, tail) = rest.split_at(rest.len().min(BLOCK - skip));
            let mut block = match self.blocks.remove(&start) {
                Some(block) => block,
                None => {
                    let mut block = vec![0; BLOCK];
                    if part.len() < BLOCK {
                        self.read_below(file, start, &mut block)?;
                    }
                    block
                }
            };
            if let Some(place) = block.get_mut(skip..skip + part.len()) {
                place.copy_from_slice(part);
            }
            self.blocks.insert(start, block);
            at += part.len() as u64;
            rest = tail;
        }
        self.len = self.len.max(at);
        Ok(())
    }

    /// The file's own bytes, with zeros where the file no longer shows through.
    fn read_below(&self, file: &dyn DiskFile, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let shown = (self.visible.saturating_sub(offset)).min(out.len() as u64) as usize;
        let (from_file, zeros) = out.split_at_mut(shown);
        zeros.fill(0);
        if from_file.is_empty() { Ok(()) } else { file.read_exact_at(from_file, offset) }
    }
}
