//! Availability notifications: subscribed workers learn that a queue has work.

#[cfg(test)]
mod fixture;
mod lanes;
mod notifier;
mod ready_queues;
mod recipients;
mod subscriptions;
mod work_available;

pub use lanes::RUNNING_MAX;
pub use notifier::{CLAIM_PATH, Notifier};
pub use subscriptions::{Mode, Subscription, Subscriptions, Wish};
pub use work_available::Bell;
