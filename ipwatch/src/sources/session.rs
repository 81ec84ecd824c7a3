//! Runs clients that query a server in sessions until the daemon shuts down, and tracks the status of a source.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Pauses;
use super::errors::Ended;
use super::{Closed, Emit};
use crate::clock;
use crate::fact::{Fact, Observation, Origin, Source, SourceStatus};

pub(super) trait Client: Send {
    type Error: Send + Sync;

    /// Runs from the connection to the first failure.
    fn session(&mut self) -> impl Future<Output = Result<Infallible, Ended<Self::Error>>> + Send;

    /// Reports the status of the source after an error.
    fn failed(&mut self, error: &Self::Error) -> impl Future<Output = Result<(), Closed>> + Send;

    /// Waits before the next session.
    fn pause(
        &mut self,
        error: &Self::Error,
        pauses: &mut Pauses,
    ) -> impl Future<Output = ()> + Send;
}

/// Runs one session after another until the daemon shuts down. `retry`: the first and the longest pause after a
/// failure. After a session that lasted longer than `well`, the pauses start again with the shortest.
pub(super) async fn run(mut client: impl Client, retry: (Duration, Duration), well: Duration) {
    let mut pauses = Pauses::new(retry);
    loop {
        let began = Instant::now();
        let error = match client.session().await {
            Err(Ended::Closed) => return,
            Err(Ended::Failed(error)) => error,
        };
        if began.elapsed() > well {
            pauses.begin_anew();
        }
        if client.failed(&error).await.is_err() {
            return;
        }
        client.pause(&error, &mut pauses).await;
    }
}

/// The last reported status of a source. The same status is not reported again.
#[derive(Debug, Default)]
pub(super) struct Standing {
    told: Option<(SourceStatus, String)>,
}

impl Standing {
    /// The observation to report, if the status differs from the last report.
    pub(super) fn change(
        &mut self,
        name: &str,
        status: SourceStatus,
        detail: String,
    ) -> Option<Observation> {
        let state = (status, detail);
        if self.told.as_ref() == Some(&state) {
            return None;
        }
        let (status, detail) = state.clone();
        self.told = Some(state);
        Some(Observation::Source(Source { name: name.to_owned(), status, detail }))
    }

    /// Reports the status, if it differs from the last report.
    pub(super) async fn tell(
        &mut self,
        emit: &Emit,
        origin: Origin,
        name: &str,
        status: SourceStatus,
        detail: String,
    ) -> Result<(), Closed> {
        match self.change(name, status, detail) {
            Some(what) => emit.send(vec![Fact { at: clock::now(), origin, what }]).await,
            None => Ok(()),
        }
    }

    pub(super) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// The source no longer exists. Returns whether its status was reported before.
    pub(super) fn forget(&mut self) -> bool {
        self.told.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::errors::Failure;

    #[derive(Debug, PartialEq, Eq)]
    struct Broken(u32);

    impl Failure for Broken {
        fn silent(_: &'static str, _: Duration) -> Self {
            Self(0)
        }
    }

    /// Fails this many times, then ends. Records the pauses.
    struct Failing<'a> {
        left: u32,
        paused: &'a mut Vec<(u32, Duration)>,
    }

    impl Client for Failing<'_> {
        type Error = Broken;

        async fn session(&mut self) -> Result<Infallible, Ended<Broken>> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.left = self.left.checked_sub(1).ok_or(Ended::Closed)?;
            Err(Broken(self.left).into())
        }

        async fn failed(&mut self, _: &Broken) -> Result<(), Closed> {
            Ok(())
        }

        async fn pause(&mut self, error: &Broken, pauses: &mut Pauses) {
            self.paused.push((error.0, pauses.after_failure()));
        }
    }

    async fn pauses_of(well: Duration) -> Vec<(u32, Duration)> {
        let mut paused = Vec::new();
        let retry = (Duration::from_secs(1), Duration::from_secs(60));
        run(Failing { left: 4, paused: &mut paused }, retry, well).await;
        paused
    }

    #[tokio::test]
    async fn pauses_grow_until_a_session_has_lasted() {
        let paused = pauses_of(Duration::from_secs(3_600)).await;
        assert_eq!(paused.iter().map(|(error, _)| *error).collect::<Vec<_>>(), [3, 2, 1, 0]);
        assert!(paused[3].1 >= Duration::from_secs(4), "{paused:?}");
        let paused = pauses_of(Duration::ZERO).await;
        assert!(paused.iter().all(|(_, pause)| *pause < Duration::from_secs(2)), "{paused:?}");
    }

    #[test]
    fn a_status_is_told_once() {
        let mut standing = Standing::default();
        let mut change = |status, detail: &str| {
            let told = standing.change("cni", status, detail.to_owned());
            (told.is_some(), standing.is_told())
        };
        assert_eq!(change(SourceStatus::Active, ""), (true, true));
        assert_eq!(change(SourceStatus::Active, ""), (false, true));
        assert_eq!(change(SourceStatus::Degraded, ""), (true, true));
        assert_eq!(change(SourceStatus::Degraded, "why"), (true, true));
        assert!(standing.forget() && !standing.forget());
        assert!(standing.change("cni", SourceStatus::Degraded, "why".to_owned()).is_some());
    }
}
