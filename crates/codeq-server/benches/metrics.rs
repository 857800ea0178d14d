//! What the commit thread pays for counting a move of a task: `cargo bench -p codeq-server`.

use std::sync::Arc;
use std::time::Instant;

use codeq_core::effect::{Effect, Transition};
use codeq_core::history::Event;
use codeq_core::id::{ShardId, TaskId};
use codeq_core::keys::Seq;
use codeq_core::moment::Moment;
use codeq_core::place::Place;
use codeq_engine::Observer;
use codeq_server::observe::Metrics;

const ROUNDS: u32 = 1_000;
const EFFECTS: usize = 3_000;

fn moved(queue: Arc<str>, event: Event, from: Option<Place>, to: Option<Place>) -> Effect {
    Effect::Moved(Transition {
        number: 1,
        id: TaskId::new(Seq(1), 2),
        tenant: "acme".into(),
        queue,
        from,
        to,
        event,
        at: Moment::agreed(11_500),
        age: 1_500,
        attempts: 0,
    })
}

/// Tasks that are made, claimed and completed, in turn over the queues.
fn effects(queues: usize, shared_names: bool) -> Vec<Effect> {
    let names: Vec<Arc<str>> = (0..queues).map(|n| format!("generate-{n}").into()).collect();
    let name = |n: usize| -> Arc<str> {
        let name = names.iter().cycle().nth(n / 3).map_or_else(|| "".into(), Arc::clone);
        if shared_names { name } else { (*name).into() }
    };
    let (pending, running) = (Some(Place::Pending), Some(Place::InProgress));
    let effect = |n: usize| match n % 3 {
        0 => moved(name(n), Event::Created, None, pending),
        1 => moved(name(n), Event::Claimed, pending, running),
        _ => moved(name(n), Event::Submitted, running, Some(Place::Completed)),
    };
    (0..EFFECTS).map(effect).collect()
}

fn main() {
    for (queues, shared) in [(1, true), (10, true), (10, false), (1_000, true), (1_000, false)] {
        let metrics = Metrics::new();
        let effects = effects(queues, shared);
        let start = Instant::now();
        for _ in 0..ROUNDS {
            metrics.committed(ShardId(0), std::hint::black_box(&effects));
        }
        let nanos = start.elapsed().as_nanos() as f64 / f64::from(ROUNDS) / EFFECTS as f64;
        println!("{queues} queues, shared names {shared}: {nanos:.1} ns per effect");
    }
}
