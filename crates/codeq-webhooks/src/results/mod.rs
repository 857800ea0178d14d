//! Result callbacks: when a task with a `webhook` finishes, codeQ posts the outcome to that URL.
//!
//! The engine writes a callback to its outbox in the same step that finishes the task. This module reads what is due,
//! calls, and records how each call ended. If the process dies in between, the outbox is as it was and the callback is
//! sent again. The schedule of retries is part of the rules: see [`codeq_core::callback_retry`].

mod backlog;
mod body;
mod outbox;
mod sender;

pub use body::{ArtifactBody, CallbackBody};
pub use outbox::{CallLimits, CallbacksDue, ResultCallbacks};
pub use sender::message_id;

#[cfg(test)]
pub(crate) use backlog::{Backlog, Callback};
