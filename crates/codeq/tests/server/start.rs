//! The first minute: the greeting and its commands, and every way in which a start is refused.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::server::http::Client;
use crate::server::node::{Node, Process, codeq, refused};
use crate::server::random::Random;
use crate::server::task::Task;

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

/// Runs a command as a person would. Without `curl`, sends the same request itself.
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
    // The first server is paused, so only the second one could change a file.
    node.pause();
    let before = settled(&dir);
    let path = dir.to_str().unwrap();
    let (code, text) = refused(&["dev", "--data-dir", path, "--http-addr", "127.0.0.1:0"]);
    assert_eq!(code, 1, "{text}");
    let told =
        format!("{path} is in use by another process: stop it first, or use another directory");
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
    assert!(text.trim_end().lines().last().unwrap().starts_with("hint: "), "{text}");
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
    assert!(node.greeting.contains("deleted on exit"), "{}", node.greeting);
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
    assert!(!dir.exists());
}

/// In a container the server listens to the network, so the well-known token must not work.
#[test]
fn dev_beyond_this_machine_has_a_token_of_its_own() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let args = ["dev", "--data-dir", dir.to_str().unwrap(), "--http-addr", "0.0.0.0:0"];
    let mut command = codeq(&args);
    let log = std::fs::File::create(dir.with_extension("log")).unwrap();
    let mut process = Process::spawn(command.stderr(log));
    let said = process.greeting();
    let token = said.lines().find_map(|line| line.trim().strip_prefix("Token "));
    let token = token.unwrap().split_whitespace().next().unwrap().to_owned();
    assert!(token.len() > 32 && token.starts_with("dev-"), "{said}");
    assert_eq!(said.matches("   (tenant dev-tenant, every role; anyone who has it").count(), 1);
    let url = said.lines().find_map(|line| line.trim().strip_prefix("API ")).unwrap().trim();
    let port = url.strip_prefix("http://localhost:").unwrap().split('/').next().unwrap();
    let addr = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
    let body = r#"{"command":"a","payload":1}"#;
    assert_eq!(Client::new(addr).post("/tasks", body).unwrap().status, 401);
    assert_eq!(Client::with_token(addr, &token).post("/tasks", body).unwrap().status, 202);
    let commands = curls(&said);
    assert_eq!(commands.len(), 2, "{said}");
    assert!(commands.iter().all(|command| command.contains(&token)), "{said}");
    assert_eq!(paste(&commands[1].replace("localhost", "127.0.0.1")).status, "IN_PROGRESS");
}

#[test]
fn dev_logs_requests_and_its_end() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let log = dir.with_extension("log");
    let mut command = codeq(&["dev", "--data-dir", dir.to_str().unwrap()]);
    command.args(["--http-addr", "127.0.0.1:0"]);
    let mut process = Process::spawn(command.stderr(std::fs::File::create(&log).unwrap()));
    let said = process.greeting();
    let url = said.lines().find_map(|line| line.trim().strip_prefix("API ")).unwrap().trim();
    let addr = url.strip_prefix("http://").unwrap().split('/').next().unwrap().parse().unwrap();
    let mut client = Client::new(addr);
    client.post("/tasks", r#"{"command":"a","payload":1}"#).unwrap();
    client.get("/v1/codeq/task/7?x=1").unwrap();
    drop(client);
    process.signal("INT");
    let (status, said) = process.finished();
    assert_eq!(status.code(), Some(0));
    let expected = format!("\ncodeq has stopped; the data is in {}. Goodbye.\n", dir.display());
    assert_eq!(said, expected);
    let log = std::fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = log.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    assert!(
        lines[0].starts_with("POST /v1/codeq/tasks 202 ") && lines[0].ends_with(" ms"),
        "{log}"
    );
    assert!(lines[1].starts_with("GET /v1/codeq/task/7 404 "), "{log}");
    assert!(lines[1].ends_with(" ms no_such_route"), "{log}");
    assert_eq!(lines.len(), 2, "{log}");
}

#[test]
fn logs_in_json_are_json_from_the_first_line_to_the_last() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let path = dir.to_str().unwrap();
    let all_json = |text: &str| {
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
            .collect();
        assert!(!lines.is_empty());
        for line in &lines {
            for key in ["timestamp", "level", "target", "message"] {
                assert!(line[key].is_string(), "{line}");
            }
        }
        lines
    };
    // From start to stop, with warnings about settings that the operator may not have intended.
    let mut command = codeq(&["serve", "--data-dir", path, "--http-addr", "127.0.0.1:0"]);
    let mut process = Process::spawn(command.stderr(Stdio::piped()));
    let mut stderr = process.stderr();
    let mut text = String::new();
    while !text.contains("ready after") {
        assert!(stderr.read_line(&mut text).unwrap() > 0, "{text}");
    }
    // A second server on the same directory is refused.
    let (code, second) = refused(&["serve", "--data-dir", path, "--http-addr", "127.0.0.1:0"]);
    assert_eq!(code, 1);
    let said = all_json(&second);
    assert!(said.last().unwrap()["message"].as_str().unwrap().contains("in use"), "{second}");
    process.signal("TERM");
    assert_eq!(process.ended().code(), Some(0));
    stderr.read_to_string(&mut text).unwrap();
    let said = all_json(&text);
    assert!(said.iter().any(|line| line["level"] == "WARN"), "{text}");
    assert_eq!(said.last().unwrap()["message"], "stopped");
    // A configuration that is wrong, one line for each problem.
    let file = base.path().join("codeq.yaml");
    std::fs::write(&file, "shard: 1\nmaxBatchSize: 0\n").unwrap();
    let (code, wrong) = refused(&["serve", "--config", file.to_str().unwrap()]);
    assert_eq!((code, all_json(&wrong).len()), (1, 2), "{wrong}");
    // The same in the text format.
    let (code, wrong) =
        refused(&["serve", "--config", file.to_str().unwrap(), "--log-format", "text"]);
    assert_eq!(code, 1);
    assert!(wrong.lines().all(|line| line.contains(" ERROR codeq::config: ")), "{wrong}");
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
    let (_, rest) = line.split_once("ready after ")?;
    rest.split([' ', ';']).find_map(|word| word.parse().ok())
}

#[test]
fn a_kill_during_the_start_leaves_a_directory_that_opens() {
    let mut random = Random::of_this_run();
    let base = tempfile::tempdir().unwrap();
    for number in 0..STARTS {
        // Half of the starts are on a directory in which an earlier start was killed.
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

/// The directory of a process that was just paused, once the system calls it had begun have ended.
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
