//! Makes the plan of changes from the daemon's documents. Pure: the same documents give the same plan.
//!
//! The plan of an item is made again at the moment of its change ([`still`]). The item is changed only if the plan is the
//! same.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use super::cluster_store;
use crate::contract::{
    Code, Finding, Fix, FixItem, FixState, FixTarget, Holder, HolderKind, IpamEntry, Reserved,
    Status, Subject,
};
use crate::fact::store;
use crate::remedy::said;

/// Maximum number of items of proof that are shown of a finding.
const PROOF: usize = 8;

/// Why an argument does not select findings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unclear {
    #[error(
        "no open finding {0}, and no finding about a network {0}: `ipwatch query findings` lists what there is"
    )]
    NotFound(String),
    #[error("{0} is the beginning of several ids, or a network as well: give a finding's whole id")]
    Ambiguous(String),
    #[error("{0} is the beginning of an id: --yes takes a network, or the whole id, which is {1}")]
    Beginning(String, String),
}

/// Shortest prefix of an id that is accepted, and the length that tables show.
const SHORTEST: usize = 4;

/// The findings that an argument selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meant<'a> {
    /// The findings to plan.
    pub(crate) findings: Vec<&'a Finding>,
    /// Acknowledged leaks of the named network, which are left as they are.
    pub(crate) acknowledged: Vec<&'a Finding>,
}

/// The open findings that an argument selects: a finding's id, a prefix of it (only if a person is `asked` before the
/// change), or the name of a network.
///
/// # Errors
/// [`Unclear`]: it selects none, or is ambiguous.
pub(crate) fn meant<'a>(
    open: &'a [Finding],
    what: &str,
    asked: bool,
) -> Result<Meant<'a>, Unclear> {
    let open = || open.iter().filter(|one| one.status != Status::Resolved);
    let these = |findings| Meant { findings, acknowledged: Vec::new() };
    if let Some(one) = open().find(|one| one.id == what) {
        return Ok(these(vec![one]));
    }
    let network: Vec<_> = open()
        .filter(|one| one.code == Code::IpamReservationLeaked)
        .filter(|one| one.subject.network.as_deref() == Some(what))
        .collect();
    let is_beginning = what.len() >= SHORTEST;
    let by_id: Vec<_> = open().filter(|one| is_beginning && one.id.starts_with(what)).collect();
    match (by_id.as_slice(), network.as_slice()) {
        ([], []) => Err(Unclear::NotFound(said(what))),
        ([one], []) if !asked => Err(Unclear::Beginning(said(what), said(&one.id))),
        ([_], []) => Ok(these(by_id)),
        ([], _) => {
            let (acknowledged, findings) = network.into_iter().partition(|one| one.acked.is_some());
            Ok(Meant { findings, acknowledged })
        }
        _ => Err(Unclear::Ambiguous(said(what))),
    }
}

/// The item of a finding that is left as it is because it is acknowledged.
pub(crate) fn acknowledged(finding: &Finding) -> FixItem {
    let why = format!("it is acknowledged: `ipwatch fix {}` names it all the same", finding.id);
    nothing(finding, subject(finding), why)
}

/// The IPs whose reservations must be requested to plan these findings.
pub(crate) fn reserved(findings: &[&Finding]) -> BTreeSet<IpAddr> {
    let leaks = findings.iter().filter(|one| one.code == Code::IpamReservationLeaked);
    leaks.flat_map(|one| one.subject.ips()).collect()
}

/// The plan for some findings. `entries`: the reservations of the IPs of [`reserved`]. `only`: if not empty, no other IPs
/// are planned.
pub(crate) fn plan(findings: &[&Finding], entries: &[IpamEntry], only: &[IpAddr]) -> Fix {
    let mut fix = Fix { dry_run: true, ..Fix::default() };
    for finding in findings {
        match finding.code {
            Code::IpamReservationLeaked => {
                let told = told(&finding.subject);
                fix.items.extend(told.iter().map(|one| reservation(finding, one, entries)));
                fix.omitted = fix.omitted.saturating_add(finding.subject.reservations_omitted);
            }
            Code::NetnsLeaked => fix.items.push(netns(finding)),
            Code::VethOrphaned => fix.items.push(pair(finding)),
            _ => fix.items.push(nothing(finding, subject(finding), NOT_CERTAIN)),
        }
    }
    if !only.is_empty() {
        keep(&mut fix, only);
    }
    fix
}

