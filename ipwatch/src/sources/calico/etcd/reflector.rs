//! Runs one session with an etcd after another, until the daemon shuts down. Each session is with one member. When it
//! fails, the next member is tried, after a pause that grows and is jittered, because thousands of nodes do the same.

use std::convert::Infallible;

use super::connection::{Connection, Dial, User};
use super::error::{Ended, EtcdError};
use super::reporter::Reporter;
use super::settings::Settings;
use super::{Keys, Pace, SourceStatus};
use crate::sources::Closed;
use crate::sources::backoff::{Pauses, random};
use crate::sources::errors::within;
use crate::sources::session;

/// One API of etcd.
pub(super) trait Store: Send + 'static {
    /// Its name, for people.
    const NAME: &'static str;
    /// A connection to a member that answers.
    type Link: Send;
    /// Where a watch resumes, also in another session.
    type Cursor: Send;

    fn open(&self, visit: &Visit) -> impl Future<Output = Result<Self::Link, EtcdError>> + Send;

    /// Lists and reports everything.
    fn list<K: Keys>(
        &mut self,
        link: &mut Self::Link,
        visit: &Visit,
        reporter: &mut Reporter<K>,
    ) -> impl Future<Output = Result<Self::Cursor, Ended>> + Send;

    /// Reports changes since then, until it fails.
    fn watch<K: Keys>(
        &mut self,
        link: Self::Link,
        told: &mut Self::Cursor,
        visit: &Visit,
        reporter: &mut Reporter<K>,
    ) -> impl Future<Output = Result<Infallible, Ended>> + Send;
}

/// The parameters of a session.
pub(super) struct Visit {
    pub(super) dial: Dial,
    pub(super) user: Option<User>,
    pub(super) pace: Pace,
    /// The member, for people.
    pub(super) about: String,
}

pub(super) async fn run<S: Store, K: Keys>(
    store: S,
    settings: Settings,
    pace: Pace,
    mut reporter: Reporter<K>,
) {
    let all = format!("{} {}", S::NAME, settings.etcd_endpoints.join(", "));
    let waits = format!("{all} is not known yet");
    if reporter.say(SourceStatus::Down, waits).await.is_err() || reporter.will_tell().await.is_err()
    {
        return;
    }
    // Nodes start with different members.
    let member = random(settings.etcd_endpoints.len().max(1) as u64) as usize;
    let follower = Follower { store, settings, pace, reporter, member, told: None, about: all };
    session::run(follower, pace.retry, pace.well).await;
}

struct Follower<S: Store, K> {
    store: S,
    settings: Settings,
    pace: Pace,
    reporter: Reporter<K>,
    /// The member that is tried next.
    member: usize,
    /// Where the next session can resume. `None`: everything must be listed.
    told: Option<S::Cursor>,
    /// The member, for people.
    about: String,
}

impl<S: Store, K: Keys> session::Client for Follower<S, K> {
    type Error = EtcdError;

    /// Runs from the connection to the first failure.
    async fn session(&mut self) -> Result<Infallible, Ended> {
        self.about = format!("{} {}", S::NAME, self.settings.etcd_endpoints.join(", "));
        let (dial, user) = open(&self.settings, self.pace, self.member).await?;
        self.about = format!("{} {}", S::NAME, dial.at.url());
        let visit = Visit { dial, user, pace: self.pace, about: self.about.clone() };
        let mut link = self.store.open(&visit).await?;
        let told = match &mut self.told {
            Some(told) => told,
            told => told.insert(self.store.list(&mut link, &visit, &mut self.reporter).await?),
        };
        self.store.watch(link, told, &visit, &mut self.reporter).await
    }

    async fn failed(&mut self, error: &EtcdError) -> Result<(), Closed> {
        tracing::debug!("{}: {error}", self.about);
        if matches!(
            error,
            EtcdError::Expired { .. } | EtcdError::Garbage { .. } | EtcdError::TooLarge { .. }
        ) {
            // Resuming there would return the same.
            self.told = None;
        }
        self.reporter.failed(&self.about, error).await
    }

    async fn pause(&mut self, error: &EtcdError, pauses: &mut Pauses) {
        tokio::time::sleep(pauses.after_failure()).await;
        // The member works; it only no longer has the revision.
        if !matches!(error, EtcdError::Expired { .. }) {
            self.member = self.member.wrapping_add(1);
        }
    }
}

/// On a thread, because it reads files.
async fn open(
    settings: &Settings,
    pace: Pace,
    member: usize,
) -> Result<(Dial, Option<User>), EtcdError> {
    let settings = settings.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let way = Connection::open(&settings)?;
        Ok((way.dial(member)?, way.user))
    });
    within("the files of [calico]", pace.open, async {
        opened.await.map_err(|_| EtcdError::Setting("its files cannot be read".to_owned()))?
    })
    .await
}
