//! Webhooks: HTTP calls from codeQ to URLs that tenants choose.
//!
//! ```text
//! engine ── Observer ──> results/       a task finished  ─┐                ┌─> outbound ─> signing, secrets
//!                   └──> availability/  a queue has work ─┴─ dispatcher ───┴─> client ─> policy, addresses, dns
//! ```
//!
//! A tenant must not reach anything through codeQ that it could not reach from outside: [`client`] dials nothing that
//! [`policy`] does not allow. This crate knows the engine but not the server: no routes, configuration, permissions or
//! metrics, except that a notification says where to claim and a refused address names the setting that allows it. It
//! reports through [`Report`].

mod addresses;
pub mod availability;
pub mod client;
mod connect;
mod dispatcher;
pub mod dns;
#[cfg(test)]
mod fixture;
mod lookups;
mod outbound;
mod per_address;
pub mod policy;
mod report;
pub mod results;
mod retry_after;
pub mod secrets;
pub mod signing;

pub use outbound::Outbound;
pub use report::{FormatTime, Report, WebhookKind, WebhookOutcome};
