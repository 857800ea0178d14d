//! Where webhooks may go: to public IP addresses, and to networks that the operator has opened.
//!
//! An address is checked by its value, not by its spelling. Nothing is looked up here: a host name passes, and its
//! addresses are checked each time the host is called.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use codeq_core::limits::WEBHOOK_BYTES_MAX;
use hyper::Uri;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

/// IPv4 networks that are not public, from IANA's registry of special-purpose addresses and from clouds.
const CLOSED_V4: [Ipv4Net; 16] = [
    v4([0, 0, 0, 0], 8),        // this network
    v4([10, 0, 0, 0], 8),       // private
    v4([100, 64, 0, 0], 10),    // carrier-grade NAT; metadata of some clouds
    v4([127, 0, 0, 0], 8),      // loopback
    v4([168, 63, 129, 16], 32), // looks public, but is Azure's platform inside its machines
    v4([169, 254, 0, 0], 16),   // link-local; metadata of most clouds
    v4([172, 16, 0, 0], 12),    // private
    v4([192, 0, 0, 0], 24),     // protocol assignments
    v4([192, 0, 2, 0], 24),     // documentation
    v4([192, 88, 99, 0], 24),   // 6to4 relays
    v4([192, 168, 0, 0], 16),   // private
    v4([198, 18, 0, 0], 15),    // benchmarks
    v4([198, 51, 100, 0], 24),  // documentation
    v4([203, 0, 113, 0], 24),   // documentation
    v4([224, 0, 0, 0], 4),      // multicast
    v4([240, 0, 0, 0], 4),      // reserved, broadcast
];

/// All of IPv6 that is assigned for global unicast. Outside of it are loopback, link-local, private and multicast
/// addresses, translations of IPv4, and what is not assigned yet.
const UNICAST_V6: Ipv6Net = v6([0x2000, 0, 0], 3);

/// The networks of [`UNICAST_V6`] that are not public.
const CLOSED_V6: [Ipv6Net; 4] = [
    v6([0x2001, 0, 0], 23), // Teredo, benchmarks, ORCHID and other protocol assignments
    v6([0x2001, 0xdb8, 0], 32), // documentation
    v6([0x2002, 0, 0], 16), // 6to4: an IPv4 address in disguise
    v6([0x3fff, 0, 0], 20), // documentation
];

/// Ports from 1024 on of services that a POST could harm: most are also blocked by browsers.
const CLOSED_PORTS: [u16; 12] =
    [2049, 3659, 4045, 5060, 5061, 6000, 6379, 6566, 6667, 6697, 10080, 11211];

const fn v4([a, b, c, d]: [u8; 4], len: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len)
}

const fn v6([a, b, c]: [u16; 3], len: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), len)
}

/// Which addresses may be called.
#[derive(Debug, Default)]
pub struct AddressPolicy {
    allowed: ArcSwap<Vec<IpNet>>,
}

/// A URL that a tenant gave and that was not refused.
#[derive(Debug, Clone)]
pub struct Destination {
    url: Url,
    uri: Uri,
    authority: String,
}

/// Why a URL is refused. The messages reveal nothing about the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It cannot be parsed.
    #[error("not a url")]
    NotAUrl,
    /// It is too long.
    #[error("longer than {WEBHOOK_BYTES_MAX} bytes")]
    TooLong,
    /// Its scheme is neither http nor https.
    #[error("not http or https")]
    Scheme,
    /// It contains a user or a password, which would be stored and shown.
    #[error("has a user or a password")]
    Credentials,
    /// Its host is neither an IP address nor a host name.
    #[error("not a host name")]
    Host,
    /// Its port may not be called.
    #[error("the port is not allowed")]
    PortNotAllowed,
    /// Its IP address may not be called.
    #[error(
        "the address is not public, and the operator has not allowed it (webhooks.allowedNetworks)"
    )]
    AddressNotAllowed,
}

impl AddressPolicy {
    /// Allows public addresses, and these networks.
    pub fn new(allowed: &[IpNet]) -> AddressPolicy {
        let policy = AddressPolicy::default();
        policy.set(allowed);
        policy
    }

    /// Replaces the networks that the operator has opened.
    pub fn set(&self, allowed: &[IpNet]) {
        self.allowed.store(Arc::new(allowed.iter().map(|net| unmapped(*net)).collect()));
    }

    /// Whether an address may be called. An IPv4-mapped IPv6 address (`::ffff:0:0/96`) counts as the IPv4 address.
    pub fn allows(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.opens(ip) || is_public(ip)
    }

    /// Whether the operator has opened this address.
    pub fn opens(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.allowed.load().iter().any(|net| net.contains(&ip))
    }

