//! The time of `CLOCK_BOOTTIME`, and deadlines.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the boot, suspend included.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A point in time at which waiting ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    pub(crate) fn within(limit: Duration) -> Self {
        Self(now().saturating_add(limit))
    }

    /// The time that is left. `None`: the deadline has passed.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.checked_sub(now()).filter(|left| !left.is_zero())
    }
}
