//! Shared errors of clients: timeouts, excerpts of a server's own text, errors with their causes, and why a session
//! ended.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::Closed;

/// Maximum length in bytes of a server's own text in an error.
const LONGEST: usize = 200;

pub(super) trait Failure: Sized {
    /// There was no answer to `what` within `limit`.
    fn silent(what: &'static str, limit: Duration) -> Self;
}

/// Runs `work` with a timeout.
pub(super) async fn within<T, E: Failure>(
    what: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(E::silent(what, limit)),
    }
}

/// The beginning of a text in one line, cut at a character boundary.
pub(super) fn cut(text: &str) -> String {
    let line = text.replace(|c: char| c.is_control(), " ");
    line[..line.floor_char_boundary(LONGEST)].to_owned()
}

/// An error, followed by its causes.
pub(super) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// An error with its causes, in one line. A cause that the previous text already ends with is not repeated.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in causes(error) {
        let text = cause.to_string();
        if texts.last().is_none_or(|last| !last.ends_with(&text)) {
            texts.push(text);
        }
    }
    cut(&texts.join(": "))
}

/// Why there is no connection to a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unconnected {
    /// The socket does not exist.
    #[error("no socket at {0}")]
    Missing(String),
    /// The socket exists, but connecting failed.
    #[error("{path}: {why}")]
    Refused { path: String, why: String },
}

impl Unconnected {
    pub(super) fn missing(path: &Path) -> Self {
        Self::Missing(path.display().to_string())
    }

    /// The error of the system is more precise than those that wrap it.
    pub(super) fn of(path: &Path, error: &(dyn Error + 'static)) -> Self {
        let io = causes(error).find_map(|cause| cause.downcast_ref::<io::Error>());
        let why = match io.map(io::Error::kind) {
            Some(io::ErrorKind::NotFound) => return Self::missing(path),
            Some(io::ErrorKind::ConnectionRefused) => "nobody listens on the socket".to_owned(),
            _ => io.map_or_else(|| chain(error), |io| cut(&io.to_string())),
        };
        Self::Refused { path: path.display().to_string(), why }
    }
}

/// Why a session with a server ended.
pub(super) enum Ended<E> {
    /// The server failed.
    Failed(E),
    /// The daemon is shutting down.
    Closed,
}

impl<E: Failure> From<E> for Ended<E> {
    fn from(error: E) -> Self {
        Self::Failed(error)
    }
}

impl<E> From<Closed> for Ended<E> {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq, thiserror::Error)]
    #[error("{text}")]
    struct One {
        text: &'static str,
        source: Option<Box<One>>,
    }

    impl Failure for One {
        fn silent(what: &'static str, _: Duration) -> Self {
            of(what, None)
        }
    }

    fn of(text: &'static str, source: Option<One>) -> One {
        One { text, source: source.map(Box::new) }
    }

    #[test]
    fn a_cause_that_was_said_is_not_said_again() {
        let last = of("refused", None);
        let error = of("no list", Some(of("no way: refused", Some(last))));
        assert_eq!(chain(&error), "no list: no way: refused");
        assert_eq!(causes(&error).count(), 3);
    }

    #[test]
    fn foreign_words_are_one_short_line() {
        assert_eq!(cut("a\nb\u{1b}[2Jc"), "a b [2Jc");
        let long = format!("{}ä", "x".repeat(LONGEST - 1));
        assert_eq!(cut(&long), long[..LONGEST - 1]);
        let cause = of("y", None);
        let text: &'static str = "x\nx".repeat(LONGEST).leak();
        assert_eq!(chain(&of(text, Some(cause))).len(), LONGEST);
    }

    #[tokio::test]
    async fn who_says_nothing_is_waited_for_no_longer() {
        let silence = std::future::pending::<Result<(), One>>();
        let waited = within("a list", Duration::from_millis(1), silence).await;
        assert_eq!(waited, Err(of("a list", None)));
        let limit = Duration::from_secs(60);
        assert_eq!(within("a list", limit, async { Ok::<_, One>(7) }).await, Ok(7));
    }
}
