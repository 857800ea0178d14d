//! The server over real sockets: what `http.md` and `semantics.md` promise, asked for by a client.

pub mod harness;
mod raw;
mod shape;

mod artifacts;
mod audit;
mod contract;
mod events;
mod exactness;
mod fairness;
mod idempotency;
mod leases;
mod lifecycle;
mod long_poll;
mod max_run;
mod memory;
mod openapi;
mod reload;
mod restart;
mod tenancy;
mod typos;
mod why;
mod workers;
