//! The life of one kind of object: list, watch, and retry after a failure.
//!
//! A watch resumes from the last version that was reported. Only if the API server no longer has it (410), everything
//! is listed again, and then nothing older than what is known. Every step has a timeout, and every pause is jittered,
//! because thousands of nodes do the same.

use std::convert::Infallible;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::Pace;
use super::client::Api;
use super::credentials::Credentials;
use super::documents::{self, Line, Page, Status};
use super::error::{ApiError, Ended};
use super::read::{Lines, page};
use crate::clock;
use crate::fact::{BootNs, Fact, Observation, Origin, SourceStatus};
use crate::sources::backoff::{Pauses, jittered};
use crate::sources::errors::within;
use crate::sources::session::{self, Standing};
use crate::sources::url::encoded;
use crate::sources::{Closed, Emit};

/// Maximum number of entries of one page.
const PAGE: usize = 250;
/// Maximum number of pages of one list.
const PAGES: usize = 256;
/// Maximum number of facts sent at once, except for those of one object.
const BATCH: usize = 512;
/// The steps, in errors.
const LIST: &str = "a list";
const WATCH: &str = "a watch";
/// Maximum pause that the server can request.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

pub(in crate::sources) trait Kind: Send + 'static {
    /// The fields that are read of an object.
    type Item: DeserializeOwned + Send + 'static;

    /// Name of the source.
    fn source(&self) -> &'static str;

    /// The objects, for people: `the pods of node-17`.
    fn about(&self) -> String;

    /// Their path, with the selector: `/api/v1/pods?fieldSelector=…`, or with only a `?`.
    fn path(&self) -> String;

    /// Whether a cluster may not have this kind: the source is then disabled, and retried.
    fn may_be_missing(&self) -> bool {
        false
    }

    /// Maximum number of objects that are kept of one page. A server may answer with everything at once.
    fn most(&self) -> usize {
        documents::MOST
    }

    /// Number of parts of the current objects that could not be parsed.
    fn wrong(&self) -> usize {
        0
    }

    /// An observation sent before anything is known, which announces what will be reported.
    fn will_tell(&self) -> Option<Observation> {
        None
    }

    /// Turns a change into facts.
    fn tell(&mut self, change: Change<Self::Item>, out: &mut Vec<Observation>);
}

pub(in crate::sources) enum Change<T> {
    /// A complete list begins.
    Began,
    /// An object exists, or has changed.
    Now(T),
    /// An object was deleted.
    Gone(T),
    /// The list has ended.
    Ended { began: BootNs, complete: bool },
    /// Nothing else has changed until now.
    Confirmed,
}

/// Follows one kind of object until the daemon shuts down.
pub(super) async fn run<K: Kind>(kind: K, door: Credentials, pace: Pace, emit: Emit) {
    let mut follower = Follower {
        kind,
        door,
        pace,
        emit,
        floor: None,
        resumes: false,
        fresh: false,
        standing: Standing::default(),
        dropped: 0,
    };
    if follower.begin().await.is_ok() {
        session::run(follower, pace.retry, pace.well).await;
    }
}

struct Follower<K> {
    kind: K,
    door: Credentials,
    pace: Pace,
    emit: Emit,
    /// The version of the last report: nothing older may be reported.
    floor: Option<String>,
    /// Whether a watch can resume from it.
    resumes: bool,
    /// Whether the next list must not come from the server's cache.
    fresh: bool,
    standing: Standing,
    /// Number of objects that could not be parsed since the last list.
    dropped: usize,
}

impl<K: Kind> session::Client for Follower<K> {
    type Error = ApiError;

    /// Runs from the credentials to the first failure.
    async fn session(&mut self) -> Result<Infallible, Ended> {
        let api = self.door.enter(self.pace.open).await?;
        loop {
            if !self.resumes {
                self.list(&api).await?;
            }
            self.watch(&api).await?;
            tokio::time::sleep(jittered(self.pace.between)).await;
        }
    }

