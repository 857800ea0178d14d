//! The Rust SDK of codeQ.
