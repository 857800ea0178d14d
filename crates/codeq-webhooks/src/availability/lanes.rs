//! Who may send now: so many at once in all, few to one host, and not all for one tenant.
//!
//! A host that does not answer holds up its own notifications and nobody else's.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::subscriptions::Receiver;

/// Notifications under way at once.
pub const RUNNING_MAX: usize = 64;
/// The same to one host.
pub const PER_HOST_MAX: usize = 4;
/// The same for one tenant, so that one with many dead hosts leaves room for others.
pub const PER_TENANT_MAX: usize = 24;
/// Notifications that wait.
pub const WAITING_MAX: usize = 4_096;
/// The same for one tenant.
pub const WAITING_PER_TENANT_MAX: usize = 1_024;

/// A notification to be sent.
#[derive(Clone)]
pub struct Job {
    /// To whom.
    pub receiver: Arc<Receiver>,
    /// Of which queue.
    pub command: Arc<str>,
}

impl Job {
    fn tenant(&self) -> &Arc<str> {
        &self.receiver.subscription.tenant
    }

    fn key(&self) -> (Arc<str>, Arc<str>) {
        (Arc::clone(&self.receiver.subscription.id), Arc::clone(&self.command))
    }
}

/// What is under way and what waits.
#[derive(Default)]
pub struct Lanes {
    running: usize,
    waiting: usize,
    hosts: HashMap<String, Lane>,
    /// By tenant: under way, and waiting.
    tenants: HashMap<Arc<str>, (usize, usize)>,
    /// Hosts with something that waits, the next one first.
    turns: VecDeque<String>,
    /// What waits already: once is enough.
    keys: HashSet<(Arc<str>, Arc<str>)>,
}

#[derive(Default)]
struct Lane {
    running: usize,
    waiting: VecDeque<Job>,
}

impl Lanes {
    /// Puts a notification in line. False if there is no room.
    pub fn push(&mut self, job: Job) -> bool {
        if self.keys.contains(&job.key()) {
            return true;
        }
        let of_tenant = self.tenants.get(job.tenant()).map_or(0, |(_, waiting)| *waiting);
        if self.waiting >= WAITING_MAX || of_tenant >= WAITING_PER_TENANT_MAX {
            return false;
        }
        self.waiting += 1;
        self.tenants.entry(Arc::clone(job.tenant())).or_default().1 += 1;
        self.keys.insert(job.key());
        let host = job.receiver.to.authority().to_owned();
        let lane = self.hosts.entry(host.clone()).or_default();
        lane.waiting.push_back(job);
        if lane.waiting.len() == 1 {
            self.turns.push_back(host);
        }
        true
    }

    /// The next one that may be sent now; [`Lanes::done`] when it is.
    pub fn start(&mut self) -> Option<Job> {
        if self.running >= RUNNING_MAX {
            return None;
        }
        for _ in 0..self.turns.len() {
            let host = self.turns.pop_front()?;
            let job = self.take(&host);
            if self.hosts.get(&host).is_some_and(|lane| !lane.waiting.is_empty()) {
                self.turns.push_back(host);
            }
            if job.is_some() {
                return job;
            }
        }
        None
    }

    fn take(&mut self, host: &str) -> Option<Job> {
        let lane = self.hosts.get_mut(host).filter(|lane| lane.running < PER_HOST_MAX)?;
        let may = |job: &Job| {
            let running = self.tenants.get(job.tenant()).map_or(0, |(running, _)| *running);
            running < PER_TENANT_MAX
        };
        let at = lane.waiting.iter().position(may)?;
        let job = lane.waiting.remove(at)?;
        lane.running += 1;
        self.running += 1;
        self.waiting -= 1;
        self.keys.remove(&job.key());
        let (running, waiting) = self.tenants.entry(Arc::clone(job.tenant())).or_default();
        *running += 1;
        *waiting = waiting.saturating_sub(1);
        Some(job)
    }

