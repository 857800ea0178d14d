//! codeQ's gRPC streams on the wire.
//!
//! The messages and clients are generated from `proto/` when the crate is built. What the messages
//! mean is said there, field by field.

pub mod codec;

/// The stream of producers: `/producerpb.ProducerStream/Stream`.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod producer {
    tonic::include_proto!("producerpb");
}

/// The stream of workers: `/workerpb.WorkerStream/Stream`.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod worker {
    tonic::include_proto!("workerpb");
}

/// What all messages are.
pub use prost::Message;
/// Moments on the wire.
pub use prost_types::Timestamp;

/// Both files and what they import, as an encoded `FileDescriptorSet`: for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
