//! Availability notifications: workers that have subscribed are told that a queue has work.
//!
//! Advisory, and never in the way: the engine's threads ring the [`Bell`](super::work_available::Bell) and go on; one
//! task looks who wants to hear of it and sends. A notification is sent once; whoever missed it finds its
//! tasks by claiming.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;
use codeq_core::command::{Command, DeleteRecord};
use codeq_core::record::RecordKind;
use codeq_engine::Engine;
use futures_util::FutureExt;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::lanes::{Job, Lanes};
use super::ready_queues::Announcements;
use super::recipients::Turns;
use super::subscriptions::{Subscription, Subscriptions};
use super::work_available::Marks;
use crate::client::Client;
use crate::report::{FormatTime, Report, WebhookKind, WebhookOutcome as Delivery};
use crate::secrets::Secrets;
use crate::signing;

/// Where a worker claims: what codeQ sends, and its workers put behind the address that they know.
pub const CLAIM_PATH: &str = "/v1/codeq/tasks/claim";

/// What sending needs.
pub struct Notifier {
    /// Where the tasks are.
    pub engine: Arc<Engine>,
    /// Who wants to hear.
    pub subscriptions: Arc<Subscriptions>,
    /// How it is sent.
    pub client: Client,
    /// What is signed with.
    pub secrets: Arc<Secrets>,
    /// Counting.
    pub report: Arc<dyn Report>,
    /// How moments are written.
    pub format_time: FormatTime,
    /// Where a worker claims, with the server's own address in front, if the operator has set that.
    pub claim_url: Option<String>,
}

/// What became of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The receiver took it.
    Delivered,
    /// It did not.
    Failed,
    /// It did not and never will again.
    Gone,
    /// There was nothing to tell any more.
    Nothing,
}

/// The body of a notification.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Available<'a> {
    event_type: &'a str,
    available: bool,
    queue_depth: u64,
    claim_url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_url_absolute: Option<&'a str>,
    sent_at: String,
    notification_id: &'a str,
}

