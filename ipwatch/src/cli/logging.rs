//! Our own log: to stderr, filtered by `IPWATCH_LOG`, in the format of the journal if stderr is connected to it.

use std::fmt;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::sinks::journal::{self, TARGET};

/// Variable with the filter, such as `debug` or `ipwatch::sources=trace,info`.
const FILTER: &str = "IPWATCH_LOG";

/// Starts logging. `stays`: the command runs until it is stopped. Other commands log only warnings about their work,
/// because their findings are their output.
pub(super) fn start(stays: bool) {
    let default = if stays { LevelFilter::INFO } else { LevelFilter::WARN };
    let usual = match stays {
        true => Targets::new().with_default(default),
        false => Targets::new().with_default(default).with_target(TARGET, LevelFilter::OFF),
    };
    let wanted = std::env::var(FILTER).unwrap_or_default();
    let (filter, mistake) = match wanted.parse::<Targets>() {
        Ok(filter) if !wanted.is_empty() => (filter, None),
        Ok(_) => (usual, None),
        Err(error) => (usual, Some(error)),
    };
    let builder =
        tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(io::stderr);
    let journal = read_by_journal();
    if journal && stays {
        journal::to_the_journal();
    }
    // A second subscriber (in tests) is not an error.
    let _ = if journal {
        builder.with_ansi(false).event_format(Journal::new()).finish().with(filter).try_init()
    } else {
        builder.with_ansi(io::stderr().is_terminal()).finish().with(filter).try_init()
    };
    if let Some(error) = mistake {
        tracing::warn!("{FILTER} is not understood ({error}): logging {default} and above");
    }
}

/// Whether stderr is connected to the journal: systemd sets the device and inode of its socket in `JOURNAL_STREAM`
/// (systemd.exec(5)). A child process with another stderr inherits the variable.
fn read_by_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(io::stderr().as_fd())
        .is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Lines with a priority prefix (sd-daemon(3)) and without a time, which the journal adds.
struct Journal(Format<Full, ()>);

impl Journal {
    fn new() -> Self {
        Self(Format::default().without_time().with_level(false))
    }
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// The syslog priority of a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Log, hear};

    #[test]
    fn the_journal_gets_priorities_and_neither_time_nor_colour() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .event_format(Journal::new())
            .with_writer(move || writer.clone())
            .finish();
        let _hearing = hear(subscriber);
        tracing::warn!(path = "/x", "first");
        tracing::info!("second");
        let target = module_path!();
        assert_eq!(log.text(), format!("<4>{target}: first path=\"/x\"\n<6>{target}: second\n"));
    }
}
