//! The two streams over real sockets: a client checks what `docs/streams.md` promises.

pub mod client;

mod a_foreign_client;
mod acks;
mod creates;
mod endings;
mod hello;
mod leniency;
mod load;
mod memory;
mod rates;
mod ready;
mod rights;
mod services;
mod sessions;
mod tokens;
