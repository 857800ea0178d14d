//! The end of a campaign: the remaining tasks are finished, and everything is accounted for.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use parking_lot::Mutex;
use serde_json::json;

use crate::server::check::{after_restart, in_parallel, list, observe, repeat_keys};
use crate::server::http::Client;
use crate::server::ledger::{Count, Ledger, State};
use crate::server::random::Random;
use crate::server::task::{Claimed, History, Record};

/// Claims and completes what is left; then every task that was ever acknowledged is finished, exactly once.
pub fn finish(addr: SocketAddr, ledger: &Mutex<Ledger>, random: &mut Random) -> Count {
    after_restart(addr, ledger, random);
    repeat_keys(addr, ledger, random, usize::MAX / 2);
    let held = ledger.lock().held();
    in_parallel(addr, &held, |http, id| complete(http, ledger, id));
    in_parallel(addr, &[(); 4], |http, ()| claim_rest(http, ledger));

    let mut listed = BTreeSet::new();
    for task in list(&mut Client::new(addr), "") {
        assert!(listed.insert(task.id.clone()), "{} is listed twice", task.id);
        ledger.lock().see(&task);
        assert!(matches!(task.status.as_str(), "COMPLETED" | "FAILED"), "{task:?}");
    }
    let known: Vec<String> = ledger.lock().tasks.keys().cloned().collect();
    let missing: Vec<&String> = known.iter().filter(|id| !listed.contains(*id)).collect();
    assert!(missing.is_empty(), "not listed: {missing:?}");
    in_parallel(addr, &known, |http, id| {
        observe(http, ledger, id);
        ended_once(http, id);
        contradicted(http, ledger, id);
    });
    let count = ledger.lock().count();
    assert_eq!(count.completed + count.cancelled, count.tasks, "{count:?}");
    count
}

fn claim_rest(http: &mut Client, ledger: &Mutex<Ledger>) {
    loop {
        let answer = http.post("/tasks/claim/batch", r#"{"count":10}"#).unwrap();
        if answer.status == 204 {
            return;
        }
        assert_eq!(answer.status, 200, "{answer:?}");
        for task in answer.json::<Claimed>().tasks {
            ledger.lock().claimed(&task);
            complete(http, ledger, &task.id);
        }
    }
}

fn complete(http: &mut Client, ledger: &Mutex<Ledger>, id: &str) {
    let result = json!({ "of": id, "last": true });
    ledger.lock().leave(id, State::Submitting(result.clone()));
    let body = json!({ "status": "COMPLETED", "result": result }).to_string();
    let answer = http.post(&format!("/tasks/{id}/result"), &body).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    ledger.lock().submitted(id, &answer.json::<Record>());
}

fn ended_once(http: &mut Client, id: &str) {
    let history: History = http.get(&format!("/tasks/{id}/history")).unwrap().json();
    let ended = |event: &str| matches!(event, "submitted" | "cancelled");
    let ends = history.items.iter().filter(|moved| ended(&moved.event)).count();
    let events: Vec<&str> = history.items.iter().map(|moved| moved.event.as_str()).collect();
    assert!(ends <= 1, "{id} ended {ends} times: {events:?}");
    assert_eq!(events.iter().filter(|event| **event == "created").count(), 1, "{events:?}");
}

/// A finished task keeps its result, and another result is refused.
fn contradicted(http: &mut Client, ledger: &Mutex<Ledger>, id: &str) {
    let body = r#"{"status":"COMPLETED","result":{"of":"somebody else"}}"#;
    let answer = http.post(&format!("/tasks/{id}/result"), body).unwrap();
    assert_eq!(answer.status, 409, "{id} took a second result: {answer:?}");
    observe(http, ledger, id);
}
