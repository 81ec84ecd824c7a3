//! Waiting without fixed sleeps.

use std::time::{Duration, Instant};

/// How much slower than a plain machine this one is: `IPWATCH_TEST_SLOW`, set in emulated VMs. Multiplies timeouts,
/// but no wait that a test must sit out.
#[must_use]
pub fn patience() -> u32 {
    std::env::var("IPWATCH_TEST_SLOW").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Whether the daemon under test is the release build (`IPWATCH_TEST_SHIPPED`).
#[must_use]
pub fn is_shipped() -> bool {
    std::env::var_os("IPWATCH_TEST_SHIPPED").is_some()
}

/// Polls until there is an answer.
///
/// # Panics
/// There was no answer within `seconds` (times [`patience`]).
#[track_caller]
pub fn eventually<T>(what: &str, seconds: u32, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    let limit = Duration::from_secs(u64::from(seconds * patience()));
    let mut pause = Duration::from_millis(5);
    loop {
        let asked = Instant::now();
        if let Some(answer) = ask() {
            return answer;
        }
        // Sleep at least as long as the query took, so that the CPU is free for what is awaited.
        let took = asked.elapsed();
        assert!(began.elapsed() < limit, "{what}: not within {} s", limit.as_secs());
        std::thread::sleep(pause.max(took));
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// As [`eventually`], without a result.
#[track_caller]
pub fn until(what: &str, seconds: u32, mut ask: impl FnMut() -> bool) {
    eventually(what, seconds, || ask().then_some(()));
}

/// Waits for a condition without failing: the caller reports afterwards what is wrong.
pub fn settle(seconds: u32, mut ask: impl FnMut() -> bool) {
    settled(seconds, || ask().then_some(()));
}

/// As [`settle`], with a result.
pub fn settled<T>(seconds: u32, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    let limit = Duration::from_secs(u64::from(seconds * patience()));
    loop {
        let asked = Instant::now();
        let answer = ask();
        if answer.is_some() || began.elapsed() >= limit {
            return answer;
        }
        std::thread::sleep(asked.elapsed().max(Duration::from_millis(50)));
    }
}