impl Notifier {
    /// Notifies until `stop` turns true. The view of the subscriptions must be loaded.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut desk = Desk {
            notifier: Arc::new(self),
            announcements: Announcements::default(),
            turns: Turns::default(),
            lanes: Lanes::default(),
            sends: JoinSet::new(),
        };
        desk.look_around().await;
        loop {
            let next = desk.turns.next();
            let bell = Arc::clone(desk.notifier.subscriptions.bell());
            tokio::select! {
                () = stopped(&mut stop) => break,
                () = bell.rung() => desk.rung(bell.take()).await,
                Some(sent) = desk.sends.join_next() => {
                    if let Ok((job, outcome)) = sent {
                        desk.sent(&job, outcome).await;
                    }
                }
                // One at a time, and then whatever else there is to do.
                () = tokio::task::yield_now(), if !desk.announcements.is_empty() => {
                    desk.announce();
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    desk.due().await;
                }
            }
            desk.start();
        }
        desk.sends.shutdown().await;
    }

    async fn send(&self, job: &Job) -> Outcome {
        let Subscription { tenant, wish, .. } = &job.receiver.subscription;
        let queue_depth = self.engine.claimable(tenant, &job.command);
        let event_type = match wish.spelling(&job.command) {
            Some(event_type) if queue_depth > 0 => event_type,
            _ => return Outcome::Nothing,
        };
        let now = self.engine.wall();
        let id = format!("{:032x}", rand::random::<u128>());
        let body = Available {
            event_type,
            available: true,
            queue_depth,
            claim_url: CLAIM_PATH,
            claim_url_absolute: self.claim_url.as_deref(),
            sent_at: (self.format_time)(now),
            notification_id: &id,
        };
        let Ok(body) = serde_json::to_vec(&body).map(Bytes::from) else {
            return Outcome::Failed;
        };
        let Ok(secrets) = self.secrets.live(tenant).await else {
            return Outcome::Failed;
        };
        let mut headers = signing::headers(&secrets, &id, now / 1_000, &body);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.client.post(tenant, &job.receiver.to, headers, body).await {
            Ok(answer) if answer.status.is_success() => Outcome::Delivered,
            Ok(answer) if answer.status == StatusCode::GONE => Outcome::Gone,
            Ok(answer) => {
                let (to, status) = (job.receiver.to.authority(), answer.status.as_u16());
                tracing::debug!(target: "codeq::push", to, status, "a notification was not taken");
                Outcome::Failed
            }
            Err(_) => Outcome::Failed,
        }
    }

    /// The receiver has said that it is gone for good.
    async fn remove(&self, subscription: &Subscription) {
        let delete = DeleteRecord {
            tenant: Arc::clone(&subscription.tenant),
            kind: RecordKind::Subscription,
            name: Arc::clone(&subscription.id),
            expected: None,
        };
        if let Err(error) = self.engine.propose(Command::DeleteRecord(delete)).await {
            tracing::debug!(target: "codeq::push", %error, "a subscription was not removed");
        }
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone is a stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The task's own state.
struct Desk {
    notifier: Arc<Notifier>,
    announcements: Announcements,
    turns: Turns,
    lanes: Lanes,
    sends: JoinSet<(Job, Outcome)>,
}

impl Desk {
    /// After a start: what the run before may not have got round to tell.
    async fn look_around(&mut self) {
        for tenant in self.notifier.subscriptions.tenants() {
            let queues = self.notifier.engine.queues(&tenant).await.unwrap_or_default();
            for queue in queues.into_iter().filter(|queue| queue.counts.ready() > 0) {
                self.add(Arc::clone(&tenant), queue.name);
            }
        }
    }

    async fn rung(&mut self, marks: Marks) {
        for _ in 0..marks.missed {
            self.count(Delivery::Dropped, None);
        }
        // Who has subscribed before a queue got work hears of it: the subscriptions first.
        self.refresh(&marks).await;
        for (shard, queue) in marks.ready {
            let name = self.notifier.engine.peek(shard, |state| {
                let row = state.queue_row(queue)?;
                Some((Arc::clone(&row.tenant), Arc::clone(&row.name)))
            });
            if let Some((tenant, command)) = name.flatten() {
                self.add(tenant, command);
            }
        }
    }

    /// A queue has work.
    fn add(&mut self, tenant: Arc<str>, command: Arc<str>) {
        if self.notifier.subscriptions.has_any(&tenant)
            && !self.announcements.push(Arc::clone(&tenant), Arc::clone(&command))
        {
            self.drop_one(&tenant, &command);
        }
    }

    async fn refresh(&mut self, marks: &Marks) {
        // What cannot be read has stopped for good, and then there is nothing to tell.
        let Notifier { engine, subscriptions, .. } = &*self.notifier;
        if marks.all_changed && subscriptions.load(engine).await.is_ok() {
            self.turns.retain(|tenant, id| subscriptions.get(tenant, id, 0).is_some());
        }
        for (tenant, id) in &marks.changed {
            if let Ok(false) = subscriptions.refresh(engine, tenant, id).await {
                self.turns.forget(id);
            }
        }
    }

    /// Tells those who want to hear of the queue whose turn it is.
    fn announce(&mut self) {
        let Some((tenant, command)) = self.announcements.pop() else {
            return;
        };
        let now = self.notifier.engine.now().now;
        let wanting = self.notifier.subscriptions.wanting(&tenant, &command, now);
        // Often a waiting claim has taken it by now.
        if wanting.is_empty() || self.notifier.engine.claimable(&tenant, &command) == 0 {
            return;
        }
        for receiver in self.turns.ready(Instant::now(), &command, &wanting) {
            self.push(Job { receiver, command: Arc::clone(&command) });
        }
        for _ in 0..self.turns.take_forgotten() {
            self.drop_one(&tenant, &command);
        }
    }

    /// Somebody who had to wait may hear now.
    async fn due(&mut self) {
        let now = self.notifier.engine.now().now;
        for due in self.turns.due(Instant::now()) {
            let receiver = self.notifier.subscriptions.get(&due.tenant, &due.id, now);
            match receiver {
                Some(receiver) => self.push(Job { receiver, command: due.command }),
                None => self.turns.forget(&due.id),
            }
        }
    }

    fn push(&mut self, job: Job) {
        let Subscription { id, tenant, .. } = &job.receiver.subscription;
        let (id, tenant) = (Arc::clone(id), Arc::clone(tenant));
        let command = Arc::clone(&job.command);
        if !self.lanes.push(job) {
            self.turns.unsent(&id, Instant::now());
            self.drop_one(&tenant, &command);
        }
    }

    /// There was no room for a notification.
    fn drop_one(&self, tenant: &Arc<str>, command: &str) {
        self.count(Delivery::Dropped, Some((tenant, command)));
    }

    fn start(&mut self) {
        while let Some(job) = self.lanes.start() {
            let notifier = Arc::clone(&self.notifier);
            self.sends.spawn(async move {
                let sending = AssertUnwindSafe(notifier.send(&job)).catch_unwind();
                let outcome = sending.await.unwrap_or(Outcome::Failed);
                (job, outcome)
            });
        }
    }

    async fn sent(&mut self, job: &Job, outcome: Outcome) {
        self.lanes.done(job);
        let subscription = &job.receiver.subscription;
        let queue = Some((&subscription.tenant, &*job.command));
        match outcome {
            Outcome::Delivered => self.count(Delivery::Delivered, queue),
            Outcome::Failed => self.count(Delivery::Failed, queue),
            Outcome::Gone => {
                self.count(Delivery::Failed, queue);
                self.turns.forget(&subscription.id);
                self.notifier.remove(subscription).await;
            }
            Outcome::Nothing => self.turns.unsent(&subscription.id, Instant::now()),
        }
    }

    fn count(&self, outcome: Delivery, queue: Option<(&Arc<str>, &str)>) {
        self.notifier.report.count(WebhookKind::Availability, outcome, queue);
    }
}
