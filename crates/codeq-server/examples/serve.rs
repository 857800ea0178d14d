//! A server in a temporary directory for tools that look at it from outside, such as a tester of the
//! OpenAPI document. The token is `dev-token`; the address is printed on the first line; an interrupt
//! ends it.

use std::net::SocketAddr;

use codeq_server::config::{AuthConfig, Durability, StaticToken};
use codeq_server::{Config, Server};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let token = StaticToken {
        token: Some("dev-token".to_owned()),
        subject: "dev".to_owned(),
        tenant: "dev".to_owned(),
        scopes: vec!["codeq:admin".to_owned()],
        ..StaticToken::default()
    };
    let config = Config {
        data_dir: dir.path().to_owned(),
        http_addr: SocketAddr::from(([127, 0, 0, 1], 0)),
        durability: Durability::Os,
        producer_auth: AuthConfig { static_tokens: vec![token], ..AuthConfig::default() },
        allow_producer_as_worker: true,
        shutdown_grace_seconds: 1,
        ..Config::default()
    };
    let server = Server::start(config).await?;
    println!("http://{}", server.http_addr());
    tokio::signal::ctrl_c().await?;
    server.stop().await;
    Ok(())
}
