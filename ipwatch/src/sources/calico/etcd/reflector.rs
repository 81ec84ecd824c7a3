//! One session with an etcd after another, until the daemon goes down. Each is with one member; the next one is
//! asked when it fails, after a pause that grows and is jittered, for some thousand nodes do the same.

use std::convert::Infallible;

use tokio::time::Instant;

use super::connection::{Connection, Dial, User};
use super::error::{Ended, EtcdError};
use super::reporter::Reporter;
use super::settings::Settings;
use super::{Keys, Pace, SourceStatus};
use crate::sources::backoff::{Pauses, random};
use crate::sources::errors::within;

/// One API of etcd.
pub(super) trait Store: Send + 'static {
    /// Its name, for people.
    const NAME: &'static str;
    /// A way to a member that answers.
    type Link: Send;
    /// Where a watch goes on, in another session too.
    type Told: Send;

    /// Connects.
    fn open(&self, visit: &Visit) -> impl Future<Output = Result<Self::Link, EtcdError>> + Send;

    /// Tells everything.
    fn list<K: Keys>(
        &mut self,
        link: &mut Self::Link,
        visit: &Visit,
        reporter: &mut Reporter<K>,
    ) -> impl Future<Output = Result<Self::Told, Ended>> + Send;

    /// Tells what has changed since, until it breaks.
    fn watch<K: Keys>(
        &mut self,
        link: Self::Link,
        told: &mut Self::Told,
        visit: &Visit,
        reporter: &mut Reporter<K>,
    ) -> impl Future<Output = Result<Infallible, Ended>> + Send;
}

/// What a session is given.
pub(super) struct Visit {
    pub(super) dial: Dial,
    pub(super) user: Option<User>,
    pub(super) pace: Pace,
    /// Who it is with, for people.
    pub(super) about: String,
}

pub(super) async fn run<S: Store, K: Keys>(
    mut store: S,
    settings: Settings,
    pace: Pace,
    mut reporter: Reporter<K>,
) {
    let all = settings.etcd_endpoints.join(", ");
    let waits = format!("{} {all} is not known yet", S::NAME);
    if reporter.say(SourceStatus::Down, waits).await.is_err() || reporter.will_tell().await.is_err()
    {
        return;
    }
    // Not every node begins with the same member.
    let mut member = random(settings.etcd_endpoints.len().max(1) as u64) as usize;
    let mut pauses = Pauses::new(pace.retry);
    let mut told = None;
    loop {
        let began = Instant::now();
        let mut about = format!("{} {all}", S::NAME);
        let ended = match open(&settings, pace, member).await {
            Ok((dial, user)) => {
                about = format!("{} {}", S::NAME, dial.at.url());
                let visit = Visit { dial, user, pace, about: about.clone() };
                session(&mut store, &mut told, &visit, &mut reporter).await
            }
            Err(error) => Ended::Failed(error),
        };
        let error = match ended {
            Ended::Closed => return,
            Ended::Failed(error) => error,
        };
        // One that went well for long begins anew.
        if began.elapsed() > pace.well {
            pauses.begin_anew();
        }
        tracing::debug!("{about}: {error}");
        if matches!(
            error,
            EtcdError::Expired { .. } | EtcdError::Garbage { .. } | EtcdError::TooLarge { .. }
        ) {
            // Going on from there would bring the same.
            told = None;
        }
        if reporter.failed(&about, &error).await.is_err() {
            return;
        }
        tokio::time::sleep(pauses.after_failure()).await;
        // It has what it was asked for, only not from then.
        if !matches!(error, EtcdError::Expired { .. }) {
            member = member.wrapping_add(1);
        }
    }
}

/// From the connection to the first failure. `told`: what can be gone on from; all is listed where that is nothing.
async fn session<S: Store, K: Keys>(
    store: &mut S,
    told: &mut Option<S::Told>,
    visit: &Visit,
    reporter: &mut Reporter<K>,
) -> Ended {
    let ended: Result<Infallible, Ended> = async {
        let mut link = store.open(visit).await?;
        let told = match told {
            Some(told) => told,
            None => told.insert(store.list(&mut link, visit, reporter).await?),
        };
        store.watch(link, told, visit, reporter).await
    }
    .await;
    match ended {
        Ok(never) => match never {},
        Err(ended) => ended,
    }
}

/// On a thread: it reads files.
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
