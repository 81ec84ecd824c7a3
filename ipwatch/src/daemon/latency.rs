//! How long a kernel event takes to reach the map: a histogram whose buckets grow by an eighth.

/// Buckets for each doubling.
const STEPS: usize = 8;
/// Doublings from 1 µs: the last bucket begins at 16 s.
const DOUBLINGS: usize = 24;

/// Counts of latencies.
#[derive(Debug)]
pub(super) struct Latency {
    buckets: [u32; STEPS * DOUBLINGS],
    count: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { buckets: [0; STEPS * DOUBLINGS], count: 0 }
    }
}

impl Latency {
    /// One event that took `ns`.
    pub(super) fn record(&mut self, ns: u64) {
        let us = (ns / 1_000).max(1);
        let doubling = us.ilog2() as usize;
        let step = ((us - (1 << doubling)) * STEPS as u64) >> doubling;
        let bucket = (doubling * STEPS + step as usize).min(self.buckets.len() - 1);
        self.buckets[bucket] = self.buckets[bucket].saturating_add(1);
        self.count += 1;
    }

    /// Number of events.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// An upper bound for this share (0 to 1) of all events, in µs; `None` without any.
    pub(super) fn quantile(&self, share: f64) -> Option<u64> {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        self.buckets.iter().enumerate().find_map(|(bucket, count)| {
            seen += u64::from(*count);
            (seen >= wanted && seen > 0).then(|| upper_bound(bucket))
        })
    }
}

/// The smallest number of µs that is beyond a bucket.
fn upper_bound(bucket: usize) -> u64 {
    let base = 1u64 << (bucket / STEPS);
    base + (base * (bucket % STEPS + 1) as u64).div_ceil(STEPS as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close_upper_bounds() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile(0.5), None);
        for us in [10, 10, 10, 900] {
            latency.record(us * 1_000);
        }
        assert_eq!((latency.quantile(0.5), latency.quantile(0.99)), (Some(11), Some(960)));
        latency.record(0);
        latency.record(u64::MAX);
        assert_eq!(latency.count(), 6);
        assert!(latency.quantile(1.0).is_some_and(|us| us > 1 << 23));
    }
}
