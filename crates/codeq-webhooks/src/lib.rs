//! What codeQ calls by itself: webhooks, at URLs that tenants choose.
//!
//! ```text
//! engine ─ Observer ─> results/ ──────┐                    ┌─> policy (which addresses may be called)
//!                 └──> availability/ ─┴─> signing, client ─┴─> dns, lookups, connect, per_address
//!                            dispatcher (who is called next)
//! ```
//!
//! A tenant must not reach through codeQ what it could not reach from outside: [`client`] dials nothing that
//! [`policy`] does not allow. This crate knows the engine, and nothing of the server: no routes, no configuration, no
//! permissions, no metrics. It reports through [`Report`].

pub mod availability;
pub mod client;
mod connect;
mod dispatcher;
pub mod dns;
mod hex;
mod lookups;
mod per_address;
pub mod policy;
mod report;
pub mod results;
mod retry_after;
pub mod secrets;
pub mod signing;

pub use report::{FormatTime, Report, WebhookKind, WebhookOutcome};
