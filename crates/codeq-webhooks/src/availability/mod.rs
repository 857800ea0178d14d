//! Availability notifications: subscribed workers learn that a queue has work.
//!
//! [`WorkAvailable`] collects the queues that got work, [`Subscriptions`] holds the workers that are interested,
//! `recipients` chooses among them, and [`Notifier`] is the task that sends. Notifications are advisory: each is sent
//! once, and a worker that misses one finds its tasks by claiming.

#[cfg(test)]
mod fixture;
mod notifier;
mod ready_queues;
mod recipients;
mod sender;
mod subscriptions;
mod work_available;

pub use notifier::{CALLS_MAX, Notifier};
pub use sender::NotificationBody;
pub use subscriptions::{Mode, Subscription, SubscriptionSpec, Subscriptions};
pub use work_available::{Listening, WorkAvailable};

#[cfg(test)]
pub(crate) use notifier::LIMITS;
