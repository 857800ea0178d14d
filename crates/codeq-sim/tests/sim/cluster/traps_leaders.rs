//! Changes of leaders: what a leader may propose, what it may answer, and for how long its clients wait.

use codeq_engine::EngineError;
use codeq_raft::fault::Fault;
use codeq_raft::types::Proposal;
use codeq_sim::cluster::rules::{ANSWERS, RAFT, STOPPED};
use codeq_sim::cluster::script::{Script, Setup, play};
use codeq_sim::cluster::script_clients::Call;
use openraft::EntryPayload;

use super::traps::{MILLISECOND, SECOND, holds, notices};

/// Makes another node the leader. A third one may win an election, so this may take several elections.
fn make_leader(script: &mut Script, id: u64) {
    for _ in 0..10 {
        script.elect(id);
        script.pass(SECOND);
        if script.current_leader() == Some(id) {
            return;
        }
    }
    script.expect(false, "the node leads");
}

/// A leader's proposal waits in openraft's queue while another node is elected and the first one is elected again. Now
/// it is written in a later term, to rows that it was not made for.
fn proposal_written_in_a_later_term(script: &mut Script) {
    script.enqueue_many("work", 3);
    let old = script.leader();
    let last = script.entries(old).into_iter().rev().find_map(|entry| match entry.payload {
        EntryPayload::Normal(proposal) => Some(proposal),
        _ => None,
    });
    let mut queued: Proposal = last.unwrap();
    // Another proposal of the same leader, which nobody waits for.
    (queued.origin.incarnation, queued.digests) = (0, None);
    let other = script.followers()[0];
    make_leader(script, other);
    make_leader(script, old);
    let origin = queued.origin;
    script.on(old, |node| async move {
        node.raft().client_write_ff(queued).await.unwrap().await.unwrap().unwrap();
    });
    let written = |script: &Script| {
        script.entries(old).iter().any(|entry| match &entry.payload {
            EntryPayload::Normal(proposal) => proposal.origin == origin,
            _ => false,
        })
    };
    script.pass_until("it is written", SECOND, |script| written(script));
    script.pass(SECOND);
    let found = (0..5).filter_map(|_| script.claim("work", 60_000)).count();
    script.expect(found == 3, "nobody has done it");
}

#[test]
fn a_proposal_that_is_written_in_a_later_term_does_nothing() {
    let setup = Setup::default();
    holds(&setup, proposal_written_in_a_later_term);
    notices(&setup, Fault::NoFence, &[14, ANSWERS, STOPPED], proposal_written_in_a_later_term);
}

/// A leader is deposed while its proposals are in flight. It still hears late answers to what it asked before, and the
/// first that it hears of its successor are entries that were committed in the place of its own.
fn proposals_overtaken_at_their_index(script: &mut Script) {
    for _ in 0..10 {
        let old = script.leader();
        let others = script.followers();
        others.iter().for_each(|other| script.slow_down(*other, old, MILLISECOND * 780));
        script.pass(SECOND);
        others.iter().for_each(|other| script.cut(old, *other));
        script.pass(MILLISECOND * 900);
        script.isolate(old);
        script.elect(others[0]);
        script.stop_when("another node leads", SECOND, |script| {
            script.current_leader() == Some(others[0])
        });
        for id in [old, others[0]] {
            let tasks: Vec<_> = (1..4).map(|count| script.new_tasks("work", count, 10)).collect();
            for task in tasks {
                script.ask(id, task, 0);
            }
        }
        script.pass(MILLISECOND * 20);
        // The old leader goes on only after several messages have arrived.
        script.suspend(old, MILLISECOND * 600);
        script.heal();
        script.pass(SECOND);
        script.settle();
    }
}

#[test]
fn a_proposal_is_answered_only_when_it_was_committed_itself() {
    let setup = Setup::default();
    holds(&setup, proposals_overtaken_at_their_index);
    let rules = &[14, ANSWERS, STOPPED];
    notices(&setup, Fault::AnswerByPosition, rules, proposals_overtaken_at_their_index);
}

/// Leaders change while their queues are full.
fn elections_at_full_load(script: &mut Script) {
    script.work(12);
    let before = script.elections();
    for round in 0..20 {
        script.pass(MILLISECOND * (100 + 7 * round));
        let next = script.followers()[round as usize % 2];
        script.elect(next);
        script.pass(MILLISECOND * 300);
    }
    let elected = script.elections() - before;
    script.expect(elected >= 10, "leaders change");
}

#[test]
fn answers_are_right_when_leaders_change_at_full_load() {
    let setup = Setup { shards: 2, ..Setup::default() };
    holds(&setup, elections_at_full_load);
}

