//! Giving memory back: a daemon that stands beside people's work keeps only what it works with.

use crate::fact::BootNs;

/// Facts and entries of answers after which the heap is worth a look: each dump, each burst and each large
/// answer leaves holes.
const ENOUGH: usize = 5_000;
/// After that it is left alone for so long, in ns: giving back in the middle of a burst is in vain.
const PAUSE: u64 = 3_000_000_000;

/// One heap for all threads: each thread's own would keep what it once needed. To be called before there
/// is a second thread.
pub(super) fn one_heap() {
    // SAFETY: mallopt has no preconditions; it only sets a parameter of the allocator.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// When to give memory back.
#[derive(Debug, Default)]
pub(super) struct Housekeeper {
    work: usize,
    due: Option<BootNs>,
}

impl Housekeeper {
    /// So many facts were applied, or entries answered.
    pub(super) fn worked(&mut self, count: usize, now: BootNs) {
        self.work += count;
        if self.work >= ENOUGH {
            self.due.get_or_insert(now.plus(PAUSE));
        }
    }

    /// When to come back, if there is anything to do.
    pub(super) fn due(&self) -> Option<BootNs> {
        self.due
    }

    /// Gives memory back when it is time.
    pub(super) fn keep(&mut self, now: BootNs) {
        if self.due.is_some_and(|due| due <= now) {
            *self = Self::default();
            give_back();
        }
    }
}

/// Returns free heap to the kernel.
pub(super) fn give_back() {
    // SAFETY: malloc_trim has no preconditions; it locks the allocator by itself.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_for_a_reason_and_then_for_a_while() {
        let mut keeper = Housekeeper::default();
        keeper.worked(ENOUGH - 1, BootNs(1));
        assert_eq!(keeper.due(), None);
        keeper.worked(1, BootNs(2));
        keeper.worked(ENOUGH, BootNs(3));
        assert_eq!(
            keeper.due(),
            Some(BootNs(2).plus(PAUSE)),
            "work that goes on does not put it off"
        );
        keeper.keep(BootNs(4));
        assert!(keeper.due().is_some(), "not yet");
        keeper.keep(BootNs(2).plus(PAUSE));
        assert_eq!(keeper.due(), None);
    }
}
