//! Order and durability: from a proposed command to an answer that can be relied on.
//!
//! ```text
//! call ─> inbox ─> shard thread: apply, add to the open group ─> commit thread: write, sync ─> answers
//!                         │                                                           └─> effects
//!                         └─ now and then: freeze ─> checkpoint thread: write the store
//! ```
//!
//! The parts that make decisions ([`shard::Shard`], [`group::Group`], [`recover::OpenedDir`]) start no threads and read
//! no clock; the simulator runs them on its own disk. The threads are thin loops around them.

pub mod backup;
pub mod boundary;
pub mod clock;
pub mod clock_file;
pub mod dir_lock;
pub mod driver;
pub mod error;
pub mod group;
pub mod incomplete;
pub mod install;
pub mod layout;
pub mod observer;
pub mod options;
pub mod read;
pub mod records;
pub mod recover;
pub mod replica;
pub mod request;
pub mod route;
pub mod shard;
pub mod status;

mod background;
mod dispatch;
mod engine;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod locks;
mod pipeline;
mod result_waiters;
mod scrub;
mod shard_thread;
mod single_node;
mod waiting_claims;

pub use boundary::{Answer, Call, Mailbox};
pub use engine::{Engine, EngineStats};
pub use error::{EngineError, OpenError};
pub use observer::{Observer, SharedObserver};
pub use options::{Durability, Options};
