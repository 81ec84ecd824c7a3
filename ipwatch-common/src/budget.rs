//! A token bucket whose whole state is one number, so that the kernel half needs neither a lock nor a timer for it.

const SECOND: u64 = 1_000_000_000;

/// How many records one party may cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Nanoseconds that one token takes.
    pub refill: u64,
    /// Tokens of a full bucket. Not 0.
    pub burst: u64,
}

impl Budget {
    /// `burst` at once, and `per_second` in the long run. Neither may be 0.
    #[must_use]
    pub const fn new(per_second: u64, burst: u64) -> Self {
        Self { refill: SECOND / per_second, burst }
    }

    /// Twice as much of both.
    #[must_use]
    pub const fn doubled(self) -> Self {
        Self { refill: self.refill / 2, burst: self.burst * 2 }
    }

    /// Takes one token at `now` from a bucket that will be full at `full_at`, both in nanoseconds; 0 is a bucket that was
    /// never used. Returns when the bucket will be full now, or `None` if it is empty: it then stays as it is.
    #[inline(always)]
    #[must_use]
    pub const fn take(self, full_at: u64, now: u64) -> Option<u64> {
        let full_at = if full_at > now { full_at } else { now };
        // The time that the missing tokens take. A bucket without a token misses all of them.
        if full_at - now > self.refill * (self.burst - 1) {
            return None;
        }
        Some(full_at + self.refill)
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, SECOND};

    const BUDGET: Budget = Budget::new(100, 10);

    /// How many of `tries` at `now` are granted.
    fn granted(bucket: &mut u64, now: u64, tries: usize) -> usize {
        let one = |_: &usize| BUDGET.take(*bucket, now).map(|full_at| *bucket = full_at).is_some();
        (0..tries).filter(one).count()
    }

    #[test]
    fn a_burst_is_granted_then_the_rate() {
        let mut bucket = 0;
        assert_eq!(granted(&mut bucket, 5 * SECOND, 1_000), 10);
        assert_eq!(granted(&mut bucket, 5 * SECOND + SECOND / 2, 1_000), 10, "full again");
        let later = (1..=100).map(|n| 6 * SECOND + n * SECOND / 100);
        let in_a_second: usize = later.map(|now| granted(&mut bucket, now, 1_000)).sum();
        assert!((100..=110).contains(&in_a_second), "{in_a_second}");
    }

    #[test]
    fn what_is_refused_costs_no_token() {
        let mut bucket = 0;
        granted(&mut bucket, SECOND, 10_000);
        assert_eq!(granted(&mut bucket, SECOND + SECOND / 100, 10_000), 1);
    }

    /// Two CPUs may read the clock in one order and the bucket in the other.
    #[test]
    fn a_clock_that_lags_behind_the_bucket_overflows_nothing() {
        assert_eq!(BUDGET.take(u64::MAX / 2, 0), None);
        assert_eq!(BUDGET.take(SECOND, SECOND - 1), Some(SECOND + SECOND / 100));
    }
}
