//! The kernel worker that tears netns down (`cleanup_net`, net/core/net_namespace.c). There is only one, so a netns
//! that cannot be torn down blocks all later ones.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::files::{Dir, is_gone};
use super::look::{frames, stat};
use super::{Proc, fact};
use crate::clock;
use crate::fact::{Cleanup, Fact, Observation};

/// `PF_KTHREAD`: a process can take any name, but not this flag.
const KERNEL_THREAD: u32 = 0x0020_0000; // linux/sched.h

/// The message that the kernel logs every 10 seconds while a reference to a device remains (`netdev_wait_allrefs_any`,
/// net/core/dev.c).
const COMPLAINT: &str = "unregister_netdevice: waiting for ";
/// Microseconds. An older message belongs to a teardown that has continued since.
const STALE: u64 = 120_000_000;
/// Maximum number of kernel log records that are read, and the maximum time for that in nanoseconds.
const RECORDS: usize = 100_000;
const LONGEST: u64 = 300_000_000;
/// In bytes, longer than any record (`PRINTK_MESSAGE_MAX`, kernel/printk).
const RECORD: usize = 8 * 1024;

impl Proc {
    /// Whether the worker is tearing netns down, and if so, its state.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub fn cleanup_worker(&self) -> io::Result<Fact> {
        let root = Dir::open(&self.root)?;
        let mut worker = None;
        for pid in root.numbers(".")? {
            match root.dir(pid.to_string()).and_then(|dir| at_it(pid, &dir)) {
                Ok(None) => {}
                Ok(found) => {
                    worker = found;
                    break;
                }
                Err(error) if is_gone(&error) => {}
                Err(error) => tracing::trace!(pid, "kernel worker: {error}"),
            }
        }
        if let Some(asleep) = worker.as_mut().filter(|worker| worker.state != 'R') {
            asleep.message = newest_complaint(&self.kmsg);
        }
        Ok(fact(Observation::Cleanup { worker }))
    }
}

/// Returns this thread as the worker, if it is one and is tearing netns down.
///
/// While a worker runs something, its name ends in `+` and the name of the workqueue (`wq_worker_comm`,
/// kernel/workqueue.c); an idle one ends in `-netns`. The workqueue is `netns`, which has one worker at a time and runs
/// only `cleanup_net` (`net_ns_init`).
fn at_it(pid: u32, dir: &Dir) -> io::Result<Option<Cleanup>> {
    let comm = dir.comm();
    let named = comm.ends_with("+netns");
    if !named && !comm.starts_with("kworker/") {
        return Ok(None);
    }
    let stat = stat(dir)?;
    if stat.flags & KERNEL_THREAD == 0 || (!named && stat.state == 'I') {
        return Ok(None);
    }
    let stack = dir.text("stack").map(|stack| frames(&stack)).unwrap_or_default();
    if !named && !stack.iter().any(|frame| frame == "cleanup_net") {
        return Ok(None);
    }
    let wchan = dir.text("wchan").ok().filter(|name| !name.is_empty() && name != "0");
    Ok(Some(Cleanup { pid, state: stat.state, wchan, stack, message: None }))
}

/// The kernel's newest such message, if it is recent. Needs CAP_SYSLOG if `kernel.dmesg_restrict` is set.
fn newest_complaint(kmsg: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut log = File::from(rustix::fs::open(kmsg, flags, Mode::empty()).ok()?);
    let until = clock::now().plus(LONGEST);
    let mut record = vec![0; RECORD];
    let mut newest = None;
    for _ in 0..RECORDS {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(len) => newest = complaint(&record[..len.min(RECORD)]).or(newest),
            // The record was overwritten during the read: the next read continues after the gap (`devkmsg_read`).
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(_) => break, // EAGAIN: that was the last
        }
        if clock::now() > until {
            break;
        }
    }
    let (at, text) = newest?;
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = u64::try_from(now.tv_sec).ok()? * 1_000_000;
    (now.saturating_sub(at) <= STALE).then_some(text)
}

/// Parses a log record, `PRIORITY,SEQUENCE,TIME,FLAGS[,…];TEXT`. Returns the time in microseconds since boot and the
/// text, if it is the kernel's message. A record written by a process has a facility above the kernel's 0
/// (`devkmsg_write` ensures that), and bytes that are not plain text are escaped.
pub(super) fn complaint(record: &[u8]) -> Option<(u64, String)> {
    let record = String::from_utf8_lossy(record);
    let (head, text) = record.split_once(';')?;
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let at = fields.nth(1)?.parse().ok()?;
    let text = text.lines().next()?;
    (priority < 8 && text.starts_with(COMPLAINT)).then(|| (at, text.to_owned()))
}

#[cfg(test)]
mod tests;
