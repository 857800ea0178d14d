//! Certificates: the right one, and all the wrong ones.

use std::process::Command;
use std::sync::Arc;

use codeq_webhooks::client::{Client, Options, SendError};
use hyper::StatusCode;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256,
    date_time_ymd,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::support::{Names, PATIENCE, Receiver, policy, post, read_request};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
}

fn authority() -> Authority {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, key()).unwrap()
}

fn roots(authority: &Authority) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    roots
}

/// What a receiver heard: the name of the handshake, the protocol, and the request.
type Heard = (Option<String>, Option<Vec<u8>>, String);

struct Https {
    receiver: Receiver,
    heard: mpsc::UnboundedReceiver<Heard>,
}

impl Https {
    /// With a certificate of the authority for these names.
    async fn start(
        authority: &Authority,
        names: &[&str],
        change: fn(&mut CertificateParams),
    ) -> Https {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = key();
        let cert = params.signed_by(&key, authority).unwrap();
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(
                    vec![cert.der().clone()],
                    PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
                )
                .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (tell, heard) = mpsc::unbounded_channel();
        let receiver = Receiver::start("127.0.0.1", move |stream| {
            let (acceptor, tell) = (acceptor.clone(), tell.clone());
            async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                while let Some(request) = read_request(&mut stream).await {
                    let session = stream.get_ref().1;
                    let name = session.server_name().map(str::to_owned);
                    let protocol = session.alpn_protocol().map(<[u8]>::to_vec);
                    tell.send((name, protocol, request)).unwrap();
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(answer).await.unwrap();
                }
            }
        })
        .await;
        Https { receiver, heard }
    }

    fn url(&self, host: &str) -> String {
        format!("https://{host}:{}/", self.receiver.addr.port())
    }
}

fn client(roots: Option<RootCertStore>) -> Client {
    let names = Names::of("hook.example", &[&["127.0.0.1"]]);
    names.set("hook.example.", [127, 0, 0, 1].into());
    let options = Options { roots, time: PATIENCE, ..Options::default() };
    Client::new(policy(&["127.0.0.1/32"]), names, options)
}

#[tokio::test]
async fn a_certificate_for_the_right_name_is_accepted() {
    let authority = authority();
    let mut https = Https::start(&authority, &["hook.example", "127.0.0.1"], |_| {}).await;
    let client = client(Some(roots(&authority)));
    for (host, name) in [
        ("hook.example", Some("hook.example")),
        ("HOOK.example", Some("hook.example")),
        ("hook.example.", Some("hook.example")),
        ("127.0.0.1", None),
    ] {
        let url = https.url(host);
        assert_eq!(post(&client, &url).await.unwrap().status, StatusCode::OK, "{url}");
        let (seen, protocol, request) = https.heard.recv().await.unwrap();
        assert_eq!(seen.as_deref(), name, "{url}");
        assert_eq!(protocol.as_deref(), Some(&b"http/1.1"[..]));
        let port = https.receiver.addr.port();
        let host = format!("\r\nhost: {}:{port}\r\n", host.to_lowercase());
        assert!(request.contains(&host), "{request}");
    }
    // One connection for each host; the first one is used twice.
    assert_eq!(https.receiver.came().await, 3);
}

#[tokio::test]
async fn invalid_certificates_are_refused() {
    let (known, unknown) = (authority(), authority());
    let expired = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    };
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(4000, 1, 1);
    let good = |_: &mut CertificateParams| {};
    let cases = [
        ("right", Https::start(&known, &["hook.example"], good).await),
        ("of another name", Https::start(&known, &["other.example"], good).await),
        ("of a name below", Https::start(&known, &["*.hook.example"], good).await),
        ("of an unknown authority", Https::start(&unknown, &["hook.example"], good).await),
        ("expired", Https::start(&known, &["hook.example"], expired).await),
        ("not valid yet", Https::start(&known, &["hook.example"], early).await),
    ];
    for (case, mut https) in cases {
        let posted = post(&client(Some(roots(&known))), &https.url("hook.example")).await;
        if case == "right" {
            assert!(posted.is_ok(), "{case} {posted:?}");
            continue;
        }
        assert_eq!(posted, Err(SendError::Unreachable), "{case}");
        assert!(https.heard.try_recv().is_err(), "{case}: nothing is said to it");
    }
}

#[tokio::test]
async fn the_platform_does_not_know_our_authority() {
    let https = Https::start(&authority(), &["hook.example"], |_| {}).await;
    let posted = post(&client(None), &https.url("hook.example")).await;
    assert_eq!(posted, Err(SendError::Unreachable));
}

const URL: &str = "CODEQ_TEST_URL";

/// A process cannot change its own environment safely, so another one posts.
#[tokio::test]
async fn a_file_of_certificates_in_the_environment_is_trusted() {
    let authority = authority();
    let mut https = Https::start(&authority, &["hook.example"], |_| {}).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("roots.pem");
    std::fs::write(&file, authority.pem()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "tls::posts_to_what_the_environment_says", "--ignored"]);
    child.env("SSL_CERT_FILE", file).env(URL, https.url("hook.example"));
    let done = tokio::task::spawn_blocking(move || child.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
    assert!(https.heard.recv().await.is_some());
}

#[tokio::test]
#[ignore = "run by the one above"]
async fn posts_to_what_the_environment_says() {
    let url = std::env::var(URL).unwrap();
    assert_eq!(post(&client(None), &url).await.unwrap().status, StatusCode::OK);
}
