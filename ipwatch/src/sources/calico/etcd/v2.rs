//! etcd v2, in which Calico 2 and before stored everything: lists each tree as a whole, then long-polls it from the
//! next index on, one event for each answer.
//!
//! etcd keeps a thousand events of the whole store. The poll of a quiet tree must not be restarted from an index before
//! all of them, so the store's index is requested periodically: a poll that stays silent beyond that index has nothing
//! older to report.
//!
//! The deletion of a directory is one event, which does not name the keys below it: therefore the reported keys are
//! remembered.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::header::HeaderValue;
use tokio::time::Instant;

use super::error::{Ended, EtcdError};
use super::http::{Answer, Line};
use super::reflector::{self, Visit};
use super::reporter::{self, Reporter};
use super::tree::{self, Event};
use super::{Keys, MOST_KEYS, Pace};
use crate::clock;
use crate::fact::BootNs;
use crate::sources::backoff::jittered;
use crate::sources::errors::within;
use crate::sources::url::encoded;

/// Number of Calico's trees that are read.
const TREES: usize = 2;
/// Maximum size in bytes of a long poll's answer: a value of 1.5 MiB, and the previous one.
const EVENT_LIMIT: usize = 8 << 20;
/// Maximum size in bytes of a health check's answer.
const SMALL_LIMIT: usize = 64 << 10;
/// One in this many checks is a health check, because that costs the cluster an entry in its log.
const HEALTH_EACH: u32 = 20;
/// After this time, an event that the member already had has been sent to its poll.
const SETTLES: Duration = Duration::from_millis(300);
/// The requested key: one of Calico's that is small or missing, within what may be read.
const SMALL: &str = "/v2/keys/calico/ipam/v2/config";
/// The tree with the endpoints.
const ENDPOINTS: usize = 0;

/// The requests, in errors.
const LIST: &str = "a list";
const WATCH: &str = "a watch";
const ALIVE: &str = "the question whether it lives";

/// The trees that are read, and the keys that were reported.
#[derive(Debug)]
pub(super) struct Store {
    trees: [String; TREES],
    /// The keys that were reported.
    known: BTreeSet<String>,
    /// Maximum number of remembered keys.
    pub(super) most: usize,
}

/// Where the last report ended.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    cluster: Option<HeaderValue>,
    /// For each tree, the index up to which everything was reported.
    until: [u64; TREES],
}

impl Cursor {
    /// For a tree whose poll was open before the index was requested and stayed silent long after: everything up to
    /// that index was reported.
    fn reach(&mut self, index: &Index) {
        for (until, silent) in self.until.iter_mut().zip(index.silent) {
            if silent {
                *until = index.now.max(*until);
            }
        }
    }

    fn same(&self, cluster: Option<&HeaderValue>) -> Result<(), EtcdError> {
        if self.cluster.as_ref() == cluster {
            return Ok(());
        }
        Err(EtcdError::Expired { what: WATCH, why: "it is another cluster than before" })
    }
}

/// A long poll of one tree, and its connection.
type Poll = Pin<Box<dyn Future<Output = (usize, Line, Result<Polled, EtcdError>)> + Send>>;
type Polls = FuturesUnordered<Poll>;

/// The result of a long poll.
struct Polled {
    event: Option<Event>,
    cluster: Option<HeaderValue>,
    /// Everything up to this index is then known.
    until: u64,
}

/// The store's index, as received. Answers to polls that were open at that time are waited for a moment longer, and a
/// poll resumes after the index only when the next one was received: an event still in flight would otherwise be
/// missed.
struct Index {
    asked: BootNs,
    now: u64,
    settled: Instant,
    /// For each tree, whether no event has arrived since the request.
    silent: [bool; TREES],
}

impl Store {
    /// `node`: the node whose endpoints are read.
    pub(super) fn new(node: &str) -> Self {
        let trees = [
            format!("/calico/v1/host/{}/workload", encoded(node)),
            "/calico/ipam/v2/assignment".to_owned(),
        ];
        Self { trees, known: BTreeSet::new(), most: MOST_KEYS }
    }
}

impl reflector::Store for Store {
    const NAME: &'static str = "etcd v2";
    type Link = Line;
    type Cursor = Cursor;

    async fn open(&self, visit: &Visit) -> Result<Line, EtcdError> {
        let mut line = Line::new(visit);
        health(&mut line, visit.pace).await?;
        Ok(line)
    }

