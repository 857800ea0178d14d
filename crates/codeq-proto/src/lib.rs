//! Messages of codeQ's gRPC streams.
//!
//! Messages and clients are generated from `proto/` at build time. The comments there explain each field.

pub mod codec;

/// The producer stream: `/producerpb.ProducerStream/Stream`.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod producer {
    tonic::include_proto!("producerpb");
}

/// The worker stream: `/workerpb.WorkerStream/Stream`.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod worker {
    tonic::include_proto!("workerpb");
}

/// The trait that all messages implement.
pub use prost::Message;
/// A point in time on the wire.
pub use prost_types::Timestamp;

/// Both `.proto` files and their imports, as an encoded `FileDescriptorSet`, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
