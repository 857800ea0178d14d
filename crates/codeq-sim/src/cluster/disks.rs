//! Whether an entry is on enough disks: what is applied anywhere must survive if the power of all machines is cut at
//! that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use codeq_engine::layout;
use codeq_log::Options;
use codeq_raft::log_store::LogStore;
use codeq_raft::types::{LogId, NodeId};

use super::committed::Members;
use super::node::{DIR, Machine};
use super::rules::RAFT;
use crate::disk::SimDisk;
use crate::invariants::Violation;

/// Every this many entries, all logs are read from their disks as a start would read them, even if nothing suggests that
/// they differ from what the nodes have in memory.
const READ_EVERY: u64 = 64;

/// What a power cut would leave of the nodes' logs.
#[derive(Default)]
pub struct Disks {
    /// The disks of machines that are no longer there. What they had acknowledged counts: that they are lost is a fault
    /// of the run, not of the cluster.
    lost: BTreeMap<NodeId, Lost>,
}

struct Lost {
    disk: SimDisk,
    /// The disk said that it had synced what it had not.
    lied: bool,
}

impl Disks {
    /// A machine is taken away.
    pub fn lose(&mut self, machine: &Machine) {
        let (disk, lied) = (machine.disk.clone(), machine.disk.lies());
        self.lost.insert(machine.id, Lost { disk, lied });
    }

    /// Checks that a majority of the voters has an entry that was just seen applied. During a change of the members there
    /// are several possible majorities: `members` has all memberships that a leader may be using.
    pub fn check(
        &self,
        entry: LogId,
        machines: &BTreeMap<NodeId, Machine>,
        members: &[Members],
        options: Options,
    ) -> Option<Violation> {
        let all = members.iter().flatten().flatten().copied();
        let voters: BTreeSet<NodeId> = all.collect();
        let has = |id: &NodeId| match (machines.get(id), self.lost.get(id)) {
            (Some(machine), _) => machine_has(machine, entry, options),
            (None, Some(lost)) => lost.lied || disk_has(&lost.disk, entry, options),
            (None, None) => false,
        };
        let holders: BTreeSet<NodeId> = voters.into_iter().filter(has).collect();
        let is_majority =
            |set: &BTreeSet<NodeId>| set.intersection(&holders).count() * 2 > set.len();
        let enough = |sets: &Members| !sets.is_empty() && sets.iter().all(is_majority);
        if members.iter().any(enough) {
            return None;
        }
        let text = format!(
            "entry {entry} was applied, but after a power cut only the nodes {holders:?} of {members:?} would have it"
        );
        Some(Violation::new(RAFT, text))
    }
}

fn machine_has(machine: &Machine, entry: LogId, options: Options) -> bool {
    let disk = &machine.disk;
    // The watermark is never synced.
    let segment = |path: &Path| path.extension().is_some_and(|it| it == "seg");
    match machine.node() {
        Some(node) if disk.lies() => node.log().keeps(entry),
        Some(node) if !entry.index.is_multiple_of(READ_EVERY) && disk.is_synced(segment) => {
            node.log().keeps(entry)
        }
        _ => disk.lies() || disk_has(disk, entry, options),
    }
}

/// Whether a start after a power cut would find an entry.
fn disk_has(disk: &SimDisk, entry: LogId, options: Options) -> bool {
    let dir = Path::new(DIR);
    let (log, state) = (layout::log_dir(dir), layout::raft_state_path(dir));
    let kept = |path: &Path| path.starts_with(&log) || path == state;
    let copy = disk.synced_copy(kept).shared();
    LogStore::open(&copy, dir, options, None).is_ok_and(|log| log.keeps(entry))
}
