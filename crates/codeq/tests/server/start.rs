//! The first minute: the greeting and its commands, and every way in which a start is refused.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::http::Client;
use crate::node::{Node, Process, codeq, refused};
use crate::random::Random;
use crate::task::Task;

const STARTS: usize = 20;

#[test]
fn the_commands_of_the_greeting_work() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let node = Node::dev(&dir, &[]);
    let said = &node.greeting;
    for needed in [&format!("http://{}/v1/codeq", node.addr), "dev-token", dir.to_str().unwrap()] {
        assert!(said.contains(needed), "{needed} is not in: {said}");
    }
    let commands = curls(said);
    assert_eq!(commands.len(), 2, "{said}");
    let made = paste(&commands[0]);
    assert_eq!((made.command.as_str(), made.status.as_str()), ("hello", "PENDING"));
    assert_eq!(made.payload, r#"{"name":"world"}"#);
    let claimed = paste(&commands[1]);
    assert_eq!((&claimed.id, claimed.status.as_str()), (&made.id, "IN_PROGRESS"));
}

/// The `curl` commands of a text, with the lines that continue them.
fn curls(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    joined
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("curl "))
        .map(str::to_owned)
        .collect()
}

/// Runs a command as a person would; without `curl`, asks the same by hand.
fn paste(command: &str) -> Task {
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if has_curl {
        let output = Command::new("sh").args(["-c", command]).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        return serde_json::from_slice(&output.stdout).unwrap();
    }
    let url = command.split(' ').find_map(|word| word.strip_prefix("http://")).unwrap();
    let (addr, path) = url.split_once('/').unwrap();
    let body = command.split_once("-d '").unwrap().1.trim_end_matches('\'');
    let answer = Client::new(addr.parse().unwrap()).post(&format!("/{path}"), body).unwrap();
    answer.json()
}

#[test]
fn a_second_server_on_the_same_directory_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let node = Node::dev(&dir, &[]);
    let made = node.client().post("/tasks", r#"{"command":"a","payload":1}"#).unwrap();
    assert_eq!(made.status, 202);
    // Held still, it cannot be the one that changes a file.
    node.pause();
    let before = settled(&dir);
    let path = dir.to_str().unwrap();
    let (code, text) = refused(&["dev", "--data-dir", path, "--http-addr", "127.0.0.1:0"]);
    assert_eq!(code, 1, "{text}");
    let told = format!("{path} is in use by another process: stop it first, or use another directory");
    assert!(text.contains(&told), "{text}");
    assert!(before == contents(&dir).unwrap(), "the refused server touched the data");
    node.resume();
    let id = made.json::<Task>().id;
    assert_eq!(node.client().get(&format!("/tasks/{id}")).unwrap().status, 200);
}

#[test]
fn a_port_that_is_taken_is_named_and_nothing_is_made() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let args = ["dev", "--data-dir", dir.to_str().unwrap(), "--http-addr", &addr];
    let (code, text) = refused(&args);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&format!("cannot listen on {addr}")), "{text}");
    assert!(!dir.exists());
}

