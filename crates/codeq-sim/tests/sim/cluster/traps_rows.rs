//! Rows and logs: checkpoints, snapshots and members, and what is left of them after a crash.

use codeq_engine::EngineError;
use codeq_raft::fault::Fault;
use codeq_sim::cluster::rules::SCRIPT;
use codeq_sim::cluster::script::{Script, Setup, play};

use super::traps::{MILLISECOND, SECOND, holds, notices};

/// A node misses so much that the others no longer have it in their logs. Returns how far it is.
fn fall_behind(script: &mut Script, id: u64) -> u64 {
    script.isolate(id);
    let others: Vec<u64> = script.members().into_iter().filter(|other| *other != id).collect();
    script.pass_until("the others let go of their logs", SECOND * 10, |script| {
        script.enqueue_many("work", 2);
        others.iter().for_each(|other| script.compact(*other));
        script.pass(MILLISECOND * 20);
        others.iter().all(|other| script.purged(*other) > script.applied(id))
    });
    script.applied(id)
}

/// Lets a node that fell behind catch up, while more is appended.
fn catch_up(script: &mut Script, id: u64, from: u64) {
    script.heal();
    script.pass_until("the rows arrive", SECOND * 10, |script| {
        let (leader, task) = (script.current_leader(), script.new_tasks("work", 1, 500));
        leader.map(|leader| script.ask(leader, task, 0));
        script.pass(MILLISECOND * 5);
        script.snapshot(id) > from && script.applied(id) == script.committed()
    });
}

/// Plays a script with a power cut at the first change of a disk, then at the second, and so on, until the script reports
/// that it ended before the power cut. Returns the first broken rule.
fn power_cut_at_every_change(
    setup: &Setup,
    mut script: impl FnMut(&mut Script, u64) -> bool,
) -> Option<String> {
    let mut nth = 0;
    loop {
        nth += 1;
        let mut crashed = false;
        let setup = Setup { seed: nth, ..setup.clone() };
        let report = play(&setup, |playing| crashed = script(playing, nth));
        if let Some(violation) = report.violations.first() {
            return Some(format!("power cut {nth}: {violation}"));
        }
        if !crashed {
            println!("{nth} power cuts");
            assert!(nth > 40, "{nth}: the disk changes often");
            return None;
        }
    }
}

/// A snapshot arrives and entries are appended behind it; the power fails at some change of the disk in between. Neither
/// may the log begin after rows that are not there yet, nor may the rows end before the log begins.
fn power_cut_while_rows_are_installed(script: &mut Script, nth: u64) -> bool {
    let follower = script.followers()[0];
    let from = fall_behind(script, follower);
    script.cut_at_change(follower, nth);
    let started = script.incarnation(follower);
    catch_up(script, follower, from);
    script.spare_disk(follower);
    script.incarnation(follower) != started
}

#[test]
fn rows_of_another_node_survive_a_power_cut_at_every_moment() {
    let mut setup = Setup::default();
    assert_eq!(power_cut_at_every_change(&setup, power_cut_while_rows_are_installed), None);
    setup.fault = Some(Fault::PurgeBeforeInstall);
    let noticed = power_cut_at_every_change(&setup, power_cut_while_rows_are_installed);
    println!("PurgeBeforeInstall: {}", noticed.unwrap());
}

/// The disk of a node has lost the end of its log, but the rows include it. To openraft that looks like a snapshot that
/// is ahead of the log; but the node has forgotten entries that it acknowledged, and must not vote any more.
fn log_ends_before_the_rows(script: &mut Script) {
    script.enqueue_many("work", 3);
    let follower = script.followers()[0];
    script.lose_log_from_now(follower);
    script.enqueue_many("work", 20);
    script.compact(follower);
    script.pass(MILLISECOND * 100);
    script.isolate(follower);
    script.power_cut(follower);
    let error = script.start_refused(follower).to_string();
    let named = error.contains("a store is at entry") && error.contains("add a new one");
    script.expect(named, "it says what is wrong and what to do");
    script.remove(follower);
    script.add_node();
}

#[test]
fn a_node_that_lost_the_end_of_its_log_refuses_to_start() {
    let setup = Setup::default();
    holds(&setup, log_ends_before_the_rows);
    notices(&setup, Fault::AcceptLostTail, &[SCRIPT], log_ends_before_the_rows);
}

