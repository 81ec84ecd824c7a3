//! Records Ctrl-C, so that what was started can be stopped in order.

use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT and SIGTERM are recorded instead of ending this process.
pub(crate) fn catch() {
    extern "C" fn note(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is safe in a signal handler.
        unsafe { libc::signal(signal, note as *const () as libc::sighandler_t) };
    }
}

/// Whether a signal was received.
pub(crate) fn came() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Sends SIGTERM to a child process.
pub(crate) fn terminate(child: &std::process::Child) {
    // SAFETY: kill takes two integers; the child is not reaped yet, so the pid is still its own.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
}
