//! etcd v2, which Calico 2 and before kept everything in: each tree as a whole, then a long poll of it from the next
//! index on, one event an answer.
//!
//! A directory that is deleted is one event, which names no key below it: so the keys that were told are remembered.

use std::collections::BTreeSet;
use std::convert::Infallible;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::header::HeaderValue;
use tokio::time::Instant;

use super::error::{Ended, EtcdError, within};
use super::follow::{self, Visit, jittered};
use super::http::{Answer, Line};
use super::tell::Teller;
use super::tree::{self, Event};
use super::{Keys, Pace};
use crate::clock;

/// Trees of Calico's that are read.
const TREES: usize = 3;
/// Longest answer to a long poll: a value of 1.5 MiB, and the one before.
const EVENT_LIMIT: usize = 8 << 20;
/// Longest answer to the question whether it lives.
const SMALL_LIMIT: usize = 64 << 10;
/// Of so many such questions one is whether there is a leader, for that costs the cluster an entry of its log.
const HEALTH_EACH: u32 = 20;

/// What is asked for, for people.
const LIST: &str = "a list";
const WATCH: &str = "a watch";
const ALIVE: &str = "the question whether it lives";

/// What was told last.
#[derive(Debug)]
pub(super) struct Store {
    trees: [String; TREES],
    told: Option<Told>,
    /// Keys that were told.
    known: BTreeSet<String>,
}

#[derive(Debug, Clone)]
struct Told {
    cluster: Option<HeaderValue>,
    /// For each tree the index up to which all is told.
    until: [u64; TREES],
}

/// What a long poll has brought.
struct Polled {
    event: Option<Event>,
    cluster: Option<HeaderValue>,
    /// Everything up to there is known then.
    until: u64,
}

impl Store {
    /// `node`: whose endpoints are of interest.
    pub(super) fn new(node: &str) -> Self {
        let trees = [
            format!("/calico/v1/host/{}/workload", encoded(node)),
            "/calico/ipam/v2/assignment".to_owned(),
            "/calico/v1/ipam/v4/pool".to_owned(),
        ];
        Self { trees, told: None, known: BTreeSet::new() }
    }
}

impl follow::Store for Store {
    const NAME: &'static str = "etcd v2";

    async fn session<K: Keys>(&mut self, visit: &Visit, teller: &mut Teller<K>) -> Ended {
        match self.talk(visit, teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }

    fn forget(&mut self) {
        self.told = None;
    }
}

impl Store {
    async fn talk<K: Keys>(
        &mut self,
        visit: &Visit,
        teller: &mut Teller<K>,
    ) -> Result<Infallible, Ended> {
        let mut line = Line::new(visit);
        alive(&mut line, 0, visit.pace).await?;
        let mut told = match self.told.take() {
            Some(told) => told,
            None => self.list(&mut line, visit.pace, teller).await?,
        };
        let ended = self.watch(&mut line, visit, &mut told, teller).await;
        self.told = Some(told);
        ended
    }

