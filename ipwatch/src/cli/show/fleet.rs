//! The answers of many nodes: `kubectl ipwatch findings` and `kubectl ipwatch ip`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use super::card::verdict_on;
use super::family::{self, Families};
use super::findings::{folded, note};
use crate::cli::table::{Cell, Style, Table};
use crate::cli::text::{self, Now, ShortIds};
use crate::cli::view::View;
use crate::contract::{Address, Body, Document, Fleet, FleetNode, IpamEntry, Tenure};
use crate::finding::{Finding, Severity, Status};
use crate::remedy::kubernetes::kubectl;

/// Maximum number of rows and of nodes named in a line, unless all are asked for.
const PAGE: usize = 20;

/// Where ipwatch's pods are, for the command that asks one of them.
pub(in crate::cli) struct Agents<'a> {
    pub(in crate::cli) namespace: &'a str,
    /// `--kubeconfig` and `--context` as the user gave them.
    pub(in crate::cli) flags: &'a [String],
}

/// A cause, and the nodes that report it: what concerns a pool of the whole cluster has the same id on each.
struct Cause<'a> {
    nodes: Vec<&'a str>,
    finding: &'a Finding,
    consequences: Vec<&'a Finding>,
    now: Now,
}

impl Cause<'_> {
    fn severity(&self) -> Severity {
        family::worst(self.finding, &self.consequences)
    }

    /// Of two nodes that report the same, the worse one comes first: no other node hides what it says.
    fn merged(self, known: Self) -> Self {
        let (mut first, second) =
            if self.severity() > known.severity() { (self, known) } else { (known, self) };
        first.nodes.extend(second.nodes);
        let new = |one: &&Finding| first.consequences.iter().all(|other| other.id != one.id);
        let new: Vec<&Finding> = second.consequences.into_iter().filter(new).collect();
        first.consequences.extend(new);
        first
    }

    fn rank(&self) -> impl Ord {
        (Reverse(self.severity()), self.finding.since.clone(), self.nodes.first().copied())
    }

    fn is_of(&self, namespace: &str) -> bool {
        let all = std::iter::once(self.finding).chain(self.consequences.iter().copied());
        let mut pods = all.flat_map(|finding| finding.subject.pods());
        pods.any(|pod| pod.namespace.as_deref() == Some(namespace))
    }
}

/// Open findings of all nodes, or of the pods of one namespace, and whether there are any.
pub(in crate::cli) fn findings(
    fleet: &Fleet,
    namespace: Option<&str>,
    agents: &Agents<'_>,
    view: View,
) -> (String, bool) {
    let all = causes(fleet);
    let of = |cause: &Cause<'_>| namespace.is_none_or(|namespace| cause.is_of(namespace));
    let (shown, others): (Vec<_>, Vec<_>) = all.into_iter().partition(of);
    let mut out = summary(fleet, &shown);
    if !shown.is_empty() {
        let ids = ShortIds::new(shown.iter().map(|cause| cause.finding.id.as_str()));
        let mut table =
            Table::new(&["SEV", "NODE", "ID", "SUBJECT", "FINDING", "POD", "AGE"]).within(view);
        let page = if view.all { shown.len() } else { PAGE };
        for cause in shown.iter().take(page) {
            table.noted(row(cause, &ids), Some(below(cause)));
            for finding in cause.consequences.iter().filter(|_| view.all) {
                let finding = Cause { finding, consequences: Vec::new(), ..one(cause) };
                table.noted(row(&finding, &ids), Some(below(&finding)));
            }
        }
        out.push_str(&table.within(view).render(view.headers, view.paint));
        if let Some(more) = shown.len().checked_sub(page).filter(|more| *more > 0) {
            out.push_str(&format!("… and {} (--all)\n", text::count(more, "more cause")));
        }
    }
    if !others.is_empty() {
        let count = text::count(others.len(), "other cause");
        out.push_str(&format!("{count} of other namespaces or of no pod: -A\n"));
    }
    if let Some(worst) = shown.first() {
        out.push_str(&next(fleet, worst, agents));
    }
    out.push_str(&silent(fleet, view));
    (out, !shown.is_empty())
}