#[test]
fn an_ephemeral_server_leaves_nothing() {
    let base = tempfile::tempdir().unwrap();
    let beside = tempfile::tempdir().unwrap();
    let path = beside.path().join("log");
    let log = std::fs::File::create(&path).unwrap();
    let mut command = codeq(&["dev", "--ephemeral", "--http-addr", "127.0.0.1:0"]);
    command.env("TMPDIR", base.path()).current_dir(base.path());
    let node = Node::greeted(command.stderr(log), &path);
    assert!(node.greeting.contains("thrown away"), "{}", node.greeting);
    let made = node.client().post("/tasks", r#"{"command":"a","payload":1}"#).unwrap();
    assert_eq!(made.status, 202);
    assert!(std::fs::read_dir(base.path()).unwrap().count() > 0);
    node.terminate();
    assert_eq!(node.ended().code(), Some(0));
    assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
}

#[test]
fn a_server_for_the_network_without_authentication_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let path = dir.to_str().unwrap();
    let (code, text) = refused(&["serve", "--data-dir", path, "--http-addr", "0.0.0.0:0"]);
    assert_eq!(code, 1, "{text}");
    for needed in ["0.0.0.0:0", "nobody could authenticate", "producerAuth", "workerAuth"] {
        assert!(text.contains(needed), "{needed} is not in: {text}");
    }
    let (code, text) = refused(&["dev", "--data-dir", path, "--http-addr", "0.0.0.0:0"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("loopback"), "{text}");
    assert!(!dir.exists());
}

#[test]
fn serve_with_static_tokens_works_from_enqueue_to_result() {
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("codeq.yaml");
    let yaml = format!(
        "dataDir: {}\nhttpAddr: 127.0.0.1:0\n\
         producerAuth:\n  staticTokens:\n    - {{token: for-producers, subject: shop, tenant: acme}}\n\
         workerAuth:\n  staticTokens:\n    - token: for-workers\n      subject: resizer\n      \
         tenant: acme\n      eventTypes: [resize]\n      scopes: ['codeq:claim', 'codeq:result']\n",
        base.path().join("data").display()
    );
    std::fs::write(&file, yaml).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut command = codeq(&["serve", "--config", file.to_str().unwrap()]);
    let mut process = Process::spawn(command.stderr(Stdio::piped()));
    let mut stderr = process.stderr().lines();
    let addr = stderr.find_map(|line| served(&line.unwrap()));
    let addr = addr.expect("it says where it serves");
    let logs = std::thread::spawn(move || stderr.map_while(Result::ok).count());

    let mut producer = Client::with_token(addr, "for-producers");
    let mut worker = Client::with_token(addr, "for-workers");
    let body = r#"{"command":"resize","payload":{"w":9007199254740993}}"#;
    assert_eq!(Client::new(addr).post("/tasks", body).unwrap().status, 401);
    assert_eq!(worker.post("/tasks", body).unwrap().status, 403);
    let answer = producer.post("/tasks", body).unwrap();
    assert_eq!(answer.status, 202, "{answer:?}");
    let id = answer.json::<Task>().id;
    let other = worker.post("/tasks/claim", r#"{"commands":["mail"]}"#).unwrap();
    assert_eq!(other.status, 403, "{other:?}");
    let claimed: Task = worker.post("/tasks/claim", "").unwrap().json();
    assert_eq!((&claimed.id, claimed.worker_id.as_deref()), (&id, Some("resizer")));
    let done = r#"{"status":"COMPLETED","result":{"ok":true}}"#;
    let answer = worker.post(&format!("/tasks/{id}/result"), done).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let result: Value = producer.get(&format!("/tasks/{id}/result")).unwrap().json();
    assert_eq!(result["result"]["result"]["ok"], true);

    process.signal("TERM");
    assert_eq!(process.ended().code(), Some(0));
    logs.join().unwrap();
}

/// The address in the line that says that the server is ready.
fn served(line: &str) -> Option<SocketAddr> {
    let rest = line.strip_prefix("codeq: ready after ")?;
    rest.split([' ', ';']).find_map(|word| word.parse().ok())
}

#[test]
fn a_kill_during_the_start_leaves_a_directory_that_opens() {
    let mut random = Random::of_this_run();
    let base = tempfile::tempdir().unwrap();
    for number in 0..STARTS {
        // Half of them on a directory that a start was killed in before.
        let dir = base.path().join((number / 2).to_string());
        let path = dir.to_str().unwrap();
        let mut command = codeq(&["dev", "--data-dir", path, "--http-addr", "127.0.0.1:0"]);
        let process = Process::spawn(command.stderr(Stdio::null()));
        std::thread::sleep(Duration::from_millis(random.below(31)));
        process.kill();
        if number % 2 == 1 {
            let node = Node::dev(&dir, &[]);
            let body = format!(r#"{{"command":"a","payload":{number}}}"#);
            assert_eq!(node.client().post("/tasks", &body).unwrap().status, 202);
        }
    }
}

/// The directory of a process that was just paused: what it had begun may still end.
fn settled(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    loop {
        if let (Ok(one), Ok(two)) = (contents(dir), contents(dir))
            && one == two
        {
            return one;
        }
    }
}

/// Everything in a directory, to see whether it changed.
fn contents(dir: &Path) -> std::io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(contents(&path)?);
        } else {
            let bytes = std::fs::read(&path)?;
            found.insert(path, bytes);
        }
    }
    Ok(found)
}
