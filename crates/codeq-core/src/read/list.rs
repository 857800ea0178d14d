//! Lists of tasks: filters and pages.

use std::collections::BinaryHeap;
use std::sync::Arc;

use bytes::Bytes;

use crate::keys::{self, QueueId, Seq};
use crate::kv::{Direction, Key, KvError, KvRead, Table};
use crate::limits::{LIST_BYTES_MAX, LIST_MAX, LIST_SLICE_MAX};
use crate::moment::Millis;
use crate::names::is_worker;
use crate::place::{Place, Status, TaskState};
use crate::read::Reader;
use crate::rows::TaskRow;
use crate::view::Task;

/// Selects a tenant's tasks, newest first.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    /// The tenant that owns the tasks.
    pub tenant: Arc<str>,
    /// Only tasks of this command.
    pub command: Option<Arc<str>>,
    /// Only tasks of this status.
    pub status: Option<Status>,
    /// Only tasks in this state.
    pub state: Option<TaskState>,
    /// Only dead letters.
    pub dead_only: bool,
    /// Only tasks that this worker runs or finished.
    pub worker: Option<Arc<str>>,
    /// Only tasks created at this time or later.
    pub created_from: Option<Millis>,
    /// Only tasks created before this time.
    pub created_before: Option<Millis>,
    /// Only tasks whose last error contains this.
    pub error_contains: Option<Arc<str>>,
    /// Only tasks with a smaller number: where the previous page ended.
    pub below: Option<Seq>,
    /// Upper bound on the number of tasks.
    pub limit: usize,
    /// Upper bound on bytes, if smaller than [`LIST_BYTES_MAX`]. A page always has room for one task.
    pub bytes: Option<usize>,
}

/// A page of a list.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The tasks, newest first.
    pub items: Vec<Task>,
    /// Pass as `below` to continue; `None` on the last page. A page may be short or even empty without being the last:
    /// one read covers at most [`LIST_SLICE_MAX`] rows and a bounded number of bytes.
    pub next: Option<Seq>,
    /// Number of rows read.
    pub looked: usize,
    /// The page ended because the next task would have exceeded the byte limit.
    pub full: bool,
}

impl<K: KvRead + ?Sized> Reader<'_, K> {
    /// One slice of a list, from a bounded number of rows.
    pub fn list(&self, query: &ListQuery) -> Result<Page, KvError> {
        let limit = query.limit.clamp(1, LIST_MAX);
        let places = places(query);
        let mut streams = self.streams(query, &places)?;
        let mut heap = BinaryHeap::new();
        for (at, stream) in streams.iter_mut().enumerate() {
            if let Some(seq) = stream.next(self.kv)? {
                heap.push((seq, at));
            }
        }
        let bytes_max = query.bytes.unwrap_or(LIST_BYTES_MAX).min(LIST_BYTES_MAX);
        let mut page = Page::default();
        let mut bytes = 0;
        while let Some((seq, at)) = heap.pop() {
            if page.items.len() == limit || page.looked == LIST_SLICE_MAX {
                page.next = Some(seq.next());
                break;
            }
            page.looked += 1;
            if let Some(stream) = streams.get_mut(at)
                && let Some(next) = stream.next(self.kv)?
            {
                heap.push((next, at));
            }
            let Some(row) = TaskRow::load(self.kv, keys::task(seq))? else {
                continue;
            };
            // Numbers grow with time, so every task further down is older, unless the clock was set back. In that
            // case tasks created while it was ahead may be left out.
            if query.created_from.is_some_and(|from| row.created_at < from) {
                break;
            }
            if matches(query, &row)
                && let Some(queue) = self.state.queue_row(row.queue)
                && queue.tenant == query.tenant
                && places.iter().any(|place| place.index_code() == row.place.index_code())
            {
                let task = Task::from_rows(self.kv, seq, &row, queue, self.state.moment())?;
                bytes += task.bytes();
                if bytes > bytes_max && !page.items.is_empty() {
                    page.next = Some(seq.next());
                    page.full = true;
                    break;
                }
                page.items.push(task);
            }
        }
        Ok(page)
    }

    /// For every list that the query touches, a stream of descending task numbers. A query that touches too many lists
    /// for one slice gets a single stream instead, of all tasks of the shard.
    fn streams(&self, query: &ListQuery, places: &[Place]) -> Result<Vec<Stream>, KvError> {
        let mut below = query.below.unwrap_or(Seq::MAX);
        if let Some(before) = query.created_before {
            below = below.min(self.first_created_at(before)?);
        }
        let queues: Vec<QueueId> = match &query.command {
            Some(command) => self.state.queue_id(&query.tenant, command).into_iter().collect(),
            None => self.state.queues_of(&query.tenant).map(|(id, _)| id).collect(),
        };
        let mut streams = Vec::new();
        for queue in queues {
            let Some(row) = self.state.queue_row(queue) else {
                continue;
            };
            let filled = places.iter().filter(|place| row.counts.of(**place) > 0);
            streams.extend(filled.map(|place| Some((queue, *place))));
            if streams.len() > LIST_SLICE_MAX {
                streams = vec![None];
                break;
            }
        }
        // Together, the streams look at little more than a slice.
        let chunk = (2 * LIST_SLICE_MAX / streams.len().max(1)).clamp(2, CHUNK_MAX);
        let stream = |list| Stream { list, below, chunk, buffer: Vec::new(), at: 0 };
        Ok(streams.into_iter().map(stream).collect())
    }

    /// The smallest number of a task created at `moment` or later, or one past the last number.
    fn first_created_at(&self, moment: Millis) -> Result<Seq, KvError> {
        let (mut low, mut high) = (0, self.state.meta.next_seq.0);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut rows = Vec::new();
            let (from, to) = (keys::task(Seq(middle)), keys::task(Seq(high.saturating_sub(1))));
            self.kv.scan(Table::Task, from, to, Direction::Forward, 1, &mut rows)?;
            match rows.first() {
                Some((key, value)) if TaskRow::decode(*key, value)?.created_at < moment => {
                    low = keys::seq_of(*key).next().0;
                }
                _ => high = middle,
            }
        }
        Ok(Seq(low))
    }
}

