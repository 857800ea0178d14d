//! Backups of a running server, and of one that is killed meanwhile.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cli::client::{alone, fails, said};
use crate::server::artifacts::{BUCKET, S3, address};
use crate::server::http::Client;
use crate::server::node::{Process, codeq};
use crate::server::task::Task;

const OPERATOR: &str = "the-operators-own-token";
const ADMIN: &str = "an-admins-token";
const PRODUCERS: usize = 3;

/// `codeq serve` on a directory; everything else is in its environment.
fn serve(dir: &Path, env: &[(&str, &str)]) -> (Process, SocketAddr) {
    let token = |token: &str, scope: &str| json!({"token": token, "subject": scope, "tenant": "t", "scopes": [scope]});
    let tokens = json!([token(OPERATOR, "codeq:operator"), token(ADMIN, "codeq:admin")]);
    let mut command = codeq(&["serve", "--data-dir", dir.to_str().unwrap()]);
    command.args(["--http-addr", "127.0.0.1:0", "--log-level", "info,codeq::http=warn"]);
    command.env("CODEQ_PRODUCER_AUTH_STATIC_TOKENS", tokens.to_string());
    command.env("CODEQ_ALLOW_PRODUCER_AS_WORKER", "true").env("CODEQ_SHARDS", "2");
    command.env("CODEQ_LOG_FORMAT", "text");
    command.envs(env.iter().copied()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command);
    let addr = address(&mut process, " ms on ").parse().unwrap();
    (process, addr)
}

fn file_url(dir: &Path) -> String {
    format!("file://{}", dir.display())
}

/// Enqueues until `stop` is set, and claims and finishes a task after every third. Adds the acknowledged tasks to
/// `acknowledged`.
fn work(addr: SocketAddr, stop: &AtomicBool, acknowledged: &Mutex<Vec<String>>) {
    let mut client = Client::with_token(addr, OPERATOR);
    let mut number = 0;
    // A request that the kill cuts off was not acknowledged.
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        let body = format!(r#"{{"command":"work","payload":{{"n":{number}}}}}"#);
        let Ok(answer) = client.post("/tasks", &body) else { return };
        assert_eq!(answer.status, 202, "{answer:?}");
        acknowledged.lock().push(answer.json::<Task>().id);
        if number % 3 == 0 {
            let Ok(answer) = client.post("/tasks/claim", r#"{"commands":["work"]}"#) else {
                return;
            };
            let id = answer.json::<Task>().id;
            let done = r#"{"status":"COMPLETED","result":{}}"#;
            if client.post(&format!("/tasks/{id}/result"), done).is_err() {
                return;
            }
        }
    }
}

