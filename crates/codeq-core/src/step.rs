//! One command being applied, and the operations that all commands share.
//!
//! A task changes place only in [`Step::relocate`], which keeps order, lists, timers, leases and counters consistent
//! with the row. Commands decide *what* happens; this file records *where* tasks are.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use crate::command::Fence;
use crate::effect::{Effect, Transition};
use crate::history::{Entry, Event};
use crate::id::TaskId;
use crate::keys::{self, Order, QueueId, Seq, TimerKind};
use crate::kv::{Kv, KvError, Table};
use crate::limits::QUEUES_PER_TENANT_MAX;
use crate::moment::{Millis, Moment};
use crate::names::{check_command, check_tenant, queue_name};
use crate::place::Place;
use crate::queue::Queue;
use crate::read::Reader;
use crate::reply::Rejection;
use crate::rows::{Counts, QueueRow, TaskRow};
use crate::state::{State, window_max};
use crate::view::Task;

/// One command being applied.
pub(crate) struct Step<'a, K: Kv> {
    pub state: &'a mut State,
    pub kv: &'a mut K,
    /// Engine time.
    pub now: Millis,
    /// Wall time: shown to users, and compared with `run_at`.
    pub wall: Millis,
    pub effects: &'a mut Vec<Effect>,
    /// Whether something durable changed.
    pub changed: bool,
    /// Whether nobody reads the reply, so that claims need not load what they hand out.
    pub quiet: bool,
}

/// What caused a transition, for the history.
pub(crate) struct Cause<'a> {
    pub event: Event,
    pub who: Option<&'a Arc<str>>,
    pub why: Option<Arc<str>>,
}

impl<'a> Cause<'a> {
    pub fn by(event: Event, who: &'a Arc<str>) -> Cause<'a> {
        Cause { event, who: Some(who), why: None }
    }

    pub fn server(event: Event) -> Cause<'static> {
        Cause { event, who: None, why: None }
    }
}

