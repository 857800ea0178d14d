//! The index of the replicated log: which entries there are, and where each is on disk.
//!
//! The journal is the sequence of records in the log. Nothing is ever cut from it on disk; later records override
//! earlier ones. The rules for that are here, so that the same code runs when the journal is read at startup and when
//! it is written. This module does no I/O.
//!
//! It keeps two views of the entries apart. What the *journal* says is durable, and is what a restart would find. What
//! *openraft* sees can be ahead of it, because openraft truncates and purges for a snapshot before that snapshot is
//! durable. Until the journal says the same, a crash restores the earlier entries, so nothing acknowledged is lost.

use std::collections::VecDeque;

use codeq_log::{FrameIndex, Position};
use openraft::CommittedLeaderId;

use crate::types::{Entry, LogId, NodeId};

/// Recent entries are kept in memory up to this many bytes: replication and applying usually need the last few.
pub const CACHE_BYTES: u64 = 64 << 20;

/// Where the record of an entry is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    pub(crate) frame: Position,
    /// Where the record starts in the frame.
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

/// An entry of the journal. There can be millions, so its index is not stored: it follows from the position.
#[derive(Debug, Clone, Copy)]
struct Item {
    leader: CommittedLeaderId<NodeId>,
    location: RecordLocation,
    /// Total bytes of the records up to and including this one. Only differences matter.
    end: u64,
}

/// An entry to read.
#[derive(Debug)]
pub(crate) enum Found {
    /// It is in memory.
    Recent(Entry),
    /// It is in the log.
    Stored(LogId, RecordLocation),
}

/// The entries, and what openraft has requested that the journal does not say yet.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// The journal says: purged up to here, so the first entry is the one after it.
    base: Option<LogId>,
    /// The entries of the journal, without gaps.
    items: VecDeque<Item>,
    /// The index of the first one.
    first: u64,
    /// The journal says: committed up to here.
    committed_in_journal: Option<LogId>,

    /// openraft has truncated from here on.
    cut: Option<LogId>,
    /// openraft has purged up to here.
    purged: Option<LogId>,
    /// openraft has purged up to here, but the log ends before that or has another entry there: a snapshot that reaches
    /// this far is being installed.
    held: Option<LogId>,
    /// openraft has committed up to here.
    committed: Option<LogId>,

    /// The last entries that openraft sees, and the length of their records.
    recent: VecDeque<(Entry, u32)>,
    recent_bytes: u64,
}

/// The records contradict each other: a bug, or damage that no checksum has caught.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal contradicts itself: {0}")]
pub struct Contradiction(String);

impl Contradiction {
    pub(crate) fn new(what: impl Into<String>) -> Contradiction {
        Contradiction(what.into())
    }
}

fn next(log_id: Option<LogId>) -> u64 {
    log_id.map_or(0, |it| it.index.saturating_add(1))
}

/// What the journal says.
impl Journal {
    /// Starts with entries after `base`.
    pub(crate) fn new(base: Option<LogId>) -> Journal {
        Journal { base, purged: base, ..Journal::default() }
    }

    /// The record of an entry. Whatever earlier records say about its index and later ones is void.
    pub(crate) fn on_entry(
        &mut self,
        log_id: LogId,
        location: RecordLocation,
    ) -> Result<(), Contradiction> {
        let index = log_id.index;
        if self.items.is_empty()
            && let Some(base) = self.base.filter(|base| index <= base.index)
        {
            // This record shares a frame with the first entry that is still needed.
            if index == base.index && log_id != base {
                let what = format!("it is purged up to {base}, but entry {log_id} is there");
                return Err(Contradiction::new(what));
            }
            return Ok(());
        }
        if index < self.journal_end() {
            self.on_truncate(index)?;
        }
        let expected = match (self.items.is_empty(), self.base) {
            // Nothing was ever purged: any first index is right.
            (true, None) => index,
            (true, Some(base)) => next(Some(base)),
            (false, _) => self.journal_end(),
        };
        if index != expected {
            let what = format!("entry {log_id} follows entry {}", expected.wrapping_sub(1));
            return Err(Contradiction::new(what));
        }
        if self.items.is_empty() {
            self.first = index;
        }
        let end = self.items.back().map_or(0, |it| it.end).saturating_add(location.len.into());
        self.items.push_back(Item { leader: log_id.leader_id, location, end });
        Ok(())
    }

    /// The record that voids the entries from an index on.
    pub(crate) fn on_truncate(&mut self, index: u64) -> Result<(), Contradiction> {
        if let Some(base) = self.base.filter(|base| index <= base.index) {
            if self.items.is_empty() {
                // This record shares a frame with the first entry that is still needed.
                return Ok(());
            }
            let what = format!("it is purged up to {base} and truncated from {index} on");
            return Err(Contradiction::new(what));
        }
        self.items.truncate(index.saturating_sub(self.first) as usize);
        Ok(())
    }

