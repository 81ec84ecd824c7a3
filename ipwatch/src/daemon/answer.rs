//! Answers to the requests that clients send to the core.

use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use super::core::Core;
use super::scrape;
use crate::api::{Ask, AskError, Prefix, Request, Selector};
use crate::clock;
use crate::contract::{
    Address, Body, DaemonInfo, Document, IpamEntry, IpamRange, Past, PluginRun, Pod, Tenure,
};
use crate::fact::SourceName;
use crate::finding::{Finding, Status};
use crate::ledger::{AckRequest, History};

/// How long a question waits for a fresh look at what no probe reports.
const REFRESH: Duration = Duration::from_millis(500);
/// Maximum number of tenures in one answer.
const HISTORY: usize = 1_000;
/// Maximum number of reservations in one answer: a whole /20.
const RESERVATIONS: usize = 4_096;
/// Maximum number of networks without a range in one answer.
const NETWORKS: usize = 256;

/// How long an acknowledgement waits to be written to disk.
const ON_DISK: Duration = Duration::from_secs(2);

/// How long the past is waited for, and how many may read it at once: one that hangs takes a thread with it, and others
/// need the rest of them.
const READ_WITHIN: Duration = Duration::from_secs(4);
static READERS: Semaphore = Semaphore::const_new(4);

type Reply = oneshot::Sender<Result<Document, AskError>>;

/// Answers at once, or has something read first and answers after that.
pub(super) fn answer(core: &mut Core, request: Request) {
    let Request { ask, uid, reply } = request;
    if !core.is_ready() {
        let wait = "the first snapshot is not complete yet: ask again in a second";
        let _ = reply.send(Err(AskError::Unavailable(wait.to_owned())));
        return;
    }
    if matches!(ask, Ask::Addresses(_) | Ask::Reach(_)) && core.dispatch.polls() {
        let again = core.again.clone();
        let done = core.dispatch.refresh();
        tokio::spawn(async move {
            // If the refresh failed, the answer names the sources that are down.
            let _ = tokio::time::timeout(REFRESH, done).await;
            let _ = again.send(Request { ask, uid, reply }).await;
        });
        return;
    }
    answer_fresh(core, Request { ask, uid, reply });
}

/// Answers from the current map.
pub(super) fn answer_fresh(core: &mut Core, request: Request) {
    let Request { ask, uid, reply } = request;
    match ask {
        Ask::Addresses(Selector::Pid(pid)) | Ask::Reach(Selector::Pid(pid))
            if core.map().tasks_of(pid).next().is_none() =>
        {
            by_procfs(core, pid, uid, reply);
        }
        Ask::Addresses(selector) => {
            let answer = addresses(core, &selector);
            if let Ok(Document { body: Body::Addresses(found), .. }) = &answer {
                core.memory.worked(found.len(), clock::now());
            }
            let _ = reply.send(answer);
        }
        Ask::Reach(selector) => {
            let mut answer = addresses(core, &selector);
            if let Ok(Document { body: Body::Addresses(found), .. }) = &mut answer {
                core.map().draw_reach(found);
                let members = found.iter().flat_map(|address| address.reach.iter().flatten());
                let members: usize = members.map(|segment| segment.members.len()).sum();
                core.memory.worked(found.len() + members, clock::now());
            }
            let _ = reply.send(answer);
        }
        Ask::Neighbours(prefix) => {
            let found = core.map().neighbours(prefix.as_ref());
            let missing = prefix.filter(|_| found.is_empty());
            let answer = match missing {
                Some(prefix) => Err(AskError::NotFound(format!(
                    "no neighbour entry for {} in any network namespace of this node",
                    prefix
                ))),
                None => Ok(core.document(Body::Neighbours(found))),
            };
            let _ = reply.send(answer);
        }
        Ask::Findings { all, what } => {
            let _ = reply.send(findings(core, all, what.as_deref()));
        }
        Ask::History(past) => history(core, past, reply),
        Ask::Ipam { ip, network } => {
            let _ = reply.send(ipam(core, ip, network));
        }
        Ask::Check { ip, container } => {
            let _ = reply.send(Ok(check(core, ip, container.as_deref())));
        }
        Ask::Held(question) => {
            let held = core.engine.held(&question, clock::now());
            let _ = reply.send(Ok(core.document(Body::Held(held))));
        }
        Ask::Doctor => {
            let _ = reply.send(Ok(doctor(core)));
        }
        Ask::Canary => prove(core, uid, reply),
        Ask::Ack { what, seconds, note } => {
            let word = AckRequest { uid, lasts: seconds.map(Duration::from_secs), note };
            let told = acknowledge(core, &what, Some(word));
            once_written(core, told, reply);
        }
        Ask::Unack { what } => {
            let told = acknowledge(core, &what, None);
            once_written(core, told, reply);
        }
    }
}

