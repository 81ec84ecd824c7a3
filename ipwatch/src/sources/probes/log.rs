//! Passes log messages of the kernel half (aya-log) to the daemon's log.

/// Errors of the kernel half are logged as warnings: the daemon observes less, but nothing has stopped.
#[derive(Debug, Clone, Copy)]
pub(super) struct ToTracing;

impl log::Log for ToTracing {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        tracing::warn!(from = "ebpf", "{}", record.args());
    }

    fn flush(&self) {}
}
