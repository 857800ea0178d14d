//! Warns about sensitive networks opened to webhooks.

use std::net::{Ipv4Addr, Ipv6Addr};

use codeq_webhooks::policy::unmapped;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::config::model::Config;

const MACHINE: &str = "services that listen on this machine only";
const LINK: &str = "link-local addresses, where clouds serve credentials";
const CLOUD: &str = "an address where a cloud serves credentials or settings";

/// Networks that tenants should not reach.
const INSIDE: [(IpNet, &str); 7] = [
    (v4([127, 0, 0, 0], 8), MACHINE),
    (v6([0, 0, 1], 128), MACHINE),
    (v4([169, 254, 0, 0], 16), LINK),
    (v6([0xfe80, 0, 0], 10), LINK),
    (v4([100, 100, 100, 200], 32), CLOUD),
    (v4([168, 63, 129, 16], 32), CLOUD),
    (v6([0xfd00, 0xec2, 0], 32), CLOUD),
];

const fn v4([a, b, c, d]: [u8; 4], len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len))
}

/// Builds a network from the first two groups and the last.
const fn v6([a, b, last]: [u16; 3], len: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, last), len))
}

/// Warnings about the networks the configuration opens; none for a development server, which opens them on purpose.
pub(super) fn opened(config: &Config) -> Vec<String> {
    if config.has_dev_token() {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    for net in &config.webhooks.allowed_networks {
        let overlaps = |inside: &IpNet| {
            let net = unmapped(*net);
            net.contains(inside) || inside.contains(&net)
        };
        let mut said: Vec<&str> =
            INSIDE.iter().filter_map(|(inside, what)| overlaps(inside).then_some(*what)).collect();
        said.dedup();
        if !said.is_empty() {
            let what = said.join("; ");
            warnings.push(format!(
                "webhooks.allowedNetworks has {net}, which lets tenants reach {what}"
            ));
        }
    }
    warnings
}
