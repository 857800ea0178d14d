//! TLS with a self-signed certificate.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use codeq_client::testing::{TOKEN, TestServer};
use codeq_client::{HttpClient, Options, Outcome, Producer, Status, Task, Worker};

use crate::support::{Running, enqueue, result};

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_http_are_encrypted_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert_file, key_file) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert_file, key.cert.pem()).unwrap();
    std::fs::write(&key_file, key.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(&key_file, Permissions::from_mode(0o600)).unwrap();
    let server = TestServer::start_with(|config| {
        config.tls.cert_file = Some(cert_file.clone());
        config.tls.key_file = Some(key_file.clone());
    })
    .await
    .unwrap();
    let options = Options::new(TOKEN)
        .http_url(format!("https://localhost:{}", server.http_addr().port()))
        .producer_url(format!("grpcs://localhost:{}", server.producer_addr().port()))
        .worker_url(format!("https://localhost:{}", server.worker_addr().port()))
        .connect_timeout(Duration::from_secs(20));
    assert!(Producer::connect(options.clone()).await.is_err(), "an untrusted certificate");
    assert!(HttpClient::new(&options).unwrap().queues().await.is_err());
    let options = options.ca_pem(key.cert.pem());
    let producer = Producer::connect(options.clone()).await.unwrap();
    let handler = |_: Task<u64>| async { Ok(Outcome::done()) };
    let worker = Running::start(Worker::builder(options).handle("work", handler));
    let id = enqueue(&producer, "work", &1).await;
    assert_eq!(result(&producer, &id).await.status, Status::Completed);
    worker.stop().await;
    server.end().await;
}