/// For openraft, index 0 is an entry like any other; for a store, position 0 means that it includes nothing. A cluster
/// that began empty must come back from crashes before its first checkpoint, after it, and with nothing to checkpoint.
#[test]
fn an_empty_cluster_starts_again() {
    for nodes in [1, 3] {
        for tasks in [0, 1, 7] {
            holds(&Setup { nodes, shards: 3, ..Setup::default() }, |script| {
                for checkpoint in [false, true, true] {
                    for _ in 0..tasks {
                        script.enqueue("work");
                    }
                    for id in script.members() {
                        if checkpoint {
                            script.compact(id);
                            script.pass(MILLISECOND * 20);
                        }
                        script.power_cut(id);
                    }
                    script.members().into_iter().for_each(|id| script.start(id));
                    script.leader();
                    script.settle();
                }
                // Whoever joins now gets everything.
                let new = script.add_node();
                script.settle();
                let (own, all) = (script.applied(new), script.committed());
                script.expect(own == all, "the new node has everything");
            });
        }
    }
}

/// The power of a node fails in the middle of a checkpoint, so that its shards include different entries. Then it leads,
/// and another node gets its rows. The checkers compare the digests of all shards after every entry.
#[test]
fn rows_from_a_node_whose_shards_are_at_different_entries_are_whole() {
    let mut apart = 0;
    let setup = Setup { shards: 3, ..Setup::default() };
    let broken = power_cut_at_every_change(&setup, |script, nth| {
        script.work(8);
        script.pass(MILLISECOND * 300);
        script.work(0);
        script.pass(MILLISECOND * 100);
        let node = script.leader();
        let started = script.incarnation(node);
        script.cut_at_change(node, nth);
        script.compact(node);
        script.pass(MILLISECOND * 100);
        script.spare_disk(node);
        script.pass_until("it is up", SECOND * 5, |script| script.node(node).is_some());
        let positions: Vec<u64> = {
            let up = script.node(node).unwrap();
            let replica = up.replica();
            replica.each().map(|shard| shard.data().read().store.position()).collect()
        };
        apart += u64::from(positions.iter().any(|position| *position != positions[0]));
        script.settle();
        // For a while after an election nobody votes for another node.
        script.pass(SECOND);
        if script.leader() != node {
            script.elect(node);
        }
        script.pass_until("it leads", SECOND * 5, |script| script.current_leader() == Some(node));
        let follower = script.followers()[0];
        let from = fall_behind(script, follower);
        catch_up(script, follower, from);
        script.incarnation(node) != started
    });
    assert_eq!(broken, None);
    assert!(apart > 10, "{apart} times shards were at different entries");
}

/// A leader that is cut off makes a checkpoint while proposals are in flight. Then it loses its power, and the others
/// commit something else in their place. Its clients were told that the outcome is unknown, and nothing of it is left.
#[test]
fn a_checkpoint_never_includes_what_is_not_committed() {
    holds(&Setup::default(), |script| {
        for _ in 0..3 {
            script.enqueue_many("work", 3);
            let old = script.leader();
            let last = script.last(old);
            script.isolate(old);
            let tasks: Vec<_> = (0..6).map(|_| script.new_tasks("lost", 1, 50)).collect();
            let mut calls = Vec::new();
            for task in tasks {
                calls.push(script.ask(old, task, 0));
                script.pass(MILLISECOND);
            }
            let (written, applied) = (script.last(old), script.applied(old));
            script.expect(written > last && applied == last, "entries are in flight");
            script.compact(old);
            script.pass(MILLISECOND * 50);
            script.next_leader(old);
            for call in calls {
                // Those that were in flight may still be committed, the others were never proposed.
                let answer = script.wait(call);
                let known = matches!(answer, Err(EngineError::Unknown | EngineError::NoLeader));
                script.expect(known, "the outcome is unknown, or nothing was done");
            }
            script.enqueue_many("work", 5);
            script.power_cut(old);
            script.start(old);
            script.pass(SECOND);
            script.heal();
            script.settle();
            let lost = script.claim("lost", 10_000);
            script.expect(lost.is_none(), "nothing of it is left");
        }
    });
}