    async fn list<K: Keys>(
        &mut self,
        line: &mut Line,
        visit: &Visit,
        reporter: &mut Reporter<K>,
    ) -> Result<Cursor, Ended> {
        let pace = visit.pace;
        let began = clock::now();
        self.known.clear();
        reporter.began(began).await?;
        let mut told = Cursor { cluster: None, until: [0; TREES] };
        for (n, tree) in self.trees.iter().enumerate() {
            // Through the leader (`quorum`): a member that lags behind would return outdated data.
            let path = format!("/v2/keys{tree}?recursive=true&quorum=true");
            let answer = within(LIST, pace.answer, line.get(LIST, &path)).await?;
            told.cluster = answer.cluster.clone();
            told.until[n] = answer.index;
            if answer.index == 0 {
                let why = "a list without an index".to_owned();
                return Err(EtcdError::Garbage { what: LIST, why }.into());
            }
            let Some(body) = answer.body else { continue };
            let (entries, read) = tree::read(LIST, body);
            let known = &mut self.known;
            let take = async {
                // Dropped with this block, so that the parser ends when there is no consumer.
                let mut entries = entries;
                while let Some(leaves) = entries.next().await {
                    for leaf in leaves {
                        let value = leaf.value.as_bytes();
                        match reporter.listed(leaf.key.as_bytes(), value, began).await? {
                            true if reporter::text(leaf.key.as_bytes()).is_some() => {
                                known.insert(leaf.key);
                            }
                            true => {}
                            false => reporter.leave_out(1),
                        }
                    }
                }
                Ok::<_, Ended>(())
            };
            let both = async { tokio::join!(within(LIST, pace.list, read), take) };
            let (read, taken) = both.await;
            taken?;
            read?;
        }
        reporter.ended(began).await?;
        Ok(told)
    }

    async fn watch<K: Keys>(
        &mut self,
        mut line: Line,
        told: &mut Cursor,
        visit: &Visit,
        reporter: &mut Reporter<K>,
    ) -> Result<Infallible, Ended> {
        let pace = visit.pace;
        // Before the status is reported: this request fails if the index is too old.
        let mut polls = self.polls(visit, told).await?;
        let mut renew = Instant::now() + jittered(pace.poll);
        let mut next = Instant::now() + jittered(pace.alive);
        let mut turn = 0_u32;
        let (mut index, mut before): (Option<Index>, Option<Index>) = (None, None);
        loop {
            reporter.well(&visit.about).await?;
            let settled = index.as_ref().map_or(next, |index| index.settled);
            let polled = tokio::select! {
                // `biased`: an event comes before the conclusion that there was none.
                biased;
                Some(polled) = polls.next() => polled,
                () = tokio::time::sleep_until(settled), if index.is_some() => {
                    let Some(index) = index.take() else { continue };
                    if index.silent[ENDPOINTS] || told.until[ENDPOINTS] >= index.now {
                        reporter.confirmed(index.asked).await?;
                    }
                    if let Some(before) = before.replace(index) {
                        told.reach(&before);
                    }
                    if Instant::now() >= renew {
                        polls = self.polls(visit, told).await?;
                        renew = Instant::now() + jittered(pace.poll);
                    }
                    continue;
                }
                () = tokio::time::sleep_until(next) => {
                    turn += 1;
                    if turn.is_multiple_of(HEALTH_EACH) {
                        health(&mut line, pace).await?;
                    }
                    index = Some(alive(&mut line, told, pace).await?);
                    next = Instant::now() + SETTLES + jittered(pace.alive);
                    continue;
                }
            };
            let (n, mut line, polled) = polled;
            let polled = polled?;
            told.same(polled.cluster.as_ref())?;
            // After any answer, the poll is repeated from there.
            for index in index.iter_mut().chain(&mut before) {
                index.silent[n] = false;
            }
            if let Some(event) = polled.event {
                self.hear(event, reporter);
                reporter.flush(clock::now()).await?;
                told.until[n] = polled.until;
            } else {
                told.until[n] = told.until[n].max(polled.until);
            }
            let head = open(&mut line, &self.trees[n], told.until[n], pace).await?;
            polls.push(poll(n, line, head, told.until[n], pace));
        }
    }
}

impl Store {
    /// Opens a poll for each tree, from the last report. Earlier polls can be dropped, because these resume from the
    /// same index.
    async fn polls(&self, visit: &Visit, told: &Cursor) -> Result<Polls, EtcdError> {
        let polls = FuturesUnordered::new();
        for (n, tree) in self.trees.iter().enumerate() {
            let mut line = Line::new(visit);
            let head = open(&mut line, tree, told.until[n], visit.pace).await?;
            polls.push(poll(n, line, head, told.until[n], visit.pace));
        }
        Ok(polls)
    }