    /// The record of a snapshot that the log continues after.
    pub(crate) fn on_jump(&mut self, log_id: LogId) -> Result<(), Contradiction> {
        match self.base {
            Some(base) if base.index == log_id.index && base != log_id => {
                let what = format!("it continues after {base} and after {log_id}");
                return Err(Contradiction::new(what));
            }
            Some(base) if base.index >= log_id.index => return Ok(()),
            _ => {}
        }
        let same = self.id_in_journal(log_id.index) == Some(log_id);
        if same {
            self.drop_to(log_id.index);
        } else {
            self.items.clear();
            self.first = next_index(log_id.index);
        }
        self.base = Some(log_id);
        Ok(())
    }

    /// The record that says how far entries are committed.
    pub(crate) fn on_committed(&mut self, log_id: LogId) {
        self.committed_in_journal = self.committed_in_journal.max(Some(log_id));
    }

    /// Called when the whole journal has been read: openraft sees what it says.
    pub(crate) fn finish(&mut self) -> Result<(), Contradiction> {
        let first = next(self.base);
        if self.base.is_some() && !self.items.is_empty() && self.first != first {
            let what = format!("it starts with entry {}, not {first}", self.first);
            return Err(Contradiction::new(what));
        }
        self.purged = self.base;
        self.committed = self.committed_in_journal;
        let last = self.last();
        if next(self.committed) > next(last) {
            let (of, last) = (next(self.committed), next(last));
            let what = format!("the first {of} entries are committed, but it ends before {last}");
            return Err(Contradiction::new(what));
        }
        Ok(())
    }

    /// Drops the entries up to here, which may leave the log.
    pub(crate) fn release(&mut self, log_id: LogId) {
        self.drop_to(log_id.index);
        self.base = self.base.max(Some(log_id));
    }

    /// How far entries may leave the log, and the frame of the entry after that. The stores no longer need anything up to
    /// `bound`.
    pub(crate) fn releasable(&self, bound: u64) -> Option<(LogId, Option<FrameIndex>)> {
        // The entries that a snapshot replaces must stay until it is durable.
        let purged = self.purged.filter(|_| self.held.is_none())?;
        let target = if purged.index <= bound { Some(purged) } else { self.id_in_journal(bound) };
        let target = target.filter(|target| target.index >= next(self.base))?;
        let at = next_index(target.index).saturating_sub(self.first);
        Some((target, self.items.get(at as usize).map(|item| item.location.frame.index)))
    }

    /// What the journal says is purged, and the frame of the first entry.
    pub(crate) fn start(&self) -> (Option<LogId>, Option<FrameIndex>) {
        (self.base, self.items.front().map(|item| item.location.frame.index))
    }

    /// Whether the journal has an entry, or the log continues after rows that include it.
    pub(crate) fn keeps(&self, log_id: LogId) -> bool {
        self.base.is_some_and(|base| base.index >= log_id.index)
            || self.id_in_journal(log_id.index) == Some(log_id)
    }

    fn journal_end(&self) -> u64 {
        self.first.saturating_add(self.items.len() as u64)
    }

    fn id_in_journal(&self, index: u64) -> Option<LogId> {
        let at = index.checked_sub(self.first)?;
        let item = self.items.get(usize::try_from(at).ok()?)?;
        Some(LogId::new(item.leader, index))
    }

    /// Forgets the entries up to and including the index.
    fn drop_to(&mut self, index: u64) {
        let count = next_index(index).saturating_sub(self.first).min(self.items.len() as u64);
        self.items.drain(..count as usize);
        self.first = self.first.saturating_add(count);
    }
}

fn next_index(index: u64) -> u64 {
    index.saturating_add(1)
}

/// What openraft sees and asks for.
impl Journal {
    /// openraft's entries end before this index.
    fn end(&self) -> u64 {
        let end = self.journal_end();
        self.cut.map_or(end, |cut| cut.index.max(self.first).min(end))
    }

    /// The log id at an index.
    pub(crate) fn id(&self, index: u64) -> Option<LogId> {
        if self.purged.is_some_and(|purged| purged.index == index) {
            return self.purged;
        }
        let there = self.held.is_none() && index >= next(self.purged) && index < self.end();
        self.id_in_journal(index).filter(|_| there)
    }