fn run(args: &[&str], env: &[(&str, &str)]) -> (bool, String) {
    let output = codeq(args).envs(env.iter().copied()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert!(!text.contains(OPERATOR), "a token is shown: {text}");
    (output.status.success(), text)
}

fn backup(addr: SocketAddr) -> (bool, String) {
    run(&["backup", "--url", &format!("http://{addr}")], &[("CODEQ_TOKEN", OPERATOR)])
}

/// The place that the command names.
fn place(said: &str) -> String {
    let made: Value = serde_json::from_str(said).unwrap();
    made["location"].as_str().unwrap().to_owned()
}

fn assert_all(addr: SocketAddr, ids: &[String]) {
    let mut client = Client::with_token(addr, OPERATOR);
    for id in ids {
        assert_eq!(client.get(&format!("/tasks/{id}")).unwrap().status, 200, "{id} is lost");
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_backup_under_load_holds_everything_acknowledged_before_it() {
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    let target = file_url(&at("backups"));
    let (process, addr) = serve(&at("data"), &[("CODEQ_BACKUP_TARGET", &target)]);
    let (stop, acknowledged) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let (before, said) = std::thread::scope(|scope| {
        for _ in 0..PRODUCERS {
            scope.spawn(|| work(addr, &stop, &acknowledged));
        }
        until("no load", || acknowledged.lock().len() > 200);
        let before = acknowledged.lock().clone();
        let (made, said) = backup(addr);
        assert!(made, "{said}");
        // The server kept working during the backup, and still does.
        let during = acknowledged.lock().len();
        until("it does not go on", || acknowledged.lock().len() > during);
        process.kill();
        stop.store(true, Ordering::SeqCst);
        (before, said)
    });
    let found: Value = serde_json::from_str(&said).unwrap();
    assert!(found["shards"] == 2 && found["bytes"].as_u64() > Some(0), "{said}");
    let made = place(&said);
    assert!(Path::new(&made).starts_with(at("backups")), "{said}");
    for dir in [made.as_str(), at("restored").to_str().unwrap()] {
        if dir != made {
            let (restored, said) = run(&["restore", &made, dir], &[]);
            assert!(restored, "{said}");
        }
        let (sound, said) = run(&["fsck", dir], &[]);
        assert!(sound, "{said}");
    }
    let (_process, addr) = serve(&at("restored"), &[]);
    assert_all(addr, &before);
}

#[test]
fn a_backup_needs_an_operator_and_a_target() {
    let base = tempfile::tempdir().unwrap();
    let (_process, addr) = serve(&base.path().join("data"), &[]);
    let route = "/v1/codeq/admin/backup";
    let refused = Client::with_token(addr, ADMIN).post(route, "").unwrap();
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.body.contains("codeq:operator"), "{refused:?}");
    let missing = Client::with_token(addr, OPERATOR).post(route, "").unwrap();
    assert_eq!(missing.status, 409, "{missing:?}");
    assert!(missing.body.contains("set backup.target to file:///directory"), "{missing:?}");
    let named = Client::with_token(addr, OPERATOR).post(route, r#"{"target":"/etc"}"#).unwrap();
    assert_eq!(named.status, 400, "a request does not choose the place: {named:?}");
    let url = format!("http://{addr}");
    let ask = |args: &[&str], token: &str| {
        let mut command = alone(base.path(), &[&["backup"], args].concat());
        said(command.env("CODEQ_TOKEN", token), "")
    };
    fails(&ask(&["--url", &url], ADMIN), 6, "codeq:operator");
    fails(&ask(&["--url", &url], ""), 6, "missing_token");
    fails(&ask(&["--url", "http://127.0.0.1:9"], OPERATOR), 1, "unavailable");
    fails(&ask(&["--url", &url, "data", "target"], OPERATOR), 2, "without a server");
    let file = base.path().join("token");
    std::fs::write(&file, format!("{OPERATOR}\n")).unwrap();
    let file = file.to_str().unwrap();
    fails(&ask(&["--url", &url, "--token-file", file], ""), 4, "backup_not_configured");
    // A profile knows the server and the token.
    let add = ["profile", "add", "prod", "--url", &url, "--token-file", file];
    assert_eq!(said(&mut alone(base.path(), &add), "").code, 0);
    fails(&ask(&["--profile", "prod"], ""), 4, "backup_not_configured");
}

#[test]
fn a_failed_backup_says_when_to_try_again() {
    let base = tempfile::tempdir().unwrap();
    let target = base.path().join("backups");
    let env = [("CODEQ_BACKUP_TARGET", &*file_url(&target))];
    let (_process, addr) = serve(&base.path().join("data"), &env);
    let _ = std::fs::remove_dir_all(&target);
    std::fs::write(&target, "not a directory").unwrap();
    let failed = Client::with_token(addr, OPERATOR).post("/v1/codeq/admin/backup", "").unwrap();
    assert_eq!(failed.status, 503, "{failed:?}");
    assert!(
        failed.body.contains("backup_failed") && failed.header("retry-after").is_some(),
        "{failed:?}"
    );
}

/// Whenever the server is killed, the backup is either complete or refused as incomplete.
#[test]
fn a_killed_backup_is_whole_or_refused() {
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    let target = file_url(&at("backups"));
    for round in 0..4 {
        let (process, addr) = serve(&at("data"), &[("CODEQ_BACKUP_TARGET", &target)]);
        let body = r#"{"command":"work","payload":1}"#;
        assert_eq!(Client::with_token(addr, OPERATOR).post("/tasks", body).unwrap().status, 202);
        let asking = std::thread::spawn(move || backup(addr));
        until("no backup", || backups(&at("backups")).len() > round);
        process.kill();
        let (answered, _) = asking.join().unwrap();
        let dir = backups(&at("backups")).pop().unwrap();
        let restored = at(&format!("restored-{round}"));
        let args = ["restore", dir.to_str().unwrap(), restored.to_str().unwrap()];
        let (done, said) = run(&args, &[]);
        assert!(done || !answered, "it was answered: {said}");
        let half = said.contains("unfinished backup") || said.contains("not a complete backup");
        assert!(done || half, "{said}");
        if done {
            let (sound, said) = run(&["fsck", restored.to_str().unwrap()], &[]);
            assert!(sound, "{said}");
        }
    }
}

/// The backups in a directory, oldest first.
fn backups(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_in_a_bucket_is_restored() {
    let s3 = S3::start().await;
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    let target = format!("s3://{BUCKET}/some/where");
    let cloud = [
        ("AWS_ENDPOINT_URL", s3.url.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_REGION", "us-east-1"),
    ];
    let mut env = vec![("CODEQ_BACKUP_TARGET", target.as_str())];
    env.extend(cloud);
    let (process, addr) = serve(&at("data"), &env);
    let body = r#"{"command":"work","payload":1}"#;
    let answer = Client::with_token(addr, OPERATOR).post("/tasks", body).unwrap();
    let id = answer.json::<Task>().id;
    let (made, said) = backup(addr);
    assert!(made && said.contains("\"tasks\": 1"), "{said}");
    process.kill();
    let place = place(&said);
    assert!(place.starts_with(&target), "{said}");
    let keys = s3.keys().await;
    assert!(keys.iter().any(|key| key.ends_with("/MANIFEST")), "{keys:?}");
    assert!(!at("data").join("backup.tmp").exists());
    let restored = at("restored");
    let args = ["restore", &place, restored.to_str().unwrap()];
    let (done, said) = run(&args, &cloud);
    assert!(done, "{said}");
    // The directory that holds the backups is not a backup.
    let (done, said) = run(&["restore", &target, at("none").to_str().unwrap()], &cloud);
    assert!(!done && said.contains("not a complete backup"), "{said}");
    let (sound, said) = run(&["fsck", restored.to_str().unwrap()], &[]);
    assert!(sound, "{said}");
    let (_process, addr) = serve(&restored, &[]);
    assert_all(addr, &[id]);
    let answer: Value =
        Client::with_token(addr, OPERATOR).get("/v1/codeq/admin/queues").unwrap().json();
    assert_eq!(answer["codeq:q:work:t:pending:0"], 1, "{answer}");
}
