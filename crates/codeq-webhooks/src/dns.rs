//! DNS: the addresses of a host name.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use hickory_resolver::config::{
    LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use parking_lot::Mutex;

/// How long a name server may take to answer, and how many times it is asked again.
const TIME_MAX: Duration = Duration::from_millis(1_500);
const RETRIES: usize = 1;
/// Maximum number of cached answers, and how long each is kept at most. The addresses are checked again on every use.
const ANSWERS_MAX: u64 = 1_024;
const KEPT_MAX: Duration = Duration::from_secs(300);
const FAILURE_KEPT_MAX: Duration = Duration::from_secs(5);
/// Maximum number of requests in flight to one name server over one connection.
const REQUESTS_MAX: usize = 256;
/// How long the system's configuration is cached. It changes when a machine moves between networks.
const SYSTEM_AGE_MAX: Duration = Duration::from_secs(30);

/// Looks up host names.
pub trait Resolve: Send + Sync {
    /// All addresses of a host name, in the order in which to try them.
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// Asks name servers, without a thread for each lookup.
pub struct DnsResolver(Arc<Source>);

enum Source {
    /// `/etc/resolv.conf` and `/etc/hosts`, read again after [`SYSTEM_AGE_MAX`].
    System(Mutex<Option<(Instant, Arc<Loaded>)>>),
    Fixed(Arc<Loaded>),
}

struct Loaded {
    hosts: Hosts,
    servers: TokioResolver,
}

impl DnsResolver {
    /// Resolves as this machine is configured to.
    pub fn system() -> DnsResolver {
        DnsResolver(Arc::new(Source::System(Mutex::default())))
    }

    /// Asks only this name server.
    ///
    /// # Errors
    ///
    /// If the resolver cannot be set up.
    pub fn of(server: SocketAddr) -> io::Result<DnsResolver> {
        let mut config = NameServerConfig::udp(server.ip());
        config.connections.iter_mut().for_each(|connection| connection.port = server.port());
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![config]);
        let servers = servers(config, ResolverOpts::default())?;
        Ok(DnsResolver(Arc::new(Source::Fixed(Arc::new(Loaded {
            hosts: Hosts::default(),
            servers,
        })))))
    }
}

impl Resolve for DnsResolver {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let (source, name) = (Arc::clone(&self.0), absolute(host));
        Box::pin(async move { source.loaded().await?.resolve(&name).await })
    }
}

impl Source {
    async fn loaded(self: Arc<Source>) -> io::Result<Arc<Loaded>> {
        let kept = match &*self {
            Source::Fixed(loaded) => return Ok(Arc::clone(loaded)),
            Source::System(kept) => kept.lock().clone(),
        };
        if let Some((at, loaded)) = kept
            && at.elapsed() < SYSTEM_AGE_MAX
        {
            return Ok(loaded);
        }
        // Reading files blocks.
        let loaded = tokio::task::spawn_blocking(Loaded::system).await.map_err(io::Error::other)?;
        let loaded = Arc::new(loaded?);
        if let Source::System(kept) = &*self {
            *kept.lock() = Some((Instant::now(), Arc::clone(&loaded)));
        }
        Ok(loaded)
    }
}

impl Loaded {
    fn system() -> io::Result<Loaded> {
        // If no name server is configured, there may be one on this machine.
        let here = || {
            let here = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
            (ResolverConfig::from_parts(None, Vec::new(), vec![here]), ResolverOpts::default())
        };
        let read = hickory_resolver::system_conf::read_system_conf();
        let (config, options) = read.unwrap_or_else(|_| here());
        let hosts = Hosts::from_system().unwrap_or_default();
        Ok(Loaded { hosts, servers: servers(config, options)? })
    }

    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let local = self.local(name);
        if !local.is_empty() {
            return Ok(local);
        }
        let found = self.servers.lookup_ip(name).await.map_err(io::Error::other)?;
        Ok(found.iter().collect())
    }

    /// What `/etc/hosts` says. If it has an address of one family, name servers are not asked for the other.
    fn local(&self, name: &str) -> Vec<IpAddr> {
        let Ok(name) = Name::from_utf8(name) else { return Vec::new() };
        let of = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let found = [RecordType::A, RecordType::AAAA].into_iter().filter_map(of);
        let ips = found.flat_map(|found| {
            found.answers().iter().filter_map(|record| record.data.ip_addr()).collect::<Vec<_>>()
        });
        ips.collect()
    }
}

fn servers(config: ResolverConfig, mut options: ResolverOpts) -> io::Result<TokioResolver> {
    options.timeout = TIME_MAX;
    options.attempts = RETRIES;
    // Both families, because every address is checked.
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.num_concurrent_reqs = 1;
    options.max_active_requests = REQUESTS_MAX;
    options.cache_size = ANSWERS_MAX;
    options.positive_max_ttl = Some(KEPT_MAX);
    options.negative_max_ttl = Some(FAILURE_KEPT_MAX);
    options.use_hosts_file = ResolveHosts::Never;
    let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    builder.with_options(options).build().map_err(io::Error::other)
}

/// A name with a dot is looked up as it is, not below this machine's search domains. A name without one can only be
/// found there.
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
    async fn localhost_resolves_to_loopback() {
        let found = DnsResolver::system().resolve("localhost").await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
    }
}
