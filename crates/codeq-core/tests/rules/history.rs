use codeq_core::history::{Entry, Event};
use codeq_core::limits::{HISTORY_MAX, HISTORY_REASON_BYTES_MAX, WORKER_BYTES_MAX};
use codeq_core::place::Place;

use crate::harness::*;

fn entries(h: &Harness, id: codeq_core::id::TaskId) -> Vec<Entry> {
    h.reader().history(T, id).unwrap().expect("the task exists").entries()
}

#[test]
fn every_move_is_recorded() {
    let mut h = Harness::new();
    let start = h.now;
    let made = h.add(codeq_core::command::NewTask { max_attempts: Some(2), ..late("a", 10) });
    h.pass(10);
    h.claim("a");
    h.nack(made.id, Some(5), Some("boom"));
    h.pass(5);
    h.claim("a");
    h.pass(LEASE + 1);
    h.sweep(10);
    h.replay(made.id);
    h.claim("a");
    h.cancel(made.id);
    h.complete(made.id);
    let actual: Vec<_> = entries(&h, made.id)
        .into_iter()
        .map(|e| (e.at - start, e.event, e.to, e.who, e.why))
        .collect();
    let who = |name: &str| Some(text(name));
    let end = 15 + LEASE + 1;
    let wanted = [
        (0, Event::Created, Place::Delayed, None, None),
        (10, Event::Due, Place::Pending, None, None),
        (10, Event::Claimed, Place::InProgress, who(W), None),
        (10, Event::Nacked, Place::Delayed, who(W), who("boom")),
        (15, Event::Due, Place::Pending, None, None),
        (15, Event::Claimed, Place::InProgress, who(W), None),
        (end, Event::LeaseExpired, Place::Dead, None, None),
        (end, Event::Replayed, Place::Pending, who("admin"), None),
        (end, Event::Claimed, Place::InProgress, who(W), None),
        (end, Event::CancelRequested, Place::InProgress, who("producer"), None),
        (end, Event::Submitted, Place::Completed, who(W), None),
    ];
    assert_eq!(actual, wanted);
    assert_eq!(h.reader().history("x", made.id).unwrap(), None);
    h.finish();
}

#[test]
fn is_bounded() {
    let mut h = Harness::new();
    let run = h.running(task("a"));
    for _ in 0..200 {
        h.abandon(run.id, false);
        h.claim("a");
    }
    let history = h.reader().history(T, run.id).unwrap().unwrap();
    assert_eq!(history.entries().len(), usize::from(HISTORY_MAX));
    assert_eq!(history.entries()[0].event, Event::Created, "the first stays");
    assert_eq!(history.dropped(), 402 - u32::from(HISTORY_MAX));
    h.finish();
}

#[test]
fn long_words_are_cut() {
    let mut h = Harness::new();
    let run = h.running(tries("a", 9));
    h.nack(run.id, Some(0), Some(&"é".repeat(9_000)));
    let why = entries(&h, run.id).pop().and_then(|e| e.why).expect("a reason");
    assert!(why.len() <= HISTORY_REASON_BYTES_MAX);
    let made = h.add(task("b"));
    h.apply(codeq_core::command::Command::Cancel(codeq_core::command::Cancel {
        tenant: text(T),
        id: made.id,
        by: text(&"x".repeat(100_000)),
    }));
    let who = entries(&h, made.id).pop().and_then(|e| e.who).expect("somebody");
    assert!(who.len() <= WORKER_BYTES_MAX, "rows do not grow with a token's subject");
    h.finish();
}
