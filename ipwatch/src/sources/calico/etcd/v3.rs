//! etcd v3: lists everything by pages at one revision, then watches from the next revision on.
//!
//! The last reported revision is remembered for each prefix, so that a watch resumes where it ended. Everything is
//! listed again if etcd has compacted that revision, if it is another cluster, or if the cluster was restored to an
//! earlier state: its revisions then mean nothing.

use std::convert::Infallible;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::Endpoint;

use super::error::{Ended, EtcdError};
use super::grpc::{Client, Watches};
use super::messages::{
    ASCEND, RangeRequest, RangeResponse, ResponseHeader, WatchCreateRequest, WatchResponse,
};
use super::reflector::{self, Visit};
use super::reporter::Reporter;
use super::status::said;
use super::{Keys, Pace};
use crate::clock;
use crate::sources::backoff::jittered;
use crate::sources::errors::{chain, within};

/// The prefixes that are read. The handles beside the blocks, one for each pod of the cluster, are never requested;
/// `pools` reads the pools.
pub(super) const PREFIXES: [&str; 2] =
    ["/calico/ipam/v2/assignment/", "/calico/resources/v3/projectcalico.org/workloadendpoints/"];
/// Number of entries of a page, and of a smaller page if those are too large.
const PAGE: i64 = 250;
const SMALL_PAGE: i64 = 8;
/// Maximum size in bytes of all keys and values of one list.
const LIST_LIMIT: usize = 512 << 20;

/// etcd checks every 100 ms for watches that begin in the past (`mvcc/watchable_store.go`, `syncWatchersLoop`).
const SETTLES: Duration = Duration::from_millis(300);

/// The requests, in errors.
const CONNECT: &str = "the connection";
const LIST: &str = "a list";
const WATCH: &str = "a watch";
const ALIVE: &str = "the question whether it lives";
/// The key of the health check: one that does not exist, within what may be read.
const SMALL: &str = PREFIXES[0];

/// Has no state: only the position of a watch must be remembered.
#[derive(Debug)]
pub(super) struct Store;

/// Where the last report ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    cluster: u64,
    /// For each prefix, the first revision of which something may not have been reported. The revision of an event is
    /// reported again, because a transaction may contain several events, and a repeated report does no harm.
    from: [i64; PREFIXES.len()],
}

impl reflector::Store for Store {
    const NAME: &'static str = "etcd v3";
    type Link = Client;
    type Cursor = Cursor;

    async fn open(&self, visit: &Visit) -> Result<Client, EtcdError> {
        connect(visit).await
    }

    async fn list<K: Keys>(
        &mut self,
        client: &mut Client,
        visit: &Visit,
        reporter: &mut Reporter<K>,
    ) -> Result<Cursor, Ended> {
        list(client, visit.pace, reporter).await
    }

    async fn watch<K: Keys>(
        &mut self,
        client: Client,
        told: &mut Cursor,
        visit: &Visit,
        reporter: &mut Reporter<K>,
    ) -> Result<Infallible, Ended> {
        Watch { visit, told, ids: Vec::new() }.run(&client, reporter).await
    }
}

pub(super) async fn connect(visit: &Visit) -> Result<Client, EtcdError> {
    let (dial, pace) = (visit.dial.clone(), visit.pace);
    let wrong = |error: &tonic::transport::Error| EtcdError::Setting(chain(error));
    let origin = dial.at.url().parse();
    let origin = origin.map_err(|_| EtcdError::Setting(format!("{}: no URL", dial.at.url())))?;
    // Our connector handles TLS; for tonic it is a plain connection.
    let endpoint = Endpoint::from_shared(format!("http://{}", dial.at.authority()))
        .and_then(|endpoint| endpoint.user_agent(concat!("ipwatch/", env!("CARGO_PKG_VERSION"))))
        .map_err(|error| wrong(&error))?
        .origin(origin)
        .http2_keep_alive_interval(pace.ping.0)
        .keep_alive_timeout(pace.ping.1)
        .keep_alive_while_idle(true);
    within(CONNECT, pace.open, async {
        let connector = tower::service_fn(move |_: hyper::Uri| {
            let dial = dial.clone();
            async move { dial.connect().await.map(TokioIo::new) }
        });
        let channel = endpoint.connect_with_connector(connector).await;
        let channel =
            channel.map_err(|error| EtcdError::Broken { what: CONNECT, why: chain(&error) })?;
        Client::new(CONNECT, channel, visit.user.as_ref()).await
    })
    .await
}

