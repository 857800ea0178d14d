//! Converts the configuration into the types of other crates.

use codeq_core::settings::Settings;
use codeq_core::task_backoff::{Backoff, Growth};

use super::model::{BackoffPolicy, Config, Durability};

impl Config {
    /// Defaults for the queue rules.
    pub fn settings(&self) -> Settings {
        Settings {
            max_attempts: self.max_attempts_default,
            backoff: Backoff {
                growth: self.backoff_policy.growth(),
                base: millis(self.backoff_base_seconds),
                max: millis(self.backoff_max_seconds),
            },
            retention: millis(self.retention_seconds),
            callback_attempts: self.result_webhook_max_attempts,
            callback_base: millis(self.result_webhook_base_backoff_seconds),
            callback_max: millis(self.result_webhook_max_backoff_seconds),
            dead_letter_retention: millis(self.retention.dead_letter_seconds),
        }
    }

    /// How to validate tokens.
    pub fn auth_settings(&self) -> codeq_auth::Settings {
        codeq_auth::Settings {
            producers: self.producer_auth.clone(),
            workers: self.worker_auth.clone(),
            producers_may_work: self.allow_producer_as_worker,
        }
    }

    /// Engine options. Options that are not configurable keep their defaults.
    pub fn engine_options(&self) -> codeq_engine::Options {
        codeq_engine::Options {
            shards: self.shards,
            durability: match self.durability {
                Durability::Fsync => codeq_engine::Durability::Fsync,
                Durability::Os => codeq_engine::Durability::Os,
            },
            settings: self.settings(),
            ..codeq_engine::Options::default()
        }
    }
}

impl BackoffPolicy {
    fn growth(self) -> Growth {
        match self {
            BackoffPolicy::Fixed => Growth::Fixed,
            BackoffPolicy::Linear => Growth::Linear,
            BackoffPolicy::Exponential => Growth::Exponential,
            BackoffPolicy::ExpEqualJitter => Growth::ExponentialEqualJitter,
            BackoffPolicy::ExpFullJitter => Growth::ExponentialFullJitter,
        }
    }
}

fn millis(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000)
}
