//! Somebody else's client: made by the usual tools from the published table of fields, in another language.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::http::harness::{Harness, PRODUCER, RESTRICTED, WORKER, pass};

/// The next line that the client says. The server runs meanwhile.
async fn line(mut out: BufReader<ChildStdout>) -> (BufReader<ChildStdout>, String) {
    let read = move || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        (out, line)
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

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
    session.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut session = session.spawn().unwrap();
    let mut out = BufReader::new(session.stdout.take().unwrap());
    // One of its Readys is held for more than a minute: the time passes here.
    let mut said;
    loop {
        (out, said) = line(out).await;
        if said != "waits\n" {
            break;
        }
        pass(Duration::from_secs(35)).await;
        session.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
    }
    let ended = move || {
        let mut error = String::new();
        session.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        (session.wait().unwrap(), error)
    };
    let (status, error) = tokio::task::spawn_blocking(ended).await.unwrap();
    assert!(status.success(), "{status}\n{said}\n{error}");
    assert_eq!(said, "all sessions went as promised\n", "{error}");
}
