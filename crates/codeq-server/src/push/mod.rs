//! What the server posts by itself: webhooks, to addresses that tenants choose.
//!
//! A tenant must not reach through it what it could not reach from outside. [`destination`] says which
//! addresses may be called, [`client`] calls them and no others.

pub mod client;
mod connect;
pub mod destination;
pub mod resolve;
mod retry_after;
