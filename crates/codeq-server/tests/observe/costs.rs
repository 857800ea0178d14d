//! What observing costs: `cargo test -p codeq-server --test observe -- --ignored --nocapture costs`.

use std::sync::Arc;
use std::time::Instant;

use codeq_core::effect::Effect;
use codeq_core::history::Event;
use codeq_core::place::Place;
use codeq_engine::Observer;
use codeq_net::NetStats;
use codeq_server::limits::budget::Budget;
use codeq_server::observe::Metrics;

use crate::tasks::{moved, new_task, open, put};

fn per_effect(queues: usize, shared_names: bool) -> f64 {
    let names: Vec<Arc<str>> = (0..queues).map(|n| format!("generate-{n}").into()).collect();
    let metrics = Metrics::new();
    let (pending, running) = (Some(Place::Pending), Some(Place::InProgress));
    let effects: Vec<Effect> = (0..3_000)
        .map(|n| {
            let name = &names[n / 3 % queues];
            let name = if shared_names { Arc::clone(name) } else { (**name).into() };
            match n % 3 {
                0 => moved(&name, Event::Created, None, pending),
                1 => moved(&name, Event::Claimed, pending, running),
                _ => moved(&name, Event::Submitted, running, Some(Place::Completed)),
            }
        })
        .collect();
    let rounds = 1_000;
    let start = Instant::now();
    for _ in 0..rounds {
        metrics.committed(0, std::hint::black_box(&effects));
    }
    start.elapsed().as_nanos() as f64 / (rounds * effects.len()) as f64
}

#[test]
#[ignore = "a measurement"]
fn costs_of_counting() {
    for (queues, shared) in [(1, true), (10, true), (10, false), (1_000, true), (1_000, false)] {
        let nanos = per_effect(queues, shared);
        println!("{queues} queues, shared names {shared}: {nanos:.1} ns per effect");
        assert!(nanos < 100.0);
    }
}

#[tokio::test]
#[ignore = "a measurement"]
async fn costs_of_a_scrape_with_ten_thousand_queues() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = Metrics::new();
    let engine = open(dir.path(), &metrics, 1).await;
    for tenant in 0..10 {
        let tasks = (0..1_000).map(|n| new_task(&format!("t{tenant}-{n}"))).collect();
        put(&engine, &format!("tenant-{tenant}"), tasks).await;
    }
    for _ in 0..5 {
        let start = Instant::now();
        let text = metrics.render(&engine, &NetStats::default(), &Budget::new(1)).await;
        println!("{:?} for {} bytes", start.elapsed(), text.len());
    }
}
