//! Gives memory back: the daemon runs beside people's workloads and must keep only what it needs. After work it also looks how
//! near it is to what it may have (`ceiling`).

use tokio::sync::oneshot;

use super::ceiling::{self, Usage};
use crate::fact::BootNs;

/// Number of facts applied and entries answered after which the heap is trimmed: each dump, each burst and each large
/// answer leaves holes.
const ENOUGH: usize = 5_000;
/// The heap is trimmed this long after `ENOUGH` is reached, in ns: trimming in the middle of a burst has no effect.
const PAUSE: u64 = 3_000_000_000;
/// When the program's pages are dropped after the start; each pause counts from the time before. On a busy node the
/// start has not ended by the first. No more often: pages that come back after that are in use, and they may have to
/// be read from a disk that hangs.
const AFTER_START: [u64; 2] = [PAUSE, 30_000_000_000];
/// While memory is short, the next look is this long after the last, in ns: what is kept less must be kept again some time.
const LOOK_AGAIN: u64 = 30_000_000_000;
/// When an answer is looked for first, in ns, and then after as long again.
const ANSWER: u64 = 20_000_000;

/// Uses one heap for all threads: a heap for each thread would keep the maximum that it ever needed. Must be called
/// before a second thread starts.
pub(super) fn one_heap() {
    // SAFETY: mallopt has no preconditions; it only sets a parameter of the allocator.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// When to give memory back.
#[derive(Debug, Default)]
pub(super) struct Housekeeper {
    work: usize,
    due: Option<BootNs>,
    /// When the program's pages are dropped next, and how often they were.
    pages: Option<(BootNs, usize)>,
    /// A look at the own memory that is under way, since when, and when its answer is looked for. One that hangs stays the
    /// last one.
    look: Option<(oneshot::Receiver<Option<Usage>>, BootNs, BootNs)>,
    /// When to look next, whatever was worked.
    look_again: Option<BootNs>,
    /// Whether memory was short at the last look.
    is_short: bool,
}

impl Housekeeper {
    /// This many facts were applied, or entries answered.
    pub(super) fn worked(&mut self, count: usize, now: BootNs) {
        self.work += count;
        if self.work >= ENOUGH {
            self.due.get_or_insert(now.plus(PAUSE));
        }
    }

    /// The start has ended: schedules the drop of memory that only the start needed.
    pub(super) fn started(&mut self, now: BootNs) {
        self.pages = Some((now.plus(AFTER_START[0]), 0));
    }

    /// When [`Self::keep`] is to be called next, if there is anything to do.
    pub(super) fn due(&self) -> Option<BootNs> {
        let pages = self.pages.map(|(due, _)| due);
        let answer = self.look.as_ref().map(|(_, _, due)| *due);
        [self.due, pages, answer, self.look_again].into_iter().flatten().min()
    }

    /// Gives memory back if it is due.
    pub(super) fn keep(&mut self, now: BootNs) {
        let pages = self.pages.filter(|(due, _)| *due <= now);
        if pages.is_some() || self.due.is_some_and(|due| due <= now) {
            (self.work, self.due) = (0, None);
            give_back();
            self.look(now);
        }
        if self.look_again.is_some_and(|due| due <= now) {
            self.look_again = None;
            self.look(now);
        }
        if let Some((_, times)) = pages {
            let next = AFTER_START.get(times + 1);
            self.pages = next.map(|pause| (now.plus(*pause), times + 1));
            let_go_of_code();
        }
    }
}

impl Housekeeper {
    /// Has somebody look at the own memory, after what is free went back. A file of a cgroup may be slow to read.
    fn look(&mut self, now: BootNs) {
        // Only a daemon has a runtime.
        if self.look.is_none()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (tell, answer) = oneshot::channel();
            self.look = Some((answer, now, now.plus(ANSWER)));
            runtime.spawn_blocking(move || {
                // Nobody waits any more once the daemon ends.
                let _ = tell.send(ceiling::look());
            });
        }
    }

    /// Whether memory is short, if that has changed.
    pub(super) fn news(&mut self, now: BootNs) -> Option<bool> {
        let (answer, since, due) = self.look.as_mut()?;
        match answer.try_recv() {
            Ok(Some(usage)) => {
                self.look = None;
                self.looked(usage, now)
            }
            Err(oneshot::error::TryRecvError::Empty) => {
                if *due <= now {
                    *due = now.plus(now.since(*since).max(ANSWER));
                }
                None
            }
            // Nothing could be read: what was known stays true until it can be.
            Ok(None) | Err(oneshot::error::TryRecvError::Closed) => {
                self.look = None;
                self.look_again = self.is_short.then(|| now.plus(LOOK_AGAIN));
                None
            }
        }
    }

    fn looked(&mut self, usage: Usage, now: BootNs) -> Option<bool> {
        let short = usage.is_short(self.is_short);
        self.look_again = short.then(|| now.plus(LOOK_AGAIN));
        if std::mem::replace(&mut self.is_short, short) == short {
            return None;
        }
        let Usage { used, limit } = usage;
        let (used, limit) = (used >> 20, limit >> 20);
        if short {
            tracing::warn!("memory is short ({used} of {limit} MiB): keeping less");
            // What is dropped now goes back as well.
            self.due.get_or_insert(now.plus(PAUSE));
        } else {
            tracing::info!("memory is no longer short ({used} of {limit} MiB)");
        }
        Some(short)
    }
}

