//! The faults of a run, one episode at a time. Each says what must hold meanwhile; `repair` checks the calm that follows.

use std::sync::Arc;
use std::time::Duration;

use codeq_raft::types::NodeId;

use super::network::NetworkConditions;
use super::repair::PROGRESS_WITHIN;
use super::rules::{PROGRESS, STABLE, STOPPED};
use super::run::Run;
use crate::disk::{Class, Faults};

const SECOND: Duration = Duration::from_secs(1);
const HOUR_MS: i64 = 3_600_000;

type Episode = (&'static str, u64, fn(&mut Run));

/// The episodes with their weights: the higher, the more often an episode comes.
const EPISODES: [Episode; 17] = [
    ("storm", 4, Run::storm),
    ("leader killed", 3, Run::kill_leader),
    ("leader restarted at once", 2, Run::restart_leader),
    ("leader isolated", 3, Run::isolate_leader),
    ("one-way cut", 2, Run::cut_one_way),
    ("bridge", 2, Run::bridge),
    ("follower returns", 2, Run::follower_returns),
    ("snapshot", 4, Run::catch_up_by_snapshot),
    ("all down", 2, Run::all_down),
    ("node replaced", 2, Run::replace_node),
    ("clock set", 2, Run::set_clocks),
    ("stale clock", 2, Run::stale_clock),
    ("suspended", 2, Run::suspend),
    ("disk trouble", 3, Run::disk_trouble),
    ("late proposal", 1, Run::propose_late),
    ("stale leader", 2, Run::keep_stale_leader),
    ("log lost", 2, Run::lose_log),
];

impl Run {
    /// Something goes wrong.
    pub(super) fn episode(&mut self) {
        let total = EPISODES.iter().map(|(_, weight, _)| weight).sum();
        let mut draw = self.rng.below(total);
        for (name, weight, play) in EPISODES {
            if draw < weight {
                self.count(name);
                let conditions = self.mild();
                self.world.network.set_conditions(conditions);
                return play(self);
            }
            draw -= weight;
        }
    }

    /// A network that delays messages but loses none.
    fn mild(&mut self) -> NetworkConditions {
        NetworkConditions { loss: 0, straggler: 0, ..NetworkConditions::draw(&mut self.rng) }
    }

    fn between(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.rng.between(low, high))
    }

    fn followers(&self) -> Vec<NodeId> {
        let leader = self.leader();
        self.desired.iter().copied().filter(|id| Some(*id) != leader).collect()
    }

    fn any_node(&mut self) -> Option<NodeId> {
        let ids: Vec<NodeId> = self.machines.keys().copied().collect();
        self.rng.pick(&ids).copied()
    }

    fn everybody(&self) -> Vec<NodeId> {
        self.machines.keys().copied().collect()
    }

    /// While a majority is connected, the cluster has to acknowledge requests.
    fn expect_progress(&mut self, what: &str) {
        if !self.await_acknowledgement(PROGRESS_WITHIN) {
            self.violation(
                PROGRESS,
                format!("{what}: nothing was acknowledged within ten seconds"),
            );
        }
    }

    /// Several faults at once, under bad network conditions.
    fn storm(&mut self) {
        let conditions = NetworkConditions::draw(&mut self.rng);
        self.world.network.set_conditions(conditions);
        for _ in 0..self.rng.between(3, 10) {
            let Some(id) = self.any_node() else { return };
            match self.rng.below(8) {
                0 => self.crash(id, false),
                1 => self.crash(id, true),
                2 => {
                    let Some(other) = self.any_node() else { return };
                    self.world.network.cut(id, other);
                }
                3 => {
                    let all = self.everybody();
                    self.world.network.part(&[id], &all);
                }
                4 => self.world.network.heal(),
                5 => {
                    let stall = self.between(100, 3_000);
                    self.world.executor.stall(id, stall);
                }
                6 => self.compact(id),
                _ => {
                    let Some(other) = self.any_node() else { return };
                    let slow = self.rng.between(1_000, 400_000);
                    self.world.network.slow_down(id, other, slow);
                }
            }
            let time = self.between(50, 2_000);
            self.pass(time);
        }
    }

    /// The leader is killed with requests in flight and stays down for a while.
    pub(super) fn kill_leader(&mut self) {
        self.pass(SECOND);
        let Some(leader) = self.leader() else { return };
        let power_cut = self.rng.chance(50);
        self.supervised = false;
        self.crash(leader, power_cut);
        self.expect_progress("the leader was killed");
        let away = self.between(0, 3_000);
        self.pass(away);
    }

    /// The leader is back before anybody else stands for election.
    fn restart_leader(&mut self) {
        for _ in 0..self.rng.between(1, 3) {
            self.pass(SECOND);
            let Some(leader) = self.leader() else { return };
            let power_cut = self.rng.chance(50);
            self.crash(leader, power_cut);
            let again = self.between(0, 2_000);
            self.pass(again);
        }
    }

    /// The leader is cut off with entries in flight; the others elect another.
    fn isolate_leader(&mut self) {
        self.pass(SECOND);
        let Some(leader) = self.leader() else { return };
        let all = self.everybody();
        let mut apart = vec![leader];
        if self.desired.len() == 5 && self.rng.chance(50) {
            let followers = self.followers();
            apart.extend(self.rng.pick(&followers));
        }
        let rest: Vec<NodeId> = all.into_iter().filter(|id| !apart.contains(id)).collect();
        self.world.network.part(&apart, &rest);
        self.pass(SECOND * 2);
        self.expect_progress("the leader was cut off");
        let longer = self.between(0, 3_000);
        self.pass(longer);
    }

    /// The leader no longer hears the others, or they no longer hear it.
    fn cut_one_way(&mut self) {
        self.pass(SECOND);
        let Some(leader) = self.leader() else { return };
        let deaf = self.rng.chance(60);
        for other in self.followers() {
            match deaf {
                true => self.world.network.cut(other, leader),
                false => self.world.network.cut(leader, other),
            }
        }
        self.pass(SECOND * 2);
        self.expect_progress("the leader was cut off in one direction");
    }

    /// Two nodes do not reach each other, but both reach a third.
    fn bridge(&mut self) {
        let ids: Vec<NodeId> = self.desired.iter().copied().collect();
        let (Some(one), Some(other)) = (self.rng.pick(&ids).copied(), self.rng.pick(&ids).copied())
        else {
            return;
        };
        self.world.network.part(&[one], &[other]);
        let first = self.between(2_000, 6_000);
        self.pass(first);
        self.expect_progress("two nodes do not reach each other");
        let longer = self.between(0, 3_000);
        self.pass(longer);
    }

    /// A follower that was cut off returns: the leader stays.
    fn follower_returns(&mut self) {
        self.world.network.set_conditions(NetworkConditions::GOOD);
        let Some(leader) = self.leader() else { return };
        let before = self.rules.highest();
        let followers = self.followers();
        let Some(follower) = self.rng.pick(&followers).copied() else { return };
        let all = self.everybody();
        self.world.network.part(&[follower], &all);
        let away = self.between(2_000, 15_000);
        self.pass(away);
        self.world.network.heal();
        self.pass(SECOND * 3);
        if (self.leader(), self.rules.highest()) != (Some(leader), before) && !self.is_over() {
            let now = self.rules.highest();
            let text = format!(
                "node {leader} led with vote {before:?}; after node {follower} came back the highest vote is {now:?}"
            );
            self.violation(STABLE, text);
        }
    }

    /// Checkpoints a node and purges its log.
    fn compact(&mut self, id: NodeId) {
        if let Some(node) = self.node(id) {
            self.world.executor.spawn_on(Some(id), async move { node.compact().await });
        }
    }

    /// A follower misses so much that it gets all rows from another node, perhaps with a crash on the way.
    fn catch_up_by_snapshot(&mut self) {
        let followers = self.followers();
        let Some(follower) = self.rng.pick(&followers).copied() else { return };
        let all = self.everybody();
        self.world.network.part(&[follower], &all);
        let burst = std::mem::replace(&mut self.burst, 8);
        for _ in 0..self.rng.between(2, 4) {
            self.pass(SECOND);
            for id in self.everybody().into_iter().filter(|id| *id != follower) {
                self.compact(id);
            }
        }
        let applied = |run: &Run| run.node(follower).and_then(|node| node.applied());
        let before = applied(self).map_or(0, |id| id.index);
        self.world.network.heal();
        match self.rng.below(4) {
            0 | 1 => {
                let nth = self.rng.between(1, 120);
                if let Some(machine) = self.machines.get_mut(&follower) {
                    machine.plan(Faults { cut_at_change: Some(nth), ..Faults::default() });
                }
            }
            2 => self.crash_when_log_jumps(follower),
            _ => {}
        }
        self.pass(SECOND * 3);
        self.burst = burst;
        let snapshot = self.node(follower).and_then(|node| {
            let metrics = node.raft().metrics().borrow().clone();
            metrics.snapshot.map(|id| id.index)
        });
        if snapshot.is_some_and(|index| index > before) {
            self.report.snapshots += 1;
        }
    }

    /// Cuts the power of a node at the moment when its log jumps to the end of the rows that it got from another node.
    fn crash_when_log_jumps(&mut self, id: NodeId) {
        let Some(node) = self.node(id) else { return };
        let last = || node.log().last_log_id().map_or(0, |last| last.index);
        let (before, end) = (last(), self.world.executor.time() + SECOND * 3);
        let jumped = self.run_until(end, || last() > before);
        drop(node);
        if jumped {
            self.crash(id, true);
        }
    }

    /// All machines lose their power, or their processes are killed, at about the same time.
    fn all_down(&mut self) {
        self.pass(SECOND);
        self.supervised = false;
        for id in self.everybody() {
            let power_cut = self.rng.chance(70);
            self.crash(id, power_cut);
            let step = self.between(0, 20);
            self.pass(step);
        }
        let off = self.between(0, 5_000);
        self.pass(off);
        for id in self.everybody() {
            if let Some(machine) = self.machines.get_mut(&id) {
                machine.start(&self.world);
            }
            let step = self.between(0, 1_000);
            self.pass(step);
        }
        self.supervised = true;
    }

    /// A machine is lost with its disk: it is removed, and a new one joins.
    fn replace_node(&mut self) {
        self.pass(SECOND);
        let Some(lost) = self.any_node() else { return };
        self.take_away(lost);
        if let Some(new) = self.add_machine(false) {
            self.desired.insert(new);
        }
        let time = self.between(500, 5_000);
        self.pass(time);
        if self.rng.chance(30)
            && let Some(leader) = self.leader()
        {
            self.crash(leader, false);
            self.pass(SECOND * 2);
        }
    }

    /// The wall clocks of a minority are set wrong, and the leader changes.
    fn set_clocks(&mut self) {
        let minority = (self.desired.len() - 1) / 2;
        let mut ids = self.everybody();
        for _ in 0..minority {
            let at = self.rng.below(ids.len() as u64) as usize;
            let id = ids.swap_remove(at);
            let ahead = match self.rng.below(4) {
                0 => HOUR_MS,
                1 => -HOUR_MS,
                2 => 10 * HOUR_MS,
                _ => self.rng.between(0, 2 * HOUR_MS as u64) as i64 - HOUR_MS,
            };
            if let Some(machine) = self.machines.get(&id) {
                machine.clock.set(ahead);
            }
        }
        self.pass(SECOND);
        for _ in 0..self.rng.between(1, 3) {
            if let Some(leader) = self.leader() {
                let power_cut = self.rng.chance(50);
                self.crash(leader, power_cut);
            }
            if self.rng.chance(20) {
                self.all_down();
            }
            let time = self.between(1_000, 4_000);
            self.pass(time);
        }
    }

    /// The follower with the fastest clock is cut off for long, and then helps to elect the next leader: its old note of
    /// the time has drifted.
    fn stale_clock(&mut self) {
        let drift = |id: &NodeId| self.machines.get(id).map(|machine| machine.drift);
        let Some(follower) = self.followers().into_iter().max_by_key(drift) else { return };
        let all = self.everybody();
        self.world.network.part(&[follower], &all);
        let burst = std::mem::replace(&mut self.burst, 0);
        let away = self.between(60_000, 200_000);
        self.pass_idly(away);
        self.burst = burst;
        // Deadlines in these last entries must not come early if that node's time is used later.
        self.expect_progress("a node is away");
        let Some(leader) = self.leader() else { return };
        self.supervised = false;
        self.crash(leader, false);
        self.world.network.heal();
        self.expect_progress("the leader was killed while a node was away");
        self.supervised = true;
    }

    /// Lets much time pass with few checks.
    fn pass_idly(&mut self, duration: Duration) {
        let mut left = duration;
        while left > SECOND && !self.is_over() {
            let until = self.world.executor.time() + SECOND;
            self.run_until(until, || false);
            self.pass(Duration::from_micros(10));
            left -= SECOND;
        }
    }

    /// Processes are suspended: single ones for seconds, or all of them for up to hours.
    fn suspend(&mut self) {
        self.pass(SECOND);
        if self.rng.chance(40) {
            let long = self.between(1_000, 7_200_000);
            self.world.executor.leap(long);
            self.pass(SECOND * 2);
            return;
        }
        for _ in 0..self.rng.between(1, 3) {
            let id = match self.rng.chance(60) {
                true => self.leader(),
                false => self.any_node(),
            };
            let Some(id) = id else { return };
            let stall = self.between(100, 15_000);
            self.world.executor.stall(id, stall);
            let time = self.between(500, 5_000);
            self.pass(time);
        }
    }

    /// A disk fails, fills up, is slow, or loses its power in the middle of something.
    fn disk_trouble(&mut self) {
        let id = match self.rng.chance(50) {
            true => self.leader(),
            false => self.any_node(),
        };
        let Some(id) = id else { return };
        let class = if self.rng.chance(60) { Class::Log } else { Class::Store };
        let nth = self.rng.between(1, 30);
        let used = self.machines.get(&id).map_or(0, |machine| machine.disk.used());
        let none = Faults::default();
        let (name, faults) = match self.rng.below(6) {
            0 => ("write failed", Faults { fail_write: Some((class, nth)), ..none }),
            1 => ("sync failed", Faults { fail_sync: Some((class, nth)), ..none }),
            2 => ("power cut at a sync", Faults { cut_at_sync: Some(nth), ..none }),
            3 => ("power cut at a change", Faults { cut_at_change: Some(nth), ..none }),
            4 => ("disk slow", Faults { sync_cost: self.rng.between(1, 300), ..none }),
            _ => {
                let capacity = Some(used + self.rng.below(256 << 10));
                ("disk full", Faults { capacity, ..none })
            }
        };
        self.count(name);
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.plan(faults);
        }
        let time = self.between(1_000, 6_000);
        self.pass(time);
        self.compact(id);
        self.pass(SECOND);
    }

    /// A proposal reaches openraft only after an election, as if it had been queued all the time: nobody may apply it.
    fn propose_late(&mut self) {
        self.pass(SECOND);
        let before = self.rules.highest();
        let Some(proposal) = self.committed.stale_proposal() else { return };
        self.kill_leader();
        self.pass(SECOND);
        let Some(leader) = self.leader().filter(|_| self.rules.highest() > before) else { return };
        let Some(node) = self.node(leader) else { return };
        self.world.executor.spawn_on(Some(leader), async move {
            // A node that does not lead any more refuses it.
            if let Ok(written) = node.raft().client_write_ff(proposal).await {
                drop(written.await);
            }
        });
        self.pass(SECOND);
    }

    /// A leader's messages no longer arrive, but it still receives late answers to earlier ones, so for a while it does not
    /// know that there is another leader. Clients ask both.
    fn keep_stale_leader(&mut self) {
        self.world.network.set_conditions(NetworkConditions::GOOD);
        // No other requests: once a leader has the maximum of entries in flight, it gathers nothing more until one is
        // applied, not even the claims of this episode. Cut off, it would never answer them.
        let burst = std::mem::replace(&mut self.burst, 0);
        self.pass(SECOND);
        self.ask_stale_leader();
        self.burst = burst;
    }

    fn ask_stale_leader(&mut self) {
        let Some(old) = self.leader() else { return };
        for other in self.followers() {
            self.world.network.slow_down(other, old, 780_000);
        }
        self.pass(SECOND);
        for other in self.followers() {
            self.world.network.cut(old, other);
        }
        let end = self.world.executor.time() + SECOND * 3;
        let queue: Arc<str> = format!("rendezvous-{}", end.as_micros()).into();
        while self.world.executor.time() < end && !self.is_over() {
            let (enqueue, claim) = self.clients.workload.rendezvous(&queue);
            if let Some(leader) = self.leader().filter(|leader| *leader != old) {
                self.call_node(leader, enqueue);
            }
            self.call_node(old, claim);
            self.pass(Duration::from_millis(10));
        }
    }

    /// The disk of a follower reports the log as synced although it is not. After a power cut the rows include more than
    /// the log: the node must refuse to start, and is replaced.
    fn lose_log(&mut self) {
        self.pass(SECOND);
        let followers = self.followers();
        let Some(follower) = self.rng.pick(&followers).copied() else { return };
        let Some(node) = self.node(follower) else { return };
        let kept = node.log().last_log_id().map_or(0, |last| last.index);
        drop(node);
        if let Some(machine) = self.machines.get(&follower) {
            machine.disk.lose_cache(Class::Log);
        }
        let time = self.between(20, 2_000);
        self.pass(time);
        self.compact(follower);
        self.pass(Duration::from_millis(100));
        let position = self.node(follower).and_then(|node| {
            node.replica().each().map(|shard| shard.data().read().store.position()).max()
        });
        // Whatever it says afterwards, nobody may hear it: it may have forgotten what it acknowledged.
        let all = self.everybody();
        self.world.network.part(&[follower], &all);
        self.crash(follower, true);
        self.expelled = Some(follower);
        self.pass(SECOND);
        if self.node(follower).is_some()
            && position.is_some_and(|position| position > kept)
            && !self.is_over()
        {
            let text = format!("node {follower} started although the end of its log is lost");
            self.violation(STOPPED, text);
        }
        self.expelled = None;
        self.take_away(follower);
        if let Some(new) = self.add_machine(false) {
            self.desired.insert(new);
        }
        self.pass(SECOND * 2);
    }
}