/// A leader is killed with entries in flight and is back before anybody else stands for election.
fn leader_restarts_at_once(script: &mut Script) {
    script.work(4);
    for round in 0..6 {
        script.pass(MILLISECOND * 500);
        let leader = script.leader();
        let led = script.leads(leader);
        script.stop_when("entries are in flight", SECOND * 5, |script| {
            script.last(leader) > script.applied(leader)
        });
        match round % 2 {
            0 => script.kill(leader),
            _ => script.power_cut(leader),
        }
        script.start(leader);
        let next = script.leader();
        let leads = script.leads(next);
        script.expect(leads > led, "whoever leads next has won an election");
    }
    script.work(0);
    script.pass(SECOND);
    // A leader's first entry has no commands: once it is committed, so is everything before it.
    let leader = script.leader();
    let mut before = None;
    for entry in script.entries(leader) {
        let (by, normal) =
            (entry.log_id.leader_id, matches!(entry.payload, EntryPayload::Normal(_)));
        script.expect(before == Some(by) || !normal, "a leader begins with an empty entry");
        before = Some(by);
    }
}

#[test]
fn a_restarted_leader_has_to_be_elected_again() {
    let setup = Setup::default();
    holds(&setup, leader_restarts_at_once);
    notices(&setup, Fault::KeepCommittedVote, &[RAFT, ANSWERS, 14], leader_restarts_at_once);
}

/// A leader dies at the moment when it acknowledges a task. The next one has the entry in its log and has not applied
/// it; its clients claim the task at once.
fn claims_meet_a_leader_that_is_not_ready(script: &mut Script) {
    for round in 0..8 {
        let queue = format!("round-{round}");
        let old = script.leader();
        let (applied, task) = (script.applied(old), script.new_tasks(&queue, 1, 10));
        let call = script.ask(old, task, 0);
        script.stop_when("it is acknowledged", SECOND, |script| script.applied(old) > applied);
        // The reference takes note of it, but no other node hears of it.
        script.pass(MILLISECOND / 1_000);
        script.kill(old);
        let acknowledged = script.answer(call).is_some_and(|answer| answer.is_ok());
        script.expect(acknowledged, "the task is acknowledged");
        let rest: Vec<u64> = script.members().into_iter().filter(|id| *id != old).collect();
        for (from, to) in [(rest[0], rest[1]), (rest[1], rest[0])] {
            script.slow_down(from, to, MILLISECOND * 60);
        }
        let mut calls: Vec<Call> = Vec::new();
        script.pass_until("the task is claimed", SECOND * 10, |script| {
            let claim = script.a_claim(&queue, 60_000);
            calls.extend(rest.iter().map(|id| script.ask(*id, claim.clone(), 0)));
            calls.iter().any(|call| match script.answer(*call) {
                Some(Ok(codeq_core::reply::Reply::Claimed(tasks))) => !tasks.is_empty(),
                _ => false,
            })
        });
        script.settle();
    }
}

#[test]
fn a_new_leader_answers_only_when_it_has_applied_what_its_log_held() {
    let setup = Setup::default();
    holds(&setup, claims_meet_a_leader_that_is_not_ready);
    notices(
        &setup,
        Fault::ProposeBeforeReady,
        &[8, 14, ANSWERS, STOPPED],
        claims_meet_a_leader_that_is_not_ready,
    );
}

/// A leader is deposed and does not know it: nobody hears it, but it still hears late answers to what it asked before.
/// Its clients look for tasks that the next leader has acknowledged.
fn claims_meet_a_deposed_leader(script: &mut Script) {
    for round in 0..4 {
        let queue = format!("round-{round}");
        let old = script.leader();
        let others: Vec<u64> = script.followers();
        others.iter().for_each(|other| script.slow_down(*other, old, MILLISECOND * 780));
        script.pass(SECOND);
        others.iter().for_each(|other| script.cut(old, *other));
        let end = script.time() + SECOND * 3;
        while script.time() < end {
            if let Some(leader) = script.current_leader().filter(|leader| *leader != old) {
                let task = script.new_tasks(&queue, 1, 10);
                script.ask(leader, task, 0);
            }
            let claim = script.a_claim(&queue, 60_000);
            script.ask(old, claim, 0);
            script.pass(MILLISECOND * 10);
        }
        script.settle();
    }
}

#[test]
fn a_deposed_leader_does_not_say_that_there_is_nothing_to_claim() {
    let setup = Setup::default();
    holds(&setup, claims_meet_a_deposed_leader);
    notices(&setup, Fault::AnswerWithoutReadIndex, &[ANSWERS], claims_meet_a_deposed_leader);
}

