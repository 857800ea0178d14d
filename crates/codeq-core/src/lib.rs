//! codeQ rules.
pub mod kv;
