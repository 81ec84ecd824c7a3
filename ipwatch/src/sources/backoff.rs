//! Pauses between retries to a server: each is twice as long as the one before, and all are jittered, because thousands
//! of nodes do the same.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Pauses {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl Pauses {
    pub(crate) fn new((shortest, longest): (Duration, Duration)) -> Self {
        Self { shortest, longest, next: shortest }
    }

    /// After a success: the next pause is the shortest again.
    pub(crate) fn begin_anew(&mut self) {
        self.next = self.shortest;
    }

    /// The pause after this failure.
    pub(crate) fn after_failure(&mut self) -> Duration {
        let pause = jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

/// A random duration between half and one and a half of `pause`.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + random(1024) as f64 / 1024.0)
}

/// A random number below `below`, which must not be 0.
pub(crate) fn random(below: u64) -> u64 {
    RandomState::new().hash_one(0u8) % below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_begin_anew() {
        let s = Duration::from_secs;
        let is_about = |pause: Duration, of| (s(of) / 2..s(of) * 3 / 2).contains(&pause);
        let mut pauses = Pauses::new((s(8), s(50)));
        for of in [8, 16, 32, 50, 50] {
            let pause = pauses.after_failure();
            assert!(is_about(pause, of), "{pause:?} of {of} s");
        }
        pauses.begin_anew();
        assert!(is_about(pauses.after_failure(), 8));
        assert!(is_about(pauses.after_failure(), 16));
    }

    #[test]
    fn no_two_nodes_wait_for_the_same_time() {
        let pauses: std::collections::BTreeSet<Duration> =
            (0..100).map(|_| jittered(Duration::from_secs(1))).collect();
        assert!(pauses.len() > 10, "{pauses:?}");
    }
}