/// Where an IP is up and reserved, and who had it, the newest first; and whether it is up or reserved anywhere.
pub(in crate::cli) fn ip(fleet: &Fleet, ip: IpAddr, view: View) -> (String, bool) {
    let up = rows(fleet, |body| match body {
        Body::Addresses(list) => list.iter().collect(),
        _ => Vec::<&Address>::new(),
    });
    let reserved: Vec<(&FleetNode, &IpamEntry)> = documents(fleet)
        .flat_map(|(node, document)| document.reservations.iter().map(move |entry| (node, entry)))
        .filter(|(_, entry)| entry.ip == ip)
        .collect();
    let mut past = rows(fleet, |body| match body {
        Body::History(list) => list.iter().filter(|tenure| tenure.to.is_some()).collect(),
        _ => Vec::<&Tenure>::new(),
    });
    past.sort_by(|(_, _, a), (_, _, b)| b.from.cmp(&a.from));
    let mut out = match up.len() {
        0 => format!("{ip} is up on none of the nodes that answered\n"),
        1 => format!("{ip} is up in one network namespace\n"),
        several => format!("{ip} is up in {several} network namespaces\n"),
    };
    if !up.is_empty() {
        let mut table = Table::new(&["NODE", "STATE", "POD", "HOLDER", "UP", "NETNS", "FINDINGS"]);
        for (node, now, address) in &up {
            let (verdict, style) = verdict_on(address);
            table.row(vec![
                Cell::new(text::shown(&node.node)),
                Cell::styled(verdict, style),
                Cell::new(text::owner(address.pod.as_ref(), address.container.as_ref())),
                Cell::new(text::holders(&address.holders)),
                Cell::new(View { now: *now, ..view }.up(address)),
                Cell::new(text::netns(&address.netns)),
                Cell::new(text::names(&address.findings)),
            ]);
        }
        out.push_str(&table.within(view).render(view.headers, view.paint));
    }
    for (node, entry) in reserved.iter().take(PAGE) {
        out.push_str(&format!("{}\n", reservation(node, entry)));
    }
    out.push_str(&more(reserved.len(), "more reservation"));
    if !past.is_empty() {
        out.push_str("\nBefore:\n");
        let mut table = Table::new(&["NODE", "FROM", "TO", "LASTED", "POD", "ENDED BY"]);
        for (node, now, tenure) in past.iter().take(PAGE) {
            let to = tenure.to.as_deref().unwrap_or_default();
            table.row(vec![
                Cell::new(text::shown(&node.node)),
                Cell::new(now.clock(&tenure.from)),
                Cell::new(now.clock(to)),
                Cell::new(text::lasted(&tenure.from, to)),
                Cell::new(text::owner(tenure.pod.as_ref(), tenure.container.as_ref())),
                Cell::new(tenure.ended_by.as_deref().unwrap_or_default()),
            ]);
        }
        out.push_str(&table.within(view).render(view.headers, view.paint));
        out.push_str(&more(past.len(), "earlier owner"));
    }
    out.push_str(&silent(fleet, view));
    (out, !up.is_empty() || !reserved.is_empty())
}

/// How many of so many rows are beyond the page.
fn more(all: usize, what: &str) -> String {
    match all.saturating_sub(PAGE) {
        0 => String::new(),
        more => format!("… and {} (-o json)\n", text::count(more, what)),
    }
}

fn reservation(node: &FleetNode, entry: &IpamEntry) -> String {
    let [on, store, network] =
        [&node.node, &entry.store, &entry.network].map(|one| text::shown(one));
    let pod = entry.pod.as_ref().map(text::pod).filter(|name| !name.is_empty());
    let container = || entry.container_id.as_deref().map(|id| text::shown(text::cut(id, 12)));
    let owner = pod.or_else(container).map(|owner| format!(" for {owner}")).unwrap_or_default();
    format!("Reserved on {on}{owner}: {store}, network {network}")
}

fn documents(fleet: &Fleet) -> impl Iterator<Item = (&FleetNode, &Document)> {
    fleet.nodes.iter().flat_map(|node| node.documents.iter().map(move |document| (node, document)))
}

/// What one kind of body lists, with its node and the time of its document.
fn rows<'a, T>(
    fleet: &'a Fleet,
    of: impl Fn(&'a Body) -> Vec<&'a T>,
) -> Vec<(&'a FleetNode, Now, &'a T)> {
    documents(fleet)
        .flat_map(|(node, document)| {
            let now = Now::of(document);
            of(&document.body).into_iter().map(move |one| (node, now, one))
        })
        .collect()
}

