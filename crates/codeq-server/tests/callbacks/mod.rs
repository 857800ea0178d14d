//! Result callbacks over real sockets: who is called, how often, with which signature.

mod receiver;

mod admin;
mod dns;
mod documented;
mod endings;
mod large;
mod retries;
mod signatures;
