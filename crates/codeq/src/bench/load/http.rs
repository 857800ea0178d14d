//! The HTTP driver: one connection per create in flight and per credit, with one request at a time on each.

use std::borrow::Cow;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::TcpStream;

use super::super::http::client::Client;
use super::ids::key;
use super::payload;
use super::state::{Failure, RunState};

const BASE: &str = "/v1/codeq";
/// Claims wait this long for a task, in seconds.
const WAIT: u32 = 5;
/// Pause after a claim that the server shed.
const SHED_PAUSE: Duration = Duration::from_millis(10);

type Shared = Rc<RefCell<RunState>>;

/// The server's address.
#[derive(Debug, Clone)]
pub struct Target {
    addr: SocketAddr,
    base: String,
    token: String,
}

/// The fields of a task that the driver needs.
#[derive(Deserialize)]
struct Task<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Claimed<'a> {
    #[serde(borrow)]
    tasks: Vec<Task<'a>>,
}

/// The results of a batch, one per item.
#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(borrow)]
    results: Vec<Item<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    task: Option<Task<'a>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl Target {
    /// The server at an address such as `http://127.0.0.1:8080`; a path in it replaces `/v1/codeq` before all routes.
    pub async fn new(url: &str, token: &str) -> anyhow::Result<Target> {
        let rest = url.strip_prefix("http://").with_context(|| format!("{url} is not http://"))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
        // The first address that accepts connections: `localhost` may have one at which nobody listens.
        let stream = TcpStream::connect(&host).await;
        let stream = stream.with_context(|| format!("cannot reach the server at {host}"))?;
        let addr = stream.peer_addr()?;
        let path = path.trim_end_matches('/');
        let base = if path.is_empty() { BASE.to_owned() } else { format!("/{path}") };
        Ok(Target { addr, base, token: token.to_owned() })
    }

    async fn connect(&self) -> anyhow::Result<Client> {
        let client = Client::connect(self.addr, &self.token).await;
        client.with_context(|| format!("cannot reach the server at {}", self.addr))
    }

    /// Opens all connections. Nothing is sent before the run has started.
    pub async fn open(&self, state: &Shared) -> anyhow::Result<()> {
        let plan = state.borrow().plan.clone();
        let creating = plan.producers * (plan.in_flight / plan.create_batch).max(1);
        let working = plan.workers * (plan.slots / plan.ready_batch).max(1);
        let mut clients = Vec::new();
        for _ in 0..creating + working {
            clients.push(self.connect().await?);
        }
        for (at, client) in clients.into_iter().enumerate() {
            let side = Side { state: Rc::clone(state), client, base: self.base.clone() };
            if at < creating {
                tokio::task::spawn_local(side.until_failed(Side::create));
            } else {
                tokio::task::spawn_local(side.until_failed(Side::work));
            }
        }
        if plan.rate.is_some() {
            tokio::task::spawn_local(tick(Rc::clone(state)));
        }
        Ok(())
    }
}

/// Wakes producers when arrivals are due.
async fn tick(state: Shared) {
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    loop {
        ticks.tick().await;
        state.borrow().room.notify_waiters();
    }
}

/// One connection.
struct Side {
    state: Shared,
    client: Client,
    base: String,
}

impl Side {
    async fn until_failed(mut self, job: impl AsyncFn(&mut Side) -> Result<(), Failure>) {
        if let Err(failure) = job(&mut self).await {
            self.state.borrow_mut().fail(failure);
        }
    }

    /// Creates tasks until the run ends.
    async fn create(&mut self) -> Result<(), Failure> {
        loop {
            let room = Rc::clone(&self.state.borrow().room);
            let room = room.notified();
            let numbers = self.state.borrow_mut().take();
            if numbers.is_empty() {
                room.await;
            } else {
                self.create_these(numbers).await?;
                self.state.borrow_mut().settle();
            }
        }
    }

