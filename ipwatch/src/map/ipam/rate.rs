//! How fast the IPs of a range are taken, by samples of their number.
//!
//! Pods are started in bursts, so growth counts only over some minutes. A leaked IP is not given back by anything that
//! goes on by itself, so a minute shows how fast IPs leak: a crash loop can leak a /24 within four.

use std::collections::VecDeque;

use crate::fact::BootNs;

/// Window over which growth is measured. The last sample before it is kept as the starting point.
const WINDOW: u64 = 600_000_000_000;
/// Minimum span for measuring growth: pods are started in bursts.
const LEAST_SPAN: u64 = 300_000_000_000;
/// Window over which it is measured how fast IPs leak, and its minimum span.
const LEAK_WINDOW: u64 = 60_000_000_000;
const LEAST_LEAK_SPAN: u64 = 30_000_000_000;
/// Minimum number of leaks in that window: two may have nothing to do with each other.
const LEAST_LEAKS: u64 = 8;
/// How long a rate of leaks counts after it was last measured: a crash loop pauses.
const LEAKS_ON: u64 = 180_000_000_000;

/// A sample of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) at: BootNs,
    /// Number of taken IPs.
    pub(super) used: u64,
    /// Number of IPs of which the reservation is a leak.
    pub(super) leaked: u64,
}

/// Samples, the oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples {
    all: VecDeque<Sample>,
    /// The last rate of leaks, and when it was measured.
    leaking: Option<(BootNs, Rate)>,
}

/// So many IPs were taken within a time, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rate {
    grown: u64,
    span: u64,
}

impl Rate {
    /// Time until `free` IPs are taken, in ns.
    pub(super) fn time_for(self, free: u64) -> u64 {
        let left = u128::from(free) * u128::from(self.span) / u128::from(self.grown);
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    /// The rate if `fewer` IPs had been taken; `None` if nothing remains.
    pub(super) fn without(self, fewer: u64) -> Option<Self> {
        let grown = self.grown.saturating_sub(fewer);
        (grown > 0).then_some(Self { grown, ..self })
    }
}

impl Samples {
    pub(super) fn push(&mut self, sample: Sample) {
        if let Some(rate) = self.measured(sample) {
            self.leaking = Some((sample.at, rate));
        }
        self.all.push_back(sample);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.leaking = None;
    }

    /// Drops what is older than the window. If steps are rare, samples are further apart.
    pub(super) fn forget(&mut self, now: BootNs) {
        while self.all.get(1).is_some_and(|next| now.since(next.at) >= WINDOW) {
            self.all.pop_front();
        }
    }

    pub(super) fn since(&self) -> Option<BootNs> {
        self.all.front().map(|first| first.at)
    }

    /// The rate of the last minutes. Pods that come and go, or that all came at once, are no growth.
    pub(super) fn rate(&self, now: Sample) -> Option<Rate> {
        rate(&self.all, 0, now, LEAST_SPAN, |sample| [sample.used; 2])
    }

    /// The rate at which IPs leak, or did lately.
    pub(super) fn leak_rate(&self, now: Sample) -> Option<Rate> {
        if now.leaked == 0 {
            return None;
        }
        let lately = self.leaking.filter(|(at, _)| now.at.since(*at) < LEAKS_ON);
        self.measured(now).or(lately.map(|(_, rate)| rate))
    }