    fn hear<K: Keys>(&mut self, event: Event, reporter: &mut Reporter<K>) {
        let node = event.node;
        let is_gone = matches!(&*event.action.0, "delete" | "expire" | "compareAndDelete");
        // A directory that is set or created is empty; an `update` changes only its TTL.
        if is_gone || node.dir && matches!(&*event.action.0, "set" | "create") {
            let below = format!("{}/", node.key.trim_end_matches('/'));
            while let Some(key) = self.known.range(below.clone()..).next().cloned() {
                if !key.starts_with(&below) {
                    break;
                }
                reporter.gone(key.as_bytes());
                self.known.remove(&key);
            }
        }
        if is_gone && !node.dir {
            reporter.gone(node.key.as_bytes());
            self.known.remove(&node.key);
        } else if !node.dir {
            // If a key were not remembered, its removal with its directory would not be reported.
            let is_new =
                reporter::text(node.key.as_bytes()).is_some() && !self.known.contains(&node.key);
            if is_new && self.known.len() >= self.most {
                return reporter.leave_out_now();
            }
            reporter.put(node.key.as_bytes(), node.value.as_bytes());
            if is_new {
                self.known.insert(node.key);
            }
        }
    }
}

/// Waits for the next event of a tree. `head`: the response of the poll, which is already open.
fn poll(n: usize, mut line: Line, head: Answer, until: u64, pace: Pace) -> Poll {
    Box::pin(async move {
        let polled = wait(head, until, pace).await;
        if polled.is_err() {
            line.hang_up();
        }
        (n, line, polled)
    })
}

/// Opens a long poll: the head arrives at once, the body with the event.
async fn open(line: &mut Line, tree: &str, until: u64, pace: Pace) -> Result<Answer, EtcdError> {
    let path =
        format!("/v2/keys{tree}?wait=true&recursive=true&waitIndex={}", until.saturating_add(1));
    let answer = within(WATCH, pace.answer, line.get(WATCH, &path)).await?;
    if answer.index < until {
        let why = "the store was set back: what was told is of later than all that it has";
        return Err(EtcdError::Expired { what: WATCH, why });
    }
    Ok(answer)
}

async fn wait(mut answer: Answer, until: u64, pace: Pace) -> Result<Polled, EtcdError> {
    let began = Instant::now();
    let cluster = answer.cluster.clone();
    let quiet = Polled { event: None, cluster: cluster.clone(), until: answer.index };
    let text = answer.whole(EVENT_LIMIT).await?;
    if text.is_empty() {
        // A server that ends every poll at once must not be asked without a pause.
        if began.elapsed() < pace.well {
            let why = "it ended at once".to_owned();
            return Err(EtcdError::Broken { what: WATCH, why });
        }
        return Ok(quiet);
    }
    let garbage = |why: &str| EtcdError::Garbage { what: WATCH, why: why.to_owned() };
    let event: Event = serde_json::from_slice(&text).map_err(|_| garbage("no event"))?;
    let (last, until) = (until, event.node.modified_index);
    if until <= last || event.node.key.is_empty() {
        return Err(garbage("an event of no time"));
    }
    Ok(Polled { event: Some(event), cluster, until })
}

/// Requests the store's index. Also shows that the server is alive: a long poll may be silent for hours, even if the
/// server hangs.
async fn alive(line: &mut Line, told: &Cursor, pace: Pace) -> Result<Index, EtcdError> {
    let asked = clock::now();
    let mut answer = within(ALIVE, pace.answer, line.get(ALIVE, SMALL)).await?;
    let (now, cluster) = (answer.index, answer.cluster.clone());
    within(ALIVE, pace.answer, answer.whole(EVENT_LIMIT)).await?;
    told.same(cluster.as_ref())?;
    if now == 0 {
        let why = "an answer without an index".to_owned();
        return Err(EtcdError::Garbage { what: ALIVE, why });
    }
    Ok(Index { asked, now, settled: Instant::now() + SETTLES, silent: [true; TREES] })
}

/// Checks that there is a leader.
async fn health(line: &mut Line, pace: Pace) -> Result<(), EtcdError> {
    within(ALIVE, pace.answer, async {
        line.get(ALIVE, "/health").await?.whole(SMALL_LIMIT).await.map(drop)
    })
    .await
}