    async fn failed(&mut self, error: &ApiError) -> Result<(), Closed> {
        tracing::debug!("{}: {error}", self.kind.source());
        let about = self.kind.about();
        let (status, text) = match error {
            // The server works, and what was reported is still valid.
            ApiError::Expired { what } => {
                self.resumes = false;
                self.fresh |= *what == LIST;
                (SourceStatus::Degraded, format!("{about} are listed anew: {error}"))
            }
            ApiError::Busy { .. } => (SourceStatus::Degraded, format!("{about}: {error}")),
            ApiError::Refused { code: 404, .. } if self.kind.may_be_missing() => {
                (SourceStatus::Disabled, format!("{about}: this cluster has no such objects"))
            }
            ApiError::Garbage { .. } | ApiError::TooLarge { .. } => {
                // Resuming there would return the same.
                self.resumes = false;
                (SourceStatus::Down, format!("{about} are not known: {error}"))
            }
            _ => (SourceStatus::Down, format!("{about} are not known: {error}")),
        };
        self.say(status, text).await
    }

    async fn pause(&mut self, error: &ApiError, pauses: &mut Pauses) {
        let asked = match error {
            ApiError::Busy { after: Some(after), .. } => (*after).min(LONGEST_WAIT),
            _ => Duration::ZERO,
        };
        tokio::time::sleep(asked + pauses.after_failure()).await;
    }
}

impl<K: Kind> Follower<K> {
    /// Reports the initial status, and announces what will be reported.
    async fn begin(&mut self) -> Result<(), Closed> {
        let waits = format!("{} are not known yet", self.kind.about());
        self.say(SourceStatus::Down, waits).await?;
        let fact = |what| Fact { at: clock::now(), origin: Origin::Kubernetes, what };
        let will = self.kind.will_tell().into_iter().map(fact).collect();
        self.emit.send(will).await
    }

    /// Lists everything, page by page.
    async fn list(&mut self, api: &Api) -> Result<(), Ended> {
        let began = clock::now();
        self.tell(vec![(began, Change::Began)]).await?;
        let (mut more, mut version) = (None, None);
        let mut dropped = 0;
        for n in 0.. {
            if n == PAGES {
                return Err(
                    ApiError::Garbage { what: LIST, why: "a list without an end".into() }.into()
                );
            }
            let path = self.list_path(more.as_deref());
            let answer = api.get(LIST, &path, self.pace.answer).await;
            let answer = answer.map_err(|error| if self.fresh { error } else { unknown(error) })?;
            let read = within(LIST, self.pace.list, page(answer, self.kind.most())).await;
            let page: Page<K::Item> = read?;
            dropped += page.items.dropped;
            self.tell(page.items.read.into_iter().map(|item| (began, Change::Now(item))).collect())
                .await?;
            version = Some(page.metadata.resource_version.0).filter(|version| !version.is_empty());
            more = Some(page.metadata.more.0).filter(|more| !more.is_empty());
            if more.is_none() {
                break;
            }
        }
        (self.fresh, self.resumes, self.dropped) = (false, version.is_some(), dropped);
        self.floor = version;
        let complete = dropped == 0;
        self.tell(vec![(clock::now(), Change::Ended { began, complete })]).await?;
        self.well(api).await?;
        if !self.resumes {
            let why = "a list without a resourceVersion".to_owned();
            return Err(ApiError::Garbage { what: LIST, why }.into());
        }
        Ok(())
    }

    fn list_path(&self, more: Option<&str>) -> String {
        let path = self.kind.path();
        if let Some(more) = more {
            return format!("{path}&limit={PAGE}&continue={}", encoded(more));
        }
        match (&self.floor, self.fresh) {
            (_, true) => format!("{path}&limit={PAGE}"),
            // From the server's cache, which costs etcd nothing.
            (None, _) => format!("{path}&limit={PAGE}&resourceVersion=0"),
            (Some(version), _) => {
                let version = encoded(version);
                format!(
                    "{path}&limit={PAGE}&resourceVersion={version}&resourceVersionMatch=NotOlderThan"
                )
            }
        }
    }