impl<K: Kv> Step<'_, K> {
    /// The next number, for a task, for its order or for a record.
    pub fn take_seq(&mut self) -> Seq {
        let seq = self.state.meta.next_seq;
        self.state.meta.next_seq = seq.next();
        seq
    }

    /// A free queue number. Queues come and go with the commands that producers use, so the numbers may wrap around;
    /// those in use are skipped.
    fn take_queue_id(&mut self) -> QueueId {
        loop {
            let id = self.state.meta.next_queue;
            self.state.meta.next_queue = id.wrapping_add(1);
            if !self.state.queues.contains_key(&id) {
                return id;
            }
        }
    }

    /// The task with this id, if the tenant owns it.
    pub fn find(&self, tenant: &str, id: TaskId) -> Result<Option<TaskRow>, KvError> {
        let Some(row) = TaskRow::load(self.kv, keys::task(id.seq()))? else {
            return Ok(None);
        };
        let queue = self.queue(row.queue)?;
        let ours = row.salt == id.salt() && *queue.row.tenant == *tenant;
        Ok(ours.then_some(row))
    }

    /// The queue that a row refers to.
    pub fn queue(&self, id: QueueId) -> Result<&Queue, KvError> {
        self.state.queues.get(&id).ok_or_else(|| no_queue(id))
    }

    /// Same as [`Step::queue`], marked as changed.
    pub fn queue_mut(&mut self, id: QueueId) -> Result<&mut Queue, KvError> {
        self.changed = true;
        let queue = self.state.queues.get_mut(&id).ok_or_else(|| no_queue(id))?;
        if !queue.dirty {
            queue.dirty = true;
            self.state.dirty.push(id);
        }
        Ok(queue)
    }

    /// The queue of a command, created if it does not exist.
    pub fn queue_or_new(&mut self, tenant: &Arc<str>, command: &str) -> Result<QueueId, Rejection> {
        check_tenant(tenant)?;
        check_command(command)?;
        let name = queue_name(command);
        if let Some(known) = self.state.tenants.get(tenant) {
            if let Some(id) = known.queues.get(&*name) {
                return Ok(*id);
            }
            if known.queues.len() >= QUEUES_PER_TENANT_MAX {
                return Err(Rejection::TooManyQueues { max: QUEUES_PER_TENANT_MAX });
            }
        }
        let id = self.take_queue_id();
        let name: Arc<str> = match name {
            Cow::Borrowed(text) => Arc::from(text),
            Cow::Owned(text) => Arc::from(text),
        };
        let row = QueueRow {
            tenant: Arc::clone(tenant),
            name: Arc::clone(&name),
            paused: false,
            topic: None,
            counts: Counts::default(),
        };
        let tenant = self.state.tenants.entry(Arc::clone(tenant)).or_default();
        tenant.queues.insert(name, id);
        let mut queue = Queue::new(row, Arc::clone(&tenant.usage));
        queue.dirty = true;
        self.state.queues.insert(id, queue);
        self.state.dirty.push(id);
        self.changed = true;
        Ok(id)
    }

    /// Drops a queue that has no tasks, policy or pause.
    pub fn forget_if_unused(&mut self, id: QueueId) {
        let Some(queue) = self.state.queues.get(&id) else {
            return;
        };
        if queue.row.counts.total() > 0 || queue.row.topic.is_some() || queue.row.paused {
            return;
        }
        let row = &queue.row;
        if let Some(tenant) = self.state.tenants.get_mut(&row.tenant) {
            tenant.queues.remove(&row.name);
            if tenant.queues.is_empty() {
                self.state.tenants.remove(&row.tenant);
            }
        }
        self.state.queues.remove(&id);
        self.kv.delete(Table::Queue, keys::queue(id));
        self.changed = true;
    }

    /// Stores a new task in its first place.
    pub fn store_new(
        &mut self,
        seq: Seq,
        row: &mut TaskRow,
        place: Place,
        cause: Cause<'_>,
    ) -> Result<(), KvError> {
        row.place = place;
        self.enter(seq, row, true)?;
        self.kv.insert(Table::Index, keys::index(row.queue, place, seq), Bytes::new());
        self.record_transition(seq, row, None, cause)?;
        self.kv.insert(Table::Task, keys::task(seq), row.encode());
        self.reindex_head(row.queue)
    }

    /// Moves a task and saves its row. `change` sets place, priority, lease, finish, visible time and `run_at`. Until
    /// it is called, they must still be those of the old place.
    pub fn relocate(
        &mut self,
        seq: Seq,
        row: &mut TaskRow,
        cause: Cause<'_>,
        change: impl FnOnce(&mut TaskRow),
    ) -> Result<(), KvError> {
        self.leave(seq, row)?;
        let from = row.place;
        change(row);
        row.updated_at = self.wall;
        self.enter(seq, row, false)?;
        if from.index_code() != row.place.index_code() {
            self.kv.delete(Table::Index, keys::index(row.queue, from, seq));
            let key = keys::index(row.queue, row.place, seq);
            // A task completes only once, and has only one first claim. It may fail several times, because it can be
            // replayed.
            let first = row.place == Place::Completed
                || (row.place == Place::InProgress && row.fence == Fence(1));
            if first {
                self.kv.insert(Table::Index, key, Bytes::new());
            } else {
                self.kv.put(Table::Index, key, Bytes::new());
            }
        }
        self.record_transition(seq, row, Some(from), cause)?;
        self.save(seq, row);
        self.reindex_head(row.queue)
    }

    /// Saves a row whose place did not change.
    pub fn save(&mut self, seq: Seq, row: &TaskRow) {
        self.changed = true;
        self.kv.put(Table::Task, keys::task(seq), row.encode());
    }

    /// Takes a task out of its place: order, timer, lease and counters, but not its list.
    fn leave(&mut self, seq: Seq, row: &TaskRow) -> Result<(), KvError> {
        match row.place {
            Place::Pending => {
                let key = keys::pending(row.queue, row.priority, row.order);
                self.kv.delete(Table::Pending, key);
                if row.run_at != 0 {
                    self.state.timers.disarm_passed(self.kv, row.run_at, seq);
                }
                let queue = self.queue_mut(row.queue)?;
                if queue.remove(row.priority, row.order) {
                    self.state.windowed -= 1;
                }
            }
            Place::Delayed => {
                let (kind, at) = waits_for(row);
                self.state.timers.disarm(self.kv, kind, at, seq)?;
            }
            Place::InProgress => {
                if let Some(lease) = &row.lease {
                    self.state.leases.remove(&(lease.until, seq));
                }
            }
            Place::Completed | Place::Failed | Place::Dead => {
                if let Some(finish) = &row.finish {
                    let deadline = finish.expires_at;
                    self.state.timers.disarm(self.kv, TimerKind::Retention, deadline, seq)?;
                }
            }
        }
        let queue = self.queue_mut(row.queue)?;
        let slot = queue.row.counts.slot(row);
        *slot = slot.saturating_sub(1);
        let counts = &mut queue.row.counts;
        counts.stored_bytes = counts.stored_bytes.saturating_sub(row.stored_bytes());
        if !row.place.is_terminal() {
            counts.live_bytes = counts.live_bytes.saturating_sub(u64::from(row.size));
        }
        queue.usage.remove(row);
        Ok(())
    }

    /// Puts a task into the place its row names: order, timer, lease and counters, but not its list.
    fn enter(&mut self, seq: Seq, row: &mut TaskRow, new: bool) -> Result<(), KvError> {
        match row.place {
            Place::Pending => {
                // Back of the queue: a new order number, which for a new task is its own number.
                row.order = Order::from(if new { seq } else { self.take_seq() });
                let key = keys::pending(row.queue, row.priority, row.order);
                let value = match row.order == Order::from(seq) {
                    true => Bytes::new(),
                    false => Bytes::copy_from_slice(&seq.0.to_le_bytes()),
                };
                self.kv.insert(Table::Pending, key, value);
                if row.run_at != 0 {
                    self.state.timers.arm_passed(self.kv, row.run_at, seq);
                }
                let max = window_max(self.state.windowed);
                let (priority, waiting) = (row.priority, (row.order, seq));
                if self.queue_mut(row.queue)?.push(priority, waiting, max) {
                    self.state.windowed += 1;
                }
            }
            Place::Delayed => {
                let (kind, at) = waits_for(row);
                self.state.timers.arm(self.kv, kind, at, seq, Bytes::new());
            }
            Place::InProgress => {
                if let Some(lease) = &row.lease {
                    self.state.leases.insert((lease.until, seq));
                }
            }
            Place::Completed | Place::Failed | Place::Dead => {
                if let Some(finish) = &row.finish {
                    let at = finish.expires_at;
                    self.state.timers.arm(self.kv, TimerKind::Retention, at, seq, Bytes::new());
                }
            }
        }
        let queue = self.queue_mut(row.queue)?;
        *queue.row.counts.slot(row) += 1;
        queue.row.counts.stored_bytes += row.stored_bytes();
        if !row.place.is_terminal() {
            queue.row.counts.live_bytes += u64::from(row.size);
        }
        queue.usage.add(row);
        Ok(())
    }

    /// Removes a finished task from its place, its list and the tables.
    pub fn evict(&mut self, seq: Seq, row: &TaskRow) -> Result<(), KvError> {
        self.leave(seq, row)?;
        self.kv.delete(Table::Index, keys::index(row.queue, row.place, seq));
        self.kv.delete(Table::Task, keys::task(seq));
        self.kv.delete(Table::Body, keys::task(seq));
        self.emit_move(seq, row, Some(row.place), None, Event::Removed)?;
        self.forget_if_unused(row.queue);
        Ok(())
    }

    /// Records a transition in the task's history and reports it to the engine.
    pub fn record_transition(
        &mut self,
        seq: Seq,
        row: &mut TaskRow,
        from: Option<Place>,
        cause: Cause<'_>,
    ) -> Result<(), KvError> {
        row.history.push(Entry {
            at: self.wall,
            event: cause.event,
            to: row.place,
            who: cause.who.cloned(),
            why: cause.why,
        });
        self.emit_move(seq, row, from, Some(row.place), cause.event)
    }

    fn emit_move(
        &mut self,
        seq: Seq,
        row: &TaskRow,
        from: Option<Place>,
        to: Option<Place>,
        event: Event,
    ) -> Result<(), KvError> {
        let queue = &self.queue(row.queue)?.row;
        let (tenant, queue) = (Arc::clone(&queue.tenant), Arc::clone(&queue.name));
        let number = self.state.meta.transitions;
        self.state.meta.transitions += 1;
        self.effects.push(Effect::Moved(Transition {
            number,
            id: row.id(seq),
            tenant,
            queue,
            from,
            to,
            event,
            at: self.moment(),
            age: self.now.saturating_sub(row.created_at_engine),
            attempts: row.attempts,
        }));
        Ok(())
    }

    /// Updates the queue's entry in the tenant's set of heads.
    pub fn reindex_head(&mut self, id: QueueId) -> Result<(), KvError> {
        let queue = self.state.queues.get_mut(&id).ok_or_else(|| no_queue(id))?;
        self.state.windowed += queue.refill(id, self.kv, window_max(self.state.windowed))?;
        let head = queue.next().map(|(head, _)| head);
        if head == queue.head {
            return Ok(());
        }
        let was = std::mem::replace(&mut queue.head, head);
        if let Some(tenant) = self.state.tenants.get_mut(&queue.row.tenant) {
            if let Some(was) = was {
                tenant.heads.remove(&(was, id));
            }
            if let Some(head) = head {
                tenant.heads.insert((head, id));
            }
        }
        if was.is_none() {
            self.effects.push(Effect::Ready { queue: id });
        }
        Ok(())
    }

    /// The task as clients see it.
    pub fn view(&self, seq: Seq, row: &TaskRow) -> Result<Task, KvError> {
        Task::from_rows(self.kv, seq, row, &self.queue(row.queue)?.row, self.moment())
    }

    /// Reads the state as changed so far.
    pub fn reader(&self) -> Reader<'_, K> {
        Reader { state: self.state, kv: self.kv }
    }

    /// The moment on both clocks.
    pub fn moment(&self) -> Moment {
        Moment { now: self.now, wall: self.wall }
    }

    /// The place of a task that only its `runAt` can hold back.
    pub fn place_by_run_at(&self, row: &TaskRow) -> Place {
        if row.run_at > self.wall { Place::Delayed } else { Place::Pending }
    }
}

/// What a delayed task waits for: its delay or its `runAt`.
fn waits_for(row: &TaskRow) -> (TimerKind, Millis) {
    match row.visible_at {
        0 => (TimerKind::RunAt, row.run_at),
        at => (TimerKind::Delayed, at),
    }
}

fn no_queue(id: QueueId) -> KvError {
    KvError::Corrupt {
        table: Table::Queue,
        key: keys::queue(id),
        reason: "a task refers to a queue that does not exist".to_owned(),
    }
}
