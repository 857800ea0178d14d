//! The configuration of a development server.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use codeq_auth::{ADMIN, AuthConfig, OPERATOR, Scope, StaticToken};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::model::{Config, GrpcConfig, LogFormat, WebhookConfig};
use super::problem::Problem;

/// The development server's token: producer, worker, admin and operator.
pub const DEV_TOKEN: &str = "dev-token";

/// This machine, where a developer's webhook receiver runs.
pub(crate) const LOOPBACK: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
];

impl Config {
    /// A development server for local users. Rejects non-loopback addresses, because the token is
    /// public knowledge: see [`Config::dev_with_token`].
    pub fn dev(data_dir: PathBuf, http_addr: SocketAddr) -> Result<Config, Problem> {
        if !http_addr.ip().is_loopback() {
            let text = format!(
                "found {http_addr}, expected a loopback address such as 127.0.0.1:8080: the token \
                 of a development server is known to everybody"
            );
            return Err(Problem::of("httpAddr", text));
        }
        Ok(Config::dev_with_token(data_dir, http_addr, DEV_TOKEN))
    }

    /// Like [`Config::dev`], but with a private token, for addresses that others can reach, as in a container.
    pub fn dev_with_token(data_dir: PathBuf, http_addr: SocketAddr, token: &str) -> Config {
        Config {
            data_dir,
            http_addr,
            log_level: "warn".to_owned(),
            log_format: LogFormat::Text,
            producer_auth: dev_auth(token, &[ADMIN, OPERATOR]),
            worker_auth: dev_auth(token, &Scope::ALL.map(Scope::name)),
            allow_producer_as_worker: true,
            grpc: GrpcConfig { reflection: true },
            webhooks: WebhookConfig {
                allowed_networks: LOOPBACK.to_vec(),
                ..WebhookConfig::default()
            },
            ..Config::default()
        }
    }
}

/// Generates an unguessable token.
pub fn random_token() -> String {
    format!("dev-{:032x}", rand::random::<u128>())
}

fn dev_auth(token: &str, scopes: &[&str]) -> AuthConfig {
    let token = StaticToken {
        token: Some(token.to_owned()),
        token_sha256: None,
        subject: "worker-dev".to_owned(),
        tenant: "dev-tenant".to_owned(),
        scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
        event_types: vec!["*".to_owned()],
        worker_group: None,
    };
    AuthConfig { jwt: Vec::new(), static_tokens: vec![token] }
}
