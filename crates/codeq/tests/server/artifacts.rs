//! Artifacts of a server in its own process: stored on S3, and how much memory they take.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::server::node::{Process, codeq};

const TOKEN: &str = "a-token-for-every-role";
pub const BUCKET: &str = "artifacts";

/// `codeq serve` with settings in its environment.
struct Served {
    process: Process,
    base: String,
    client: Client,
}

fn client() -> Client {
    Client::builder().no_proxy().tls_certs_only([]).build().unwrap()
}

/// Reads the output of a process up to the address that follows `mark`, and discards the rest.
pub fn address(process: &mut Process, mark: &str) -> String {
    let mut lines = BufReader::new(process.stderr()).lines();
    let found = lines.find_map(|line| {
        let line = line.unwrap();
        let (_, rest) = line.split_once(mark)?;
        let end = rest.find(|letter: char| letter.is_whitespace() || letter == ';');
        Some(rest[..end.unwrap_or(rest.len())].to_owned())
    });
    let found = found.unwrap_or_else(|| panic!("it did not say '{mark}'"));
    std::thread::spawn(move || lines.for_each(drop));
    found
}

impl Served {
    fn start(dir: &Path, env: &[(&str, &str)]) -> Served {
        let scopes = json!(["codeq:admin"]);
        let token = json!([{"token": TOKEN, "subject": "s", "tenant": "t", "scopes": scopes}]);
        let mut command = codeq(&["serve", "--data-dir", dir.to_str().unwrap()]);
        command.args(["--http-addr", "127.0.0.1:0", "--log-level", "warn"]);
        command.env("CODEQ_PRODUCER_AUTH_STATIC_TOKENS", token.to_string());
        command.env("CODEQ_ALLOW_PRODUCER_AS_WORKER", "true");
        command.envs(env.iter().copied()).stderr(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let base = format!("http://{}", address(&mut process, " ms on "));
        Served { process, base, client: client() }
    }

    async fn call(&self, method: Method, path: &str, body: Option<String>) -> Response {
        let url = match path.starts_with("http") {
            true => path.to_owned(),
            false => format!("{}/v1/codeq/{path}", self.base),
        };
        let request = self.client.request(method, url).bearer_auth(TOKEN);
        let request = if let Some(body) = body { request.body(body) } else { request };
        request.send().await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.call(Method::POST, path, Some(body.to_string())).await;
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).unwrap()
    }

    async fn running(&self) -> String {
        let made = self.post("tasks", json!({"command": "c", "payload": 1})).await;
        let claimed = self.post("tasks/claim", json!({"commands": ["c"]})).await;
        assert_eq!(claimed["id"], made["id"]);
        made["id"].as_str().unwrap().to_owned()
    }

    async fn download(&self, url: &str) -> (u16, Vec<u8>) {
        let answer = self.call(Method::GET, url, None).await;
        (answer.status().as_u16(), answer.bytes().await.unwrap().to_vec())
    }
}

/// A server that speaks S3, with a bucket.
pub struct S3 {
    _process: Process,
    pub url: String,
}

impl S3 {
    pub async fn start() -> S3 {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let program = root.join("target/venv/bin/moto_server");
        assert!(program.exists(), "{} is missing: `make prepare` makes it", program.display());
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", "0"]).env("PYTHONUNBUFFERED", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let url = address(&mut process, "Running on ");
        let made = client().put(format!("{url}/{BUCKET}")).send().await.unwrap();
        assert!(made.status().is_success(), "{made:?}");
        S3 { _process: process, url }
    }

    /// The keys in the bucket.
    pub async fn keys(&self) -> Vec<String> {
        let url = format!("{}/{BUCKET}?list-type=2", self.url);
        let list = client().get(url).send().await.unwrap().text().await.unwrap();
        let keys = list.split("<Key>").skip(1);
        keys.map(|rest| rest.split('<').next().unwrap().to_owned()).collect()
    }

    async fn emptied(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let keys = self.keys().await;
            if keys.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{keys:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A proxy in front of a server. While it is closed, it holds back what clients send.
struct GatedProxy {
    url: String,
    open: watch::Sender<bool>,
    held: mpsc::UnboundedReceiver<()>,
}

impl GatedProxy {
    async fn to(s3: &S3) -> GatedProxy {
        let target = s3.url.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (open, gate) = watch::channel(true);
        let (holding, held) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // If the server is gone, the client's connection ends.
                if let Ok(server) = TcpStream::connect(&target).await {
                    tokio::spawn(pass(client, server, gate.clone(), holding.clone()));
                }
            }
        });
        GatedProxy { url, open, held }
    }
}

async fn pass(
    client: TcpStream,
    server: TcpStream,
    mut gate: watch::Receiver<bool>,
    holding: mpsc::UnboundedSender<()>,
) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = from_client.read(&mut buffer).await.unwrap_or(0);
            if !*gate.borrow() {
                let _ = holding.send(());
                gate.wait_for(|open| *open).await.unwrap();
            }
            if count == 0 || to_server.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    let back = tokio::io::copy(&mut from_server, &mut to_client);
    // When one direction ends, both do.
    tokio::select! {
        () = there => {}
        _ = back => {}
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(31) as u8).collect()
}

