//! Why a task is where it is, and why a queue does or does not move.

use std::sync::Arc;

use codeq_core::command::Millis;
use codeq_core::history::{Entry, Event, History};
use codeq_core::moment::Moment;
use codeq_core::names::{check_command, queue_name};
use codeq_core::place::Place;
use codeq_core::read::{QueueStats, Standing};
use codeq_core::rows::Counts;
use codeq_core::view::Task;

use super::activity::{ACTIVE, Activity};
use super::permission::MayAdminister;
use super::queues::PausedBy;
use super::{Service, ServiceError, task_id};
use codeq_auth::Principal;

/// Why a task is where it is.
pub struct TaskWhy {
    /// The task, without its payload.
    pub task: Task,
    /// The reasons, the strongest first.
    pub reasons: Vec<Reason>,
}

/// Why a queue does or does not move.
pub struct QueueWhy {
    /// Number of tasks in each place.
    pub counts: Counts,
    /// Whether claims are paused.
    pub paused: bool,
    /// The reasons, the strongest first.
    pub reasons: Vec<Reason>,
}

/// One fact that explains a task or a queue. All times are wall-clock times.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the fields are named after what the variant says")]
pub enum Reason {
    /// Claims of the queue are paused.
    Paused(Option<PausedBy>),
    /// As many tasks as the topic's policy allows are in progress.
    MaxConsumers { in_progress: u64, max: u32 },
    /// The task is delayed.
    Delayed { until: Millis },
    /// The last attempt of the task failed, and the next one waits.
    Retry {
        until: Millis,
        attempts: u32,
        max_attempts: u32,
        error: Option<Arc<str>>,
        timed_out: Option<Arc<str>>,
    },
    /// Other tasks of the queue are claimed before the task.
    Ahead { higher_priority: u64, older: u64, exact: bool },
    /// No other task is claimed before the task.
    Next,
    /// No worker has asked for the queue for a while. `None`: not since the server began to record claims.
    NoWorker { last_claim: Option<Millis>, since: Millis },
    /// Workers ask for the queue, and this many wait for its tasks on streams.
    Workers { last_claim: Option<Millis>, waiting: u64 },
    /// No recent claim of the queue is known. But this many workers wait on streams for queues that the server does not
    /// all remember, so they may wait for this one.
    MaybeWorkers { last_claim: Option<Millis>, waiting: u64 },
    /// A worker holds the task's lease.
    Leased { worker: Arc<str>, until: Millis, heartbeat: Millis, run_until: Option<Millis> },
    /// The task's worker was asked to stop.
    CancelRequested,
    /// The task is completed.
    Completed { at: Millis },
    /// A worker ended the task as failed.
    Failed { at: Millis, by: Option<Arc<str>>, error: Option<Arc<str>> },
    /// The task was cancelled.
    Cancelled { at: Millis, by: Option<Arc<str>> },
    /// The task has used all its attempts.
    Dead { at: Millis, attempts: u32, max_attempts: u32, failures: Vec<Entry>, dropped: u32 },
    /// The queue has claimable tasks.
    ReadyTasks { count: u64, oldest: Option<Millis> },
    /// The queue has delayed tasks.
    DelayedTasks { count: u64 },
    /// The queue has leased tasks.
    LeasedTasks { count: u64 },
    /// The queue has dead letters.
    DeadLetters { count: u64 },
    /// The queue has nothing to do.
    Empty,
}

