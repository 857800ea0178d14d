//! Clients that do everything at once, and record requests and answers in the ledger.

use std::io::{Error, Result};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::server::http::{Answer, Client, is_hang};
use crate::server::ledger::{Key, Ledger, State};
use crate::server::random::Random;
use crate::server::task::{Batch, Claimed, Made, Record, Submitted, Task};

pub const CLIENTS: usize = 8;
/// No lease ends during a run, so a held task must not be handed out again. Heartbeats make leases longer, so that a lost
/// extension is noticed.
const LEASE_SECONDS: u64 = 20_000;
const EXTEND_SECONDS: u64 = 40_000;
/// Nacks cost attempts; nothing is dead-lettered here.
const ATTEMPTS: u32 = 1_000;
/// A client that holds more ends tasks rather than claiming.
const HELD_MAX: usize = 20;

/// One client.
pub struct Worker<'a> {
    http: Client,
    ledger: &'a Mutex<Ledger>,
    random: Random,
    /// Ids that this client has claimed.
    held: Vec<String>,
    /// Ids that this client has made.
    made: Vec<String>,
}

/// Runs the clients until the server is gone. Nothing may go wrong before `stopping` is set.
pub fn run(
    addr: SocketAddr,
    ledger: &Mutex<Ledger>,
    random: &mut Random,
    stopping: &AtomicBool,
    meanwhile: impl FnOnce(),
) {
    let mut held = vec![Vec::new(); CLIENTS];
    for (index, id) in ledger.lock().held().into_iter().enumerate() {
        held[index % CLIENTS].push(id);
    }
    std::thread::scope(|scope| {
        for held in held {
            let random = random.fork();
            let http = Client::new(addr);
            let worker = Worker { http, ledger, random, held, made: Vec::new() };
            scope.spawn(|| worker.work(stopping));
        }
        meanwhile();
    });
}