/// Runs the canary, then answers as `doctor`.
fn prove(core: &mut Core, uid: u32, reply: Reply) {
    let done = match core.eyes.canary() {
        Ok(keeper) => keeper.ask(),
        Err(why) => {
            let _ = reply.send(Err(AskError::Unavailable(why.to_owned())));
            return;
        }
    };
    let again = core.again.clone();
    tokio::spawn(async move {
        // If too many ask, `done` is dropped at once, and the answer shows how old the last run is.
        let _ = done.await;
        let _ = again.send(Request { ask: Ask::Doctor, uid, reply }).await;
    });
}

/// A process that the map does not follow: it is in the host's netns, or has ended.
fn by_procfs(core: &mut Core, pid: u32, uid: u32, reply: Reply) {
    let again = core.again.clone();
    let presence = core.dispatch.presence(pid);
    tokio::spawn(async move {
        let netns = presence.await.ok().flatten();
        let Some(inode) = netns.and_then(|netns| netns.inode) else {
            let gone = format!("no process {pid}, or it holds no network namespace any more");
            let _ = reply.send(Err(AskError::NotFound(gone)));
            return;
        };
        let ask = Ask::Addresses(Selector::Netns(Some(inode.to_string())));
        let _ = again.send(Request { ask, uid, reply }).await;
    });
}

fn addresses(core: &Core, selector: &Selector) -> Result<Document, AskError> {
    let mut found = core.map().addresses(selector);
    if found.is_empty()
        && let Some(text) = not_found(selector)
    {
        return Err(AskError::NotFound(text));
    }
    let open = core.ledger().findings(false);
    for address in &mut found {
        address.findings = findings_about(&open, address);
        know_better(core, address);
    }
    Ok(core.document(Body::Addresses(found)))
}

/// An address that was already there when this daemon looked first may have been seen to come by an earlier one.
fn know_better(core: &Core, address: &mut Address) {
    if !address.preexisting {
        return;
    }
    let known = core.map().tenure_of(address).and_then(|key| core.ledger().tenure(&key));
    if let Some(Tenure { from, preexisting, .. }) = known {
        (address.since, address.preexisting) = (Some(from), preexisting);
    }
}

/// Ids of the findings about an address: its netns's. (A finding names one IP of several.)
fn findings_about(open: &[Finding], address: &Address) -> Vec<String> {
    open.iter()
        .filter(|finding| {
            finding.subject.netns.as_ref().is_some_and(|netns| {
                match (netns.cookie, address.netns.cookie) {
                    (Some(one), Some(other)) => one == other,
                    _ => netns.inode.is_some() && netns.inode == address.netns.inode,
                }
            })
        })
        .map(|finding| finding.id.clone())
        .collect()
}

fn not_found(selector: &Selector) -> Option<String> {
    Some(match selector {
        Selector::Ip(Some(prefix)) => {
            format!("no address {} in any network namespace of this node", prefix)
        }
        Selector::Netns(Some(name)) => {
            format!(
                "no network namespace {name:?}: give a cookie, an inode, an nsid or the name of its mount"
            )
        }
        Selector::Pod(Some(name)) => {
            format!("no pod {name:?} holds a network namespace of this node")
        }
        Selector::Pid(pid) => format!("process {pid} holds no network namespace"),
        Selector::Ip(None) | Selector::Netns(None) | Selector::Pod(None) => return None,
    })
}

