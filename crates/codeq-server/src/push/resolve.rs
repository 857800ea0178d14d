//! From names to addresses.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

/// Lookups that run at once. The system's resolver occupies a thread for as long as it takes; the others
/// stay free for the rest of the server.
const LOOKUPS_MAX: usize = 32;

/// Finds the addresses of a name.
pub trait Resolve: Send + Sync {
    /// All addresses of a name, in the order in which to try them.
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system.
pub struct SystemResolver {
    permits: Arc<Semaphore>,
}

impl SystemResolver {
    /// With nothing under way.
    pub fn new() -> SystemResolver {
        SystemResolver { permits: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }
}

impl Default for SystemResolver {
    fn default() -> SystemResolver {
        SystemResolver::new()
    }
}

impl Resolve for SystemResolver {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let permits = Arc::clone(&self.permits);
        let name = absolute(host);
        Box::pin(async move {
            let permit = permits.acquire_owned().await.map_err(io::Error::other)?;
            let lookup = tokio::task::spawn_blocking(move || {
                // Held by the work and not by who waits for it: a lookup that hangs is still under way when
                // nobody waits any more.
                let _permit = permit;
                let found = (name.as_str(), 0).to_socket_addrs()?;
                Ok(found.map(|address| address.ip()).collect())
            });
            lookup.await.map_err(io::Error::other)?
        })
    }
}

/// A name with a dot in it is looked up as it is, not below the domains of this machine. One without a dot
/// can only be meant to be found there.
fn absolute(host: &str) -> String {
    let dot = if host.contains('.') && !host.ends_with('.') { "." } else { "" };
    format!("{host}{dot}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_dot_are_absolute() {
        for (host, name) in
            [("a.example", "a.example."), ("a.example.", "a.example."), ("localhost", "localhost")]
        {
            assert_eq!(absolute(host), name);
        }
    }

    #[tokio::test]
    async fn this_machine_has_a_name() {
        let found = SystemResolver::new().resolve("localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
        assert!(SystemResolver::new().resolve("nothing.invalid").await.is_err());
    }
}
