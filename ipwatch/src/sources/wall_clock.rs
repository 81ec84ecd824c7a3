//! Reports when the wall clock is set, by NTP or by a person: dates are computed with another offset from then on.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::Interest;

use super::Emit;
use super::ready::ready;
use crate::clock;
use crate::fact::{Fact, Observation, Origin};

/// Unix time in seconds that is never reached: the year 9999.
const NEVER: i64 = 253_402_300_799;

/// A timer that never expires and becomes readable when the wall clock is set (`timerfd_clock_was_set`, fs/timerfd.c,
/// 3.0 to 6.18), so that the clock need not be polled. Slewing the clock does not trigger it.
fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Realtime, flags)?;
    let when = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
    let never = Itimerspec {
        it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: Timespec { tv_sec: NEVER, tv_nsec: 0 },
    };
    timerfd_settime(&timer, when, &never)?;
    Ok(timer)
}

/// Reports each time the clock is set, until the receiver of `emit` is closed.
///
/// # Errors
/// The timer cannot be created or read.
pub(crate) async fn follow(emit: &Emit) -> io::Result<()> {
    let timer = ready(timer()?, Interest::READABLE)?;
    loop {
        let mut guard = timer.readable().await?;
        match rustix::io::read(timer.get_ref(), &mut [0_u8; 8]) {
            Err(Errno::CANCELED) => {
                let what = Observation::ClockSet { wall_offset: clock::wall_offset() };
                let fact = Fact { at: clock::now(), origin: Origin::Daemon, what };
                if emit.send(vec![fact]).await.is_err() {
                    return Ok(());
                }
            }
            Err(Errno::AGAIN) | Ok(_) => guard.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_clock_that_is_not_set_wakes_nobody() {
        let timer = ready(timer().unwrap(), Interest::READABLE).unwrap();
        let soon = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, timer.readable()).await.is_err());
        assert_eq!(rustix::io::read(timer.get_ref(), &mut [0_u8; 8]), Err(Errno::AGAIN));
    }
}
