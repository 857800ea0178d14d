//! Reads on any node: never older than what was acknowledged before they began.

use codeq_engine::EngineError;
use codeq_raft::fault::Fault;
use codeq_sim::cluster::rules::{RAFT, READS};
use codeq_sim::cluster::script::{Script, Setup};

use super::traps::{MILLISECOND, SECOND, holds, notices};

/// A leader acknowledges a task, dies before anybody hears that it is committed, and is back at once. A client that knows
/// of the task reads on another node.
fn read_after_the_leader_restarted(script: &mut Script) {
    for round in 0..6 {
        let (leader, followers) = (script.leader(), script.followers());
        let (applied, task) = (script.applied(leader), script.new_tasks("work", 1, 10));
        let call = script.ask(leader, task, 0);
        script.stop_when("it is acknowledged", SECOND, |script| script.applied(leader) > applied);
        script.pass(MILLISECOND / 1_000);
        script.kill(leader);
        let answer = script.answer(call);
        let task = answer
            .as_ref()
            .and_then(|answer| codeq_sim::cluster::script_clients::ids(answer).first().copied());
        script.expect(task.is_some(), "the task is acknowledged");
        script.start(leader);
        let reader = followers[round % 2];
        let read = script.read(reader);
        script.expect(read.is_ok(), "there is a leader within a few seconds");
        let found = task.is_some_and(|task| script.has_task(reader, task));
        script.expect(found, "the read finds the task");
        script.settle();
    }
}

#[test]
fn a_read_after_a_restart_of_the_leader_finds_what_was_acknowledged() {
    let setup = Setup::default();
    holds(&setup, read_after_the_leader_restarted);
    notices(&setup, Fault::KeepCommittedVote, &[RAFT, READS], read_after_the_leader_restarted);
}

/// Clients read on all nodes while leaders are killed, suspended, cut off and deposed without knowing it.
#[test]
fn reads_are_current_on_every_node_whatever_happens_to_the_leader() {
    holds(&Setup { shards: 2, ..Setup::default() }, |script| {
        script.work(4);
        script.keep_reading();
        for round in 0..12 {
            let old = script.leader();
            let others = script.followers();
            match round % 4 {
                0 => script.kill(old),
                1 => script.isolate(old),
                2 => script.suspend(old, SECOND * 2),
                _ => {
                    others.iter().for_each(|id| script.slow_down(*id, old, MILLISECOND * 780));
                    script.pass(SECOND);
                    others.iter().for_each(|id| script.cut(old, *id));
                }
            }
            script.pass(SECOND * 3);
            script.heal();
            script.start(old);
            script.settle();
        }
        let reads = script.reads();
        script.expect(reads > 1_000, "there were reads");
    });
}

/// Without a majority nobody knows what is committed: a read fails, and it does so within seconds.
#[test]
fn a_read_without_a_leader_fails_within_seconds() {
    holds(&Setup::default(), |script| {
        let leader = script.leader();
        for id in script.followers() {
            script.kill(id);
        }
        let begin = script.time();
        let read = script.read(leader);
        script.expect(read == Err(EngineError::NoLeader), "there is no majority");
        let took = script.time() - begin;
        script.expect(took < SECOND * 6, "it does not take long");
    });
}

/// Many reads at once cost a node few questions: one round is on its way, and all that wait share the next one.
#[test]
fn reads_share_their_rounds() {
    holds(&Setup::default(), |script| {
        let reader = script.followers()[0];
        let leader = script.leader();
        let traffic = |script: &Script| script.traffic();
        script.pass(SECOND);
        let idle = {
            let before = traffic(script);
            script.pass(MILLISECOND * 100);
            traffic(script) - before
        };
        let before = traffic(script);
        for id in [reader, leader] {
            script.on(id, |node| async move {
                let all: Vec<_> = (0..500)
                    .map(|_| {
                        let node = node.clone();
                        codeq_raft::runtime::spawn(async move { node.read_index().await })
                    })
                    .collect();
                for read in all {
                    read.await.unwrap().unwrap();
                }
            });
        }
        script.pass(MILLISECOND * 100);
        let messages = traffic(script) - before;
        script.expect(messages < idle + 40, "a thousand reads cost a few messages");
    });
}
