//! Runs the documentation's code for receivers.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use codeq_server::config::WebhookSecret;
use serde_json::{Map, Value, json};

use crate::callbacks::receiver::{Received, Receiver, server_with};
use crate::http::harness::{PRODUCER, WORKER};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The blocks of a language in the documentation.
fn blocks(language: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/webhooks.md");
    let text = std::fs::read_to_string(path).unwrap();
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// Runs a program that reads the secret, the headers and the body, one per line, and prints its verdict.
async fn says(mut program: Command, call: &Received) -> String {
    let headers: Map<String, Value> =
        call.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let body = String::from_utf8(call.body.clone()).unwrap();
    let input = format!("{SECRET}\n{}\n{body}", Value::from(headers));
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || {
        let mut child = program.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    });
    let output = output.await.unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_lowercase()
}

async fn a_call() -> Received {
    let secret =
        WebhookSecret { tenant: "a".to_owned(), secret: Some(SECRET.to_owned()), previous: None };
    let server = server_with(|config| config.webhooks.secrets = vec![secret]).await;
    let mut receiver = Receiver::willing().await;
    let task = json!({"command": "c", "payload": {}, "webhook": receiver.url("/")});
    let id = server.enqueue(PRODUCER, task).await;
    server.claim(WORKER, "c").await;
    let done = json!({"status": "COMPLETED", "result": {"text": "é"}});
    server.post(WORKER, &format!("tasks/{id}/result"), done).await.expect(200);
    receiver.next().await
}

#[tokio::test]
async fn the_lines_in_python_verify_a_call() {
    let call = a_call().await;
    let mut forged = call.clone();
    forged.body.push(b' ');
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/python");
    let names = ["verify", "verify_codeq"];
    let blocks = blocks("python");
    assert_eq!(blocks.len(), names.len());
    for (block, name) in blocks.iter().zip(names) {
        let read =
            "import json, sys\nsecret, headers, body = sys.stdin.buffer.read().split(b'\\n', 2)";
        let script =
            format!("{block}\n{read}\nprint({name}(secret.decode(), json.loads(headers), body))");
        for (call, verdict) in [(&call, "true"), (&forged, "false")] {
            let mut program = Command::new(&python);
            program.args(["-c", &script]);
            assert_eq!(says(program, call).await, verdict, "{name}");
        }
    }
}

#[tokio::test]
async fn the_lines_in_javascript_verify_a_call() {
    if Command::new("node").arg("--version").output().is_err() {
        println!("node is not installed: the lines in JavaScript are not run");
        return;
    }
    let call = a_call().await;
    let mut forged = call.clone();
    forged.body.push(b' ');
    let blocks = blocks("js");
    let read = "import { readFileSync } from 'node:fs';\nconst input = readFileSync(0, 'utf8');\n\
        const [secret, headers] = input.split('\\n', 2);\n\
        const body = input.slice(secret.length + headers.length + 2);";
    let script =
        format!("{}\n{read}\nconsole.log(verify(secret, JSON.parse(headers), body));", blocks[0]);
    for (call, verdict) in [(&call, "true"), (&forged, "false")] {
        let mut program = Command::new("node");
        program.args(["--input-type=module", "-e", &script]);
        assert_eq!(says(program, call).await, verdict);
    }
}
