//! Result callbacks across SIGKILL: every task that was acknowledged as finished has its callback delivered, under one
//! id, however often the server dies.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::http::Client;
use crate::server::node::{Node, codeq};
use crate::server::random::Random;

/// Cycles of one test run; `make campaign` asks for more.
const KILLS: u64 = 4;
/// Longer than delivering the remaining callbacks takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a receiver has seen.
#[derive(Default)]
struct Seen {
    /// Task → its message ids.
    ids: BTreeMap<String, BTreeSet<String>>,
    /// Tasks whose callback was accepted.
    taken: BTreeSet<String>,
    calls: u64,
}

/// A receiver that misbehaves until it is told to behave.
struct Receiver {
    addr: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    misbehaves: Arc<AtomicBool>,
}

impl Receiver {
    fn start(random: &mut Random) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (seen, misbehaves) = (Arc::default(), Arc::new(AtomicBool::new(true)));
        let receiver = Receiver { addr, seen, misbehaves };
        let (seen, misbehaves) = (Arc::clone(&receiver.seen), Arc::clone(&receiver.misbehaves));
        let mut random = random.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, misbehaves) = (Arc::clone(&seen), Arc::clone(&misbehaves));
                random.next();
                let random = random.clone();
                std::thread::spawn(move || serve(stream, &seen, &misbehaves, random));
            }
        });
        receiver
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Seen>, misbehaves: &AtomicBool, mut random: Random) {
    let mut stream = BufReader::new(stream);
    while let Some((id, task)) = read(&mut stream) {
        let bad = misbehaves.load(Ordering::SeqCst) && random.percent(30);
        {
            let mut seen = seen.lock().unwrap();
            seen.calls += 1;
            seen.ids.entry(task.clone()).or_default().insert(id);
        }
        let answer = match random.below(3) {
            _ if !bad => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            0 => "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
            1 => "HTTP/1.1 429 No\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n",
            _ => return,
        };
        if !bad {
            seen.lock().unwrap().taken.insert(task);
        }
        if stream.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// The id and the task of the next call.
fn read(stream: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut length, mut id) = (0, String::new());
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            if line == "\r\n" {
                break;
            }
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "webhook-id" => id = value.to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    let body: Value = serde_json::from_slice(&body).unwrap();
    Some((id, body["taskId"].as_str().unwrap().to_owned()))
}

/// Creates and finishes tasks until the server is gone. Returns those whose finish was acknowledged.
fn work(addr: SocketAddr, hook: &str, mut random: Random) -> Vec<String> {
    let mut client = Client::new(addr);
    let mut ended = Vec::new();
    let task =
        json!({"command": "c", "payload": {}, "webhook": hook, "maxAttempts": 1}).to_string();
    loop {
        let Ok(made) = client.post("/tasks", &task) else { return ended };
        let id = made.json::<Value>()["id"].as_str().unwrap().to_owned();
        if random.percent(10) {
            let Ok(answer) = client.post(&format!("/tasks/{id}/cancel"), "") else { return ended };
            // Another client may have claimed it, and then finishes it.
            if answer.status == 200 {
                ended.push(id);
            }
            continue;
        }
        let Ok(claimed) = client.post("/tasks/claim", r#"{"commands":["c"]}"#) else {
            return ended;
        };
        if claimed.status != 200 {
            continue;
        }
        let id = claimed.json::<Value>()["id"].as_str().unwrap().to_owned();
        let (verb, body) = match random.below(4) {
            0 => ("nack", "{}"),
            1 => ("abandon", "{}"),
            _ => ("result", r#"{"status":"COMPLETED"}"#),
        };
        let Ok(answer) = client.post(&format!("/tasks/{id}/{verb}"), body) else { return ended };
        if answer.status == 200 {
            ended.push(id);
        }
    }
}

fn cycle(dir: &Path, hook: &str, random: &mut Random) -> Vec<String> {
    let node = Node::dev(dir, &["--shards", "2"]);
    let addr = node.addr;
    let life = Duration::from_millis(50 + random.below(700));
    std::thread::scope(|scope| {
        let works: Vec<_> = (0..3)
            .map(|_| {
                random.next();
                let random = random.clone();
                scope.spawn(move || work(addr, hook, random))
            })
            .collect();
        std::thread::sleep(life);
        node.kill();
        works.into_iter().flat_map(|work| work.join().unwrap()).collect()
    })
}

/// Resends the pending deliveries until none is left.
fn tell_all(node: &Node) {
    const DELIVERIES: &str = "/v1/codeq/admin/webhooks/deliveries";
    let mut client = node.client();
    let until = Instant::now() + PATIENCE;
    loop {
        let list: Value = client.get(&format!("{DELIVERIES}?limit=1000")).unwrap().json();
        let items = list["items"].as_array().unwrap();
        if items.is_empty() && list.get("nextCursor").is_none() {
            return;
        }
        assert!(Instant::now() < until, "still waiting: {items:?}");
        for item in items.iter().filter(|item| item["attempts"].as_u64().is_some()) {
            let id = item["id"].as_str().unwrap();
            client.post(&format!("{DELIVERIES}/{id}/resend"), "").unwrap();
        }
    }
}

#[test]
fn callbacks_survive_sigkill() {
    let kills = std::env::var("CODEQ_CALLBACK_KILLS").ok();
    let kills = kills.map_or(KILLS, |text| text.parse().expect("CODEQ_CALLBACK_KILLS is a number"));
    let mut random = Random::of_this_run();
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let receiver = Receiver::start(&mut random);
    let hook = format!("http://{}/hook", receiver.addr);
    let mut ended = BTreeSet::new();
    for number in 1..=kills {
        ended.extend(cycle(&dir, &hook, &mut random));
        println!("kill {number}: {} tasks ended", ended.len());
    }
    receiver.misbehaves.store(false, Ordering::SeqCst);
    let node = Node::dev(&dir, &[]);
    tell_all(&node);
    node.kill();
    let seen = receiver.seen.lock().unwrap();
    let untold: Vec<_> = ended.difference(&seen.taken).collect();
    assert!(untold.is_empty(), "{} of {} were never told: {untold:?}", untold.len(), ended.len());
    for (task, ids) in &seen.ids {
        assert_eq!(ids.len(), 1, "{task} was told under several ids: {ids:?}");
    }
    assert!(!ended.is_empty());
    let (calls, told) = (seen.calls, seen.taken.len());
    println!("{kills} kills: {} ended, {told} told in {calls} calls", ended.len());
    let found = codeq(&["fsck", dir.to_str().unwrap()]).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
}