    /// The rate of the last minute at which IPs leak. A leak that becomes known is none where no IP is taken, and an IP
    /// that is taken is none where nothing leaks.
    fn measured(&self, now: Sample) -> Option<Rate> {
        // Each step of a node on which nothing leaks ends here.
        if now.leaked < LEAST_LEAKS {
            return None;
        }
        let recent = self.all.partition_point(|sample| now.at.since(sample.at) > LEAK_WINDOW);
        let of = |sample: Sample| [sample.used, sample.leaked];
        let found = rate(&self.all, recent, now, LEAST_LEAK_SPAN, of);
        found.filter(|rate| rate.grown >= LEAST_LEAKS)
    }
}

/// The rate since the sample with the number `from`, if all of `of` grew in both halves of the time: that of the slowest.
fn rate(
    samples: &VecDeque<Sample>,
    from: usize,
    now: Sample,
    least: u64,
    of: impl Fn(Sample) -> [u64; 2],
) -> Option<Rate> {
    let (first, middle) = (*samples.get(from)?, *samples.get(from.midpoint(samples.len()))?);
    let grown = |from: Sample, to: Sample| {
        let both = of(to).into_iter().zip(of(from));
        both.map(|(to, from)| to.saturating_sub(from)).min().unwrap_or(0)
    };
    let (grown, span) = (grown(first, now), now.at.since(first.at));
    (span >= least && grown > 0 && grows(first, middle, now, of)).then_some(Rate { grown, span })
}

fn grows(first: Sample, middle: Sample, last: Sample, of: impl Fn(Sample) -> [u64; 2]) -> bool {
    let [first, middle, last] = [first, middle, last].map(of);
    (0..2).all(|one| first[one] < middle[one] && middle[one] < last[one])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn samples(all: impl IntoIterator<Item = (u64, u64, u64)>) -> (Samples, Sample) {
        let sample = |(at, used, leaked)| Sample { at: BootNs(at * SECOND), used, leaked };
        let mut all: VecDeque<Sample> = all.into_iter().map(sample).collect();
        let last = all.pop_back().unwrap();
        let mut samples = Samples::default();
        all.into_iter().for_each(|sample| samples.push(sample));
        (samples, last)
    }

    #[test]
    fn a_minute_shows_how_fast_ips_leak() {
        // One IP each second, known as a leak ten seconds later.
        let (all, now) = samples((0..=4).map(|n| (n * 10, 20 + n * 10, n * 10)));
        assert_eq!(all.leak_rate(now), Some(Rate { grown: 40, span: 40 * SECOND }));
        assert_eq!(all.leak_rate(now).unwrap().time_for(193), 193 * SECOND);
        assert_eq!(all.rate(now), None, "a burst, as far as is known");
        // What was before does not slow it down.
        let quiet = (0..30).map(|n| (n * 10, 20, 0));
        let (all, now) =
            samples(quiet.chain((30..=36).map(|n| (n * 10, n * 10 - 270, n * 10 - 290))));
        assert_eq!(all.leak_rate(now), Some(Rate { grown: 60, span: 60 * SECOND }));
    }

    #[test]
    fn what_does_not_go_on_is_no_rate() {
        let nothing = |why: &str, all: &[(u64, u64, u64)]| {
            let (all, now) = samples(all.iter().copied());
            assert_eq!(all.leak_rate(now), None, "{why}");
        };
        nothing("too short", &[(0, 0, 0), (10, 9, 9), (20, 18, 18), (29, 27, 27)]);
        nothing("a rollout", &[(0, 0, 0), (10, 9, 0), (20, 18, 0), (30, 27, 0), (40, 36, 0)]);
        let found = [(0, 99, 0), (10, 99, 9), (20, 99, 18), (30, 99, 27), (40, 99, 36)];
        nothing("leaks that become known", &found);
        let once = [(0, 0, 0), (10, 50, 50), (20, 50, 50), (30, 50, 50), (40, 50, 50)];
        nothing("all at once", &once);
        let over: Vec<_> = (0..26).map(|n| (n * 10, n.min(5) * 10, n.min(5) * 10)).collect();
        nothing("it has ended", &over);
        let (all, now) = samples(over[..20].iter().copied());
        assert!(all.leak_rate(now).is_some(), "a crash loop pauses");
        // One leak in each half of a minute.
        let two: Vec<_> = (0..=6).map(|n| (n * 10, 190 + n / 3, n / 3)).collect();
        nothing("two leaks", &two);
    }
}
