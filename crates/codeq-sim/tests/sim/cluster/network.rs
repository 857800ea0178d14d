//! The network: delays, losses and cuts.

use std::sync::Arc;
use std::time::Duration;

use codeq_raft::transport::Unreachable;
use codeq_sim::cluster::executor::Executor;
use codeq_sim::cluster::network::{Bus, NetworkConditions};
use parking_lot::Mutex;

const SECOND: Duration = Duration::from_secs(1);

type Echo = Bus<u64, u64>;

/// Two nodes that answer with the sender's number added.
fn echo(executor: &Executor, conditions: NetworkConditions) -> Echo {
    let bus = Echo::new(executor, 1, conditions);
    for node in [1, 2] {
        executor.boot(node, 0);
        bus.attach(node, Arc::new(|from, number| Box::pin(async move { number * 10 + from })));
    }
    bus
}

/// Sends numbers from node 1 to node 2 at once and returns the answers in the order of their arrival.
fn answers(executor: &Executor, bus: &Echo, numbers: u64) -> Vec<Result<u64, Unreachable>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    for number in 0..numbers {
        let (bus, heard) = (bus.clone(), Arc::clone(&heard));
        executor.spawn_on(Some(1), async move {
            let answer = bus.send(1, 2, number, SECOND).await;
            heard.lock().push(answer);
        });
    }
    executor.run_for(SECOND * 3);
    heard.lock().clone()
}

#[test]
fn messages_arrive_overtake_each_other_and_get_lost() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    let bus = echo(&executor, NetworkConditions::GOOD);
    let heard = answers(&executor, &bus, 20);
    let mut sorted: Vec<u64> = heard.iter().map(|answer| answer.unwrap()).collect();
    assert!(!sorted.is_sorted(), "some overtake others");
    sorted.sort();
    assert_eq!(sorted, (0..20).map(|number| number * 10 + 1).collect::<Vec<_>>());
    bus.set_conditions(NetworkConditions { loss: 300, double: 300, ..NetworkConditions::GOOD });
    let before = bus.traffic();
    let heard = answers(&executor, &bus, 200);
    let lost = heard.iter().filter(|answer| answer.is_err()).count();
    assert_eq!(heard.len(), 200, "everybody hears something");
    assert!((60..160).contains(&lost), "{lost} lost");
    let arrived = bus.traffic().arrived - before.arrived;
    assert!((150..210).contains(&arrived), "{arrived} arrived, some twice");
}

#[test]
fn a_link_can_be_cut_in_one_direction() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    let bus = echo(&executor, NetworkConditions::GOOD);
    bus.cut(2, 1);
    assert_eq!(answers(&executor, &bus, 5), [Err(Unreachable); 5]);
    assert_eq!(bus.traffic().arrived, 5, "requests arrive, answers do not");
    bus.heal();
    bus.cut(1, 2);
    assert_eq!(answers(&executor, &bus, 5), [Err(Unreachable); 5]);
    assert_eq!(bus.traffic().arrived, 5);
    bus.heal();
    assert_eq!(answers(&executor, &bus, 1), [Ok(1)]);
}

#[test]
fn a_node_that_crashes_does_not_answer() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    let bus = echo(&executor, NetworkConditions::GOOD);
    executor.crash(2);
    assert_eq!(answers(&executor, &bus, 1), [Err(Unreachable)]);
    bus.detach(2);
    assert_eq!(answers(&executor, &bus, 1), [Err(Unreachable)]);
}

#[test]
fn a_request_arrives_although_nobody_waits() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    let bus = echo(&executor, NetworkConditions::GOOD);
    drop(bus.send(1, 2, 7, SECOND));
    executor.run_for(SECOND);
    assert_eq!(bus.traffic().arrived, 1);
}
