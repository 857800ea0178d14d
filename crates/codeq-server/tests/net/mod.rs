//! The accept loop over real sockets: what it serves, and what it does not put up with.

mod drain;
mod frames;
mod h1;
mod h2;
mod process;
mod smuggling;
mod support;
mod time;
mod tls;
