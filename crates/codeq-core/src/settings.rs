//! What a shard applies where a task or a policy is silent.
//!
//! Settings are changed by a command, so that they lie in the log: replaying yesterday's log with today's
//! configuration file gives yesterday's state.

use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::command::Millis;
use crate::limits::{
    ATTEMPTS_DEFAULT, ATTEMPTS_MAX, CALLBACK_ATTEMPTS_MAX, DELAY_MS_MAX, RETENTION_MS_MAX,
};
use crate::reply::Rejection;

/// The shard's defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Attempts of a task that does not say.
    pub max_attempts: u32,
    /// The pause after a failed attempt.
    pub backoff: Backoff,
    /// How long finished tasks are kept.
    pub retention: Millis,
    /// Delivery attempts of a result callback.
    pub callback_attempts: u32,
    /// The pause after the first failed delivery; it doubles with each one.
    pub callback_base: Millis,
    /// The longest pause between deliveries.
    pub callback_max: Millis,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_attempts: ATTEMPTS_DEFAULT,
            backoff: Backoff::default(),
            retention: 86_400_000,
            callback_attempts: 5,
            callback_base: 2_000,
            callback_max: 60_000,
        }
    }
}

impl Settings {
    /// Checks every field.
    pub fn check(&self) -> Result<(), Rejection> {
        let field = if !(1..=ATTEMPTS_MAX).contains(&self.max_attempts) {
            "max_attempts"
        } else if self.retention > RETENTION_MS_MAX {
            "retention"
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
        Err(Rejection::InvalidSetting { field })
    }
}