    /// Reads a URL that a client gave: http or https, a host, an allowed port, no credentials, nothing that programs
    /// read in different ways. An IP address is checked at once; the addresses of a host name are checked when it is
    /// called.
    ///
    /// Allowed ports are 80, 443, and those from 1024 on without a well-known service of another kind. IP addresses
    /// that the operator has opened may be called on all ports.
    pub fn read(&self, text: &str) -> Result<Destination, Refused> {
        let url = parse(text)?;
        let port = url.port_or_known_default().ok_or(Refused::NotAUrl)?;
        let ip = match url.host().ok_or(Refused::NotAUrl)? {
            Host::Ipv4(ip) => Some(IpAddr::V4(ip)),
            Host::Ipv6(ip) => Some(IpAddr::V6(ip)),
            // The first thing that people try; no lookup needed.
            Host::Domain(name) if is_localhost(name) => {
                let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
                loopback.into_iter().find(|ip| self.allows(*ip)).or(Some(loopback[0]))
            }
            Host::Domain(name) if is_name(name) => None,
            Host::Domain(_) => return Err(Refused::Host),
        };
        if ip.is_some_and(|ip| !self.allows(ip)) {
            return Err(Refused::AddressNotAllowed);
        }
        // Calls are counted by host, so other spellings of an address are refused.
        if let (Some(IpAddr::V4(ip)), Some(Host::Ipv4(_))) = (ip, url.host())
            && host_of(text) != ip.to_string()
        {
            return Err(Refused::Host);
        }
        let opened = ip.is_some_and(|ip| self.opens(ip));
        if port == 0 || !(opened || is_port_for_webhooks(port)) {
            return Err(Refused::PortNotAllowed);
        }
        let uri: Uri = url.as_str().parse().map_err(|_| Refused::NotAUrl)?;
        let host = url.host_str().ok_or(Refused::NotAUrl)?;
        let authority = format!("{}:{port}", host.trim_end_matches('.'));
        Ok(Destination { url, uri, authority })
    }
}

impl Destination {
    /// The URL, without its fragment.
    pub fn url(&self) -> &Url {
        &self.url
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The host name or IP address; IPv6 addresses are in brackets.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or("")
    }

    /// The port, even if the URL leaves it out.
    pub fn port(&self) -> u16 {
        self.url.port_or_known_default().unwrap_or(0)
    }

    /// Whether it is https.
    pub fn is_tls(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Host and port; the same for all spellings of a host.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

/// Parses a URL that all programs read in the same way: the standard also accepts `http:/\x` and `http:x`, which others
/// read as something else.
fn parse(text: &str) -> Result<Url, Refused> {
    if text.len() > WEBHOOK_BYTES_MAX {
        return Err(Refused::TooLong);
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err(Refused::NotAUrl);
    }
    let (scheme, rest) = text.split_once(':').ok_or(Refused::NotAUrl)?;
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(Refused::Scheme);
    }
    let rest = rest.strip_prefix("//").ok_or(Refused::NotAUrl)?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
    if authority.is_empty() {
        return Err(Refused::NotAUrl);
    }
    if authority.contains('@') {
        return Err(Refused::Credentials);
    }
    let mut url = Url::parse(text).map_err(|_| Refused::NotAUrl)?;
    url.set_fragment(None);
    Ok(url)
}

/// The host as the text spells it, without its port.
fn host_of(text: &str) -> &str {
    let rest = text.split_once("//").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// Whether a host name means this machine (RFC 6761).
fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost")
}

/// Whether this is a host name as DNS and certificates have them: labels of letters, digits, hyphens, underscores.
fn is_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |label: &str| {
        let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(letters)
    };
    name.len() <= 253 && name.split('.').all(label)
}

fn is_port_for_webhooks(port: u16) -> bool {
    matches!(port, 80 | 443) || (port >= 1024 && !CLOSED_PORTS.contains(&port))
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !CLOSED_V4.iter().any(|net| net.contains(&ip)),
        IpAddr::V6(ip) => {
            UNICAST_V6.contains(&ip) && !CLOSED_V6.iter().any(|net| net.contains(&ip))
        }
    }
}

/// Turns a network of IPv4-mapped IPv6 addresses into the IPv4 network.
pub fn unmapped(net: IpNet) -> IpNet {
    let IpNet::V6(six) = net else { return net };
    let four = six.network().to_ipv4_mapped().zip(six.prefix_len().checked_sub(96));
    let four = four.and_then(|(ip, len)| Ipv4Net::new(ip, len).ok());
    four.map_or(net, IpNet::V4)
}
