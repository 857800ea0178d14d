//! What the tasks of a node share besides its rows and its log (`storage`): gates, clock, timeouts and transport.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use codeq_core::id::ShardId;
use codeq_engine::request::ReplyTo;
use codeq_engine::{Answer, install};
use openraft::{Config, Raft, SnapshotMeta, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::gates::Gates;
use crate::snapshot::Receiving;
use crate::storage::Storage;
use crate::time::Time;
use crate::transport::{Response, Transport};
use crate::types::{Member, NodeId, StoredMembership, Types, Vote};

/// The timeouts between nodes.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Interval between a leader's heartbeats.
    pub heartbeat: Duration,
    /// Once the last leader's lease has ended, a follower waits for a random time in this range before it stands for
    /// election.
    pub election: (Duration, Duration),
    /// Limit for each message that sends rows to another node; the last one includes their installation.
    pub snapshot: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat: Duration::from_millis(150),
            election: (Duration::from_millis(400), Duration::from_millis(800)),
            snapshot: Duration::from_secs(60),
        }
    }
}

impl Timing {
    /// How long a leader counts as alive after its last message.
    pub(crate) fn lease(&self) -> Duration {
        self.election.1
    }

    pub(crate) fn config(&self) -> Config {
        let millis = |duration: Duration| duration.as_millis() as u64;
        Config {
            cluster_name: "codeq".to_owned(),
            heartbeat_interval: millis(self.heartbeat),
            election_timeout_min: millis(self.election.0),
            election_timeout_max: millis(self.election.1),
            install_snapshot_timeout: millis(self.snapshot),
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            // A node sends a snapshot only if its log no longer has what the other needs.
            replication_lag_threshold: u64::MAX,
            // The gates decide who may stand for election.
            enable_elect: false,
            ..Config::default()
        }
    }
}

/// What the tasks of a node share.
pub(crate) struct Shared {
    pub storage: Arc<Storage>,
    pub gates: Gates,
    pub time: Time,
    pub transport: Arc<dyn Transport>,
    pub timing: Timing,
    pub reads: Reads,
    /// Rows that are arriving from a leader; one transfer at a time.
    pub receiving: Mutex<Transfers>,
    /// Number of calls of `confirm` whose answers wait for a majority to confirm that this node leads.
    pub confirming: AtomicUsize,
    /// The answers that wait for the next round.
    pub unconfirmed: Mutex<Unconfirmed>,
    /// Whether this node leads, has applied what its log held, and knows the time.
    pub ready: watch::Sender<bool>,
}

#[derive(Default)]
pub(crate) struct Transfers {
    next: u64,
    /// Alive while the rows that arrived last are being installed.
    pub installing: Weak<()>,
    pub current: Option<(Receiving, Vote, SnapshotMeta<NodeId, Member>)>,
}

/// Answers that were found in committed rows and not logged, with the term in which this node led. One round is on its way
/// at a time, and all answers that come meanwhile share the next one.
#[derive(Default)]
pub(crate) struct Unconfirmed {
    pub running: bool,
    pub waiting: Vec<(u64, Vec<(ReplyTo, Answer)>)>,
}

/// The reads of a node that wait for a read index. One round is on its way at a time, and all reads that arrive
/// meanwhile share the next one: a round counts only for reads that began before it did.
#[derive(Default)]
pub(crate) struct Reads(pub Mutex<Rounds>);

#[derive(Default)]
pub(crate) struct Rounds {
    pub running: bool,
    pub waiting: Vec<oneshot::Sender<Option<u64>>>,
}

impl Shared {
    /// Records who may vote.
    pub fn note_members(&self, members: &StoredMembership) {
        let joint = members.membership().get_joint_config();
        // Openraft reports no members until it has started.
        if !joint.is_empty() {
            self.gates.set_voters(joint.iter().map(|set| set.iter().copied().collect()).collect());
        }
    }

    /// Checkpoints the rows and frees the log up to `index`, except for what follows the previous checkpoint.
    pub async fn compact(&self, raft: &Raft<Types>, index: u64) {
        let (previous, is_current) = {
            let rows = self.storage.rows.lock();
            (rows.previous, rows.checkpoint.at == rows.applied)
        };
        let upto = previous.min(index);
        let purged = self.storage.log.purged_log_id().map_or(0, |at| at.index);
        if is_current && purged >= upto {
            // There is nothing to write and nothing to free.
            return;
        }
        // Both fail only if openraft has stopped.
        if raft.trigger().snapshot().await.is_ok() && upto > 0 {
            let _ = raft.trigger().purge_log(upto).await;
        }
    }

    pub fn begin_receiving(
        &self,
        vote: Vote,
        meta: SnapshotMeta<NodeId, Member>,
    ) -> Result<Response, String> {
        let mut transfers = self.receiving.lock();
        if transfers.installing.strong_count() > 0 {
            return Err("other rows are being installed".to_owned());
        }
        // A leader that begins again has given up its previous transfer.
        transfers.current = None;
        let storage = &self.storage;
        let begun =
            install::begin(&storage.disk, &storage.dir, storage.manifest, &storage.options.store);
        let imports = begun.map_err(|error| error.to_string())?;
        transfers.next += 1;
        let number = transfers.next;
        transfers.current = Some((Receiving { number, imports }, vote, meta));
        Ok(Response::Transfer(number))
    }

    pub fn receive_chunk(
        &self,
        transfer: u64,
        shard: ShardId,
        chunk: &[u8],
    ) -> Result<Response, String> {
        let mut transfers = self.receiving.lock();
        let current = transfers.current.as_mut().filter(|it| it.0.number == transfer);
        let (receiving, ..) = current.ok_or("there is no such transfer")?;
        receiving.add(shard, chunk).map_err(|error| error.to_string())?;
        Ok(Response::Received)
    }
}
