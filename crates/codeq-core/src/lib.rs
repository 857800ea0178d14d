//! The rules of codeQ.
//!
//! Everything that changes a queue is a [`Command`](command::Command). [`State::apply`] takes a command, with a moment
//! and randomness fixed by the caller, changes rows through the [`kv`] traits, and returns a
//! [`Reply`](reply::Reply) and [`Effect`](effect::Effect)s. The same commands at the same moments produce the same rows
//! on every machine: this crate has no clock, threads, files or hash order, and clippy enforces that.
//!
//! Most commands have a file of their own, named after their verb. They share `step` (how a task changes place),
//! `lease` (who may act on it) and `finish` (how it ends).

#[macro_use]
mod number;

pub mod codec;
pub mod command;
pub mod digest;
pub mod effect;
pub mod history;
pub mod id;
pub mod json_value;
pub mod keys;
pub mod kv;
pub mod limits;
pub mod moment;
pub mod names;
pub mod place;
pub mod read;
pub mod record;
pub mod rejection;
pub mod reply;
pub mod rows;
pub mod settings;
pub mod state;
pub mod submit;
pub mod task_backoff;
pub mod topic;
pub mod view;

mod abandon;
mod apply;
pub mod bulk;
pub mod callback_retry;
mod cancel;
mod change_record;
pub mod claim;
mod cleanup;
mod configure;
mod enqueue;
mod finish;
mod heartbeat;
pub mod idempotency;
pub mod lease;
mod nack;
mod pause;
mod purge;
mod put_topic;
mod queue;
mod record_index;
mod replay;
mod reschedule;
mod step;
mod sweep;
mod timers;
pub mod usage;

pub use state::State;