    /// The last entry, or what is purged if there is none.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.end().checked_sub(1).and_then(|last| self.id(last)).or(self.purged)
    }

    /// What is purged.
    pub(crate) fn purged(&self) -> Option<LogId> {
        self.purged
    }

    /// The last entry known to be committed.
    pub(crate) fn committed(&self) -> Option<LogId> {
        self.committed
    }

    /// The last entry known to be committed, if the journal does not say so yet.
    pub(crate) fn unwritten_committed(&self) -> Option<LogId> {
        self.committed.filter(|_| self.committed > self.committed_in_journal)
    }

    /// Where openraft has truncated, if the journal does not say so yet.
    pub(crate) fn unwritten_cut(&self) -> Option<LogId> {
        self.cut
    }

    /// The snapshot that has to be durable before anything is appended.
    pub(crate) fn held(&self) -> Option<LogId> {
        self.held
    }

    /// Records that the entries up to this one are committed.
    pub(crate) fn commit(&mut self, log_id: Option<LogId>) {
        self.committed = self.committed.max(log_id);
    }

    /// Voids the entries from this one on.
    pub(crate) fn truncate(&mut self, log_id: LogId) -> Result<(), Contradiction> {
        if let Some(purged) = self.purged.filter(|purged| log_id.index <= purged.index) {
            let what = format!("openraft has purged up to {purged} and truncates from {log_id} on");
            return Err(Contradiction::new(what));
        }
        let end = self.end();
        if log_id.index < end {
            self.cut = Some(log_id);
            while let Some((_, bytes)) =
                self.recent.pop_back_if(|(entry, _)| entry.log_id.index >= log_id.index)
            {
                self.recent_bytes = self.recent_bytes.saturating_sub(bytes.into());
            }
        }
        Ok(())
    }

    /// Hides the entries up to and including this one.
    pub(crate) fn purge(&mut self, log_id: LogId) {
        if log_id.index < next(self.purged) {
            return;
        }
        let within = log_id.index < self.end() && self.held.is_none();
        let other = self.id(log_id.index).is_some_and(|there| there != log_id);
        if within && !other {
            self.forget_to(log_id.index);
        } else {
            self.held = Some(log_id);
            self.forget_to(u64::MAX);
        }
        self.purged = Some(log_id);
    }

    /// Called when the journal's record of a snapshot is durable.
    pub(crate) fn jumped(&mut self, log_id: LogId) -> Result<(), Contradiction> {
        self.on_jump(log_id)?;
        self.purged = self.purged.max(self.base);
        if self.held.is_some_and(|held| held.index <= log_id.index) {
            self.held = None;
        }
        self.forget_to(if self.items.is_empty() { u64::MAX } else { log_id.index });
        Ok(())
    }

    /// Called when the journal says what openraft has truncated.
    pub(crate) fn cut_written(&mut self) -> Result<(), Contradiction> {
        match self.cut.take() {
            Some(cut) => self.on_truncate(cut.index),
            None => Ok(()),
        }
    }

    /// Called when an entry was written to the journal.
    pub(crate) fn appended(
        &mut self,
        entry: Entry,
        location: RecordLocation,
    ) -> Result<(), Contradiction> {
        self.on_entry(entry.log_id, location)?;
        self.recent.push_back((entry, location.len));
        self.recent_bytes = self.recent_bytes.saturating_add(location.len.into());
        while self.recent_bytes > CACHE_BYTES && self.recent.len() > 1 {
            self.forget_oldest();
        }
        Ok(())
    }

    /// The entries of a range, as many as `bytes` allow but at least one.
    pub(crate) fn find(&self, from: u64, to: u64, bytes: u64) -> Vec<Found> {
        let mut found = Vec::new();
        if self.held.is_some() {
            return found;
        }
        let from = from.max(next(self.purged)).max(self.first);
        let recent_from = self.recent.front().map_or(u64::MAX, |(entry, _)| entry.log_id.index);
        let mut sum = 0_u64;
        for index in from..to.min(self.end()) {
            let at = index - self.first;
            let Some(item) = self.items.get(at as usize) else { break };
            sum = sum.saturating_add(item.location.len.into());
            if sum > bytes && !found.is_empty() {
                break;
            }
            let recent = index.checked_sub(recent_from);
            found.push(match recent.and_then(|at| self.recent.get(at as usize)) {
                Some((entry, _)) => Found::Recent(entry.clone()),
                None => Found::Stored(LogId::new(item.leader, index), item.location),
            });
        }
        found
    }

    /// The highest index such that the entries after it have at least this many bytes.
    pub(crate) fn index_keeping(&self, bytes: u64) -> Option<u64> {
        let last = usize::try_from(self.end().checked_sub(self.first)?).ok()?.checked_sub(1)?;
        let limit = self.items.get(last)?.end.checked_sub(bytes)?;
        let count = self.items.partition_point(|item| item.end <= limit) as u64;
        let index = self.first.saturating_add(count).checked_sub(1)?;
        (count > 0).then_some(index)
    }

    fn forget_oldest(&mut self) {
        if let Some((_, bytes)) = self.recent.pop_front() {
            self.recent_bytes = self.recent_bytes.saturating_sub(bytes.into());
        }
    }

    /// Forgets recent entries up to and including the index.
    fn forget_to(&mut self, index: u64) {
        while self.recent.front().is_some_and(|(entry, _)| entry.log_id.index <= index) {
            self.forget_oldest();
        }
    }
}
