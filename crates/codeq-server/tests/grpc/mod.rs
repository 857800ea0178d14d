//! The two streams over real sockets: a client checks what `grpc.md` promises.

pub mod client;

mod a_foreign_client;
mod acks;
mod creates;
mod credits;
mod endings;
mod hello;
mod leniency;
mod load;
mod memory;
mod rates;
mod rights;
mod services;
mod sessions;
mod tokens;