/// One place for each kind of list that the query touches.
fn places(query: &ListQuery) -> Vec<Place> {
    const ALL: [Place; 5] =
        [Place::Pending, Place::InProgress, Place::Completed, Place::Failed, Place::Dead];
    match (query.dead_only, query.state, query.status) {
        (true, ..) => vec![Place::Dead],
        (false, Some(state), _) => vec![state.list()],
        (false, None, Some(status)) => status.lists().to_vec(),
        (false, None, None) => ALL.to_vec(),
    }
}

fn matches(query: &ListQuery, row: &TaskRow) -> bool {
    let worker = || {
        let lease = row.lease.as_ref().map(|lease| &lease.worker);
        lease.or(row.finish.as_ref().and_then(|finish| finish.worker.as_ref()))
    };
    query.created_before.is_none_or(|before| row.created_at < before)
        && query.state.is_none_or(|state| row.state() == state)
        && query.status.is_none_or(|status| row.place.status() == status)
        && query
            .worker
            .as_deref()
            .is_none_or(|wanted| worker().is_some_and(|worker| is_worker(worker, wanted)))
        && query
            .error_contains
            .as_deref()
            .is_none_or(|part| row.error.as_deref().is_some_and(|error| error.contains(part)))
}

/// Longest chunk of a [`Stream`].
const CHUNK_MAX: usize = 32;

/// Task numbers, read backwards in small chunks.
struct Stream {
    /// The list; `None` for all tasks of the shard.
    list: Option<(QueueId, Place)>,
    below: Seq,
    chunk: usize,
    buffer: Vec<(Key, Bytes)>,
    at: usize,
}

impl Stream {
    fn next<K: KvRead + ?Sized>(&mut self, kv: &K) -> Result<Option<Seq>, KvError> {
        if self.at == self.buffer.len() {
            let Some(highest) = self.below.0.checked_sub(1) else {
                return Ok(None);
            };
            self.buffer.clear();
            self.at = 0;
            let (table, [from, to]) = match self.list {
                Some((queue, place)) => {
                    (Table::Index, [0, highest].map(|seq| keys::index(queue, place, Seq(seq))))
                }
                None => (Table::Task, [0, highest].map(|seq| keys::task(Seq(seq)))),
            };
            kv.scan(table, from, to, Direction::Reverse, self.chunk, &mut self.buffer)?;
        }
        let Some((key, _)) = self.buffer.get(self.at) else {
            return Ok(None);
        };
        self.at += 1;
        self.below = keys::seq_of(*key);
        Ok(Some(self.below))
    }
}
