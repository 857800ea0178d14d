//! Divides the process's file descriptors between clients, webhooks and storage.
//!
//! Client sockets get what the log, the stores, artifacts and outgoing calls leave. Otherwise a
//! thousand idle connections from a stranger could keep the log from opening its next segment.

use codeq_webhooks::availability::CALLS_MAX;
use codeq_webhooks::client::KEPT_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// For the runtime, listeners, the log and its next segments, certificates, and open artifacts.
const FILES: u64 = 64;
/// Per shard: its store and the one that replaces it.
const FILES_PER_SHARD: u64 = 4;
/// Connections to the dedicated metrics port.
pub const METRICS_CONNECTIONS: usize = 16;
/// Concurrent DNS lookups; each queries both address families.
const LOOKUPS_MAX: u64 = 64;
const SOCKETS_PER_LOOKUP: u64 = 2;
/// Fewer connections than this make serving pointless.
const CONNECTIONS_MIN: u64 = 16;

/// The number of descriptors per purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// The process's limit on open files.
    pub limit: u64,
    /// Client connections, on all ports together.
    pub connections: usize,
    /// Connections to webhook receivers.
    pub calls: usize,
    /// Concurrent DNS lookups.
    pub lookups: usize,
}

impl Descriptors {
    /// Divides the process's current limit.
    pub fn now(config: &Config, shards: u16) -> Descriptors {
        Descriptors::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), config, shards)
    }

    /// Divides the limit the process could raise itself to.
    pub fn possible(config: &Config) -> Descriptors {
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        Descriptors::of(limit, config, config.shards.unwrap_or(1))
    }

    fn of(limit: u64, config: &Config, shards: u16) -> Descriptors {
        let calls = wanted_calls(config).min(limit / 4);
        let lookups = LOOKUPS_MAX.min(limit / 32).max(1);
        let left = limit.saturating_sub(reserved(shards) + calls + lookups * SOCKETS_PER_LOOKUP);
        let connections = (config.http.max_connections as u64).min(left.max(CONNECTIONS_MIN));
        Descriptors {
            limit,
            connections: connections as usize,
            calls: calls as usize,
            lookups: lookups as usize,
        }
    }

    /// A warning for the operator, if clients get fewer connections than configured.
    pub fn warning(&self, config: &Config) -> Option<String> {
        let wanted = config.http.max_connections;
        (self.connections < wanted).then(|| {
            format!(
                "http.maxConnections is {wanted}, but {} connections are all that a limit of {} open files leaves: \
                 raise it (ulimit -n, LimitNOFILE)",
                self.connections, self.limit
            )
        })
    }
}

/// Raises the process's limit to what the configuration needs, as far as the system allows.
pub fn raise(config: &Config) {
    let needed = wanted_calls(config)
        .saturating_add(reserved(config.shards.unwrap_or(codeq_engine::options::SHARDS_MAX)))
        .saturating_add(LOOKUPS_MAX * SOCKETS_PER_LOOKUP)
        .saturating_add(config.http.max_connections as u64);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(needed, |maximum| maximum.min(needed));
    if current.is_some_and(|current| current < wanted) {
        // If refused, there are fewer connections, and `warning` says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// Descriptors reserved for the server itself.
fn reserved(shards: u16) -> u64 {
    FILES + METRICS_CONNECTIONS as u64 + FILES_PER_SHARD * u64::from(shards)
}

fn wanted_calls(config: &Config) -> u64 {
    (config.webhooks.max_concurrent + CALLS_MAX + KEPT_MAX) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_remaining_descriptors() {
        let config = Config::default();
        for (limit, connections, calls, lookups) in [
            (u64::MAX, 16_384, 832, 64),
            (20_000, 16_384, 832, 64),
            (4_096, 4_096 - 84 - 832 - 128, 832, 64),
            (1_024, 1_024 - 84 - 256 - 64, 256, 32),
            (256, 256 - 84 - 64 - 16, 64, 8),
            (64, 16, 16, 2),
        ] {
            let shared = Descriptors::of(limit, &config, 1);
            assert_eq!(shared, Descriptors { limit, connections, calls, lookups });
            assert_eq!(shared.warning(&config).is_some(), connections < 16_384, "{limit}");
        }
    }

    #[test]
    fn a_process_that_may_have_more_takes_it() {
        let before = Descriptors::now(&Config::default(), 1);
        raise(&Config::default());
        let after = Descriptors::now(&Config::default(), 1);
        assert!(after.limit >= before.limit, "{before:?} {after:?}");
        assert_eq!(after.connections, Descriptors::possible(&Config::default()).connections);
    }
}
