//! The IP addresses of a host that may be called.
//!
//! A host name is looked up for each call and every address that is found is checked. The client then dials one of
//! these addresses and never the name, so a DNS answer that changes later has no effect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use tokio::time::Instant;

use crate::connect::DialError;
use crate::lookups::{LookupError, Lookups};
use crate::policy::{AddressPolicy, Destination};

/// Maximum number of addresses of one host that are tried.
const DIALS_MAX: usize = 4;

/// Addresses for documentation: no machine has them.
const UNUSED_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const UNUSED_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// Finds the addresses that a call may go to.
#[derive(Clone)]
pub(crate) struct AllowedAddresses {
    pub policy: Arc<AddressPolicy>,
    pub lookups: Lookups,
    /// Where this server listens.
    pub own: Arc<[SocketAddr]>,
}

impl AllowedAddresses {
    /// The addresses of a destination to try, in order. If one of its addresses is not allowed, none is: a name that
    /// resolves to a private address is refused even if it also has public ones.
    pub async fn find(
        &self,
        tenant: &Arc<str>,
        to: &Destination,
        until: Instant,
    ) -> Result<Vec<SocketAddr>, DialError> {
        let (host, port) = (to.host().trim_start_matches('[').trim_end_matches(']'), to.port());
        let found: Arc<[IpAddr]> = match host.parse::<IpAddr>() {
            Ok(ip) => [ip].into(),
            Err(_) => {
                self.lookups.find(tenant, host, until).await.map_err(|error| match error {
                    LookupError::Busy => DialError::Busy,
                    LookupError::Failed(error) => DialError::NotFound(error),
                })?
            }
        };
        let mut addresses = Vec::with_capacity(found.len());
        for ip in found.iter() {
            let ip = ip.to_canonical();
            if !self.policy.allows(ip) {
                return Err(DialError::NotAllowed(ip));
            }
            let address = SocketAddr::new(ip, port);
            if !self.policy.opens(ip) && (self.own.contains(&address) || is_this_machine(ip)) {
                return Err(DialError::Own(address));
            }
            addresses.push(address);
        }
        if addresses.is_empty() {
            return Err(DialError::NoAddress);
        }
        Ok(alternating(addresses))
    }
}

/// The addresses to try. IPv4 and IPv6 alternate, so that a family without connectivity does not use up the time.
fn alternating(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v4 = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv4() == first_is_v4);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut order = Vec::with_capacity(DIALS_MAX);
    while order.len() < DIALS_MAX {
        let next = [first.next(), second.next()];
        if next == [None, None] {
            break;
        }
        order.extend(next.into_iter().flatten());
    }
    order.truncate(DIALS_MAX);
    order
}

/// Whether this machine has the address. A firewall may hide a service on a public address from the outside, but not
/// from the machine itself.
fn is_this_machine(ip: IpAddr) -> bool {
    let any: IpAddr =
        if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let nobodys: IpAddr = if ip.is_ipv4() { UNUSED_V4.into() } else { UNUSED_V6.into() };
    // None of this sends anything, and the port does not matter. A machine can bind its own addresses. Some systems are
    // configured to bind any address; for those, compare with the address that they would send from.
    let binds = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    let from = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 9))?;
        socket.local_addr()
    };
    (binds(ip) && !binds(nobodys)) || from().is_ok_and(|from| from.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_families_alternate() {
        let addresses = |text: &str| -> Vec<SocketAddr> {
            text.split_whitespace().map(|ip| SocketAddr::new(ip.parse().unwrap(), 1)).collect()
        };
        for (found, tried) in [
            ("", ""),
            ("::1", "::1"),
            ("::1 ::2 1.1.1.1 2.2.2.2", "::1 1.1.1.1 ::2 2.2.2.2"),
            ("1.1.1.1 ::1 ::2 ::3 ::4", "1.1.1.1 ::1 ::2 ::3"),
            ("::1 ::2 ::3 ::4 ::5 1.1.1.1", "::1 1.1.1.1 ::2 ::3"),
        ] {
            assert_eq!(alternating(addresses(found)), addresses(tried), "{found}");
        }
    }

    #[test]
    fn addresses_of_this_machine_are_recognised() {
        for own in ["127.0.0.1", "127.9.9.9"] {
            assert!(is_this_machine(own.parse().unwrap()), "{own}");
        }
        for other in ["93.184.215.14", "2606:2800:21f:cb07::1"] {
            assert!(!is_this_machine(other.parse().unwrap()), "{other}");
        }
    }
}
