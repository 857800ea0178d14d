//! Topics: a queue's settings, made by an operator.
//!
//! One thing has three names. The HTTP API calls a queue that has settings a *topic*, its settings are a [`Policy`], and
//! the command line sets them with `codeq queue policy`. Do not confuse them with [`Settings`], a shard's defaults.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits::{
    MAX_RUN_MS_MAX, MAX_RUN_MS_MIN, PRIORITY_MAX, RETENTION_MS_MAX, TOPIC_ATTEMPTS_MAX,
    TOPIC_CONSUMERS_MAX, TOPIC_NAME_BYTES_MAX, TOPIC_TIER_MAX, TOPIC_TIERS_MAX,
};
use crate::moment::Millis;
use crate::place::Place;
use crate::rejection::Rejection;
use crate::settings::Settings;

/// Settings of one queue. Those not set fall back to the shard's defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Policy {
    /// Priorities that the queue's tasks may have; empty means all.
    pub priority_tiers: Vec<u8>,
    /// Default and upper limit for the attempts of new tasks.
    pub max_attempts: Option<u32>,
    /// A dead-lettered task is also enqueued under this command.
    pub dead_letter_topic: Option<Arc<str>>,
    /// Retention of finished tasks in milliseconds; 0 means the shard's.
    pub retention: Millis,
    /// Upper limit of tasks in progress at once; 0 means no limit.
    pub max_consumers: u32,
    /// Retention of dead-lettered tasks in milliseconds; 0 means the policy's `retention` or, without one, the shard's
    /// default.
    pub dead_letter_retention: Millis,
    /// Longest time that an attempt of a task without its own `max_run` may run, in milliseconds; 0 means no limit.
    pub max_run: Millis,
}

/// Settings of one queue, as version 2 encoded them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Policy`")]
pub struct PolicyV2 {
    pub priority_tiers: Vec<u8>,
    pub max_attempts: Option<u32>,
    pub dead_letter_topic: Option<Arc<str>>,
    pub retention: Millis,
    pub max_consumers: u32,
    pub dead_letter_retention: Millis,
}

impl From<PolicyV2> for Policy {
    fn from(old: PolicyV2) -> Policy {
        Policy {
            priority_tiers: old.priority_tiers,
            max_attempts: old.max_attempts,
            dead_letter_topic: old.dead_letter_topic,
            retention: old.retention,
            max_consumers: old.max_consumers,
            dead_letter_retention: old.dead_letter_retention,
            max_run: 0,
        }
    }
}

/// Settings of one queue, as version 1 encoded them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Policy`")]
pub struct PolicyV1 {
    pub priority_tiers: Vec<u8>,
    pub max_attempts: Option<u32>,
    pub dead_letter_topic: Option<Arc<str>>,
    pub retention: Millis,
    pub max_consumers: u32,
}

impl From<PolicyV1> for Policy {
    fn from(old: PolicyV1) -> Policy {
        Policy {
            priority_tiers: old.priority_tiers,
            max_attempts: old.max_attempts,
            dead_letter_topic: old.dead_letter_topic,
            retention: old.retention,
            max_consumers: old.max_consumers,
            dead_letter_retention: 0,
            max_run: 0,
        }
    }
}

/// A queue's policy and its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// The settings.
    pub policy: Policy,
    /// Starts at 1 and grows by one with every change.
    pub version: u64,
    /// When it was first written.
    pub created_at: Millis,
    /// When it was last changed.
    pub updated_at: Millis,
}

/// A queue's policy and its version, as queue rows before version 3 encoded them.
#[derive(Deserialize)]
pub(crate) struct TopicV1 {
    policy: PolicyV1,
    version: u64,
    created_at: Millis,
    updated_at: Millis,
}

/// A queue's policy and its version, as queue rows of version 3 encoded them.
#[derive(Deserialize)]
pub(crate) struct TopicV2 {
    policy: PolicyV2,
    version: u64,
    created_at: Millis,
    updated_at: Millis,
}

impl From<TopicV2> for Topic {
    fn from(old: TopicV2) -> Topic {
        let TopicV2 { policy, version, created_at, updated_at } = old;
        Topic { policy: policy.into(), version, created_at, updated_at }
    }
}

impl From<TopicV1> for Topic {
    fn from(old: TopicV1) -> Topic {
        let TopicV1 { policy, version, created_at, updated_at } = old;
        Topic { policy: policy.into(), version, created_at, updated_at }
    }
}