/// Lists everything, page by page, at one revision.
async fn list<K: Keys>(
    client: &Client,
    pace: Pace,
    reporter: &mut Reporter<K>,
) -> Result<Cursor, Ended> {
    let began = clock::now();
    reporter.began(began).await?;
    let mut of: Option<Cursor> = None;
    let mut bytes = 0usize;
    for prefix in PREFIXES {
        let end = after(prefix);
        let (mut from, mut limit) = (prefix.as_bytes().to_vec(), PAGE);
        loop {
            let asks = RangeRequest {
                key: from.clone(),
                range_end: end.clone(),
                limit,
                revision: of.map_or(0, |told| told.from[0] - 1),
                sort_order: ASCEND,
                keys_only: false,
            };
            let page = match get(client, asks, pace).await {
                Err(EtcdError::TooLarge { .. }) if limit > SMALL_PAGE => {
                    limit = SMALL_PAGE;
                    continue;
                }
                page => page?,
            };
            if of.is_none() {
                of = Some(first(page.header.as_ref())?);
            }
            let mut taken = 0;
            for entry in &page.kvs {
                bytes = bytes.saturating_add(entry.key.len() + entry.value.len());
                if bytes > LIST_LIMIT || !reporter.listed(&entry.key, &entry.value, began).await? {
                    break;
                }
                taken += 1;
            }
            let all = u64::try_from(page.count).unwrap_or_default();
            match page.kvs.last() {
                Some(last) if taken == page.kvs.len() && page.more => {
                    // The first key after it.
                    from = [last.key.as_slice(), b"\0"].concat();
                }
                _ => {
                    // `count` includes all keys in the range, whatever the page's limit.
                    reporter.leave_out(all.saturating_sub(taken as u64));
                    break;
                }
            }
        }
    }
    reporter.ended(began).await?;
    let none = EtcdError::Garbage { what: LIST, why: "a list without a revision".to_owned() };
    Ok(of.ok_or(none)?)
}

pub(super) async fn get(
    client: &Client,
    asks: RangeRequest,
    pace: Pace,
) -> Result<RangeResponse, EtcdError> {
    within(LIST, pace.list, client.range(LIST, asks)).await
}

/// The revision that all pages must have.
fn first(header: Option<&ResponseHeader>) -> Result<Cursor, EtcdError> {
    let header = header.filter(|header| header.revision > 0);
    let none = || EtcdError::Garbage { what: LIST, why: "a list without a revision".to_owned() };
    let header = header.ok_or_else(none)?;
    Ok(Cursor { cluster: header.cluster_id, from: [header.revision + 1; PREFIXES.len()] })
}

/// The first key after all keys with this prefix.
pub(super) fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // The last byte is `/`, never 0xff.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// Watches until it fails.
struct Watch<'a> {
    visit: &'a Visit,
    told: &'a mut Cursor,
    /// The server's ids of the created watches, in the order of the prefixes: etcd answers in the order of the
    /// requests.
    ids: Vec<i64>,
}

