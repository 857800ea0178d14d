//! A shard's defaults, for everything that neither a task nor its queue's [`Policy`](crate::topic::Policy) sets.
//!
//! A command changes them, so that they are in the log: replaying yesterday's log under today's configuration file
//! produces yesterday's state.

use serde::{Deserialize, Serialize};

use crate::limits::{
    ATTEMPTS_DEFAULT, ATTEMPTS_MAX, CALLBACK_ATTEMPTS_MAX, DELAY_MS_MAX, RETENTION_MS_MAX,
};
use crate::moment::Millis;
use crate::rejection::Rejection;
use crate::task_backoff::Backoff;

const DAY: Millis = 86_400_000;

/// Defaults of a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Attempts of a task that does not set a number.
    pub max_attempts: u32,
    /// Delay after a failed attempt.
    pub backoff: Backoff,
    /// How long finished tasks are kept.
    pub retention: Millis,
    /// Delivery attempts of a result callback.
    pub callback_attempts: u32,
    /// Delay after the first failed delivery; it doubles with each further one.
    pub callback_base: Millis,
    /// Longest delay between deliveries.
    pub callback_max: Millis,
    /// How long dead-lettered tasks are kept.
    pub dead_letter_retention: Millis,
}

/// Settings, as version 1 encoded them: dead letters were kept as long as other finished tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Settings`")]
pub struct SettingsV1 {
    pub max_attempts: u32,
    pub backoff: Backoff,
    pub retention: Millis,
    pub callback_attempts: u32,
    pub callback_base: Millis,
    pub callback_max: Millis,
}

impl From<SettingsV1> for Settings {
    fn from(old: SettingsV1) -> Settings {
        Settings {
            max_attempts: old.max_attempts,
            backoff: old.backoff,
            retention: old.retention,
            callback_attempts: old.callback_attempts,
            callback_base: old.callback_base,
            callback_max: old.callback_max,
            dead_letter_retention: old.retention,
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_attempts: ATTEMPTS_DEFAULT,
            backoff: Backoff::default(),
            retention: DAY,
            callback_attempts: 5,
            callback_base: 2_000,
            callback_max: 60_000,
            dead_letter_retention: 30 * DAY,
        }
    }
}

impl Settings {
    /// The settings of a shard before its first `Configure`: the defaults of version 1. Logs of that version do not
    /// contain them, so they must never change: before a default changes, its old value has to be set here.
    pub fn of_empty_shard() -> Settings {
        Settings { dead_letter_retention: DAY, ..Settings::default() }
    }

    /// Checks that every field is in range.
    pub fn check(&self) -> Result<(), Rejection> {
        let field = if !(1..=ATTEMPTS_MAX).contains(&self.max_attempts) {
            "max_attempts"
        } else if self.retention > RETENTION_MS_MAX {
            "retention"
        } else if self.dead_letter_retention > RETENTION_MS_MAX {
            "dead_letter_retention"
        } else if !(1..=CALLBACK_ATTEMPTS_MAX).contains(&self.callback_attempts) {
            "callback_attempts"
        } else if self.callback_max > DELAY_MS_MAX {
            "callback_max"
        } else if self.callback_base > self.callback_max {
            "callback_base"
        } else if self.backoff.max > DELAY_MS_MAX {
            "backoff.max"
        } else if self.backoff.base > self.backoff.max {
            "backoff.base"
        } else {
            return Ok(());
        };
        Err(Rejection::InvalidSetting { field: field.into() })
    }
}
