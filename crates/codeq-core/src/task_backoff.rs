//! The delay before a failed task is retried.

use serde::{Deserialize, Serialize};

use crate::id::split_mix64;
use crate::moment::Millis;

/// How the delay grows with the number of attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Growth {
    /// Always the base.
    Fixed,
    /// The base times the attempts.
    Linear,
    /// The base, doubled with each further attempt.
    Exponential,
    /// Half of the exponential delay, plus a random part of the other half.
    ExponentialEqualJitter,
    /// A random part of the exponential delay.
    ExponentialFullJitter,
}

/// How long to wait before each retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// How the delay grows.
    pub growth: Growth,
    /// The first delay.
    pub base: Millis,
    /// The longest delay.
    pub max: Millis,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { growth: Growth::ExponentialFullJitter, base: 5_000, max: 900_000 }
    }
}

impl Backoff {
    /// The delay after `attempts` failed attempts (1 for the first). Never overflows, never exceeds `max`.
    pub fn pause(&self, attempts: u32, seed: u64) -> Millis {
        let doublings = attempts.saturating_sub(1);
        let exponential = if doublings >= Millis::BITS || self.base > (Millis::MAX >> doublings) {
            self.max
        } else {
            (self.base << doublings).min(self.max)
        };
        match self.growth {
            Growth::Fixed => self.base.min(self.max),
            Growth::Linear => self.base.saturating_mul(Millis::from(attempts)).min(self.max),
            Growth::Exponential => exponential,
            Growth::ExponentialEqualJitter => {
                let half = exponential / 2;
                half + part_of(exponential - half, seed)
            }
            Growth::ExponentialFullJitter => part_of(exponential, seed),
        }
    }
}

/// A uniform number in `0..=whole`, derived from the seed.
fn part_of(whole: Millis, seed: u64) -> Millis {
    let draw = u128::from(split_mix64(seed));
    ((draw * (u128::from(whole) + 1)) >> 64) as Millis
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Growth; 5] = [
        Growth::Fixed,
        Growth::Linear,
        Growth::Exponential,
        Growth::ExponentialEqualJitter,
        Growth::ExponentialFullJitter,
    ];

    #[test]
    fn each_growth_follows_its_formula() {
        let at =
            |growth, attempts| Backoff { growth, base: 5_000, max: 900_000 }.pause(attempts, 9);
        assert_eq!(at(Growth::Fixed, 7), 5_000);
        assert_eq!(at(Growth::Linear, 3), 15_000);
        assert_eq!(at(Growth::Exponential, 1), 5_000);
        assert_eq!(at(Growth::Exponential, 4), 40_000);
        assert_eq!(at(Growth::Exponential, 9), 900_000);
        assert!((20_000..=40_000).contains(&at(Growth::ExponentialEqualJitter, 4)));
        assert!(at(Growth::ExponentialFullJitter, 4) <= 40_000);
    }

    #[test]
    fn never_overflows_nor_exceeds_the_maximum() {
        for growth in ALL {
            for attempts in [0, 1, 2, 31, 63, 64, 65, 1_000, u32::MAX] {
                for (base, max) in [(0, 0), (1, 1), (5_000, 900_000), (u64::MAX, u64::MAX)] {
                    for seed in [0, 1, u64::MAX] {
                        assert!(Backoff { growth, base, max }.pause(attempts, seed) <= max);
                    }
                }
            }
        }
    }

    #[test]
    fn full_jitter_uses_the_whole_range() {
        let backoff = Backoff::default();
        let pauses: Vec<_> = (0..1_000).map(|seed| backoff.pause(3, seed)).collect();
        assert!(pauses.iter().any(|p| *p < 2_000) && pauses.iter().any(|p| *p > 18_000));
        assert!(pauses.iter().all(|p| *p <= 20_000));
    }
}
