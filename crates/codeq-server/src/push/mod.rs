//! What the server posts by itself: webhooks, to addresses that tenants choose.
//!
//! A tenant must not reach through it what it could not reach from outside. [`destination`] says which
//! addresses may be called, [`client`] calls them and no others. Names are looked up by [`resolve`], as many at once as
//! `lookups` lets each tenant; `per_address` counts the calls to one address. [`outbox`] sends the results of tasks.
//!
//! Availability notifications: [`bell`] hears of queues that have work, [`subscriptions`] knows who wants to
//! hear of them, [`turns`] decides whose turn it is, [`lanes`] how many are sent at once, and [`notify`] is the
//! task that does it.

pub mod announcements;
pub mod bell;
pub mod client;
mod connect;
pub mod destination;
#[cfg(test)]
mod fixture;
pub mod lanes;
mod lookups;
pub mod notify;
pub mod outbox;
mod per_address;
pub mod resolve;
mod retry_after;
pub mod secret;
pub mod secrets;
pub mod subscriptions;
pub mod turns;
