//! The pauses of whoever asks a server again: each after a failure is twice as long as the one before, and all are
//! jittered, for some thousand nodes do the same.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The pauses after failures.
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

    /// It went well: the next one is the shortest again.
    pub(crate) fn begin_anew(&mut self) {
        self.next = self.shortest;
    }

    /// How long to wait after this failure.
    pub(crate) fn after_failure(&mut self) -> Duration {
        let pause = jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

/// Between half of it and one and a half.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + random(1024) as f64 / 1024.0)
}

/// Any number below this one, which is not 0.
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