/// Open causes, the worst first, then the oldest.
fn causes(fleet: &Fleet) -> Vec<Cause<'_>> {
    let mut by_id: BTreeMap<&str, Cause<'_>> = BTreeMap::new();
    for (node, document) in documents(fleet) {
        let Body::Findings(findings) = &document.body else { continue };
        for (finding, consequences) in Families::new(findings).all() {
            if finding.status == Status::Resolved {
                continue;
            }
            let mut cause =
                Cause { nodes: vec![&node.node], finding, consequences, now: Now::of(document) };
            if let Some(known) = by_id.remove(finding.id.as_str()) {
                cause = cause.merged(known);
            }
            by_id.insert(&finding.id, cause);
        }
    }
    let mut all: Vec<Cause<'_>> = by_id.into_values().collect();
    all.sort_by(|a, b| a.rank().cmp(&b.rank()));
    all
}

fn one<'a>(cause: &Cause<'a>) -> Cause<'a> {
    Cause { nodes: cause.nodes.clone(), consequences: Vec::new(), ..*cause }
}

fn row(cause: &Cause<'_>, ids: &ShortIds) -> Vec<Cell> {
    let finding = cause.finding;
    let style = match finding.severity {
        Severity::Critical => Style::Red,
        Severity::Warning => Style::Yellow,
        Severity::Info => Style::Plain,
    };
    let first = cause.nodes.first().copied().map(text::shown).unwrap_or_default();
    let node = match cause.nodes.len().saturating_sub(1) {
        0 => first,
        more => format!("{first} +{more}"),
    };
    let subject = &finding.subject;
    vec![
        Cell::styled(text::severity(finding.severity), style),
        Cell::new(node),
        Cell::new(ids.get(&finding.id)),
        Cell::new(text::subject(subject)),
        Cell::new(finding.code.as_str()),
        Cell::new(text::owner(subject.pod.as_ref(), subject.container.as_ref())),
        Cell::new(cause.now.age(Some(&finding.since))),
    ]
}

fn below(cause: &Cause<'_>) -> String {
    note(cause.finding, folded(cause.finding, &cause.consequences), cause.now)
}

fn summary(fleet: &Fleet, shown: &[Cause<'_>]) -> String {
    let answered = fleet.nodes.iter().filter(|node| node.error.is_none()).count();
    let of = match fleet.nodes.len() {
        all if all == answered => text::count(all, "node"),
        all => format!("{answered} of {}", text::count(all, "node")),
    };
    let critical = shown.iter().filter(|cause| cause.severity() == Severity::Critical).count();
    let what = match shown.len() {
        0 => "nothing wrong is known".to_owned(),
        all if critical == 0 => text::count(all, "cause"),
        all => format!("{}, {critical} critical", text::count(all, "cause")),
    };
    format!("{of}   {what}\n")
}

/// The command that explains the first row.
fn next(fleet: &Fleet, worst: &Cause<'_>, agents: &Agents<'_>) -> String {
    let on = |node: &&FleetNode| Some(node.node.as_str()) == worst.nodes.first().copied();
    let Some(node) = fleet.nodes.iter().find(on) else { return String::new() };
    let there =
        kubectl(agents.flags).owns(&["exec", "-n"]).value(agents.namespace).value(&node.pod);
    let explain =
        there.owns(&["-c", "ipwatch", "--", "ipwatch", "explain"]).value(&worst.finding.id);
    if explain.is_typed() { format!("Next: {}\n", explain.sh()) } else { String::new() }
}

/// The nodes that have not answered, with the reason, and whether there may be others.
fn silent(fleet: &Fleet, view: View) -> String {
    let mut out = String::new();
    if let Some(why) = &fleet.nodes_unlisted {
        out.push_str(&format!(
            "\nOnly nodes with a pod of ipwatch are known, because the nodes cannot be listed (it takes the right to list \
             nodes): {}\n",
            text::shown(why)
        ));
    }
    let silent: Vec<&FleetNode> = fleet.nodes.iter().filter(|node| node.error.is_some()).collect();
    if silent.is_empty() {
        return out;
    }
    let verb = if silent.len() == 1 { "has" } else { "have" };
    let count = text::count(silent.len(), "node");
    out.push_str(&format!("\n{count} {verb} not answered; nothing is known of them:\n"));
    let most = if view.all { silent.len() } else { PAGE };
    for node in silent.iter().take(most) {
        let why = node.error.as_deref().unwrap_or_default();
        out.push_str(&format!("  {}: {}\n", text::shown(&node.node), text::shown(why)));
    }
    if let Some(more) = silent.len().checked_sub(most).filter(|more| *more > 0) {
        out.push_str(&format!("  … and {more} more (-o json)\n"));
    }
    out
}

#[cfg(test)]
mod tests;
