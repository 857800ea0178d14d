//! The open loop: tasks arrive at fixed moments, whether or not the server has answered earlier ones.

const SECOND: u128 = 1_000_000_000;

/// Arrivals at a fixed rate, from moment 0 of the run. Moments are nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    per_second: u64,
}

impl Schedule {
    /// Arrivals at this rate per second.
    pub fn new(per_second: u64) -> Schedule {
        Schedule { per_second: per_second.max(1) }
    }

    /// When an arrival is due. Latency counts from here, however late the task is sent; otherwise a server that
    /// stalls would get less load, and its stall would count for one task instead of for all that waited.
    pub fn at(&self, arrival: u64) -> u64 {
        let nanos = u128::from(arrival) * SECOND / u128::from(self.per_second);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// How many arrivals are due at a moment.
    pub fn due(&self, now: u64) -> u64 {
        // The largest count whose last arrival is not later than now: `at` rounds down.
        let count = ((u128::from(now) + 1) * u128::from(self.per_second)).div_ceil(SECOND);
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_counts_exactly_the_arrivals_so_far() {
        for rate in [1, 3, 7, 1_000, 33_333, 40_000, 999_999] {
            let schedule = Schedule::new(rate);
            for now in [0, 1, 29_999, 30_000, 999_999_999, 1_000_000_000, 12_345_678_901] {
                let due = schedule.due(now);
                assert!(due > 0, "the first is due at once");
                assert!(schedule.at(due - 1) <= now, "{rate} {now}");
                assert!(schedule.at(due) > now, "{rate} {now}");
            }
        }
    }

    #[test]
    fn a_stall_is_made_up_for_and_counts_from_the_planned_moments() {
        let schedule = Schedule::new(1_000);
        assert_eq!(schedule.due(999_999), 1);
        assert_eq!(schedule.due(1_000_000), 2);
        // Nothing was sent for half a second: all of it is due, each since its own moment.
        assert_eq!(schedule.due(501_000_000), 502);
        assert_eq!(schedule.at(2), 2_000_000);
        assert_eq!(schedule.at(501), 501_000_000);
    }
}
