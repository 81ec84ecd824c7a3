//! Raises RLIMIT_MEMLOCK for maps and programs before Linux 5.11.
//!
//! Before that version they count against RLIMIT_MEMLOCK, all of a user's together, whatever its capabilities
//! (`bpf_charge_memlock`, kernel/bpf/syscall.c); the default of 64 KiB is less than one ring buffer. Since then they
//! count against the memory cgroup instead.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The first kernel version that does not check the limit.
const UNASKED: (u32, u32) = (5, 11);

/// Raises the limit if it counts. If that fails, returns the limit in bytes.
pub(super) fn raise() -> Option<u64> {
    let counts = release(rustix::system::uname().release().to_str().unwrap_or_default())
        .is_some_and(|release| release < UNASKED);
    let limit = getrlimit(Resource::Memlock).current;
    if !counts || limit.is_none() {
        return None;
    }
    let most = Rlimit { current: None, maximum: None };
    setrlimit(Resource::Memlock, most).is_err().then_some(limit).flatten()
}

/// Major and minor version, as in `5.10.0-46-cloud-amd64`.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_distributions_write_them() {
        assert_eq!(release("5.10.0-46-cloud-amd64"), Some((5, 10)));
        assert_eq!(release("4.18.0-553.el8_10.x86_64"), Some((4, 18)));
        assert_eq!(release("7.2+deb14"), Some((7, 2)));
        assert_eq!(release("5.15-rc1"), Some((5, 15)));
        assert_eq!((release("next"), release("")), (None, None));
        assert!(release("5.10.262") < Some(UNASKED) && release("5.11.0") >= Some(UNASKED));
    }
}