const NOT_CERTAIN: &str = "its fix is not one that can be made with certainty and undone: `ipwatch explain` has the \
                           steps";

/// Succeeds if the daemon's present documents give the same plan for an item.
///
/// # Errors
/// What has changed.
pub(crate) fn still(item: &FixItem, open: &[Finding], entries: &[IpamEntry]) -> Result<(), String> {
    let finding = open.iter().find(|one| one.id == item.finding && one.code == item.code);
    let Some(finding) = finding.filter(|one| one.status != Status::Resolved) else {
        return Err("its finding is over".to_owned());
    };
    let now = plan(&[finding], entries, &[]);
    if now.items.iter().any(|one| one.state == FixState::Planned && one.target == item.target) {
        return Ok(());
    }
    let about = |one: &&FixItem| match (&one.target, &item.target) {
        (
            FixTarget::Nothing { about },
            FixTarget::FreeReservation { ip, .. } | FixTarget::FreeAllocation { ip, .. },
        ) => *about == ip.to_string(),
        (FixTarget::Nothing { .. }, _) => true,
        _ => false,
    };
    let why = now.items.iter().find(about).and_then(|one| one.why.clone());
    Err(why.unwrap_or_else(|| "its finding is not about the same any more".to_owned()))
}

/// Leaves out items of other IPs, and adds an item for each of these IPs that no finding lists.
fn keep(fix: &mut Fix, only: &[IpAddr]) {
    for item in &mut fix.items {
        let wanted = match &item.target {
            FixTarget::FreeReservation { ip, .. } | FixTarget::FreeAllocation { ip, .. } => {
                only.contains(ip)
            }
            FixTarget::Nothing { about } => about.parse().is_ok_and(|ip| only.contains(&ip)),
            _ => false,
        };
        if !wanted {
            item.state = FixState::LeftOut;
            item.why = Some("it is not among the IPs of --only".to_owned());
        }
    }
    let is_about = |ip: &IpAddr| {
        fix.items.iter().any(|item| match &item.target {
            FixTarget::FreeReservation { ip: known, .. }
            | FixTarget::FreeAllocation { ip: known, .. } => known == ip,
            FixTarget::Nothing { about } => about.parse() == Ok(*ip),
            _ => false,
        })
    };
    let missing: Vec<&IpAddr> = only.iter().filter(|ip| !is_about(ip)).collect();
    let Some(first) = fix.items.first() else { return };
    let (finding, code) = (first.finding.clone(), first.code);
    let missing = missing.into_iter().map(|ip| FixItem {
        finding: finding.clone(),
        code,
        target: FixTarget::Nothing { about: ip.to_string() },
        state: FixState::LeftOut,
        why: Some("no finding that is meant lists this IP".to_owned()),
        proof: Vec::new(),
    });
    let missing: Vec<FixItem> = missing.collect();
    fix.items.extend(missing);
}

/// An item that is left out.
fn nothing(finding: &Finding, about: String, why: impl Into<String>) -> FixItem {
    FixItem {
        finding: finding.id.clone(),
        code: finding.code,
        target: FixTarget::Nothing { about },
        state: FixState::LeftOut,
        why: Some(why.into()),
        proof: Vec::new(),
    }
}

/// A name for what a finding is about.
fn subject(finding: &Finding) -> String {
    let Subject { ip, netns, network, .. } = &finding.subject;
    let netns = || Some(format!("net:[{}]", netns.as_ref()?.inode?));
    let ip = ip.map(|ip| ip.to_string());
    ip.or_else(netns).or_else(|| network.clone()).unwrap_or_else(|| finding.id.clone())
}

/// The reservations of a finding. A finding with a single one does not contain its key.
fn told(subject: &Subject) -> Vec<Reserved> {
    match subject.ip {
        Some(ip) if subject.reservations.is_empty() => {
            let Subject { container, pod, .. } = subject.clone();
            vec![Reserved { ip, key: String::new(), container, pod }]
        }
        _ => subject.reservations.clone(),
    }
}