impl Service {
    /// Explains a task of the caller's tenant.
    pub async fn explain_task(
        &self,
        caller: &Principal,
        id: &str,
    ) -> Result<TaskWhy, ServiceError> {
        let standing = self.engine.standing(&caller.tenant, task_id(id, "not found")?).await?;
        let standing = standing.ok_or_else(|| ServiceError::no_task("not found"))?;
        let waits = matches!(standing.task.place, Place::Pending | Place::Delayed);
        let mut reasons = Vec::new();
        if waits {
            reasons.extend(self.blocked(&caller.tenant, &standing.queue).await?);
        }
        let Standing { task, history, queue, ahead } = standing;
        reasons.extend(of_place(&task, &history));
        reasons.extend(ahead.map(|ahead| match ahead.higher_priority + ahead.older {
            0 => Reason::Next,
            _ => {
                let (higher_priority, older) = (ahead.higher_priority, ahead.older);
                Reason::Ahead { higher_priority, older, exact: ahead.exact }
            }
        }));
        if task.place == Place::Pending {
            reasons.push(self.claims(&caller.tenant, &queue.name));
        }
        Ok(TaskWhy { task, reasons })
    }

    /// Explains a queue of the caller's tenant.
    pub async fn explain_queue(
        &self,
        caller: MayAdminister<'_>,
        command: &str,
    ) -> Result<QueueWhy, ServiceError> {
        check_command(command)?;
        let Some(queue) = self.engine.queue(&caller.tenant, command).await? else {
            let claims = self.claims(&caller.tenant, &queue_name(command));
            let reasons = vec![Reason::Empty, claims];
            return Ok(QueueWhy { counts: Counts::default(), paused: false, reasons });
        };
        let (counts, paused) = (queue.counts, queue.paused);
        let mut reasons = self.blocked(&caller.tenant, &queue).await?;
        let count = |count: u64| (count > 0).then_some(count);
        let oldest = queue.oldest_ready_created_at;
        let ready = count(counts.ready()).map(|count| Reason::ReadyTasks { count, oldest });
        let delayed = count(counts.delayed).map(|count| Reason::DelayedTasks { count });
        let leased = count(counts.in_progress).map(|count| Reason::LeasedTasks { count });
        let empty = (counts.live() == 0).then_some(Reason::Empty);
        let dead = count(counts.dead).map(|count| Reason::DeadLetters { count });
        let claims = Some(self.claims(&caller.tenant, &queue.name));
        reasons.extend([ready, delayed, leased, empty, claims, dead].into_iter().flatten());
        Ok(QueueWhy { counts, paused, reasons })
    }

    /// What keeps claims from a queue that has tasks.
    async fn blocked(
        &self,
        tenant: &Arc<str>,
        queue: &QueueStats,
    ) -> Result<Vec<Reason>, ServiceError> {
        let mut reasons = Vec::new();
        if queue.paused {
            reasons.push(Reason::Paused(self.pause_of(tenant, &queue.name).await?));
        }
        let max = queue.topic.as_ref().map_or(0, |topic| topic.policy.max_consumers);
        let in_progress = queue.counts.in_progress;
        if max > 0 && in_progress >= u64::from(max) {
            reasons.push(Reason::MaxConsumers { in_progress, max });
        }
        Ok(reasons)
    }

    fn claims(&self, tenant: &str, queue: &str) -> Reason {
        claims(&self.activity, tenant, queue, self.now())
    }
}

/// Whether workers ask for a queue.
fn claims(activity: &Activity, tenant: &str, queue: &str, now: Moment) -> Reason {
    let last = activity.last_claim(tenant, queue);
    let workers = activity.workers(tenant, now.now);
    let count = |waits: Option<bool>| {
        workers.iter().filter(|worker| worker.waits_for(queue) == waits).count() as u64
    };
    let last_claim = last.map(|at| now.date_of(at));
    let active = last.is_some_and(|at| now.now.saturating_sub(at) <= ACTIVE);
    match (count(Some(true)), count(None)) {
        (0, 0) if !active => Reason::NoWorker { last_claim, since: now.date_of(activity.since()) },
        (0, waiting) if !active => Reason::MaybeWorkers { last_claim, waiting },
        (waiting, _) => Reason::Workers { last_claim, waiting },
    }
}

