//! codeQ replicated: openraft over codeQ's own log, rules and stores.
//!
//! Only this crate knows openraft.
