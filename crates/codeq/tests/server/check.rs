//! What must be true after a restart, whatever ended the server before.

use std::net::SocketAddr;

use parking_lot::Mutex;

use crate::server::http::Client;
use crate::server::ledger::Ledger;
use crate::server::load::key_task;
use crate::server::random::Random;
use crate::server::task::{Finished, Page, Record, Task};

const READERS: usize = 4;
/// Number of tasks of earlier cycles that each check reads again. The end of the run reads all tasks.
const OLDER: usize = 100;

/// Reads every task named since the last check: whatever was acknowledged must be there, and what was in doubt is
/// settled.
pub fn after_restart(addr: SocketAddr, ledger: &Mutex<Ledger>, random: &mut Random) {
    // Claims without an answer may have taken tasks that no answer has named.
    for task in list(&mut Client::new(addr), "status=IN_PROGRESS") {
        ledger.lock().observe(&task, None);
    }
    let ids = ledger.lock().take_touched(OLDER, random);
    in_parallel(addr, &ids, |http, id| observe(http, ledger, id));
    ledger.lock().claims_open = 0;
    repeat_keys(addr, ledger, random, OLDER);
}

/// Every key still returns the same task.
pub fn repeat_keys(addr: SocketAddr, ledger: &Mutex<Ledger>, random: &mut Random, older: usize) {
    let all = ledger.lock().keys.len();
    let newest = all.saturating_sub(2 * older)..all;
    let mut indexes: Vec<usize> = newest.collect();
    if all > 0 && older < all {
        indexes.extend((0..older).map(|_| random.index(all)));
    }
    in_parallel(addr, &indexes, |http, index| {
        let key = ledger.lock().keys[*index].clone();
        let answer = http.post("/tasks", &key_task(&key)).unwrap();
        assert_eq!(answer.status, 202, "{answer:?}");
        ledger.lock().created_by_key(*index, &answer.json());
        assert!(key.id.is_none() || answer.is_replayed(), "{} is not known any more", key.key);
    });
}

/// Reads one task and its result, and compares.
pub fn observe(http: &mut Client, ledger: &Mutex<Ledger>, id: &str) {
    let answer = http.get(&format!("/tasks/{id}")).unwrap();
    assert_eq!(answer.status, 200, "an acknowledged task is lost: {id} {answer:?}");
    let task: Task = answer.json();
    let answer = http.get(&format!("/tasks/{id}/result")).unwrap();
    let record: Option<Record> = match task.status.as_str() {
        "COMPLETED" | "FAILED" => {
            assert_eq!(answer.status, 200, "a result is lost: {id} {answer:?}");
            let finished: Finished = answer.json();
            assert_eq!((&finished.task.id, &finished.result.task_id), (&task.id, &task.id));
            assert_eq!(finished.result.status, task.status);
            Some(finished.result)
        }
        _ => {
            assert_eq!(answer.status, 404, "a result of what is not finished: {answer:?}");
            None
        }
    };
    ledger.lock().observe(&task, record.as_ref());
}

/// All pages of a list.
pub fn list(http: &mut Client, query: &str) -> Vec<Task> {
    let mut tasks = Vec::new();
    let mut cursor = None;
    loop {
        let from = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let answer = http.get(&format!("/tasks?limit=1000&{query}{from}")).unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        let page: Page = answer.json();
        tasks.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return tasks;
        }
    }
}

/// Shares the items among a few readers.
pub fn in_parallel<T: Sync>(
    addr: SocketAddr,
    items: &[T],
    job: impl Fn(&mut Client, &T) + Sync + Send,
) {
    let job = &job;
    std::thread::scope(|scope| {
        for items in items.chunks(items.len().div_ceil(READERS).max(1)) {
            scope.spawn(move || {
                let mut http = Client::new(addr);
                items.iter().for_each(|item| job(&mut http, item));
            });
        }
    });
}
