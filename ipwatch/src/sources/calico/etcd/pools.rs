//! The pools in an etcd: a few keys that hardly ever change, listed now and then by a connection of their own. So
//! whoever may not read them follows all the rest.

use std::convert::Infallible;
use std::time::Duration;

use etcd_client::{GetOptions, SortOrder, SortTarget};

use super::error::{Ended, within};
use super::follow::{Store, Visit, jittered};
use super::http::Line;
use super::status::MESSAGE_LIMIT;
use super::tell::Teller;
use super::{Keys, Pace, tree, v3};
use crate::clock;

/// From one list to the next.
const EVERY: Duration = Duration::from_secs(120);
/// Keys of a list.
const MOST: usize = 1024;
/// What is asked for, for people.
const LIST: &str = "a list of the pools";
/// Where they are.
const V3: &str = "/calico/resources/v3/projectcalico.org/ippools/";
const V2: &str = "/v2/keys/calico/v1/ipam?recursive=true&quorum=true";

/// Who may not read them, as a rule, goes on not to be allowed to: he asks seldom.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(600));

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

/// By the API of this version.
pub(super) struct OfV3;
pub(super) struct OfV2;

impl Store for OfV3 {
    const NAME: &'static str = "etcd v3";

    async fn session<K: Keys>(&mut self, visit: &Visit, teller: &mut Teller<K>) -> Ended {
        let ended: Result<Infallible, Ended> = async {
            let client = v3::connect(visit).await?;
            loop {
                let began = clock::now();
                let kv = client.kv_client().max_decoding_message_size(MESSAGE_LIMIT);
                let options = GetOptions::new()
                    .with_prefix()
                    .with_sort(SortTarget::Key, SortOrder::Ascend)
                    .with_limit(MOST as i64);
                let page = v3::get(&mut { kv }, V3.into(), options, visit.pace).await?;
                let all = usize::try_from(page.count()).unwrap_or_default();
                let left = all.saturating_sub(page.kvs().len());
                let entries = page.kvs().iter();
                let entries = entries.map(|entry| (entry.key().to_vec(), entry.value().to_vec()));
                tell(entries.collect(), left, began, visit, teller).await?;
            }
        }
        .await;
        ended.map_or_else(|ended| ended, |never| match never {})
    }

    fn forget(&mut self) {}
}

impl Store for OfV2 {
    const NAME: &'static str = "etcd v2";

    async fn session<K: Keys>(&mut self, visit: &Visit, teller: &mut Teller<K>) -> Ended {
        let ended: Result<Infallible, Ended> = async {
            let mut line = Line::new(visit);
            loop {
                let began = clock::now();
                let (entries, left) = list(&mut line, visit.pace).await?;
                tell(entries, left, began, visit, teller).await?;
            }
        }
        .await;
        ended.map_or_else(|ended| ended, |never| match never {})
    }

    fn forget(&mut self) {}
}

/// The keys of the v2 API, and how many more there are.
async fn list(line: &mut Line, pace: Pace) -> Result<(Vec<Entry>, usize), Ended> {
    let answer = within(LIST, pace.answer, line.get(LIST, V2)).await?;
    let (mut found, mut left) = (Vec::new(), 0);
    if answer.body.is_none() {
        return Ok((found, left));
    }
    let (mut entries, read) = tree::read(LIST, answer);
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

/// Tells a list, and waits for the time of the next.
async fn tell<K: Keys>(
    entries: Vec<Entry>,
    left: usize,
    began: crate::fact::BootNs,
    visit: &Visit,
    teller: &mut Teller<K>,
) -> Result<(), Ended> {
    teller.began(began).await?;
    for (key, value) in &entries {
        teller.listed(key, value, began).await?;
    }
    teller.leave_out(left as u64);
    teller.ended(began).await?;
    teller.well(&visit.about).await?;
    tokio::time::sleep(jittered(EVERY)).await;
    Ok(())
}