/// A checkpoint fails because the disk is full, and the next one begins with the rows that the first should have written.
/// These rows are older than the entry at which the next checkpoint is made, so a node that got only them would lack what
/// came in between.
fn checkpoint_after_a_failed_one(script: &mut Script) {
    let leader = script.leader();
    // The new node below cannot start from the log.
    for _ in 0..3 {
        script.enqueue_many("work", 5);
        script.compact(leader);
        script.pass(MILLISECOND * 50);
    }
    let before = script.snapshot(leader);
    script.enqueue_many("work", 5);
    script.fill_disk(leader);
    script.compact(leader);
    script.pass(MILLISECOND * 50);
    let failed = script.snapshot(leader) == before;
    script.expect(failed, "there is no room for a checkpoint");
    script.spare_disk(leader);
    script.enqueue_many("work", 5);
    script.compact(leader);
    script.pass(MILLISECOND * 50);
    let (snapshot, applied) = (script.snapshot(leader), script.applied(leader));
    script.expect(snapshot == applied, "there is a checkpoint of everything");
    let new = script.add_node();
    script.pass_until("the new node has everything", SECOND * 10, |script| {
        script.applied(new) == script.committed()
    });
}

#[test]
fn a_checkpoint_after_a_failed_one_is_whole() {
    let setup = Setup { shards: 2, ..Setup::default() };
    holds(&setup, checkpoint_after_a_failed_one);
    notices(&setup, Fault::CheckpointOld, &[SCRIPT], checkpoint_after_a_failed_one);
}

/// A node is told to build a snapshot while rows of another one are being installed. Openraft may finish the two in
/// either order; the older one must not take the place of the newer.
#[test]
fn a_snapshot_that_is_built_during_an_installation_does_not_replace_it() {
    holds(&Setup { shards: 2, ..Setup::default() }, |script| {
        for round in 0..25_u32 {
            let follower = script.followers()[round as usize % 2];
            let from = fall_behind(script, follower);
            let pause = MILLISECOND / 20 * (1 + round);
            script.on(follower, |node| async move {
                for _ in 0..100 {
                    let _ = node.raft().trigger().snapshot().await;
                    codeq_raft::runtime::sleep(pause).await;
                }
            });
            script.heal();
            let mut snapshot = script.snapshot(follower);
            script.pass_until("the rows arrive", SECOND * 10, |script| {
                let now = script.snapshot(follower);
                script.expect(now >= snapshot, "no older snapshot replaces a newer one");
                snapshot = now;
                now > from && script.applied(follower) == script.committed()
            });
            script.settle();
        }
    });
}

/// A cluster of one grows to three, and the power of the first node fails at some change of its disk. When it is back
/// it must not believe that it is still alone: it would commit by itself what the other two do not know.
fn first_node_loses_power(script: &mut Script, nth: u64) -> bool {
    script.enqueue_many("work", 2);
    let started = script.incarnation(1);
    script.cut_at_change(1, nth);
    script.add_node();
    script.add_node();
    let is_dead = |script: &Script| script.incarnation(1) != started;
    let mut checkpoints = 0;
    script.pass_until("the cluster grows", SECOND * 10, |script| {
        let task = script.new_tasks("work", 1, 50);
        script.ask(1, task, 0);
        script.compact(1);
        script.pass(MILLISECOND * 30);
        // Once the entry that changed the members has left the log, only the saved membership tells who they are.
        checkpoints += u64::from(has_three_voters(script));
        checkpoints > 4 || is_dead(script)
    });
    script.spare_disk(1);
    if !is_dead(script) {
        return false;
    }
    script.isolate(1);
    let end = script.time() + SECOND * 2;
    while script.time() < end {
        for id in script.members() {
            let task = script.new_tasks("work", 1, 50);
            script.ask(id, task, 0);
        }
        script.pass(MILLISECOND * 50);
    }
    true
}

/// Whether the first node has applied that there are three voters.
fn has_three_voters(script: &Script) -> bool {
    let Some(node) = script.node(1) else { return false };
    let metrics = node.raft().metrics().borrow().clone();
    let members = metrics.membership_config;
    let voters: Vec<usize> =
        members.membership().get_joint_config().iter().map(|set| set.len()).collect();
    voters == [3] && *members.log_id() <= metrics.last_applied
}

#[test]
fn a_node_that_loses_power_while_its_cluster_grows_never_commits_alone() {
    let mut setup = Setup { nodes: 1, ..Setup::default() };
    assert_eq!(power_cut_at_every_change(&setup, first_node_loses_power), None);
    setup.fault = Some(Fault::ForgetMembership);
    let noticed = power_cut_at_every_change(&setup, first_node_loses_power);
    println!("ForgetMembership: {}", noticed.unwrap());
}
