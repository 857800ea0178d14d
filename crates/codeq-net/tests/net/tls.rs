//! TLS: handshakes, and certificates that change while the server runs.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use codeq_net::{NetLimits, TlsError, TlsFiles};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::frames::{HEADERS, get, preface, until};
use crate::support::{Client, LONG, PATIENCE, SHORT, Server, limits};

/// A certificate and its key in a directory of their own.
pub struct Files {
    pub dir: TempDir,
}

impl Files {
    pub fn new() -> (Self, CertificateDer<'static>) {
        let files = Self { dir: TempDir::new().unwrap() };
        let der = files.renew();
        (files, der)
    }

    fn cert(&self) -> PathBuf {
        self.dir.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.dir.path().join("key.pem")
    }

    /// Puts a new pair in place, and gives its certificate.
    fn renew(&self) -> CertificateDer<'static> {
        let CertifiedKey { cert, signing_key } = pair();
        fs::write(self.cert(), cert.pem()).unwrap();
        fs::write(self.key(), signing_key.serialize_pem()).unwrap();
        fs::set_permissions(self.key(), Permissions::from_mode(0o600)).unwrap();
        cert.der().clone()
    }

    fn load(&self) -> Result<TlsFiles, TlsError> {
        TlsFiles::load(&self.cert(), &self.key())
    }
}

fn pair() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

pub async fn connect(
    server: SocketAddr,
    trusted: &CertificateDer<'static>,
    alpn: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let stream = TcpStream::connect(server).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let handshake = TlsConnector::from(Arc::new(config)).connect(name, stream);
    timeout(PATIENCE, handshake).await.expect("a handshake in time")
}

async fn start(files: TlsFiles) -> Server {
    Server::start_with(limits(), Some(files), LONG).await
}

#[tokio::test]
async fn http_1_is_served() {
    let (files, cert) = Files::new();
    let server = start(files.load().unwrap()).await;
    for alpn in [&[][..], &[&b"http/1.1"[..]]] {
        let mut client = Client::new(connect(server.addr, &cert, alpn).await.unwrap());
        assert_eq!(client.get("/hello").await.body, b"hello");
        assert_eq!(client.get("/hello").await.body, b"hello");
    }
    assert_eq!(server.stats.handshake_failures.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn http_2_is_chosen_when_the_client_can() {
    let (files, cert) = Files::new();
    let server = start(files.load().unwrap()).await;
    let mut client = connect(server.addr, &cert, &[b"h2", b"http/1.1"]).await.unwrap();
    assert_eq!(client.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    client.write_all(&[preface(&[]), get(1, "/hello")].concat()).await.unwrap();
    client.flush().await.unwrap();
    until(&mut client, HEADERS, 1).await;
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_closed() {
    let (files, cert) = Files::new();
    let limits = NetLimits { header_timeout: SHORT, ..limits() };
    let server = Server::start_with(limits, Some(files.load().unwrap()), LONG).await;
    assert!(server.connect().await.closed().await.is_empty());
    assert_eq!(server.stats.handshake_failures.load(Ordering::Relaxed), 1);
    // And a client that shakes hands, then says nothing.
    let mut silent = Client::new(connect(server.addr, &cert, &[b"h2"]).await.unwrap());
    assert!(silent.closed().await.is_empty());
}

#[tokio::test]
async fn clear_text_is_not_answered() {
    let (files, cert) = Files::new();
    let server = start(files.load().unwrap()).await;
    let mut client = server.connect().await;
    client.send("GET /hello HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let seen = client.closed().await;
    assert!(!seen.windows(4).any(|w| w == b"HTTP"), "{}", seen.escape_ascii());
    assert_eq!(server.stats.handshake_failures.load(Ordering::Relaxed), 1);
    assert!(connect(server.addr, &cert, &[]).await.is_ok());
}

#[tokio::test]
async fn a_new_certificate_is_picked_up() {
    let (files, old) = Files::new();
    let server = start(files.load().unwrap().poll_every(Duration::from_millis(20))).await;
    let mut before = Client::new(connect(server.addr, &old, &[]).await.unwrap());
    assert_eq!(before.get("/hello").await.status, 200);

    let new = files.renew();
    let picked_up = async { while connect(server.addr, &new, &[]).await.is_err() {} };
    timeout(PATIENCE, picked_up).await.expect("the new certificate in use");
    assert!(connect(server.addr, &old, &[]).await.is_err());
    assert_eq!(before.get("/hello").await.status, 200, "open connections are left alone");
}

#[tokio::test]
async fn a_reload_takes_effect_at_once() {
    let (files, _) = Files::new();
    let tls = files.load().unwrap();
    let server = start(tls.clone()).await;
    let new = files.renew();
    tls.reload().unwrap();
    assert!(connect(server.addr, &new, &[]).await.is_ok());
}

#[tokio::test]
async fn a_bad_pair_is_refused_and_the_old_stays() {
    let (files, old) = Files::new();
    let tls = files.load().unwrap();
    let server = start(tls.clone().poll_every(Duration::from_millis(20))).await;

    let other = pair();
    fs::write(files.cert(), other.cert.pem()).unwrap();
    assert!(matches!(tls.reload(), Err(TlsError::Pair(_))));
    fs::write(files.cert(), "not a certificate").unwrap();
    assert!(matches!(tls.reload(), Err(TlsError::Certificates(_))));
    fs::write(files.cert(), other.cert.pem()).unwrap();
    fs::write(
        files.key(),
        "-----BEGIN PRIVATE KEY-----\nbm90IGEga2V5\n-----END PRIVATE KEY-----\n",
    )
    .unwrap();
    assert!(matches!(tls.reload(), Err(TlsError::Pair(_))));
    fs::remove_file(files.key()).unwrap();
    assert!(matches!(tls.reload(), Err(TlsError::Read { .. })));
    assert!(connect(server.addr, &old, &[]).await.is_ok());

    fs::write(files.key(), other.signing_key.serialize_pem()).unwrap();
    fs::set_permissions(files.key(), Permissions::from_mode(0o600)).unwrap();
    tls.reload().unwrap();
    assert!(connect(server.addr, other.cert.der(), &[]).await.is_ok());
}

#[test]
fn a_key_that_everybody_can_read_is_refused() {
    let (files, _) = Files::new();
    fs::set_permissions(files.key(), Permissions::from_mode(0o644)).unwrap();
    let error = files.load().unwrap_err();
    assert!(matches!(error, TlsError::KeyIsPublic { mode: 0o644, .. }));
    assert!(error.to_string().contains("chmod 600"), "{error}");
    fs::set_permissions(files.key(), Permissions::from_mode(0o640)).unwrap();
    files.load().unwrap();
}

#[test]
fn files_that_are_too_large_or_empty_are_refused() {
    let (files, _) = Files::new();
    fs::write(files.cert(), vec![b'x'; 2 * 1024 * 1024]).unwrap();
    assert!(matches!(files.load(), Err(TlsError::TooLarge(_))));
    fs::write(files.cert(), "").unwrap();
    assert!(matches!(files.load(), Err(TlsError::Certificates(_))));
}
