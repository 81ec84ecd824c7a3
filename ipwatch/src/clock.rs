//! Reads the boot clock, and converts its times to dates for people.

use std::fmt;

use crate::fact::BootNs;

/// The current time on `CLOCK_BOOTTIME`.
#[must_use]
pub fn now() -> BootNs {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Neither part of the boot clock is ever negative.
    BootNs((now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64)
}

/// Wall clock minus boot clock, in nanoseconds. Read at the start (`fact::Boot::wall_offset`), and whenever the wall
/// clock is set (`sources/wall_clock.rs`).
#[must_use]
pub fn wall_offset() -> i64 {
    let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let boot = now();
    (wall.tv_sec as i128 * 1_000_000_000 + wall.tv_nsec as i128 - boot.0 as i128) as i64
}

/// A moment on the wall clock, in milliseconds since 1970. Shown as an RFC 3339 date (UTC).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct WallMs(pub i64);

impl WallMs {
    /// The moment of an RFC 3339 date.
    #[must_use]
    pub fn parse(date: &str) -> Option<Self> {
        date.parse::<jiff::Timestamp>().ok().map(|stamp| Self(stamp.as_millisecond()))
    }
}

impl fmt::Display for WallMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        jiff::Timestamp::from_millisecond(self.0).map_or(Ok(()), |stamp| write!(f, "{stamp:.3}"))
    }
}

/// Converts times of one boot to RFC 3339 dates (UTC, milliseconds). Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calendar {
    /// `fact::Boot::wall_offset`.
    pub wall_offset: i64,
}

impl Calendar {
    /// The date of `at`.
    #[must_use]
    pub fn date(&self, at: BootNs) -> String {
        self.wall(at).to_string()
    }

    /// `at` on the wall clock.
    #[must_use]
    pub fn wall(&self, at: BootNs) -> WallMs {
        let ms = (i128::from(at.0) + i128::from(self.wall_offset)).div_euclid(1_000_000);
        // Both are 64 bits of nanoseconds: their sum in milliseconds always fits.
        WallMs(i64::try_from(ms).unwrap_or(i64::MAX))
    }

    /// The moment of a date of this boot.
    #[must_use]
    pub fn moment(&self, date: &str) -> Option<BootNs> {
        let stamp: jiff::Timestamp = date.parse().ok()?;
        let ns = stamp.as_nanosecond().checked_sub(i128::from(self.wall_offset))?;
        u64::try_from(ns).ok().map(BootNs)
    }
}