impl Worker<'_> {
    fn work(mut self, stopping: &AtomicBool) {
        loop {
            let Err(error) = self.step() else { continue };
            assert!(!is_hang(&error), "a request hangs");
            assert!(stopping.load(Ordering::SeqCst), "a request failed: {error}");
            return;
        }
    }

    fn step(&mut self) -> Result<()> {
        match self.random.below(100) {
            0..20 => self.enqueue(),
            20..30 => self.enqueue_with_key(),
            30..40 => self.enqueue_batch(),
            40..43 => self.cancel(),
            _ if self.held.is_empty() => self.claim(),
            43..55 if self.held.len() < HELD_MAX => self.claim(),
            55..63 if self.held.len() < HELD_MAX => self.claim_batch(),
            63..70 => self.heartbeat(),
            70..76 => self.give_back("nack", r#"{"delaySeconds":0,"reason":"later"}"#),
            76..82 => self.give_back("abandon", r#"{"penalty":false}"#),
            82..90 => self.submit_batch(),
            _ => self.submit(),
        }
    }

    fn enqueue(&mut self) -> Result<()> {
        let (command, payload) = self.ledger.lock().fresh(&mut self.random);
        let answer = self.post("/tasks", &new_task(&command, &payload, None))?;
        let task: Task = accepted(&answer, 202).json();
        self.ledger.lock().see(&task);
        self.made.push(task.id);
        Ok(())
    }

    fn enqueue_with_key(&mut self) -> Result<()> {
        let (index, key) = self.key();
        let answer = self.post("/tasks", &key_task(&key))?;
        let task = accepted(&answer, 202).json();
        assert!(key.id.is_none() || answer.is_replayed(), "{} is not known any more", key.key);
        self.ledger.lock().created_by_key(index, &task);
        Ok(())
    }

    /// A key: often one that was used before, perhaps by another client at the same moment.
    fn key(&mut self) -> (usize, Key) {
        let mut ledger = self.ledger.lock();
        let index = match ledger.keys.len() {
            some if some > 0 && self.random.percent(40) => self.random.index(some),
            _ => ledger.fresh_key(&mut self.random),
        };
        (index, ledger.keys[index].clone())
    }

    fn enqueue_batch(&mut self) -> Result<()> {
        let (mut texts, mut keys) = (Vec::new(), Vec::new());
        for _ in 0..2 + self.random.below(8) {
            if self.random.percent(30) {
                let (index, key) = self.key();
                texts.push(key_task(&key));
                keys.push(Some(index));
            } else {
                let (command, payload) = self.ledger.lock().fresh(&mut self.random);
                texts.push(new_task(&command, &payload, None));
                keys.push(None);
            }
        }
        let body = format!(r#"{{"tasks":[{}]}}"#, texts.join(","));
        let answer = self.post("/tasks/batch", &body)?;
        let made: Batch<Made> = accepted(&answer, 200).json();
        assert_eq!(made.results.len(), keys.len());
        let mut ledger = self.ledger.lock();
        for (made, key) in made.results.iter().zip(keys) {
            let task = match made {
                Made::Task(task) => task,
                Made::Error(error) => panic!("{error}"),
            };
            match key {
                Some(index) => ledger.created_by_key(index, task),
                None => drop(ledger.see(task)),
            }
        }
        Ok(())
    }

    fn claim(&mut self) -> Result<()> {
        let body = format!(r#"{{"leaseSeconds":{LEASE_SECONDS}}}"#);
        self.ledger.lock().claims_open += 1;
        let answer = self.post("/tasks/claim", &body)?;
        let tasks = match answer.status {
            204 => Vec::new(),
            _ => vec![accepted(&answer, 200).json()],
        };
        self.claimed(tasks, 1);
        Ok(())
    }

    fn claim_batch(&mut self) -> Result<()> {
        let count = 1 + self.random.index(10);
        let body = format!(r#"{{"count":{count},"leaseSeconds":{LEASE_SECONDS}}}"#);
        self.ledger.lock().claims_open += count;
        let answer = self.post("/tasks/claim/batch", &body)?;
        let tasks = match answer.status {
            204 => Vec::new(),
            _ => accepted(&answer, 200).json::<Claimed>().tasks,
        };
        assert!(tasks.len() <= count);
        self.claimed(tasks, count);
        Ok(())
    }

    fn claimed(&mut self, tasks: Vec<Task>, asked: usize) {
        let mut ledger = self.ledger.lock();
        ledger.claims_open -= asked;
        for task in tasks {
            ledger.claimed(&task);
            self.held.push(task.id);
        }
    }

    fn heartbeat(&mut self) -> Result<()> {
        let id = &self.held[self.random.index(self.held.len())];
        let path = format!("/tasks/{id}/heartbeat");
        let body = format!(r#"{{"extendSeconds":{EXTEND_SECONDS}}}"#);
        let answer = post(&mut self.http, &path, &body)?;
        let answer: Value = accepted(&answer, 200).json();
        let until = answer["leaseUntil"].as_str().unwrap().to_owned();
        self.ledger.lock().extended(id, until);
        Ok(())
    }

    fn give_back(&mut self, how: &str, body: &str) -> Result<()> {
        let id = self.held.swap_remove(self.random.index(self.held.len()));
        let fence = self.ledger.lock().leave(&id, State::Releasing);
        let answer = self.post(&format!("/tasks/{id}/{how}"), body)?;
        let answer: Value = accepted(&answer, 200).json();
        self.ledger.lock().released(&id, fence, answer["status"].as_str().unwrap());
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        let id = self.held.swap_remove(self.random.index(self.held.len()));
        let result = json!({ "of": id, "number": self.random.next() });
        self.ledger.lock().leave(&id, State::Submitting(result.clone()));
        let body = json!({ "status": "COMPLETED", "result": result }).to_string();
        let answer = self.post(&format!("/tasks/{id}/result"), &body)?;
        let record: Record = accepted(&answer, 200).json();
        self.ledger.lock().submitted(&id, &record);
        Ok(())
    }

    fn submit_batch(&mut self) -> Result<()> {
        let many = 1 + self.random.index(self.held.len().min(6));
        let ids = self.held.split_off(self.held.len() - many);
        let mut items = Vec::new();
        for id in &ids {
            let result = json!({ "of": id, "number": self.random.next(), "batch": true });
            self.ledger.lock().leave(id, State::Submitting(result.clone()));
            items.push(json!({ "taskId": id, "status": "COMPLETED", "result": result }));
        }
        let answer = self.post("/tasks/batch/results", &json!({ "results": items }).to_string())?;
        let done: Batch<Submitted> = accepted(&answer, 200).json();
        assert_eq!(done.results.len(), ids.len());
        for (id, done) in ids.iter().zip(&done.results) {
            let record = done.result.as_ref().unwrap_or_else(|| panic!("{answer:?}"));
            assert_eq!(done.task_id, *id);
            self.ledger.lock().submitted(id, record);
        }
        Ok(())
    }

    /// Cancels a task, which may be waiting, running or finished.
    fn cancel(&mut self) -> Result<()> {
        let Some(id) = self.made.pop() else { return Ok(()) };
        self.ledger.lock().cancelling(&id);
        let answer = self.post(&format!("/tasks/{id}/cancel"), "")?;
        match answer.status {
            200 => self.ledger.lock().cancelled(&id),
            202 | 409 => {}
            _ => panic!("{answer:?}"),
        }
        Ok(())
    }

    fn post(&mut self, path: &str, body: &str) -> Result<Answer> {
        post(&mut self.http, path, body)
    }
}

/// "Shutting down" is not an answer: the operation may or may not have happened.
fn post(http: &mut Client, path: &str, body: &str) -> Result<Answer> {
    match http.post(path, body)? {
        answer if answer.status == 503 => Err(Error::other(answer.body)),
        answer => Ok(answer),
    }
}

pub fn key_task(key: &Key) -> String {
    new_task(&key.command, &key.payload, Some(&key.key))
}

fn new_task(command: &str, payload: &str, key: Option<&str>) -> String {
    let key = key.map(|key| format!(r#","idempotencyKey":"{key}""#)).unwrap_or_default();
    format!(r#"{{"command":"{command}","payload":{payload},"maxAttempts":{ATTEMPTS}{key}}}"#)
}

fn accepted(answer: &Answer, status: u16) -> &Answer {
    assert_eq!(answer.status, status, "{answer:?}");
    answer
}
