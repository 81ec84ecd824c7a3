//! The pools in an etcd: a few keys that hardly ever change, listed periodically through a connection of their own. If
//! the pools may not be read, everything else is still followed.

use std::convert::Infallible;
use std::time::Duration;

use super::error::{Ended, EtcdError};
use super::grpc::Client;
use super::http::Line;
use super::messages::{ASCEND, RangeRequest};
use super::reflector::{Store, Visit};
use super::reporter::Reporter;
use super::{Keys, Pace, tree, v3};
use crate::clock;
use crate::sources::backoff::jittered;
use crate::sources::errors::within;

/// Between two lists.
const EVERY: Duration = Duration::from_secs(120);
/// Maximum number of keys of a list.
const MOST: usize = 1024;
/// The request, in errors.
const LIST: &str = "a list of the pools";
/// Where the pools are.
const OF_V3: &str = "/calico/resources/v3/projectcalico.org/ippools/";
const OF_V2: &str = "/v2/keys/calico/v1/ipam?recursive=true&quorum=true";

/// First and longest pause after an error. Permission errors rarely clear, hence ten minutes.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(600));

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

/// One API of etcd.
pub(super) trait Listed: Send + Sync + 'static {
    const NAME: &'static str;
    type Link: Send;

    fn open(&self, visit: &Visit) -> impl Future<Output = Result<Self::Link, EtcdError>> + Send;

    /// Returns the keys and values, and the number of further ones.
    fn list(
        &self,
        link: &mut Self::Link,
        pace: Pace,
    ) -> impl Future<Output = Result<(Vec<Entry>, usize), Ended>> + Send;
}

/// The pools, through this API.
pub(super) struct Pools<L>(pub(super) L);
pub(super) struct V3;
pub(super) struct V2;

/// Whether the pools were just listed.
pub(super) struct Fresh(bool);

impl<L: Listed> Store for Pools<L> {
    const NAME: &'static str = L::NAME;
    type Link = L::Link;
    type Cursor = Fresh;

    async fn open(&self, visit: &Visit) -> Result<L::Link, EtcdError> {
        self.0.open(visit).await
    }

    async fn list<K: Keys>(
        &mut self,
        link: &mut L::Link,
        visit: &Visit,
        reporter: &mut Reporter<K>,
    ) -> Result<Fresh, Ended> {
        let began = clock::now();
        let (entries, left) = self.0.list(link, visit.pace).await?;
        reporter.began(began).await?;
        for (key, value) in &entries {
            reporter.listed(key, value, began).await?;
        }
        reporter.leave_out(left as u64);
        reporter.ended(began).await?;
        Ok(Fresh(true))
    }

    async fn watch<K: Keys>(
        &mut self,
        mut link: L::Link,
        told: &mut Fresh,
        visit: &Visit,
        reporter: &mut Reporter<K>,
    ) -> Result<Infallible, Ended> {
        loop {
            // After a failure, everything is listed again at once.
            if !std::mem::take(&mut told.0) {
                self.list(&mut link, visit, reporter).await?;
            }
            reporter.well(&visit.about).await?;
            tokio::time::sleep(jittered(EVERY)).await;
        }
    }
}

impl Listed for V3 {
    const NAME: &'static str = "etcd v3";
    type Link = Client;

    async fn open(&self, visit: &Visit) -> Result<Client, EtcdError> {
        v3::connect(visit).await
    }

    async fn list(&self, client: &mut Client, pace: Pace) -> Result<(Vec<Entry>, usize), Ended> {
        let asks = RangeRequest {
            key: OF_V3.into(),
            range_end: v3::after(OF_V3),
            limit: MOST as i64,
            sort_order: ASCEND,
            ..RangeRequest::default()
        };
        let page = v3::get(client, asks, pace).await?;
        let all = usize::try_from(page.count).unwrap_or_default();
        let left = all.saturating_sub(page.kvs.len());
        let entries = page.kvs.into_iter().map(|entry| (entry.key, entry.value));
        Ok((entries.collect(), left))
    }
}

impl Listed for V2 {
    const NAME: &'static str = "etcd v2";
    type Link = Line;

    async fn open(&self, visit: &Visit) -> Result<Line, EtcdError> {
        Ok(Line::new(visit))
    }

    async fn list(&self, line: &mut Line, pace: Pace) -> Result<(Vec<Entry>, usize), Ended> {
        let answer = within(LIST, pace.answer, line.get(LIST, OF_V2)).await?;
        let (mut found, mut left) = (Vec::new(), 0);
        let Some(body) = answer.body else { return Ok((found, left)) };
        let (mut entries, read) = tree::read(LIST, body);
        let take = async {
            while let Some(leaves) = entries.next().await {
                let room = MOST - found.len();
                left += leaves.len().saturating_sub(room);
                let leaves = leaves.into_iter().take(room);
                found.extend(leaves.map(|leaf| (leaf.key.into_bytes(), leaf.value.into_bytes())));
            }
        };
        let (read, ()) = tokio::join!(within(LIST, pace.list, read), take);
        read?;
        Ok((found, left))
    }
}