fn findings(core: &Core, all: bool, what: Option<&str>) -> Result<Document, AskError> {
    let mut found = core.ledger().findings(all || what.is_some());
    if let Some(what) = what {
        found.retain(|finding| {
            is_about(finding, what)
                && (all || finding.status != Status::Resolved || finding.id.starts_with(what))
        });
        if found.is_empty() {
            return Err(AskError::NotFound(format!("no finding about {what:?}")));
        }
        let by_id = found.iter().filter(|finding| finding.id.starts_with(what)).count();
        if by_id > 1 {
            let ids: Vec<&str> = found.iter().map(|finding| finding.id.as_str()).collect();
            return Err(AskError::Ambiguous(format!(
                "{what:?} is the beginning of several ids: {}",
                ids.join(", ")
            )));
        }
    }
    for finding in found.iter_mut().filter(|one| one.status != Status::Resolved) {
        finding.unjudged = core.engine.is_unjudged(finding);
    }
    // A code of which nothing is found and which cannot be judged is not one of which there is nothing.
    Ok(Document { blind: core.engine.blind().collect(), ..core.document(Body::Findings(found)) })
}

/// A client that gets the answer may count on the acknowledgement, even if the daemon is killed next. If it cannot be
/// written, the ledger's status in the answer reports that.
fn once_written(core: &Core, told: Result<Document, AskError>, reply: Reply) {
    let written = core.file.written();
    tokio::spawn(async move {
        let _ = tokio::task::spawn_blocking(move || written.wait(ON_DISK)).await;
        let _ = reply.send(told);
    });
}

/// One open finding, by its id or a prefix of it only: an IP or a pod may have several findings.
fn acknowledge(
    core: &mut Core,
    what: &str,
    word: Option<AckRequest>,
) -> Result<Document, AskError> {
    let mut open = core.ledger().findings(false);
    open.retain(|finding| finding.id.starts_with(what));
    let id = match open.as_slice() {
        [] => {
            return Err(AskError::NotFound(format!("no open finding {what:?}")));
        }
        [one] => one.id.clone(),
        _ => {
            return Err(AskError::Ambiguous(format!(
                "{what:?} is the beginning of {} ids",
                open.len()
            )));
        }
    };
    if let Some(change) = core.engine.acknowledge(&id, clock::now(), word) {
        core.write();
        core.tell(change);
        // The core must wake up when the acknowledgement expires.
        core.step();
    }
    let found = core.ledger().findings(false).into_iter().filter(|finding| finding.id == id);
    Ok(core.document(Body::Findings(found.collect())))
}

/// Whether `what` is an id prefix, the code, an IP, a pod or a pod name of this finding.
fn is_about(finding: &Finding, what: &str) -> bool {
    finding.id.starts_with(what)
        || finding.code.as_str() == what
        || what.parse().is_ok_and(|ip| finding.subject.has_ip(ip))
        || finding.subject.pods().any(|pod| pod.is_called(what))
}

/// Ranges and reservations. Without a filter, only reservations that are leaked or whose IP another holder has, and how
/// many IPs each network without a range has reserved.
fn ipam(core: &Core, ip: Option<Prefix>, network: Option<String>) -> Result<Document, AskError> {
    let mut ranges = scrape::known_ranges(core);
    let reservations = if ip.is_none() && network.is_none() {
        core.map().disagreements(RESERVATIONS)
    } else {
        core.map().reservations_view(ip.as_ref(), network.as_deref(), RESERVATIONS)
    };
    if let Some(network) = &network {
        ranges.retain(|range| range.network == *network);
    }
    if let Some(prefix) = &ip {
        let pools: Vec<(&str, &str)> = core.map().pools_of(prefix).collect();
        let of = |range: &IpamRange| {
            let same = |one: &IpamEntry| one.store == range.store && one.network == range.network;
            reservations.iter().any(same)
                || pools.contains(&(range.store.as_str(), range.network.as_str()))
        };
        ranges.retain(of);
    }
    if let Some(what) = ip.map(|ip| ip.to_string()).or_else(|| network.clone())
        && ranges.is_empty()
        && reservations.is_empty()
    {
        return Err(AskError::NotFound(format!(
            "nothing about {what:?} in any IPAM store of this node"
        )));
    }
    let networks = match (ip, &network) {
        (None, None) => core.map().unranged_view(NETWORKS),
        _ => Vec::new(),
    };
    Ok(Document { reservations, networks, ..core.document(Body::Ranges(ranges)) })
}

