//! Worker subscriptions: a real server, real receivers on loopback.

mod receiver;

mod bounds;
mod modes;
mod rules;
mod triggers;
