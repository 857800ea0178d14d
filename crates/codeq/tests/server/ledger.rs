//! What the server has acknowledged, kept in the process that survives it.
//!
//! Clients record each request before they send it, and its answer afterwards. A request without an answer at a kill is in
//! doubt: the next read decides, and what was read must then stay.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::server::random::Random;
use crate::server::task::{Record, Task};

#[derive(Default)]
pub struct Ledger {
    pub tasks: BTreeMap<String, Entry>,
    /// Every payload ever sent is unique, so two tasks with the same payload are one too many.
    payloads: BTreeMap<String, Sent>,
    pub keys: Vec<Key>,
    /// How many tasks unanswered claims have asked for.
    pub claims_open: usize,
    /// Tasks that requests named since the last check.
    touched: BTreeSet<String>,
    numbers: u64,
}

pub struct Entry {
    pub command: String,
    pub payload: String,
    pub state: State,
    pub fence: u64,
    lease_until: String,
    cancel_sent: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Nobody has it.
    Waiting,
    /// A claim was answered.
    Held,
    /// Its worker gives it back: held, waiting, or claimed by another already.
    Releasing,
    /// Its worker ends it: held or completed.
    Submitting(Value),
    Completed(Value),
    Cancelled,
}

struct Sent {
    command: String,
    id: Option<String>,
}

#[derive(Clone)]
pub struct Key {
    pub key: String,
    pub command: String,
    pub payload: String,
    /// Known since the first answer.
    pub id: Option<String>,
}

/// Totals of a ledger.
#[derive(Debug, Clone, Copy, Default)]
pub struct Count {
    pub tasks: usize,
    pub completed: usize,
    pub cancelled: usize,
    pub held: usize,
    pub keys: usize,
}