/// The reasons that follow from where the task is and how it got there.
fn of_place(task: &Task, history: &History) -> Vec<Reason> {
    let entries = history.entries();
    let last = entries.last();
    let at = last.map_or(task.updated_at, |entry| entry.at);
    let settled = entries.iter().rfind(|entry| entry.event != Event::Rescheduled);
    let by = || last.and_then(|entry| entry.who.clone());
    let error = task.error.clone().filter(|text| !text.is_empty());
    let (attempts, max_attempts) = (task.attempts, task.max_attempts);
    let until = task.visible_at.unwrap_or(task.updated_at);
    match task.place {
        Place::Pending => Vec::new(),
        // A failed task that was rescheduled still waits for its retry.
        Place::Delayed if settled.is_some_and(is_failure) => {
            let timed_out = settled.filter(|entry| entry.event == Event::TimedOut);
            let timed_out = timed_out.and_then(|entry| entry.why.clone());
            vec![Reason::Retry { until, attempts, max_attempts, error, timed_out }]
        }
        Place::Delayed => vec![Reason::Delayed { until }],
        Place::InProgress => {
            let lease = task.worker.clone().zip(task.lease_until);
            let lease = lease.map(|(worker, until)| Reason::Leased {
                worker,
                until,
                heartbeat: task.updated_at,
                run_until: task.run_until,
            });
            let cancel = task.cancel_requested.then_some(Reason::CancelRequested);
            lease.into_iter().chain(cancel).collect()
        }
        Place::Completed => vec![Reason::Completed { at }],
        Place::Failed if last.is_some_and(|entry| entry.event == Event::Submitted) => {
            vec![Reason::Failed { at, by: by(), error }]
        }
        // No worker submitted a result, so the task was cancelled: at once, or on request, when its worker stopped or its
        // lease ended.
        Place::Failed => {
            let asked = entries.iter().rev().find(|entry| entry.event == Event::CancelRequested);
            let is_end = |entry: &&Entry| entry.event == Event::Cancelled;
            let by = last.filter(is_end).or(asked).and_then(|entry| entry.who.clone());
            vec![Reason::Cancelled { at, by }]
        }
        Place::Dead => {
            // A replay gives the task new attempts.
            let replayed = entries.iter().rposition(|entry| entry.event == Event::Replayed);
            let recent = entries.into_iter().skip(replayed.map_or(0, |at| at + 1));
            let failures = recent.filter(is_failure).collect();
            let dropped = history.dropped();
            vec![Reason::Dead { at, attempts, max_attempts, failures, dropped }]
        }
    }
}

/// Whether an attempt ended without a result.
fn is_failure(entry: &Entry) -> bool {
    use Event::{Abandoned, LeaseExpired, Nacked, TimedOut};
    matches!(entry.event, Nacked | Abandoned | LeaseExpired | TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use codeq_core::command::{Claim, Selector};

    #[test]
    fn a_stream_with_many_queues_may_wait_for_any_of_them() {
        let (activity, tenant) = (Activity::new(0), Arc::from("t"));
        let mut stream = activity.stream(&tenant, "w");
        stream.ready(1);
        let names = (0..20).map(|n| Arc::from(format!("q{n:02}"))).collect();
        let from = Selector::Commands(names);
        let claim = Claim { tenant, worker: "w".into(), lease: 1, count: 1, from };
        activity.claimed(&claim, 1, 0);
        let told = |queue: &str, now| claims(&activity, "t", queue, Moment { now, wall: now });
        let last_claim = Some(0);
        assert_eq!(told("q19", ACTIVE), Reason::Workers { last_claim, waiting: 0 });
        let later = ACTIVE + 1;
        assert_eq!(told("q00", later), Reason::Workers { last_claim, waiting: 1 });
        assert_eq!(told("q19", later), Reason::MaybeWorkers { last_claim, waiting: 1 });
        let never = Reason::MaybeWorkers { last_claim: None, waiting: 1 };
        assert_eq!(told("x", later), never);
        stream.served(1);
        assert_eq!(told("q19", later), Reason::NoWorker { last_claim, since: 0 });
    }
}
