//! The bytes of one file: their current state, and what a power cut may bring back.

use std::collections::BTreeMap;
use std::io;

use crate::rng::mix;

/// The unit in which unsynced bytes survive or get lost.
pub const PAGE: u64 = 4096;
/// The unit that the hardware writes atomically: a torn page is a mix of old and new sectors.
pub const SECTOR: usize = 512;

type Page = Box<[u8; PAGE as usize]>;

/// One in this many changed pages is torn, rather than old or new.
const TORN_IN: u64 = 4;

#[derive(Clone, Default)]
pub(super) struct Contents {
    len: u64,
    pages: BTreeMap<u64, Page>,
    durable_len: u64,
    /// Pages that differ from their durable state, with that state; `None` for a page that did not exist.
    undo: BTreeMap<u64, Option<Page>>,
}

/// Splits a range at page boundaries: page number, offset within it, length.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let page = at / PAGE;
        let stop = end.min((page + 1) * PAGE);
        let piece = (page, (at % PAGE) as usize, (stop - at) as usize);
        at = stop;
        Some(piece)
    })
}

impl Contents {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn allocated(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    pub(super) fn new_pages(&self, offset: u64, len: u64) -> u64 {
        pieces(offset, len).filter(|(page, _, _)| !self.pages.contains_key(page)).count() as u64
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.saturating_add(buf.len() as u64) > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = buf;
        for (number, from, count) in pieces(offset, rest.len() as u64) {
            let (out, tail) = rest.split_at_mut(count);
            match self.pages.get(&number).and_then(|page| page.get(from..from + count)) {
                Some(bytes) => out.copy_from_slice(bytes),
                None => out.fill(0),
            }
            rest = tail;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, data: &[u8], offset: u64) {
        let mut rest = data;
        for (number, from, count) in pieces(offset, data.len() as u64) {
            let (bytes, tail) = rest.split_at(count);
            self.remember(number);
            let page = self.pages.entry(number).or_insert_with(|| Box::new([0; PAGE as usize]));
            if let Some(out) = page.get_mut(from..from + count) {
                out.copy_from_slice(bytes);
            }
            rest = tail;
        }
        self.len = self.len.max(offset + data.len() as u64);
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            let gone: Vec<u64> =
                self.pages.range(len.div_ceil(PAGE)..).map(|(number, _)| *number).collect();
            for number in gone {
                self.remember(number);
                self.pages.remove(&number);
            }
            let inside = (len % PAGE) as usize;
            if inside > 0 && self.pages.contains_key(&(len / PAGE)) {
                self.remember(len / PAGE);
                if let Some(tail) =
                    self.pages.get_mut(&(len / PAGE)).and_then(|page| page.get_mut(inside..))
                {
                    tail.fill(0);
                }
            }
        }
        self.len = len;
    }

    fn remember(&mut self, number: u64) {
        let pages = &self.pages;
        self.undo.entry(number).or_insert_with(|| pages.get(&number).cloned());
    }

    pub(super) fn sync(&mut self) {
        self.undo.clear();
        self.durable_len = self.len;
    }

    /// Decides what is left. `salt` combines the seed, the crash and the file.
    pub(super) fn power_cut(&mut self, salt: u64) {
        for (number, before) in std::mem::take(&mut self.undo) {
            let draw = mix(&[salt, number]);
            if draw.is_multiple_of(TORN_IN) {
                self.tear(number, before, draw);
            } else if (draw >> 8) & 1 == 0 {
                match before {
                    Some(page) => self.pages.insert(number, page),
                    None => self.pages.remove(&number),
                };
            }
        }
        self.cut_len(mix(&[salt, u64::MAX]));
        self.sync();
    }

    /// Whether a power cut would lose nothing.
    pub(super) fn is_synced(&self) -> bool {
        self.undo.is_empty() && self.len == self.durable_len
    }

    /// Loses everything that was not synced.
    pub(super) fn lose_unsynced(&mut self) {
        for (number, before) in std::mem::take(&mut self.undo) {
            match before {
                Some(page) => self.pages.insert(number, page),
                None => self.pages.remove(&number),
            };
        }
        self.len = self.durable_len;
        self.sync();
    }

    /// Mixes old and new sectors of the page.
    fn tear(&mut self, number: u64, before: Option<Page>, draw: u64) {
        let old = before.unwrap_or_else(|| Box::new([0; PAGE as usize]));
        let page = self.pages.entry(number).or_insert_with(|| Box::new([0; PAGE as usize]));
        for (sector, (new, old)) in page.chunks_mut(SECTOR).zip(old.chunks(SECTOR)).enumerate() {
            if (draw >> (16 + sector)) & 1 == 0 {
                new.copy_from_slice(old);
            }
        }
    }

    /// An unsynced length may be the old one, the new one or, if the file grew, one in between.
    fn cut_len(&mut self, draw: u64) {
        let (old, new) = (self.durable_len, self.len);
        let len = match draw % 3 {
            0 => old,
            1 if new > old => (old + (draw >> 8) % (new - old + 1)).next_multiple_of(PAGE).min(new),
            _ => new,
        };
        self.set_len(len);
    }
}