    /// Watches until the server ends it.
    async fn watch(&mut self, api: &Api) -> Result<(), Ended> {
        let version = encoded(self.floor.as_deref().unwrap_or("0"));
        let length = jittered(self.pace.watch);
        let path = format!(
            "{}&watch=1&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={version}",
            self.kind.path(),
            length.as_secs().max(1),
        );
        let began = Instant::now();
        let answer = api.get(WATCH, &path, self.pace.answer).await.map_err(unknown)?;
        let mut lines = Lines::new(WATCH, answer);
        self.well(api).await?;
        let mut heard = 0u64;
        loop {
            // Bookmarks arrive about once a minute. If none does, the next request shows why.
            let next = tokio::time::timeout(self.pace.silence, lines.next()).await;
            let Some(line) = next.unwrap_or(Ok(None))? else { break };
            heard += 1;
            self.line(api, &line).await?;
        }
        // A server that ends every watch at once must not be asked without a pause.
        if heard == 0 && began.elapsed() < self.pace.well {
            let why = "it ended at once".to_owned();
            return Err(ApiError::Broken { what: WATCH, why }.into());
        }
        Ok(())
    }

    async fn line(&mut self, api: &Api, line: &[u8]) -> Result<(), Ended> {
        let garbage = |_| {
            let why = "a line that is no event".to_owned();
            Ended::Failed(ApiError::Garbage { what: WATCH, why })
        };
        let line: Line = serde_json::from_slice(line).map_err(garbage)?;
        let version =
            line.object.pointer("/metadata/resourceVersion").and_then(|text| text.as_str());
        let version =
            version.filter(|version| (1..=64).contains(&version.len())).map(str::to_owned);
        if line.kind.0 == "ERROR" {
            // What the server cannot send in this watch, it could not send in the next one either.
            self.resumes = false;
            let status: Status = serde_json::from_value(line.object).unwrap_or_default();
            return Err(status.refusal(WATCH, None).into());
        }
        let item = match &*line.kind.0 {
            "ADDED" | "MODIFIED" => serde_json::from_value(line.object).map(Change::Now),
            "DELETED" => serde_json::from_value(line.object).map(Change::Gone),
            "BOOKMARK" => Ok(Change::Confirmed),
            // An event type of a future version.
            _ => return Ok(()),
        };
        match item {
            Ok(change) => {
                self.tell_now(change).await?;
                self.well(api).await?;
            }
            Err(_) => {
                // The next list contains the object, or counts it as malformed.
                (self.dropped, self.resumes) = (self.dropped + 1, false);
                self.well(api).await?;
            }
        }
        // Set after the report: a repeated report does no harm.
        if version.is_some() {
            self.floor = version;
        }
        Ok(())
    }

    /// Reports a change from a watch. The facts' time is taken after `Kind::tell`, which may itself take the time at
    /// which a list begins.
    async fn tell_now(&mut self, change: Change<K::Item>) -> Result<(), Closed> {
        let mut told = Vec::new();
        self.kind.tell(change, &mut told);
        let at = clock::now();
        let fact = |what| Fact { at, origin: Origin::Kubernetes, what };
        self.emit.send(told.into_iter().map(fact).collect()).await
    }

    async fn tell(&mut self, changes: Vec<(BootNs, Change<K::Item>)>) -> Result<(), Closed> {
        let mut facts = Vec::new();
        let mut told = Vec::new();
        for (at, change) in changes {
            self.kind.tell(change, &mut told);
            facts.extend(told.drain(..).map(|what| Fact { at, origin: Origin::Kubernetes, what }));
            // One pool can have thousands of facts; the capacity of `told` is reused for the next changes.
            if facts.len() >= BATCH {
                self.emit.send(std::mem::take(&mut facts)).await?;
            }
        }
        self.emit.send(facts).await
    }

    /// Reports the status of a server that answers.
    async fn well(&mut self, api: &Api) -> Result<(), Closed> {
        let about = format!("{}, {}", self.kind.about(), api.url());
        match self.dropped + self.kind.wrong() {
            0 => self.say(SourceStatus::Active, about).await,
            n => {
                let text = format!("{n} entries are not understood; {about}");
                self.say(SourceStatus::Degraded, text).await
            }
        }
    }

    async fn say(&mut self, status: SourceStatus, detail: String) -> Result<(), Closed> {
        let name = self.kind.source();
        self.standing.tell(&self.emit, Origin::Kubernetes, name, status, detail).await
    }
}

/// A server that rejects so new a version, or a parameter used with it, is treated like one that no longer has the
/// version.
fn unknown(error: ApiError) -> ApiError {
    match error {
        ApiError::Refused { what, code: 400 | 504, .. } => ApiError::Expired { what },
        error => error,
    }
}
