//! Rate limits: one token bucket per tenant and scope. Limits on bytes in memory are in [`budget`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::{RateLimit, RateLimits};

pub mod budget;
pub mod memory;

/// Maximum number of buckets. Full buckets carry no information and are dropped first.
pub const BUCKETS_MAX: usize = 100_000;

/// The bucket a request draws from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitScope {
    /// Producer routes, and reads by producers.
    Producer,
    /// Worker routes, and reads by workers.
    Worker,
    /// Admin routes.
    Admin,
}

impl LimitScope {
    /// Name in settings, responses and metrics.
    pub fn name(self) -> &'static str {
        match self {
            LimitScope::Producer => "producer",
            LimitScope::Worker => "worker",
            LimitScope::Admin => "admin",
        }
    }
}

/// The outcome of drawing a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Whether the request may proceed.
    pub allowed: bool,
    /// The bucket's rate and size.
    pub limit: RateLimit,
    /// Further requests allowed right now.
    pub remaining: u32,
    /// If refused, seconds until the next request is allowed; otherwise until the bucket is full. Rounded up.
    pub reset_seconds: u64,
}

/// The buckets of all tenants.
pub struct RateLimiter {
    limits: ArcSwap<RateLimits>,
    start: Instant,
    buckets: Mutex<HashMap<(LimitScope, Arc<str>), Duration>>,
}

impl RateLimiter {
    /// Creates a limiter. A scope without a configured limit is unlimited.
    pub fn new(limits: &RateLimits) -> RateLimiter {
        let limits = ArcSwap::from_pointee(limits.clone());
        RateLimiter { limits, start: Instant::now(), buckets: Mutex::default() }
    }

    /// Replaces the limits and refills all buckets.
    pub fn set(&self, limits: &RateLimits) {
        self.limits.store(Arc::new(limits.clone()));
        self.buckets.lock().clear();
    }

    /// Draws a token, if the scope has a limit. Uses the monotonic clock, so wall-clock jumps have no effect.
    pub fn take(&self, tenant: &Arc<str>, scope: LimitScope) -> Option<Allowance> {
        let limits = self.limits.load();
        let limit = match scope {
            LimitScope::Producer => limits.producer,
            LimitScope::Worker => limits.worker,
            LimitScope::Admin => limits.admin,
        }?;
        let now = self.start.elapsed();
        let mut buckets = self.buckets.lock();
        let key = (scope, Arc::clone(tenant));
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(&key) {
            buckets.retain(|_, full_at| *full_at > now);
            if buckets.len() >= BUCKETS_MAX {
                // More busy tenants than buckets: evict one rather than grow.
                let any = buckets.keys().next().cloned();
                any.and_then(|any| buckets.remove(&any));
            }
        }
        let full_at = buckets.entry(key).or_default();
        Some(draw(full_at, now, limit))
    }
}

/// Draws one token from a bucket that will be full at `full_at`.
fn draw(full_at: &mut Duration, now: Duration, limit: RateLimit) -> Allowance {
    let one = Duration::from_secs(60) / limit.requests_per_minute.max(1);
    let burst = limit.burst.max(1);
    let capacity = one.saturating_mul(burst);
    let after = (*full_at).max(now) + one;
    let allowed = after <= now + capacity;
    if allowed {
        *full_at = after;
    }
    let missing = full_at.saturating_sub(now);
    let left = capacity.saturating_sub(missing).as_nanos() / one.as_nanos().max(1);
    let wait = if allowed { missing } else { after.saturating_sub(now + capacity) };
    Allowance {
        allowed,
        limit,
        remaining: u32::try_from(left).unwrap_or(u32::MAX),
        reset_seconds: wait.as_secs() + u64::from(wait.subsec_nanos() > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RateLimit = RateLimit { requests_per_minute: 60, burst: 3 };

    #[test]
    fn a_bucket_allows_its_burst_and_then_its_rate() {
        let mut bucket = Duration::ZERO;
        let mut at = |ms: u64| draw(&mut bucket, Duration::from_millis(ms), LIMIT);
        let took: Vec<_> = (0..4).map(|_| at(10_000)).map(|a| (a.allowed, a.remaining)).collect();
        assert_eq!(took, [(true, 2), (true, 1), (true, 0), (false, 0)]);
        assert_eq!(at(10_200).reset_seconds, 1);
        assert!(!at(10_999).allowed);
        assert!(at(11_000).allowed);
        assert!(!at(11_000).allowed);
        assert!(at(60_000).allowed);
        assert_eq!(at(60_000).remaining, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_and_scopes_have_separate_buckets() {
        let limits = RateLimits { producer: Some(LIMIT), admin: Some(LIMIT), worker: None };
        let limiter = RateLimiter::new(&limits);
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        for _ in 0..3 {
            assert!(limiter.take(&a, LimitScope::Producer).unwrap().allowed);
        }
        assert!(!limiter.take(&a, LimitScope::Producer).unwrap().allowed);
        assert!(limiter.take(&a, LimitScope::Admin).unwrap().allowed);
        assert!(limiter.take(&b, LimitScope::Producer).unwrap().allowed);
        assert_eq!(limiter.take(&a, LimitScope::Worker), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(limiter.take(&a, LimitScope::Producer).unwrap().allowed);
    }

    #[tokio::test(start_paused = true)]
    async fn changed_limits_apply_at_once() {
        let limiter = RateLimiter::new(&RateLimits::default());
        let tenant: Arc<str> = "a".into();
        assert_eq!(limiter.take(&tenant, LimitScope::Producer), None);
        let slow = RateLimit { requests_per_minute: 1, burst: 1 };
        limiter.set(&RateLimits { producer: Some(slow), ..Default::default() });
        assert!(limiter.take(&tenant, LimitScope::Producer).unwrap().allowed);
        assert!(!limiter.take(&tenant, LimitScope::Producer).unwrap().allowed);
        limiter.set(&RateLimits { producer: Some(LIMIT), ..Default::default() });
        assert!(limiter.take(&tenant, LimitScope::Producer).unwrap().allowed);
    }

    #[tokio::test(start_paused = true)]
    async fn buckets_are_bounded() {
        let limiter = RateLimiter::new(&RateLimits { producer: Some(LIMIT), ..Default::default() });
        for n in 0..BUCKETS_MAX + 10 {
            limiter.take(&n.to_string().into(), LimitScope::Producer);
        }
        assert!(limiter.buckets.lock().len() <= BUCKETS_MAX);
    }
}