impl Watch<'_> {
    async fn run<K: Keys>(
        &mut self,
        client: &Client,
        reporter: &mut Reporter<K>,
    ) -> Result<Infallible, Ended> {
        let pace = self.visit.pace;
        let mut stream = within(WATCH, pace.answer, open(client, self.told)).await?;
        let mut next = Instant::now() + pace.answer;
        let (mut begun, mut well) = (false, false);
        // The time of the last health check that was answered.
        let mut lived = None;
        loop {
            let message = tokio::select! {
                biased;
                message = stream.message(WATCH) => message?,
                // No further message has arrived, so there was no error.
                () = std::future::ready(()), if well => {
                    reporter.well(&self.visit.about).await?;
                    well = false;
                    if let Some(then) = lived.take() {
                        reporter.confirmed(then).await?;
                    }
                    continue;
                }
                () = tokio::time::sleep_until(next) => {
                    if !begun {
                        return Err(EtcdError::Silent { what: WATCH, limit: pace.answer }.into());
                    }
                    let asked = clock::now();
                    alive(client, pace).await?;
                    lived = Some(asked);
                    (next, well) = (Instant::now() + jittered(pace.alive), true);
                    continue;
                }
            };
            let ended = || EtcdError::Broken { what: WATCH, why: "the server ended it".to_owned() };
            self.hear(&message.ok_or_else(ended)?, reporter).await?;
            match (begun, self.ids.len() == PREFIXES.len()) {
                // If the start revision is too old, etcd reports a watch first as created and then as cancelled.
                (false, true) => (begun, next) = (true, Instant::now() + SETTLES),
                (now, _) => well = now,
            }
        }
    }

    async fn hear<K: Keys>(
        &mut self,
        message: &WatchResponse,
        reporter: &mut Reporter<K>,
    ) -> Result<(), Ended> {
        if message.compact_revision > 0 {
            let why = "what was told last is too long ago (compacted)";
            return Err(EtcdError::Expired { what: WATCH, why }.into());
        }
        if message.canceled {
            return Err(said(WATCH, Code::Unknown, &message.cancel_reason).into());
        }
        let told = &mut *self.told;
        if message.header.as_ref().is_some_and(|header| header.cluster_id != told.cluster) {
            let why = "it is another cluster than before";
            return Err(EtcdError::Expired { what: WATCH, why }.into());
        }
        let revision = message.header.as_ref().map_or(0, |header| header.revision);
        if message.created && self.ids.len() < PREFIXES.len() {
            if revision + 1 < told.from[self.ids.len()] {
                let why =
                    "the cluster was set back: what was told is of later than all that it has";
                return Err(EtcdError::Expired { what: WATCH, why }.into());
            }
            self.ids.push(message.watch_id);
            return Ok(());
        }
        let Some(one) = self.ids.iter().position(|id| *id == message.watch_id) else {
            return Ok(());
        };
        for event in &message.events {
            let Some(entry) = &event.kv else { continue };
            // A deleted key has version 0 (`mvccpb.KeyValue`).
            match entry.version {
                0 => reporter.gone(&entry.key),
                _ => reporter.put(&entry.key, &entry.value),
            }
            told.from[one] = told.from[one].max(entry.mod_revision);
        }
        if message.events.is_empty() {
            // Everything until then was reported.
            told.from[one] = told.from[one].max(revision + 1);
        }
        reporter.flush(clock::now()).await?;
        Ok(())
    }
}

/// Opens one stream for all prefixes.
async fn open(client: &Client, told: &Cursor) -> Result<Watches, EtcdError> {
    let of = |(prefix, from): (&&str, &i64)| WatchCreateRequest {
        key: prefix.as_bytes().to_vec(),
        range_end: after(prefix),
        start_revision: *from,
        progress_notify: true,
        fragment: true,
    };
    client.watch(WATCH, PREFIXES.iter().zip(&told.from).map(of).collect()).await
}

/// Requests something small that needs a leader: a watch may be silent for hours, even if the server hangs.
async fn alive(client: &Client, pace: Pace) -> Result<(), EtcdError> {
    let asks = RangeRequest { key: SMALL.into(), keys_only: true, ..RangeRequest::default() };
    within(ALIVE, pace.answer, client.range(ALIVE, asks)).await.map(drop)
}
