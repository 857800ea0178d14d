//! The network: delays, losses and cuts.

use std::sync::Arc;
use std::time::Duration;

use codeq_raft::transport::Unreachable;
use codeq_sim::cluster::executor::Executor;
use codeq_sim::cluster::network::{NetworkConditions, SimNetwork};
use parking_lot::Mutex;

const SECOND: Duration = Duration::from_secs(1);

type Echo = SimNetwork<u64, u64>;

/// Two nodes that answer with the sender's number added.
fn echo(executor: &Executor, conditions: NetworkConditions) -> Echo {
    let network = Echo::new(executor, 1, conditions);
    for node in [1, 2] {
        executor.boot(node, 0);
        network.attach(node, Arc::new(|from, number| Box::pin(async move { number * 10 + from })));
    }
    network
}

/// Sends numbers from node 1 to node 2 at once and returns the answers in the order of their arrival.
fn answers(executor: &Executor, network: &Echo, numbers: u64) -> Vec<Result<u64, Unreachable>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    for number in 0..numbers {
        let (network, heard) = (network.clone(), Arc::clone(&heard));
        executor.spawn_on(Some(1), async move {
            let answer = network.send(1, 2, number, SECOND).await;
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
    let network = echo(&executor, NetworkConditions::GOOD);
    let heard = answers(&executor, &network, 20);
    let mut sorted: Vec<u64> = heard.iter().map(|answer| answer.unwrap()).collect();
    assert!(!sorted.is_sorted(), "some overtake others");
    sorted.sort();
    assert_eq!(sorted, (0..20).map(|number| number * 10 + 1).collect::<Vec<_>>());
    network.set_conditions(NetworkConditions { loss: 300, double: 300, ..NetworkConditions::GOOD });
    let before = network.traffic();
    let heard = answers(&executor, &network, 200);
    let lost = heard.iter().filter(|answer| answer.is_err()).count();
    assert_eq!(heard.len(), 200, "everybody hears something");
    assert!((60..160).contains(&lost), "{lost} lost");
    let arrived = network.traffic().arrived - before.arrived;
    assert!((150..210).contains(&arrived), "{arrived} arrived, some twice");
}

#[test]
fn a_link_can_be_cut_in_one_direction() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    let network = echo(&executor, NetworkConditions::GOOD);
    network.cut(2, 1);
    assert_eq!(answers(&executor, &network, 5), [Err(Unreachable); 5]);
    assert_eq!(network.traffic().arrived, 5, "requests arrive, answers do not");
    network.heal();
    network.cut(1, 2);
    assert_eq!(answers(&executor, &network, 5), [Err(Unreachable); 5]);
    assert_eq!(network.traffic().arrived, 5);
    network.heal();
    assert_eq!(answers(&executor, &network, 1), [Ok(1)]);
}

#[test]
fn a_node_that_crashes_does_not_answer() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    let network = echo(&executor, NetworkConditions::GOOD);
    executor.crash(2);
    assert_eq!(answers(&executor, &network, 1), [Err(Unreachable)]);
    network.detach(2);
    assert_eq!(answers(&executor, &network, 1), [Err(Unreachable)]);
}

#[test]
fn a_request_arrives_although_nobody_waits() {
    let executor = Executor::new(1);
    let _entered = executor.enter();
    let network = echo(&executor, NetworkConditions::GOOD);
    drop(network.send(1, 2, 7, SECOND));
    executor.run_for(SECOND);
    assert_eq!(network.traffic().arrived, 1);
}