/// Why a finding of any code is not certain enough to change something.
fn unsure(finding: &Finding) -> Option<&'static str> {
    if finding.unjudged {
        return Some(
            "a source that the finding rests on does not answer (`ipwatch doctor`): nobody knows whether it is still so",
        );
    }
    (finding.status != Status::Firing)
        .then_some("it was seen once so far: a second look decides in a moment")
}

fn reservation(finding: &Finding, told: &Reserved, entries: &[IpamEntry]) -> FixItem {
    match leak(finding, told, entries) {
        Ok((target, proof)) => FixItem {
            finding: finding.id.clone(),
            code: finding.code,
            target,
            state: FixState::Planned,
            why: None,
            proof,
        },
        Err(why) => nothing(finding, told.ip.to_string(), why),
    }
}

/// A leaked reservation that can be freed, with its proof, or why it cannot.
fn leak(
    finding: &Finding,
    told: &Reserved,
    entries: &[IpamEntry],
) -> Result<(FixTarget, Vec<String>), String> {
    if let Some(why) = unsure(finding) {
        return Err(why.to_owned());
    }
    let of = told.container.as_ref().and_then(|container| container.id.as_deref());
    let Some(of) = of else { return Err("its container is not known".to_owned()) };
    let network = finding.subject.network.as_deref();
    let entry = entries.iter().find(|entry| {
        entry.ip == told.ip
            && Some(entry.network.as_str()) == network
            && (told.key.is_empty() || entry.key == told.key)
            && entry.container_id.as_deref() == Some(of)
    });
    let Some(entry) = entry else {
        return Err("its store does not reserve it for that container any more".to_owned());
    };
    let in_cluster = cluster_store::has(&entry.store, &entry.key);
    if entry.store != store::HOST_LOCAL && !in_cluster {
        return Err(format!(
            "{} keeps it: `ipwatch explain {}` says how it is freed there",
            said(&entry.store),
            finding.id
        ));
    }
    if let Some(holder) = entry.kernel.first() {
        let netns = holder.netns.inode.map(|inode| format!("net:[{inode}]"));
        let netns = netns.unwrap_or_else(|| "a network namespace of this node".to_owned());
        return Err(format!("{netns} has the IP up: once freed, the next pod would share it"));
    }
    let runtime = match entry.runtime.as_deref() {
        Some("gone") => "its runtime had the container, and has it no more",
        Some("denied") => "every runtime was asked, and none has the container",
        Some("nobody") => "there is no runtime to ask",
        Some("alive" | "dead") => return Err("its runtime has the container still".to_owned()),
        // No runtime knows the container, for example after a boot. It counts as leaked for a reason that needs no runtime
        // (`map/ipam/leaks.rs`).
        None => {
            "no runtime speaks for the container: it was written before the last boot, or its netns was seen to end"
        }
        Some(_) => return Err("the runtimes do not say that its container is gone".to_owned()),
    };
    if entry.agree.as_deref() != Some("leaked") {
        return Err("it does not count as leaked any more".to_owned());
    }
    let proof = proof_of(finding, entry, of, runtime);
    if in_cluster {
        let target = FixTarget::FreeAllocation {
            ip: entry.ip,
            network: entry.network.clone(),
            store: entry.store.clone(),
            key: entry.key.clone(),
            container_id: of.to_owned(),
        };
        return Ok((target, proof));
    }
    if !is_file_of(Path::new(&entry.key), entry.ip, &entry.network) {
        return Err(format!("{} is not the path of its file", said(&entry.key)));
    }
    let target = FixTarget::FreeReservation {
        ip: entry.ip,
        network: entry.network.clone(),
        path: entry.key.clone(),
        container_id: of.to_owned(),
        ifname: entry.ifname.clone(),
        since: entry.since.clone(),
    };
    Ok((target, proof))
}

