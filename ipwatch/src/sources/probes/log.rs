//! What the kernel half itself has to say (aya-log), passed on to the daemon's log.

/// Errors of the kernel half are warnings here: something is seen less well, nothing has stopped.
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
