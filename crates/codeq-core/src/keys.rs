//! Builds and parses row keys; no other module does.
//!
//! A key is a 128-bit number made of numeric fields, most significant first, so that keys sort in the order the rules
//! need. Names never appear in a key.

use crate::kv::Key;
use crate::limits::PRIORITY_MAX;
use crate::place::Place;

/// A queue's number in its shard.
pub type QueueId = u32;

number! {
    /// The number of a task or a record in its shard.
    Seq(u64)
}

number! {
    /// The position of a pending task among those of its priority.
    Order(u64)
}

// Both come from one counter: a new task's order is its own number, a requeued task's is the next one.
impl From<Seq> for Order {
    fn from(seq: Seq) -> Order {
        Order(seq.0)
    }
}

const LOW: u32 = 64;

/// Key of a task's rows in `Body`, `Task` and `Outbox`.
pub fn task(seq: Seq) -> Key {
    Key::from(seq.0)
}

/// Key of a record's row.
pub fn record(seq: Seq) -> Key {
    Key::from(seq.0)
}

/// The number in a key of `Body`, `Task`, `Outbox` or `Record`, and the last field of `Index` and `Timer` keys.
pub fn seq_of(key: Key) -> Seq {
    Seq(key as u64)
}

/// Key in `Pending`: higher priorities sort first.
pub fn pending(queue: QueueId, priority: u8, order: Order) -> Key {
    let inverse = PRIORITY_MAX.saturating_sub(priority);
    (Key::from(queue) << (LOW + 8)) | (Key::from(inverse) << LOW) | Key::from(order.0)
}

/// Queue, priority and order of a key in `Pending`.
pub fn pending_parts(key: Key) -> (QueueId, u8, Order) {
    let priority = PRIORITY_MAX.saturating_sub((key >> LOW) as u8);
    ((key >> (LOW + 8)) as QueueId, priority, Order(key as u64))
}

/// Order and task number of a row in `Pending`. A task that was never requeued uses its number as its order, and its
/// row is empty.
pub fn waiting_of(key: Key, value: &[u8]) -> (Order, Seq) {
    let (_, _, order) = pending_parts(key);
    (order, Seq(value.try_into().map_or(order.0, u64::from_le_bytes)))
}

/// Key in `Index`.
pub fn index(queue: QueueId, place: Place, seq: Seq) -> Key {
    (Key::from(queue) << (LOW + 8)) | (Key::from(place.index_code()) << LOW) | Key::from(seq.0)
}

/// Queue, index code and task number of a key in `Index`.
pub fn index_parts(key: Key) -> (QueueId, u8, Seq) {
    ((key >> (LOW + 8)) as QueueId, (key >> LOW) as u8, seq_of(key))
}

/// The lists of callbacks in `Index`, in addition to those of [`Place::index_code`].
const CALLBACKS_PENDING: u8 = 5;
const CALLBACKS_FAILED: u8 = 6;

/// Key in `Index` of a task whose callback is kept, either to be delivered or as failed.
pub fn callback(queue: QueueId, failed: bool, seq: Seq) -> Key {
    let code = if failed { CALLBACKS_FAILED } else { CALLBACKS_PENDING };
    (Key::from(queue) << (LOW + 8)) | (Key::from(code) << LOW) | Key::from(seq.0)
}

/// What a timer is for. The numbers are part of the on-disk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TimerKind {
    /// A delayed task becomes claimable.
    Delayed = 0,
    /// A finished task is removed.
    Retention = 1,
    /// An idempotency key that outlived its task is removed.
    Idempotency = 2,
    /// A result callback is due.
    Callback = 3,
    /// A record expires.
    Record = 4,
    /// A task waits for its `runAt`: the only deadline by the wall clock.
    RunAt = 5,
    /// A pending task whose `runAt` has passed. It is delayed again if the wall clock is set back to before that date.
    RunAtPassed = 6,
}

impl TimerKind {
    /// Every kind.
    pub const ALL: [TimerKind; 7] = [
        TimerKind::Delayed,
        TimerKind::Retention,
        TimerKind::Idempotency,
        TimerKind::Callback,
        TimerKind::Record,
        TimerKind::RunAt,
        TimerKind::RunAtPassed,
    ];
}

const DEADLINE_BITS: u32 = 56;
const DEADLINE_MAX: u64 = (1 << DEADLINE_BITS) - 1;

/// Key in `Timer`. Deadlines are capped at 2^56 ms, two million years after the epoch.
pub fn timer(kind: TimerKind, deadline: u64, seq: Seq) -> Key {
    (Key::from(kind as u8) << (LOW + DEADLINE_BITS))
        | (Key::from(deadline.min(DEADLINE_MAX)) << LOW)
        | Key::from(seq.0)
}

/// Kind number, deadline, and the number of the task or record, of a key in `Timer`.
pub fn timer_parts(key: Key) -> (u8, u64, Seq) {
    ((key >> (LOW + DEADLINE_BITS)) as u8, (key >> LOW) as u64 & DEADLINE_MAX, seq_of(key))
}

/// Key of a queue's row.
pub fn queue(id: QueueId) -> Key {
    Key::from(id)
}

/// Key of the single row in `Meta`.
pub const META: Key = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_survive_encoding() {
        assert_eq!(pending_parts(pending(u32::MAX, 9, Order::MAX)), (u32::MAX, 9, Order::MAX));
        assert_eq!(pending_parts(pending(7, 0, Order(3))), (7, 0, Order(3)));
        assert_eq!(
            index_parts(index(9, Place::Dead, Seq(12))),
            (9, Place::Dead.index_code(), Seq(12))
        );
        assert_eq!(timer_parts(timer(TimerKind::Callback, 99, Seq(5))), (3, 99, Seq(5)));
        assert_eq!(
            timer_parts(timer(TimerKind::Delayed, u64::MAX, Seq(5))),
            (0, DEADLINE_MAX, Seq(5))
        );
    }

    #[test]
    fn order_is_the_order_of_the_fields() {
        assert!(pending(1, 9, Order(5)) < pending(1, 8, Order(1)));
        assert!(pending(1, 0, Order::MAX) < pending(2, 9, Order(0)));
        assert!(timer(TimerKind::Delayed, 5, Seq(9)) < timer(TimerKind::Delayed, 6, Seq(0)));
        assert!(
            timer(TimerKind::Delayed, u64::MAX, Seq(9)) < timer(TimerKind::Retention, 0, Seq(0))
        );
    }
}