fn completed(contents: &[&[u8]]) -> Value {
    let artifact = |(at, bytes): (usize, &&[u8])| json!({"name": format!("n {at}"), "contentType": "text/x", "contentBase64": BASE64_STANDARD.encode(bytes)});
    let artifacts: Vec<Value> = contents.iter().enumerate().map(artifact).collect();
    json!({"status": "COMPLETED", "artifacts": artifacts})
}

#[tokio::test]
async fn round_trip_and_removal_on_s3() {
    let (dir, s3) = (tempfile::tempdir().unwrap(), S3::start().await);
    let mut way = GatedProxy::to(&s3).await;
    let node = Served::start(
        &dir.path().join("data"),
        &[
            ("CODEQ_ARTIFACTS_URL", "s3://artifacts/some/prefix"),
            ("AWS_ENDPOINT_URL", &way.url),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ],
    );
    // Empty, small, and in more than one part.
    let contents = [bytes(0), bytes(10_000), bytes(11_000_000)];
    let body = completed(&contents.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let id = node.running().await;
    let record = node.post(&format!("tasks/{id}/result"), body.clone()).await;
    let mut urls = Vec::new();
    for (artifact, content) in record["artifacts"].as_array().unwrap().iter().zip(&contents) {
        let url = artifact["url"].as_str().unwrap();
        assert!(node.download(url).await == (200, content.clone()), "{url}");
        urls.push(url.to_owned());
    }
    let keys = s3.keys().await;
    assert!(
        keys.len() == 3 && keys.iter().all(|key| key.starts_with(&format!("some/prefix/{id}/")))
    );
    assert!(!dir.path().join("data/artifacts").exists());
    node.post("admin/tasks/cleanup", json!({"before": "2999-01-01T00:00:00Z"})).await;
    s3.emptied().await;
    assert_eq!(node.download(&urls[0]).await.0, 404);

    // A worker that loses its task during the upload leaves nothing behind. The store is held up meanwhile.
    let id = node.running().await;
    let (submit, back) = (format!("tasks/{id}/result"), format!("tasks/{id}/abandon"));
    way.open.send_replace(false);
    let (refused, ()) = tokio::join!(
        node.call(Method::POST, &submit, Some(completed(&[&contents[1]]).to_string())),
        async {
            way.held.recv().await.unwrap();
            node.post(&back, json!({"penalty": false})).await;
            way.open.send_replace(true);
        }
    );
    assert_eq!(refused.status(), 409);
    s3.emptied().await;
    let claimed = node.post("tasks/claim", json!({"commands": ["c"]})).await;
    assert_eq!(claimed["id"], id);
    let submitted = node.post(&submit, completed(&[&contents[1]])).await;
    let url = submitted["artifacts"][0]["url"].as_str().unwrap();
    assert!(node.download(url).await == (200, contents[1].clone()));

    // If the store cannot be reached, the task stays with its worker.
    let id = node.running().await;
    drop(s3);
    let submit = format!("tasks/{id}/result");
    let refused = node.call(Method::POST, &submit, Some(completed(&[b"1"]).to_string())).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.json::<Value>().await.unwrap()["code"], "artifact_upload_failed");
    let answer = node.call(Method::GET, &format!("tasks/{id}"), None).await;
    assert_eq!(answer.json::<Value>().await.unwrap()["status"], "IN_PROGRESS");
    assert_eq!(node.download(url).await.0, 503);
}

#[tokio::test]
async fn a_large_artifact_takes_little_memory() {
    const SIZE: usize = 50_000_000;
    let dir = tempfile::tempdir().unwrap();
    let node = Served::start(
        &dir.path().join("data"),
        &[("CODEQ_HTTP_MAX_BATCH_BODY_BYTES", "100000000")],
    );
    let id = node.running().await;
    let small = node.post(&format!("tasks/{id}/result"), completed(&[b"1"])).await;
    let url = small["artifacts"][0]["url"].as_str().unwrap();
    assert_eq!(node.download(url).await.1, b"1");
    let content = bytes(SIZE);
    let before = peak_memory(&node);
    let id = node.running().await;
    let record = node.post(&format!("tasks/{id}/result"), completed(&[&content])).await;
    assert!(record.to_string().len() < 1_024, "{record}");
    let grown = peak_memory(&node) - before;
    // The body once, as base64, and a few parts of it.
    println!("peak memory grew by {} MB", grown / 1_000_000);
    assert!(grown < 110_000_000, "grown by {grown}");
    let url = record["artifacts"][0]["url"].as_str().unwrap();
    assert!(node.download(url).await == (200, content));
    let after = peak_memory(&node) - before;
    assert!(after < grown + 10_000_000, "a download takes next to nothing, not {after}");
}

/// The server's peak memory in bytes.
fn peak_memory(node: &Served) -> usize {
    let path = format!("/proc/{}/status", node.process.id());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1_024
}