    async fn create_these(&mut self, numbers: Range<u64>) -> Result<(), Failure> {
        let batch = self.state.borrow().plan.create_batch > 1;
        let tasks: Vec<String> = numbers.clone().map(|number| self.task(number)).collect();
        let (path, body) = if batch {
            ("tasks/batch", format!(r#"{{"tasks":[{}]}}"#, tasks.join(",")))
        } else {
            ("tasks", tasks.concat())
        };
        let path = format!("{}/{path}", self.base);
        let answer = self.client.post(&path, body.as_bytes()).await.map_err(away)?;
        let mut state = self.state.borrow_mut();
        match answer.status {
            200 if batch => {
                let batch: Batch<'_> = parse(answer.body)?;
                let missing = "the response to the batch has no result for it";
                let mut items = batch.results.into_iter();
                for number in numbers {
                    match items.next() {
                        Some(Item { task: Some(task), .. }) => state.created(number, &task.id),
                        Some(Item { error, .. }) => {
                            state.refused(number, error.map_or(missing, RawValue::get));
                        }
                        None => state.refused(number, missing),
                    }
                }
            }
            200..=299 if !batch => {
                let task: Task<'_> = parse(answer.body)?;
                numbers.for_each(|number| state.created(number, &task.id));
            }
            status => {
                let why = said(status, answer.body);
                numbers.for_each(|number| state.refused(number, &why));
            }
        }
        Ok(())
    }

    fn task(&self, number: u64) -> String {
        let state = &mut *self.state.borrow_mut();
        let payload = state.payloads.make(number);
        let (command, payload) = (&state.plan.command, String::from_utf8_lossy(&payload));
        // Encoded as JSON, so the flag's value cannot break out of the string.
        let webhook = serde_json::Value::from(&*state.plan.webhook);
        format!(r#"{{"command":"{command}","payload":{payload},"webhook":{webhook}}}"#)
    }

    /// Claims and completes tasks until the run ends.
    async fn work(&mut self) -> Result<(), Failure> {
        let (batch, most) = {
            let plan = &self.state.borrow().plan;
            (plan.ready_batch, plan.result_batch)
        };
        let mut held: Vec<(u64, String)> = Vec::new();
        loop {
            // Results must not wait long for a full batch.
            let wait = if held.is_empty() { WAIT } else { 0 };
            let before = held.len();
            self.claim(batch, wait, &mut held).await?;
            let came = held.len() - before;
            if came < batch || held.len() >= most {
                while !held.is_empty() {
                    let rest = held.split_off(held.len().min(most));
                    self.submit(&held, most > 1).await?;
                    held = rest;
                }
                self.state.borrow_mut().settle();
            }
        }
    }

    async fn claim(
        &mut self,
        count: usize,
        wait: u32,
        held: &mut Vec<(u64, String)>,
    ) -> Result<(), Failure> {
        let command = self.state.borrow().plan.command.clone();
        let (path, count) = match count {
            1 => ("tasks/claim", String::new()),
            _ => ("tasks/claim/batch", format!(r#""count":{count},"#)),
        };
        let body = format!(r#"{{"commands":["{command}"],{count}"waitSeconds":{wait}}}"#);
        let path = format!("{}/{path}", self.base);
        let answer = self.client.post(&path, body.as_bytes()).await.map_err(away)?;
        let tasks = match answer.status {
            200 if count.is_empty() => vec![parse::<Task<'_>>(answer.body)?],
            200 => parse::<Claimed<'_>>(answer.body)?.tasks,
            204 => Vec::new(),
            // Load shedding is counted, and the claim is repeated after a pause. Any other refusal ends the run.
            status @ (429 | 503) => {
                let why = said(status, answer.body);
                self.state.borrow_mut().error(format!("claim refused: {why}"));
                tokio::time::sleep(SHED_PAUSE).await;
                return Ok(());
            }
            status => {
                return Err(Failure::Refused(format!("claim: {}", said(status, answer.body))));
            }
        };
        let state = &mut *self.state.borrow_mut();
        let now = state.now();
        for task in tasks {
            let payload = task.payload.map_or("", RawValue::get);
            if let Some(number) = payload::number(payload.as_bytes()) {
                state.tracker.assigned(number, key(&task.id), now);
                held.push((number, task.id.into_owned()));
            } else {
                state.error("a task with a payload that is not ours".to_owned());
            }
        }
        Ok(())
    }

    async fn submit(&mut self, held: &[(u64, String)], batch: bool) -> Result<(), Failure> {
        const OUTCOME: &str = r#""status":"COMPLETED","result":{"ok":true}"#;
        let (path, body) = if batch {
            let results: Vec<String> =
                held.iter().map(|(_, id)| format!(r#"{{"taskId":"{id}",{OUTCOME}}}"#)).collect();
            ("batch/results".to_owned(), format!(r#"{{"results":[{}]}}"#, results.join(",")))
        } else {
            let id = held.first().map_or("", |(_, id)| id);
            (format!("{id}/result"), format!("{{{OUTCOME}}}"))
        };
        let path = format!("{}/tasks/{path}", self.base);
        let answer = self.client.post(&path, body.as_bytes()).await.map_err(away)?;
        let mut state = self.state.borrow_mut();
        if answer.status != 200 {
            let why = said(answer.status, answer.body);
            held.iter().for_each(|_| state.error(format!("result refused: {why}")));
            return Ok(());
        }
        if !batch {
            held.iter().for_each(|(number, id)| state.completed(*number, id));
            return Ok(());
        }
        let answers: Batch<'_> = parse(answer.body)?;
        for ((number, id), item) in held.iter().zip(answers.results) {
            match item.error {
                None => state.completed(*number, id),
                Some(error) => state.error(format!("result refused: {}", error.get())),
            }
        }
        Ok(())
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        let text = String::from_utf8_lossy(body);
        Failure::Refused(format!("an answer was not understood: {error}: {text}"))
    })
}

fn away(error: anyhow::Error) -> Failure {
    Failure::Away(format!("{error:#}"))
}

/// The `error` of a refusal.
fn said(status: u16, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Problem {
        error: String,
    }
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) => format!("{status} {}", problem.error),
        Err(_) => status.to_string(),
    }
}