/// Returns free heap to the kernel.
pub(super) fn give_back() {
    // SAFETY: malloc_trim has no preconditions; it locks the allocator by itself.
    unsafe { libc::malloc_trim(0) };
}

/// Drops mapped pages of the program that were needed once: to parse, to load, to answer. A page that is needed again
/// is mapped again from the page cache, where it stays. Otherwise the kernel would drop these pages only under memory
/// pressure, and count them as ours until then.
fn let_go_of_code() {
    // SAFETY: the callback below keeps to what `dl_iterate_phdr` promises, and takes no data.
    unsafe { libc::dl_iterate_phdr(Some(let_go_of_object), std::ptr::null_mut()) };
}

/// Handles only the first object, which is the program itself; what follows is the kernel's vDSO.
unsafe extern "C" fn let_go_of_object(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut libc::c_void,
) -> libc::c_int {
    const PAGE: usize = 4096;
    // SAFETY: glibc hands a valid description of a loaded object to the callback, and `dlpi_phdr` and
    // `dlpi_phnum` are the bounds of its program headers, which are mapped for as long as it is.
    let (base, headers) = unsafe {
        let info = &*info;
        (
            info.dlpi_addr as usize,
            std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()),
        )
    };
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        let start = base + header.p_vaddr as usize;
        let end = (start + header.p_filesz as usize).next_multiple_of(PAGE);
        let start = start - start % PAGE;
        // SAFETY: a segment that is not writable is a private mapping of the file that was never written
        // to (relocated data is in a writable one), so its pages read the same when they come back.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
    1
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

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

    #[test]
    fn that_memory_is_short_is_news_once_and_is_looked_at_again() {
        let mut keeper = Housekeeper::default();
        let usage = |mib: u64| Usage { used: mib << 20, limit: 96 << 20 };
        assert_eq!(keeper.looked(usage(40), BootNs(1)), None);
        assert_eq!(keeper.due(), None, "nothing in rest");
        assert_eq!(keeper.looked(usage(90), BootNs(2)), Some(true));
        assert_eq!(keeper.looked(usage(91), BootNs(3)), None);
        assert_eq!(keeper.look_again, Some(BootNs(3).plus(LOOK_AGAIN)));
        assert_eq!(keeper.looked(usage(70), BootNs(4)), None, "not yet");
        assert_eq!(keeper.looked(usage(50), BootNs(5)), Some(false));
        assert_eq!(keeper.look_again, None);
    }

    #[test]
    fn a_look_that_is_slow_is_the_only_one_and_asked_for_ever_more_seldom() {
        let mut keeper = Housekeeper::default();
        let (tell, answer) = oneshot::channel();
        keeper.look = Some((answer, BootNs(0), BootNs(ANSWER)));
        let mut asked = 0;
        while let Some(due) = keeper.due().filter(|due| due.0 < 100 * ANSWER) {
            assert_eq!(keeper.news(due), None);
            keeper.look(due);
            asked += 1;
        }
        assert!(asked < 9, "{asked}");
        tell.send(Some(Usage { used: 90, limit: 96 })).unwrap();
        assert_eq!(keeper.news(BootNs(200 * ANSWER)), Some(true));
        assert!(keeper.look.is_none());
        // What could not be read while it is short is asked for again.
        let (tell, answer) = oneshot::channel();
        (keeper.look, keeper.look_again) = (Some((answer, BootNs(0), BootNs(1))), None);
        tell.send(None).unwrap();
        assert_eq!(keeper.news(BootNs(300 * ANSWER)), None);
        assert_eq!(keeper.look_again, Some(BootNs(300 * ANSWER).plus(LOOK_AGAIN)));
    }

    #[test]
    fn after_the_start_it_comes_back_twice() {
        let mut keeper = Housekeeper::default();
        keeper.started(BootNs(1));
        for (n, pause) in AFTER_START.into_iter().enumerate() {
            let due = keeper.due().unwrap();
            assert_eq!(due.0 % 1_000_000_000, 1, "{n}");
            assert!(due.0 >= pause);
            keeper.keep(due);
        }
        assert_eq!(keeper.due(), None);
    }

    /// Constants that nobody else uses. A fault also maps what lies within 64 KiB (`do_fault_around`, mm/memory.c),
    /// so the middle stays unmapped whatever else is read.
    static CONSTANTS: [u8; 1 << 18] = [7; 1 << 18];

    fn sum() -> u64 {
        std::hint::black_box(&CONSTANTS).iter().copied().map(u64::from).sum()
    }

    #[test]
    fn code_and_constants_come_back_as_they_were() {
        // Bit 63 of a page's entry: it is mapped (Documentation/admin-guide/mm/pagemap.rst).
        let is_mapped = || {
            let mut entry = [0; 8];
            let middle = CONSTANTS[CONSTANTS.len() / 2..].as_ptr() as u64;
            let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
            pages.read_exact_at(&mut entry, middle / 4096 * 8).unwrap();
            u64::from_ne_bytes(entry) >> 63 == 1
        };
        let before = sum();
        // Tests that run at the same time drop pages as well.
        assert!((0..50).any(|_| sum() == before && is_mapped()));
        let_go_of_code();
        assert!(!is_mapped());
        assert_eq!(sum(), before);
    }
}
