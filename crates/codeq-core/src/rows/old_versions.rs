//! Queue and meta rows as older versions encoded them. They are converted when they are read, and never written.

use std::sync::Arc;

use serde::Deserialize;

use super::{Counts, MetaRow, QueueRow};
use crate::keys::{QueueId, Seq};
use crate::limits::{PRIORITIES, TASK_ROWS_BYTES};
use crate::moment::Millis;
use crate::settings::SettingsV1;
use crate::topic::{Topic, TopicV1, TopicV2};

/// A queue's counters, as versions 2 and 3 encoded them: `failed` includes cancelled tasks.
#[derive(Deserialize)]
struct CountsV3 {
    pending: [u64; PRIORITIES],
    delayed: u64,
    in_progress: u64,
    completed: u64,
    failed: u64,
    dead: u64,
    live_bytes: u64,
    stored_bytes: u64,
}

impl From<CountsV3> for Counts {
    fn from(old: CountsV3) -> Counts {
        Counts {
            pending: old.pending,
            delayed: old.delayed,
            in_progress: old.in_progress,
            completed: old.completed,
            failed: old.failed,
            dead: old.dead,
            live_bytes: old.live_bytes,
            stored_bytes: old.stored_bytes,
            // `State::load` moves the cancelled tasks here from `failed`.
            cancelled: 0,
        }
    }
}

/// A queue, as version 1 encoded it.
#[derive(Deserialize)]
pub(super) struct QueueRowV1 {
    tenant: Arc<str>,
    name: Arc<str>,
    paused: bool,
    topic: Option<TopicV1>,
    counts: CountsV1,
}

/// A queue, as version 2 encoded it.
#[derive(Deserialize)]
pub(super) struct QueueRowV2 {
    tenant: Arc<str>,
    name: Arc<str>,
    paused: bool,
    topic: Option<TopicV1>,
    counts: CountsV3,
}

/// A queue, as version 3 encoded it.
#[derive(Deserialize)]
pub(super) struct QueueRowV3 {
    tenant: Arc<str>,
    name: Arc<str>,
    paused: bool,
    topic: Option<TopicV2>,
    counts: CountsV3,
}

impl From<QueueRowV3> for QueueRow {
    fn from(row: QueueRowV3) -> QueueRow {
        let QueueRowV3 { tenant, name, paused, topic, counts } = row;
        QueueRow { tenant, name, paused, topic: topic.map(Topic::from), counts: counts.into() }
    }
}

impl From<QueueRowV2> for QueueRow {
    fn from(row: QueueRowV2) -> QueueRow {
        let QueueRowV2 { tenant, name, paused, topic, counts } = row;
        QueueRow { tenant, name, paused, topic: topic.map(Topic::from), counts: counts.into() }
    }
}

/// A queue's counters, as version 1 encoded them: without the bytes of finished tasks.
#[derive(Deserialize)]
struct CountsV1 {
    pending: [u64; PRIORITIES],
    delayed: u64,
    in_progress: u64,
    completed: u64,
    failed: u64,
    dead: u64,
    live_bytes: u64,
}

impl From<QueueRowV1> for QueueRow {
    fn from(row: QueueRowV1) -> QueueRow {
        let QueueRowV1 { tenant, name, paused, topic, counts } = row;
        let CountsV1 { pending, delayed, in_progress, completed, failed, dead, live_bytes } =
            counts;
        let mut counts = Counts {
            pending,
            delayed,
            in_progress,
            completed,
            failed,
            dead,
            live_bytes,
            stored_bytes: 0,
            cancelled: 0,
        };
        // `State::load` adds the bytes of finished tasks.
        counts.stored_bytes = counts.live_bytes + counts.live() * TASK_ROWS_BYTES;
        QueueRow { tenant, name, paused, topic: topic.map(Topic::from), counts }
    }
}

/// The shard's counters and settings, as versions 1 and 2 encoded them.
#[derive(Deserialize)]
pub(super) struct MetaRowV2 {
    next_seq: Seq,
    next_queue: QueueId,
    now: Millis,
    settings: SettingsV1,
    transitions: u64,
    wall: Millis,
}

impl From<MetaRowV2> for MetaRow {
    fn from(row: MetaRowV2) -> MetaRow {
        let MetaRowV2 { next_seq, next_queue, now, settings, transitions, wall } = row;
        MetaRow { next_seq, next_queue, now, settings: settings.into(), transitions, wall }
    }
}
