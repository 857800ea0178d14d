//! The task that sends availability notifications.
//!
//! The engine's threads only record the queue in [`WorkAvailable`](super::WorkAvailable). This task finds the
//! interested subscribers and notifies them.

use std::sync::Arc;

use codeq_core::callback_retry::name_hash;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::ready_queues::ReadyQueues;
use super::recipients::{Notification, Recipients};
use super::sender::Sender;
use super::subscriptions::{Subscriber, Subscription, Subscriptions};
use super::work_available::Changes;
use crate::dispatcher::{Call, Dispatcher, Limits, Outcome, Receiver};
use crate::outbound::{Outbound, run};
use crate::report::WebhookOutcome;

/// Maximum number of notifications in flight.
pub const CALLS_MAX: usize = 64;

pub(crate) const LIMITS: Limits = Limits {
    calls: CALLS_MAX,
    // Less than half, so that a tenant with many dead hosts leaves room for others.
    calls_per_tenant: 24,
    calls_per_host: 4,
    waiting: 4_096,
    waiting_per_tenant: 1_024,
    waiting_per_receiver: 1_024,
    // Twice what can wait, because failing receivers are remembered.
    receivers: 8_192,
    receivers_per_tenant: 2_048,
};

/// Sends availability notifications.
pub struct Notifier {
    sender: Arc<Sender>,
    ready: ReadyQueues,
    recipients: Recipients,
    dispatcher: Dispatcher<Notification>,
    calls: JoinSet<(Call<Notification>, Outcome)>,
}

impl Notifier {
    /// The subscriptions must be loaded. With a public URL, notifications carry an absolute claim URL too.
    pub fn new(
        outbound: Arc<Outbound>,
        subscriptions: Arc<Subscriptions>,
        public_url: Option<&str>,
    ) -> Notifier {
        Notifier {
            sender: Arc::new(Sender::new(outbound, subscriptions, public_url)),
            ready: ReadyQueues::new(),
            recipients: Recipients::default(),
            dispatcher: Dispatcher::new(LIMITS),
            calls: JoinSet::new(),
        }
    }

    /// Sends until `stop` turns true.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        self.add_all_queues().await;
        let work_available = Arc::clone(self.sender.subscriptions.work_available());
        loop {
            let next = [self.recipients.next_deferred(), self.dispatcher.next_wake()];
            let next = next.into_iter().flatten().min();
            tokio::select! {
                () = stopped(&mut stop) => break,
                () = work_available.changed() => self.apply(work_available.take()).await,
                Some(done) = self.calls.join_next() => {
                    if let Ok((call, outcome)) = done {
                        self.finish(call, outcome);
                    }
                }
                // One queue at a time, so that nothing else waits long.
                () = tokio::task::yield_now(), if !self.ready.is_empty() => self.notify_queue(),
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    self.dispatcher.wake(Instant::now());
                    self.notify_deferred();
                }
            }
            self.start_calls();
        }
        self.calls.shutdown().await;
    }

    /// Adds all queues that have work, at startup: the previous run may not have announced all of them.
    async fn add_all_queues(&mut self) {
        for tenant in self.sender.subscriptions.tenants() {
            let queues = self.sender.engine().queues(&tenant).await.unwrap_or_default();
            for queue in queues.into_iter().filter(|queue| queue.counts.ready() > 0) {
                self.add_queue(Arc::clone(&tenant), queue.name);
            }
        }
    }

    async fn apply(&mut self, changes: Changes) {
        for _ in 0..changes.missed {
            self.sender.count(WebhookOutcome::Dropped, None);
        }
        // Subscriptions first: a worker that subscribed before a queue got work must be notified.
        self.refresh(&changes).await;
        for (shard, queue) in changes.ready {
            let name = self.sender.engine().peek(shard, |state| {
                let row = state.queue_row(queue)?;
                Some((Arc::clone(&row.tenant), Arc::clone(&row.name)))
            });
            if let Some((tenant, command)) = name.flatten() {
                self.add_queue(tenant, command);
            }
        }
    }

    async fn refresh(&mut self, changes: &Changes) {
        let subscriptions = &self.sender.subscriptions;
        // On a single node, reads fail only when the engine has stopped for good, and then nothing is sent any more. In a
        // cluster they also fail while there is no leader: what was known then holds until the next change.
        if changes.all_changed && subscriptions.load(self.sender.engine()).await.is_ok() {
            self.recipients.retain(|tenant, id| subscriptions.get(tenant, id, 0).is_some());
        }
        for (tenant, id) in &changes.changed {
            if let Ok(false) = subscriptions.refresh(self.sender.engine(), tenant, id).await {
                self.recipients.forget(id);
            }
        }
    }

    /// Adds a queue that has work.
    fn add_queue(&mut self, tenant: Arc<str>, command: Arc<str>) {
        if self.sender.subscriptions.has_any(&tenant)
            && !self.ready.add(Arc::clone(&tenant), Arc::clone(&command))
        {
            self.count_dropped(&tenant, &command);
        }
    }

    /// Chooses the recipients for the next queue that has work.
    fn notify_queue(&mut self) {
        let Some((tenant, command)) = self.ready.take() else { return };
        let now = self.sender.engine().now().now;
        let subscribers = self.sender.subscriptions.interested(&tenant, &command, now);
        // Often a waiting claim has taken the task by now.
        if subscribers.is_empty() || self.sender.engine().claimable(&tenant, &command) == 0 {
            return;
        }
        for subscriber in self.recipients.choose(Instant::now(), &command, &subscribers) {
            self.enqueue(&subscriber, Arc::clone(&command));
        }
        for _ in 0..self.recipients.take_dropped() {
            self.count_dropped(&tenant, &command);
        }
    }

    /// Sends what had to wait for a subscription's minimum interval.
    fn notify_deferred(&mut self) {
        let now = self.sender.engine().now().now;
        for due in self.recipients.take_due(Instant::now()) {
            match self.sender.subscriptions.get(&due.tenant, &due.id, now) {
                Some(subscriber) => self.enqueue(&subscriber, due.command),
                None => self.recipients.forget(&due.id),
            }
        }
    }

    fn enqueue(&mut self, subscriber: &Subscriber, command: Arc<str>) {
        let Subscription { id, tenant, .. } = &subscriber.subscription;
        let (id, tenant) = (Arc::clone(id), Arc::clone(tenant));
        let host = name_hash(subscriber.to.authority());
        let to = Receiver { tenant: name_hash(&tenant), host };
        let notification = Notification { tenant, id, command };
        if self.dispatcher.add(to, notification.clone()).is_err() {
            self.recipients.not_sent(&notification.id, Instant::now());
            self.count_dropped(&notification.tenant, &notification.command);
        }
    }

    fn start_calls(&mut self) {
        while let Some(call) = self.dispatcher.next_call() {
            let (sender, notification) = (Arc::clone(&self.sender), call.item.clone());
            self.calls.spawn(run(call, async move { sender.send(&notification).await }));
        }
    }

    fn finish(&mut self, call: Call<Notification>, outcome: Outcome) {
        if outcome == Outcome::Skipped {
            self.recipients.not_sent(&call.item.id, Instant::now());
        }
        self.dispatcher.done(call, outcome, Instant::now());
    }

    /// Counts a notification that was dropped for lack of room.
    fn count_dropped(&self, tenant: &Arc<str>, command: &str) {
        self.sender.count(WebhookOutcome::Dropped, Some((tenant, command)));
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone counts as a stop.
    let _ = stop.wait_for(|stop| *stop).await;
}
