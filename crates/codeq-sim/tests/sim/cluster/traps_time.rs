//! Clocks and settings: what a new leader takes over from the old one, and what it must not bring along.

use codeq_core::command::Command;
use codeq_core::reply::Reply;
use codeq_core::settings::Settings;
use codeq_raft::fault::Fault;
use codeq_sim::cluster::rules::SCRIPT;
use codeq_sim::cluster::script::{Script, Setup};

use super::traps::{SECOND, holds, notices};

const HOUR: std::time::Duration = std::time::Duration::from_secs(3_600);
const LEASE_MS: u64 = 30_000;

/// Kills the leader while a worker has a lease. The worker finishes shortly before its end.
fn fail_over_during_a_lease(script: &mut Script) {
    let task = script.enqueue("work");
    let claimed = script.claim("work", LEASE_MS).map(|task| task.id);
    script.expect(claimed == Some(task), "the task is claimed");
    let end = script.time() + SECOND * 26;
    let old = script.leader();
    script.kill(old);
    script.next_leader(old);
    while script.time() < end {
        script.pass(SECOND);
    }
    let answer = script.submit(task);
    script.expect(matches!(answer, Ok(Reply::Submitted(_))), "the lease has not ended early");
    script.settle();
}

/// The wall clocks of all nodes that can become leader next are an hour ahead.
fn wall_clocks_an_hour_ahead(script: &mut Script) {
    script.pass(SECOND);
    for follower in script.followers() {
        script.set_wall(follower, 3_600_000);
    }
    fail_over_during_a_lease(script);
}

#[test]
fn no_lease_ends_early_under_a_leader_whose_wall_clock_is_ahead() {
    let setup = Setup::default();
    holds(&setup, wall_clocks_an_hour_ahead);
    notices(&setup, Fault::TrustWallClock, &[8, SCRIPT], wall_clocks_an_hour_ahead);
}

/// A follower whose clock runs too fast is cut off for an hour. Then the leader dies, and the follower is asked for the
/// time: what it heard last is an hour old, and its clock has drifted since.
fn cut_off_for_an_hour(script: &mut Script) {
    let fast = 2;
    if script.leader() == fast {
        script.elect(1);
    }
    script.pass_until("another node leads", SECOND * 5, |script| {
        script.current_leader().is_some_and(|leader| leader != fast)
    });
    script.isolate(fast);
    script.pass_idly(HOUR);
    script.heal();
    let leader = script.leader();
    // It is back, but has not heard the time yet.
    script.part(leader, fast);
    fail_over_during_a_lease(script);
}

#[test]
fn no_lease_ends_early_when_a_node_with_a_drifted_clock_is_asked_for_the_time() {
    // The leader's clock is slow, that of the node that is cut off fast.
    let setup = |ppm: i64| Setup { drifts: vec![-ppm, ppm, 0], ..Setup::default() };
    holds(&setup(1_000), cut_off_for_an_hour);
    // Nodes allow for clocks that are off by 0.1 %. Worse ones show what the latest note is good for.
    holds(&setup(5_000), cut_off_for_an_hour);
    notices(&setup(5_000), Fault::HighestEstimate, &[8, SCRIPT], cut_off_for_an_hour);
}

/// The settings of a cluster are in its log. Nodes with other settings in their files start and lead, and change nothing.
#[test]
fn a_node_that_starts_or_leads_proposes_no_settings() {
    holds(&Setup::default(), |script| {
        let settings = Settings { max_attempts: 4, ..Settings::default() };
        let leader = script.leader();
        let call = script.ask(leader, Command::Configure(settings.clone()), 0);
        let answer = script.wait(call);
        script.expect(answer == Ok(Reply::Done), "the cluster is configured once");
        for attempts in 7..10 {
            script.set_file_settings(Settings { max_attempts: attempts, ..Settings::default() });
            let old = script.leader();
            script.kill(old);
            script.next_leader(old);
            script.start(old);
            script.enqueue_many("work", 2);
            script.pass(SECOND);
        }
        script.settle();
        for id in script.members() {
            let commands = script.commands(id);
            let of_settings = |command: &&Command| {
                matches!(command, Command::Configure(_) | Command::ConfigureV1(_))
            };
            let count = commands.iter().filter(of_settings).count();
            script.expect(count == 1, "nobody else has proposed settings");
            let node = script.node(id).unwrap();
            let kept = node.replica().each().all(|shard| {
                shard.data().read().state.meta().settings.max_attempts == settings.max_attempts
            });
            script.expect(kept, "the settings are those of the log");
        }
    });
}