fn check(core: &Core, ip: IpAddr, container: Option<&str>) -> Document {
    let mut verdict = core.map().verdict(ip, container);
    let about = |finding: &&Finding| finding.subject.has_ip(ip);
    let open = core.ledger().findings(false);
    verdict.findings = open.iter().filter(about).map(|finding| finding.id.clone()).collect();
    core.document(Body::Verdict(verdict))
}

fn doctor(core: &Core) -> Document {
    let mut document = core.document(Body::Probes(scrape::probes(core)));
    document.refused = core.map().refused();
    document.blind = core.engine.blind().collect();
    document.daemon = Some(about_itself(core));
    if let Some(speed) = core.speed()
        && let Some(probes) =
            document.sources.iter_mut().find(|source| source.name == SourceName::Probes)
    {
        let apart = if probes.detail.is_empty() { "" } else { "; " };
        probes.detail = format!("{}{apart}{speed}", probes.detail);
    }
    document
}

/// Which daemon this is, and on which kernel.
pub(super) fn about_itself(core: &Core) -> DaemonInfo {
    DaemonInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: core.map().boot().map(|boot| boot.kernel.clone()).unwrap_or_default(),
        machine: std::env::consts::ARCH.to_owned(),
    }
}

fn history(core: &Core, past: Past, reply: Reply) {
    let empty = core.document(Body::History(Vec::new()));
    // Which containers had an IP is known when the disk was read: until then all runs are kept, some thousands at most.
    let narrow = past.at.is_none() && (past.ip.is_some() || past.pod.is_some());
    let mut runs = if narrow { core.map().runs_view(past.pod.as_deref()) } else { Vec::new() };
    let by_ip = past.ip.is_some();
    let nobody = match (&past.ip, &past.pod) {
        (Some(ip), None) => Some(format!("nobody is known to have had {ip} on this node")),
        (Some(ip), Some(pod)) => Some(format!("pod {pod:?} is not known to have had {ip} here")),
        (None, Some(pod)) => Some(format!("pod {pod:?} is not known to have had an IP here")),
        (None, None) => None,
    };
    let then = if past.at.is_some() { " at that time" } else { "" };
    let history = core.file.history(past, HISTORY);
    tokio::spawn(async move {
        let Ok(Some(found)) = tokio::time::timeout(READ_WITHIN, read(history)).await else {
            let why = "the history cannot be read: the file system of the state directory does not answer";
            let _ = reply.send(Err(AskError::Unavailable(why.to_owned())));
            return;
        };
        if by_ip {
            runs.retain(|run| found.iter().any(|tenure| is_for(run, tenure)));
        }
        let answer = match nobody.filter(|_| found.is_empty() && runs.is_empty()) {
            Some(nobody) => Err(AskError::NotFound(format!("{nobody}{then}"))),
            None => Ok(Document { body: Body::History(found), runs, ..empty }),
        };
        let _ = reply.send(answer);
    });
}

/// What the file and what waits for it have of the past. `None`: the thread that read it has ended.
async fn read(history: History) -> Option<Vec<Tenure>> {
    let reader = READERS.acquire().await.ok()?;
    let reading = tokio::task::spawn_blocking(move || {
        let _until_it_comes_back = reader;
        history.run()
    });
    reading.await.ok()
}

/// Whether a run was for the container that had an IP, or for its pod: a sandbox has an id of its own.
fn is_for(run: &PluginRun, tenure: &Tenure) -> bool {
    let id = tenure.container.as_ref().and_then(|container| container.id.as_deref());
    let pod = |pod: &Pod| Some((pod.namespace.clone()?, pod.name.clone()?));
    let named = run.pod.as_ref().and_then(pod);
    id.is_some() && run.container_id.as_deref() == id
        || named.is_some() && named == tenure.pod.as_ref().and_then(pod)
}
