//! The rules of codeQ.
//!
//! Everything that changes a queue is a [`Command`](command::Command). [`State::apply`] takes one, with the
//! moment and the randomness that were fixed outside, changes the rows through the [`kv`] boundary, and
//! answers with a [`Reply`](reply::Reply) and [`Effect`](effect::Effect)s. The same commands at the same
//! moments give the same rows on every machine: there is no clock, no thread, no file and no hash order in
//! this crate, and clippy keeps it so.
//!
//! One file per command, named by its verb. What they share: `step` (how a task changes place), `lease`
//! (who may act on it), `finish` (how it ends).

pub mod backoff;
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
pub mod reply;
pub mod rows;
pub mod settings;
pub mod state;
pub mod submit;
pub mod topic;
pub mod view;

mod abandon;
pub mod bulk;
pub mod callback;
mod cancel;
mod claim;
mod cleanup;
mod configure;
mod enqueue;
mod finish;
mod heartbeat;
pub mod held;
pub mod idempotency;
pub mod lease;
mod nack;
mod pause;
mod purge;
mod queue;
mod replay;
mod step;
mod sweep;
mod timers;

pub use state::State;
