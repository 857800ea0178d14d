//! Result callbacks: when a task with a `webhook` finishes, its outcome is posted there.

mod body;
mod outbox;
mod sender;

pub use outbox::{Announced, CallLimits, Outbox};
pub use sender::{Courier, LARGE_AT_ONCE, message_id};