    async fn list<K: Keys>(
        &mut self,
        line: &mut Line,
        pace: Pace,
        teller: &mut Teller<K>,
    ) -> Result<Told, Ended> {
        let began = clock::now();
        self.known.clear();
        teller.began(began).await?;
        let mut told = Told { cluster: None, until: [0; TREES] };
        for (n, tree) in self.trees.iter().enumerate() {
            // By the leader: a member that lags behind would tell what is long over.
            let path = format!("/v2/keys{tree}?recursive=true&quorum=true");
            let answer = within(LIST, pace.answer, line.get(LIST, &path)).await?;
            told.cluster = answer.cluster.clone();
            told.until[n] = answer.index;
            if answer.index == 0 {
                let why = "a list without an index".to_owned();
                return Err(EtcdError::Garbage { what: LIST, why }.into());
            }
            if answer.body.is_none() {
                continue;
            }
            let (entries, read) = tree::read(LIST, answer);
            let known = &mut self.known;
            let take = async {
                // Gone with this block: whoever reads for nobody ends.
                let mut entries = entries;
                while let Some(leaves) = entries.next().await {
                    for leaf in leaves {
                        let value = leaf.value.as_bytes();
                        match teller.listed(leaf.key.as_bytes(), value, began).await? {
                            true => drop(known.insert(leaf.key)),
                            false => teller.leave_out(1),
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
        teller.ended(began).await?;
        Ok(told)
    }

    async fn watch<K: Keys>(
        &mut self,
        line: &mut Line,
        visit: &Visit,
        told: &mut Told,
        teller: &mut Teller<K>,
    ) -> Result<Infallible, Ended> {
        let pace = visit.pace;
        let trees = self.trees.clone();
        let again = |n: usize, line: Line, head: Option<Answer>, until: u64| {
            poll(n, line, head, &trees[n], until, pace)
        };
        let mut polls = FuturesUnordered::new();
        for (n, tree) in trees.iter().enumerate() {
            // Before anything is said to be well: that is where it says that we were away for too long.
            let mut line = Line::new(visit);
            let head = open(&mut line, tree, told.until[n], pace).await?;
            polls.push(again(n, line, Some(head), told.until[n]));
        }
        let mut next = Instant::now() + jittered(pace.alive);
        let mut turn = 0;
        loop {
            teller.well(&visit.about).await?;
            let (n, line, polled) = tokio::select! {
                Some(polled) = polls.next() => polled,
                () = tokio::time::sleep_until(next) => {
                    turn += 1;
                    alive(line, turn, pace).await?;
                    next = Instant::now() + jittered(pace.alive);
                    continue;
                }
            };
            let polled = polled?;
            if polled.cluster != told.cluster {
                let why = "it is another cluster than before";
                return Err(EtcdError::Expired { what: WATCH, why }.into());
            }
            if let Some(event) = polled.event {
                self.hear(event, teller);
                teller.flush(clock::now()).await?;
            }
            told.until[n] = polled.until;
            polls.push(again(n, line, None, polled.until));
        }
    }

    fn hear<K: Keys>(&mut self, event: Event, teller: &mut Teller<K>) {
        let node = event.node;
        let is_gone = matches!(&*event.action.0, "delete" | "expire" | "compareAndDelete");
        if node.dir || is_gone {
            // A directory that is put anew is empty.
            let below = format!("{}/", node.key.trim_end_matches('/'));
            while let Some(key) = self.known.range(below.clone()..).next().cloned() {
                if !key.starts_with(&below) {
                    break;
                }
                teller.gone(key.as_bytes());
                self.known.remove(&key);
            }
        }
        if is_gone && !node.dir {
            teller.gone(node.key.as_bytes());
            self.known.remove(&node.key);
        } else if !node.dir {
            teller.put(node.key.as_bytes(), node.value.as_bytes());
            self.known.insert(node.key);
        }
    }
}

/// Waits for the next event of a tree. `head`: of a poll that is open already.
async fn poll(
    n: usize,
    mut line: Line,
    head: Option<Answer>,
    tree: &str,
    until: u64,
    pace: Pace,
) -> (usize, Line, Result<Polled, EtcdError>) {
    let polled = async {
        let answer = match head {
            Some(answer) => answer,
            None => open(&mut line, tree, until, pace).await?,
        };
        wait(&mut line, answer, until, pace).await
    };
    let polled = polled.await;
    (n, line, polled)
}

/// Begins a long poll: the head comes at once, the body with the event.
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

async fn wait(
    line: &mut Line,
    mut answer: Answer,
    until: u64,
    pace: Pace,
) -> Result<Polled, EtcdError> {
    let began = Instant::now();
    let cluster = answer.cluster.clone();
    let quiet = Polled { event: None, cluster: cluster.clone(), until: answer.index };
    let text = match tokio::time::timeout(jittered(pace.poll), answer.whole(EVENT_LIMIT)).await {
        Ok(text) => text?,
        Err(_) => {
            line.hang_up();
            return Ok(quiet);
        }
    };
    if text.is_empty() {
        // A server that ends every poll at once is not to be asked without a pause.
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

/// Asks whether it lives; now and then whether it has a leader. A long poll says nothing for hours, of a server that
/// hangs too.
async fn alive(line: &mut Line, turn: u32, pace: Pace) -> Result<(), EtcdError> {
    let path = if turn.is_multiple_of(HEALTH_EACH) { "/health" } else { "/version" };
    within(ALIVE, pace.answer, async {
        line.get(ALIVE, path).await?.whole(SMALL_LIMIT).await.map(drop)
    })
    .await
}

/// As a part of a path.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