fn proof_of(finding: &Finding, entry: &IpamEntry, id: &str, runtime: &str) -> Vec<String> {
    let written = entry.since.as_ref().map(|since| format!(", written {since}"));
    let since = finding.firing_at.as_deref().unwrap_or(&finding.since);
    vec![
        format!(
            "{} reserves it for container {}{}: {}",
            said(&entry.store),
            said(id),
            written.unwrap_or_default(),
            said(&entry.key)
        ),
        format!("{runtime}; no network namespace of this node has the IP"),
        format!("{} fires since {since}: seen at two moments", finding.code),
    ]
}

/// Whether a path is that of the file which host-local makes for an IP of a network.
fn is_file_of(path: &Path, ip: IpAddr, network: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let parent = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let plain = path.components().all(|part| {
        matches!(part, std::path::Component::RootDir | std::path::Component::Normal(_))
    });
    path.is_absolute()
        && plain
        && name.is_some_and(|name| name.parse() == Ok(ip))
        && parent == Some(network)
}

/// The item of a leaked netns, which can be unmounted if a single mount of the node holds it.
fn netns(finding: &Finding) -> FixItem {
    let about = subject(finding);
    if let Some(why) = unsure(finding) {
        return nothing(finding, about, why);
    }
    let holders = finding.holders.as_slice();
    let path = match holders {
        [one] => match of_the_node(one) {
            Some(path) => path,
            None => return nothing(finding, about, not_ours(one)),
        },
        [] => return nothing(finding, about, "nothing that can be let go of holds it"),
        [first, rest @ ..] => {
            let other = rest.iter().chain([first]).find(|one| of_the_node(one).is_none());
            let why = other.map_or("several mounts hold it".to_owned(), not_ours);
            return nothing(finding, about, why);
        }
    };
    let Some(netns) = finding.subject.netns.clone().filter(|netns| netns.inode.is_some()) else {
        return nothing(finding, about, "which netns it is is not known");
    };
    // The nsid is left out because it may change, and the path because the target names it already.
    let netns = crate::contract::Netns {
        cookie: netns.cookie,
        inode: netns.inode,
        ..crate::contract::Netns::default()
    };
    FixItem { target: FixTarget::UnmountNetns { path: path.to_owned(), netns }, ..planned(finding) }
}

/// The path of a mount in the node's own mount namespace.
fn of_the_node(holder: &Holder) -> Option<&str> {
    let is = holder.kind == HolderKind::Mount && holder.mount_ns_pid == Some(1);
    holder.mount_path.as_deref().filter(|path| is && path.starts_with('/'))
}

fn not_ours(holder: &Holder) -> String {
    let place = holder.mount_place().map(|place| format!(", in {place},")).unwrap_or_default();
    format!("{}{place} holds it as well: `ipwatch explain` says what to do", holder.words())
}

/// A pair of devices of which both ends are on the node, and which is named after a pod that ipwatch knows.
fn pair(finding: &Finding) -> FixItem {
    let about = subject(finding);
    if let Some(why) = unsure(finding) {
        return nothing(finding, about, why);
    }
    let names_pod = finding.subject.pod.is_some();
    match (&finding.subject.interface, &finding.subject.peer) {
        // A person may have made a pair whose name looks like a plugin's.
        (Some(_), Some(_)) if !names_pod => nothing(
            finding,
            about,
            "the form of its name alone says that a CNI plugin made it: `ipwatch explain` has the command",
        ),
        (Some(interface), Some(peer)) if interface.name.is_some() && peer.name.is_some() => {
            let target = FixTarget::DeletePair { interface: interface.clone(), peer: peer.clone() };
            FixItem { target, ..planned(finding) }
        }
        _ => nothing(
            finding,
            about,
            "a route is not deleted by this: `ipwatch explain` has the command",
        ),
    }
}

/// A planned item with the finding's own proof. The caller fills in the target.
fn planned(finding: &Finding) -> FixItem {
    let proof = finding.evidence.iter().take(PROOF).map(|item| item.text.clone());
    FixItem {
        finding: finding.id.clone(),
        code: finding.code,
        target: FixTarget::Nothing { about: String::new() },
        state: FixState::Planned,
        why: None,
        proof: proof.collect(),
    }
}

#[cfg(test)]
mod tests;
