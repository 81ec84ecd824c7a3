//! How long a kernel event takes to reach the map: a histogram with eight buckets per doubling.

/// Buckets for each doubling.
const STEPS: usize = 8;
/// Doublings from 1 µs: the last bucket begins at 16 s.
const DOUBLINGS: usize = 24;

use crate::metrics::LatencyReading;

/// The upper bounds of the buckets exported to Prometheus, as powers of two of 1 µs, each also a bound of ours: 16 µs
/// to 1 s, finest around the goal of 500 µs.
const TOLD: [usize; 13] = [4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20];

/// Histogram of latencies.
#[derive(Debug)]
pub(super) struct Latency {
    buckets: [u64; STEPS * DOUBLINGS],
    count: u64,
    /// Sum of all latencies, in ns.
    sum: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { buckets: [0; STEPS * DOUBLINGS], count: 0, sum: 0 }
    }
}

impl Latency {
    /// Records an event that took `ns`.
    pub(super) fn record(&mut self, ns: u64) {
        let us = (ns / 1_000).max(1);
        let doubling = us.ilog2() as usize;
        let step = ((us - (1 << doubling)) * STEPS as u64) >> doubling;
        let bucket = (doubling * STEPS + step as usize).min(self.buckets.len() - 1);
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(ns);
    }

    /// Number of events.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The histogram with the buckets for Prometheus.
    pub(super) fn reading(&self) -> LatencyReading {
        let mut from = 0;
        let buckets = TOLD.map(|doubling| {
            let to = doubling * STEPS;
            let count = self.buckets[from..to].iter().sum();
            from = to;
            ((1u64 << doubling) as f64 / 1e6, count)
        });
        LatencyReading { buckets: buckets.into(), sum: self.sum as f64 / 1e9, count: self.count }
    }

    /// An upper bound, in µs, for this share (0 to 1) of all events; `None` if there are none.
    pub(super) fn quantile(&self, share: f64) -> Option<u64> {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        self.buckets.iter().enumerate().find_map(|(bucket, count)| {
            seen += count;
            (seen >= wanted && seen > 0).then(|| upper_bound(bucket))
        })
    }
}

/// Upper bound of a bucket, in µs (exclusive).
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
        let reading = latency.reading();
        let below = |bound: f64| reading.buckets.iter().filter(move |(upper, _)| *upper <= bound);
        let below = |bound: f64| below(bound).map(|(_, count)| count).sum::<u64>();
        assert_eq!((below(16e-6), below(512e-6), below(1024e-6)), (3, 3, 4));
        assert_eq!((reading.count, reading.sum), (4, 930e-6));
        latency.record(0);
        latency.record(u64::MAX);
        assert_eq!(latency.count(), 6);
        assert!(latency.quantile(1.0).is_some_and(|us| us > 1 << 23));
    }
}
