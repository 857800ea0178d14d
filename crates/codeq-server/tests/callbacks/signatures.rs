//! What calls are signed with, and that receivers can verify it with what they have.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use codeq_server::config::WebhookSecret;
use serde_json::json;

use crate::callbacks::receiver::{Received, Receiver, server, server_with};
use crate::http::harness::{ADMIN, Harness, PRODUCER, WORKER};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDvYNqnK4qJmQ=";

async fn call(server: &Harness, receiver: &mut Receiver) -> Received {
    let task = json!({"command": "c", "payload": {}, "webhook": receiver.url("/")});
    let id = server.enqueue(PRODUCER, task).await;
    server.claim(WORKER, "c").await;
    let done = json!({"status": "COMPLETED", "result": {"text": "é \u{1f600}"}});
    server.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
    let call = receiver.next().await;
    assert_eq!(call.task(), id);
    call
}

/// Verifies a call in Python: with the library of Standard Webhooks, and with ten lines of code for the other header.
async fn verifies(call: &Received, secret: &str) -> [bool; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("../../target/venv/bin/python");
    assert!(python.exists(), "{} is missing: `make prepare` makes it", python.display());
    let mut command = Command::new(python);
    command.arg(root.join("tests/callbacks/python/verify.py")).arg(secret);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).env("PYTHONDONTWRITEBYTECODE", "1");
    let headers: serde_json::Map<_, _> =
        call.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let mut input = json!(headers).to_string().into_bytes();
    input.push(b'\n');
    input.extend_from_slice(&call.body);
    let output = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(&input).unwrap();
        child.wait_with_output().unwrap()
    });
    let output = output.await.unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let mut words = text.split_whitespace().map(|word| word == "good");
    [words.next().unwrap(), words.next().unwrap()]
}

#[tokio::test]
async fn the_reference_library_and_ten_lines_verify_what_is_sent() {
    let secret = WebhookSecret {
        tenant: "a".to_owned(),
        secret: Some(NEW.to_owned()),
        previous: Some(OLD.to_owned()),
    };
    let server = server_with(|config| config.webhooks.secrets = vec![secret]).await;
    let mut receiver = Receiver::willing().await;
    let call = call(&server, &mut receiver).await;
    assert_eq!(verifies(&call, OLD).await, [true, true]);
    assert_eq!(verifies(&call, NEW).await, [true, false], "one has room for the older one only");
    let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    assert_eq!(verifies(&call, other).await, [false, false]);
    let mut changed = call.clone();
    changed.body.push(b' ');
    assert_eq!(verifies(&changed, OLD).await, [false, false]);
    let mut moved = call.clone();
    for (name, value) in &mut moved.headers {
        if name.ends_with("-timestamp") {
            *value = (value.parse::<u64>().unwrap() + 1).to_string();
        }
    }
    assert_eq!(verifies(&moved, OLD).await, [false, false]);
}

#[tokio::test]
async fn secrets_change_without_a_call_that_nobody_can_verify() {
    let server = server().await;
    let mut receiver = Receiver::willing().await;
    let unsigned = call(&server, &mut receiver).await;
    assert!(unsigned.header("webhook-signature").is_none());
    assert!(unsigned.header("x-codeq-signature").is_none());
    assert!(unsigned.header("webhook-id").is_some());
    assert_eq!(unsigned.header("webhook-timestamp"), unsigned.header("x-codeq-timestamp"));
    let rotate = "admin/webhooks/secrets/rotate";
    server.post(ADMIN, rotate, json!({"secret": OLD})).await.expect(200);
    assert_eq!(verifies(&call(&server, &mut receiver).await, OLD).await, [true, true]);
    server.post(ADMIN, rotate, json!({"secret": NEW})).await.expect(200);
    let both = call(&server, &mut receiver).await;
    assert_eq!(verifies(&both, OLD).await, [true, true]);
    assert_eq!(verifies(&both, NEW).await, [true, false]);
    server.post(ADMIN, rotate, json!({"secret": NEW, "overlapSeconds": 0})).await.expect(200);
    let new = call(&server, &mut receiver).await;
    assert_eq!(verifies(&new, OLD).await, [false, false]);
    assert_eq!(verifies(&new, NEW).await, [true, true]);
    server.delete(ADMIN, "admin/webhooks/secrets").await.expect(204);
    assert!(call(&server, &mut receiver).await.header("x-codeq-signature").is_none());
}