impl Policy {
    /// How long a task of the queue is kept after it finished in `place`.
    pub(crate) fn retention(&self, place: Place, settings: &Settings) -> Millis {
        let first = |wanted: &[Millis]| wanted.iter().copied().find(|ms| *ms > 0).unwrap_or(0);
        match place {
            Place::Dead => {
                first(&[self.dead_letter_retention, self.retention, settings.dead_letter_retention])
            }
            _ => first(&[self.retention, settings.retention]),
        }
    }

    /// Checks every field; `name` is the queue that the policy is for.
    pub fn check(&self, name: &str) -> Result<(), Rejection> {
        let mut tiers = self.priority_tiers.clone();
        tiers.sort_unstable();
        tiers.dedup();
        let field = if tiers.len() != self.priority_tiers.len()
            || tiers.len() > TOPIC_TIERS_MAX
            || tiers.iter().any(|tier| *tier > TOPIC_TIER_MAX)
        {
            "priorityTiers"
        } else if self.max_attempts.is_some_and(|n| !(1..=TOPIC_ATTEMPTS_MAX).contains(&n)) {
            "maxAttempts"
        } else if self
            .dead_letter_topic
            .as_deref()
            .is_some_and(|to| !is_dns_label(to) || to == name)
        {
            "deadLetterTopicRef"
        } else if self.retention > RETENTION_MS_MAX {
            "retentionSeconds"
        } else if self.dead_letter_retention > RETENTION_MS_MAX {
            "deadLetterRetentionSeconds"
        } else if self.max_consumers > TOPIC_CONSUMERS_MAX {
            "maxConsumers"
        } else if self.max_run > 0 && !is_max_run(self.max_run) {
            "maxRunSeconds"
        } else {
            return Ok(());
        };
        Err(Rejection::InvalidTopic { field: field.into() })
    }

    /// Maps a requested priority to a tier: the highest tier at or below it, or else the lowest tier.
    pub fn tier(&self, wanted: u8) -> u8 {
        let highest = self.priority_tiers.iter().copied().filter(|tier| *tier <= wanted).max();
        let lowest = self.priority_tiers.iter().copied().min();
        highest.or(lowest).unwrap_or(wanted).min(PRIORITY_MAX)
    }
}

/// Whether a maximum run time is within the limits.
pub(crate) fn is_max_run(max_run: Millis) -> bool {
    (MAX_RUN_MS_MIN..=MAX_RUN_MS_MAX).contains(&max_run)
}

/// Whether a text is a lowercase DNS label.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    (1..=TOPIC_NAME_BYTES_MAX).contains(&bytes.len())
        && bytes.iter().all(|b| inner(*b) || *b == b'-')
        && bytes.first().is_some_and(|b| inner(*b))
        && bytes.last().is_some_and(|b| inner(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_lower_to_the_nearest_or_raise_to_the_lowest() {
        let policy = Policy { priority_tiers: vec![3, 7, 10], ..Policy::default() };
        let got: Vec<u8> = (0..=9).map(|p| policy.tier(p)).collect();
        assert_eq!(got, [3, 3, 3, 3, 3, 3, 3, 7, 7, 7]);
        let only_ten = Policy { priority_tiers: vec![10], ..Policy::default() };
        assert_eq!(only_ten.tier(2), 9);
        assert_eq!(Policy::default().tier(4), 4);
    }

    #[test]
    fn bad_fields_are_named() {
        let base = Policy::default();
        let field = |policy: Policy| match policy.check("a") {
            Err(Rejection::InvalidTopic { field }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(Policy { priority_tiers: vec![1, 1], ..base.clone() }), "priorityTiers");
        assert_eq!(field(Policy { priority_tiers: vec![11], ..base.clone() }), "priorityTiers");
        assert_eq!(field(Policy { max_attempts: Some(0), ..base.clone() }), "maxAttempts");
        assert_eq!(field(Policy { max_attempts: Some(101), ..base.clone() }), "maxAttempts");
        let to = |text: &str| Policy { dead_letter_topic: Some(text.into()), ..base.clone() };
        assert_eq!(field(to("a")), "deadLetterTopicRef");
        assert_eq!(field(to("A-b")), "deadLetterTopicRef");
        assert_eq!(field(Policy { max_consumers: 10_001, ..base.clone() }), "maxConsumers");
        for max_run in [1, MAX_RUN_MS_MIN - 1, MAX_RUN_MS_MAX + 1] {
            assert_eq!(field(Policy { max_run, ..base.clone() }), "maxRunSeconds");
        }
    }

    #[test]
    fn only_lowercase_dns_labels_are_accepted() {
        assert!(is_dns_label("a") && is_dns_label("a-1"));
        for bad in ["", "-a", "a-", "A", "a_b", &"a".repeat(64)] {
            assert!(!is_dns_label(bad), "{bad}");
        }
    }
}