    /// One that was started has ended.
    pub fn done(&mut self, job: &Job) {
        self.running = self.running.saturating_sub(1);
        let host = job.receiver.to.authority();
        if let Some(lane) = self.hosts.get_mut(host) {
            lane.running = lane.running.saturating_sub(1);
            if lane.running == 0 && lane.waiting.is_empty() {
                self.hosts.remove(host);
            }
        }
        if let Some((running, waiting)) = self.tenants.get_mut(job.tenant()) {
            *running = running.saturating_sub(1);
            if *running == 0 && *waiting == 0 {
                self.tenants.remove(job.tenant());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::availability::fixture::receiver;

    fn job(tenant: &str, host: &str, command: &str) -> Job {
        let url = format!("http://{host}/{command}");
        let receiver = receiver(tenant, |wish| wish.callback_url = url.into());
        Job { receiver, command: command.into() }
    }

    fn start_all(lanes: &mut Lanes) -> Vec<Job> {
        std::iter::from_fn(|| lanes.start()).collect()
    }

    #[test]
    fn few_to_one_host_and_not_all_for_one_tenant() {
        let mut lanes = Lanes::default();
        for number in 0..10 {
            assert!(lanes.push(job("a", "slow.test:80", &format!("c{number}"))));
        }
        assert!(lanes.push(job("b", "quick.test:80", "c")));
        let started = start_all(&mut lanes);
        assert_eq!(started.len(), PER_HOST_MAX + 1);
        assert!(started.iter().any(|job| job.tenant().as_ref() == "b"));
        for host in 0..100 {
            assert!(lanes.push(job("a", &format!("dead{host}.test:80"), "c")));
        }
        assert_eq!(start_all(&mut lanes).len(), PER_TENANT_MAX - PER_HOST_MAX);
        for host in 0..100 {
            let tenant = format!("t{}", host % 10);
            assert!(lanes.push(job(&tenant, &format!("h{host}.test:80"), "c")));
        }
        assert_eq!(start_all(&mut lanes).len(), RUNNING_MAX - PER_TENANT_MAX - 1);
        // Whoever ends makes room for the next to the same host.
        lanes.done(&started[0]);
        assert_eq!(start_all(&mut lanes).len(), 1);
    }

    #[test]
    fn what_waits_is_bounded_and_waits_once() {
        let mut lanes = Lanes::default();
        let one = job("a", "h.test:80", "c");
        assert!((0..5).all(|_| lanes.push(one.clone())));
        assert_eq!(lanes.waiting, 1);
        let fill = |lanes: &mut Lanes, tenant: &str| {
            (0..2_000).filter(|n| lanes.push(job(tenant, "h.test:80", &format!("c{n}")))).count()
        };
        assert_eq!(fill(&mut lanes, "a"), WAITING_PER_TENANT_MAX - 1);
        let rest: usize = ["b", "c", "d", "e"].iter().map(|tenant| fill(&mut lanes, tenant)).sum();
        assert_eq!(rest, WAITING_MAX - WAITING_PER_TENANT_MAX);
    }

    #[test]
    fn nothing_is_left_when_all_is_done() {
        let mut lanes = Lanes::default();
        for number in 0..200 {
            let tenant = format!("t{}", number % 3);
            let host = format!("h{}.test:80", number % 7);
            assert!(lanes.push(job(&tenant, &host, &format!("c{number}"))));
        }
        let mut sent = 0;
        loop {
            let started = start_all(&mut lanes);
            if started.is_empty() {
                break;
            }
            sent += started.len();
            started.iter().for_each(|job| lanes.done(job));
        }
        assert_eq!((sent, lanes.running, lanes.waiting), (200, 0, 0));
        assert!(lanes.hosts.is_empty() && lanes.tenants.is_empty());
        assert!(lanes.turns.is_empty() && lanes.keys.is_empty());
    }
}
