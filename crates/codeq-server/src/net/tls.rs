//! Certificates from files, reloaded when they change.

/// A certificate chain and its key, kept fresh.
pub struct TlsFiles {}
