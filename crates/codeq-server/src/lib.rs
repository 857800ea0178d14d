//! The codeQ server.
//!
//! ```text
//! codeq-net (sockets, TLS, time limits) ─> http/ (parse, call, shape)  ─┐
//!                                       └─> grpc/ (streams of events)   ─┴─> service/ (permission, limits, defaults)
//!                                             codeq-auth (token -> principal)    └─> codeq-engine
//! ```
//!
//! Every protocol calls `service`. Wire types stay in `http` and `grpc`. The engine stays behind `service`, except that
//! a stream in `grpc` builds the requests that it posts and receives the answers itself, and that probes and metrics read
//! the engine's state. There is no global state, so several servers can run in one process.

pub mod app;
pub mod artifacts;
mod audit;
pub mod backup;
pub mod config;
pub mod descriptors;
pub mod events;
pub mod grpc;
mod hex;
pub mod http;
pub mod limits;
pub mod observe;
mod request_id;
pub mod server;
pub mod service;
pub mod suggest;
pub mod times;
mod webhooks;

pub use config::Config;
pub use server::{OpenEngine, Server, StartError};