/// At a leader that is cut off, with requests of all kinds in flight and more arriving, nobody waits for longer than a
/// second: neither for a place in a queue, nor for room in the log, nor for a task.
#[test]
fn nobody_waits_longer_than_a_second_for_a_leader_that_is_cut_off() {
    holds(&Setup { shards: 2, ..Setup::default() }, |script| {
        script.work(12);
        script.pass(SECOND);
        let old = script.leader();
        let mut open: Vec<Call> = Vec::new();
        let load = |script: &mut Script, open: &mut Vec<Call>| {
            for number in 0..40 {
                let (command, wait) = match number % 4 {
                    0 => (script.a_claim("nothing", 1_000), 20_000),
                    1 => (script.a_claim("work", 1_000), 0),
                    _ => (script.new_tasks("work", 5, 1_000), 0),
                };
                open.push(script.ask(old, command, wait));
            }
        };
        for _ in 0..20 {
            load(script, &mut open);
            script.pass(MILLISECOND * 10);
        }
        script.isolate(old);
        let (cut, mut answered) = (script.time(), 0);
        while script.time() < cut + SECOND * 4 {
            if script.time() < cut + SECOND * 2 {
                load(script, &mut open);
            }
            script.pass(MILLISECOND * 10);
            let before = open.len();
            open.retain(|call| script.answer(*call).is_none());
            answered += before - open.len();
            let (now, slice) = (script.time(), MILLISECOND * 20);
            let late = open.iter().any(|call| now > call.at.max(cut) + SECOND + slice);
            script.expect(!late, "everybody is answered within a second");
        }
        script.expect(answered > 5_000, "there was load");
    });
}

/// Two nodes stand for election in the same term. The first wins, but nobody hears its first entry; the second, whose
/// number is higher, wins as well. Votes and entries of the two must not be confused.
#[test]
fn two_leaders_of_one_term_are_told_apart() {
    holds(&Setup::default(), |script| {
        make_leader(script, 3);
        script.enqueue_many("work", 3);
        // For a while after an election nobody votes for another node.
        script.pass(SECOND);
        let (term, _) = script.leads(3).unwrap();
        script.part(1, 2);
        script.elect(1);
        script.stop_when("node 1 leads", SECOND, |script| script.leads(1).is_some());
        script.isolate(1);
        let first = script.leads(1);
        script.expect(first == Some((term + 1, 1)), "node 1 leads in the next term");
        let own = script.last(1);
        script.elect(2);
        script.stop_when("node 2 leads", SECOND, |script| script.leads(2).is_some());
        let both = (script.leads(1), script.leads(2));
        script.expect(both == (Some((term + 1, 1)), Some((term + 1, 2))), "both lead in one term");
        let task = script.new_tasks("work", 1, 10);
        let lost = script.ask(1, task, 0);
        script.enqueue_many("work", 3);
        let answer = script.wait(lost);
        script.expect(answer == Err(EngineError::NoLeader), "node 1 has no majority");
        // Node 3 has voted for both, and the log of node 1 ends with an entry of its own.
        for id in [3, 1] {
            script.power_cut(id);
            script.start(id);
            script.pass(MILLISECOND * 300);
        }
        script.heal();
        script.pass_until("node 1 follows", SECOND * 5, |script| {
            script.applied(1) == script.committed()
        });
        for id in [1, 2, 3] {
            let entries = script.entries(id);
            let at = entries.iter().find(|entry| entry.log_id.index == own).unwrap();
            let by = (at.log_id.leader_id.term, at.log_id.leader_id.node_id);
            script.expect(by == (term + 1, 2), "the entry of the second leader counts");
        }
    });
}

/// Every entry carries a digest of all rows that were written up to an earlier one. A node on which a command had
/// another outcome stops and says so, instead of answering from rows that differ.
#[test]
fn a_node_whose_rows_differ_stops() {
    let mut stopped = None;
    let setup = Setup { fault: Some(Fault::SkipCommand), ..Setup::default() };
    let error = |script: &Script| {
        let of = |id: u64| script.node(id)?.raft().metrics().borrow().running_state.clone().err();
        script.members().into_iter().find_map(of).map(|error| error.to_string())
    };
    play(&setup, |script| {
        let leader = script.leader();
        while stopped.is_none() {
            let task = script.new_tasks("work", 1, 10);
            script.ask(leader, task, 0);
            // No checker looks meanwhile: the nodes have to notice it themselves.
            let applied = script.applied(leader);
            script.stop_when("the entry is applied, or a node stops", SECOND, |script| {
                script.applied(leader) > applied || error(script).is_some()
            });
            stopped = stopped.take().or(error(script));
        }
    });
    let stopped = stopped.unwrap();
    assert!(stopped.contains("differ from the leader's as of entry"), "{stopped}");
}
