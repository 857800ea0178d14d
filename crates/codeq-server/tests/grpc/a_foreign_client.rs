//! Somebody else's client: made by the usual tools from the published table of fields, in another language.
//! It takes more than a minute, so its name makes it the first to be started.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Harness, PRODUCER, RESTRICTED, WORKER};

#[tokio::test]
async fn a_client_made_from_the_table_alone_completes_its_sessions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join("target/venv/bin/python");
    assert!(python.exists(), "{} is missing: `make prepare` makes it", python.display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc/python/session.py");
    // A stream that waits is no idle connection.
    let server = Harness::with(|config| config.http.idle_timeout_seconds = 2).await;
    let addresses = [server.producer_addr().to_string(), server.worker_addr().to_string()];
    let mut session = Command::new(python);
    session.arg(script).args(addresses).args([PRODUCER, WORKER, RESTRICTED]);
    // A proxy of the machine's is not for a server on the machine itself.
    session.env("no_grpc_proxy", "127.0.0.1").env("PYTHONDONTWRITEBYTECODE", "1");
    session.stdin(Stdio::null());
    let done = tokio::task::spawn_blocking(move || session.output()).await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{}\n{out}\n{err}", done.status);
    assert_eq!(out, "all sessions went as promised\n", "{err}");
}