impl Ledger {
    /// A command and a new payload to send. A server that parses and rewrites the payload would change it.
    pub fn fresh(&mut self, random: &mut Random) -> (String, String) {
        self.numbers += 1;
        let (n, pad) = (self.numbers, "x".repeat(random.index(200)));
        let payload =
            format!(r#"{{"n" : {n},"big":9007199254740993, "real":1.50,"pad":"é{pad}"}}"#);
        let command = ["Resize", "mail", "report"][random.index(3)].to_owned();
        let sent = Sent { command: command.clone(), id: None };
        self.payloads.insert(payload.clone(), sent);
        (command, payload)
    }

    pub fn fresh_key(&mut self, random: &mut Random) -> usize {
        let (command, payload) = self.fresh(random);
        let key = format!("key-{}", self.numbers);
        self.keys.push(Key { key, command, payload, id: None });
        self.keys.len() - 1
    }

    /// The server showed a task: it must be one of ours, and unchanged.
    pub fn see(&mut self, task: &Task) -> &mut Entry {
        let sent = self.payloads.get_mut(&task.payload);
        let sent = sent.unwrap_or_else(|| panic!("nobody sent this: {task:?}"));
        assert_eq!(sent.command, task.command, "{task:?}");
        let id = sent.id.get_or_insert_with(|| task.id.clone());
        assert_eq!(*id, task.id, "two tasks of one enqueue");
        self.touched.insert(task.id.clone());
        let entry = self.tasks.entry(task.id.clone()).or_insert_with(|| Entry {
            command: task.command.clone(),
            payload: task.payload.clone(),
            state: State::Waiting,
            fence: 0,
            lease_until: String::new(),
            cancel_sent: false,
        });
        assert_eq!(entry.payload, task.payload, "the payload of {} changed", task.id);
        assert_eq!(entry.command, task.command, "the command of {} changed", task.id);
        entry
    }

    pub fn created_by_key(&mut self, index: usize, task: &Task) {
        let key = &mut self.keys[index];
        let id = key.id.get_or_insert_with(|| task.id.clone());
        assert_eq!(*id, task.id, "{} made two tasks", key.key);
        self.see(task);
    }

    pub fn claimed(&mut self, task: &Task) {
        let entry = self.see(task);
        let free = matches!(entry.state, State::Waiting | State::Releasing);
        assert!(free, "{} was handed out while {:?}", task.id, entry.state);
        entry.hold(task);
    }

    /// The task is about to be returned or finished.
    pub fn leave(&mut self, id: &str, state: State) -> u64 {
        let entry = self.entry(id);
        assert_eq!(entry.state, State::Held, "{id}");
        entry.state = state;
        entry.fence
    }

    /// The return of the task was acknowledged; another worker may have it by now.
    pub fn released(&mut self, id: &str, fence: u64, answer: &str) {
        let entry = self.entry(id);
        let state = match answer {
            "requeued" => State::Waiting,
            "cancelled" if entry.cancel_sent => State::Cancelled,
            other => panic!("{id} was given back and is {other}"),
        };
        if entry.fence == fence && entry.state == State::Releasing {
            entry.state = state;
        }
    }

    pub fn submitted(&mut self, id: &str, record: &Record) {
        let entry = self.entry(id);
        let State::Submitting(result) = entry.state.clone() else {
            panic!("{id} was submitted while {:?}", entry.state);
        };
        assert_eq!((record.task_id.as_str(), record.status.as_str()), (id, "COMPLETED"));
        assert_eq!(record.result.as_ref(), Some(&result));
        entry.state = State::Completed(result);
    }

    pub fn extended(&mut self, id: &str, until: String) {
        self.entry(id).lease_until = until;
    }

    pub fn cancelling(&mut self, id: &str) {
        self.entry(id).cancel_sent = true;
    }

    pub fn cancelled(&mut self, id: &str) {
        let entry = self.entry(id);
        let free = matches!(entry.state, State::Waiting | State::Releasing);
        assert!(free, "{id} was cancelled while {:?}", entry.state);
        entry.state = State::Cancelled;
    }

    /// The restarted server shows a task, which settles what was in doubt.
    pub fn observe(&mut self, task: &Task, record: Option<&Record>) {
        let mut orphan = false;
        let id = &task.id;
        let entry = self.see(task);
        let fence = task.fence.unwrap_or(0);
        let result = record.and_then(|record| record.result.as_ref());
        match (&entry.state, task.status.as_str()) {
            (State::Completed(known) | State::Submitting(known), "COMPLETED") => {
                assert_eq!(result, Some(known), "{id} has another result");
                entry.state = State::Completed(known.clone());
            }
            (State::Held | State::Submitting(_) | State::Releasing, "IN_PROGRESS")
                if fence == entry.fence =>
            {
                let until = task.lease_until.as_ref().unwrap();
                assert!(*until >= entry.lease_until, "the lease of {id} became shorter");
                entry.state = State::Held;
            }
            (State::Waiting | State::Releasing, "IN_PROGRESS") => {
                entry.hold(task);
                orphan = true;
            }
            (State::Waiting | State::Releasing, "PENDING") => entry.state = State::Waiting,
            (State::Waiting | State::Releasing | State::Cancelled, "FAILED")
                if entry.cancel_sent =>
            {
                assert_eq!(task.error.as_deref(), Some("CANCELLED"), "{id}");
                assert_eq!(record.and_then(|it| it.error.as_deref()), Some("CANCELLED"), "{id}");
                entry.state = State::Cancelled;
            }
            (state, _) => panic!("acknowledged as {state:?}, found {task:?} {record:?}"),
        }
        if orphan {
            let left = self.claims_open.checked_sub(1);
            self.claims_open = left.unwrap_or_else(|| panic!("{id} runs, but nobody claimed it"));
        }
    }

    /// What to read after a restart: all tasks named since the last check, and some older ones.
    pub fn take_touched(&mut self, older: usize, random: &mut Random) -> Vec<String> {
        let mut ids = std::mem::take(&mut self.touched);
        if ids.len() + older >= self.tasks.len() {
            ids.extend(self.tasks.keys().cloned());
        } else {
            let all: Vec<&String> = self.tasks.keys().collect();
            ids.extend((0..older).map(|_| all[random.index(all.len())].clone()));
        }
        ids.into_iter().collect()
    }

    pub fn held(&self) -> Vec<String> {
        let held = self.tasks.iter().filter(|(_, entry)| entry.state == State::Held);
        held.map(|(id, _)| id.clone()).collect()
    }

    pub fn count(&self) -> Count {
        let mut count =
            Count { tasks: self.tasks.len(), keys: self.keys.len(), ..Count::default() };
        for entry in self.tasks.values() {
            match entry.state {
                State::Completed(_) => count.completed += 1,
                State::Cancelled => count.cancelled += 1,
                State::Held => count.held += 1,
                _ => {}
            }
        }
        count
    }

    fn entry(&mut self, id: &str) -> &mut Entry {
        self.touched.insert(id.to_owned());
        self.tasks.get_mut(id).unwrap_or_else(|| panic!("{id} is not in the ledger"))
    }
}

impl Entry {
    fn hold(&mut self, task: &Task) {
        let fence = task.fence.expect("what runs has a fence");
        assert!(fence > self.fence, "the fence of {} did not grow", task.id);
        assert_eq!(task.worker_id.as_deref(), Some("worker-dev"));
        (self.state, self.fence) = (State::Held, fence);
        self.lease_until = task.lease_until.clone().unwrap();
    }
}
