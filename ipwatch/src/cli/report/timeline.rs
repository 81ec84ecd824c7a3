//! The timeline of a report: lanes of pods, holders and findings. Pure.

use std::collections::HashMap;

use super::case::Case;
use crate::cli::text;
use crate::contract::report::{Item, ItemKind, Lane, LaneKind, Timeline};
use crate::contract::{Container, Holder, IpamEntry, Netns, PluginRun, Pod, Tenure};
use crate::finding::{Ack, Evidence, Finding};

/// Maximum number of items of a lane: the first one, which shows how it began, and the newest.
const MOST_ITEMS: usize = 24;
/// Maximum number of lanes of one kind.
const MOST_LANES: usize = 10;
/// Maximum number of lanes of one kind if the report is about all of them.
const MOST_OWN_LANES: usize = 30;
/// Length of a shortened container id, as runtimes print it.
const SHORT_ID: usize = 12;

/// Makes the timeline of a case with these findings.
pub(super) fn timeline(case: &Case, told: &[&Finding]) -> Timeline {
    let mut lanes = Lanes { owners: owners(case, told), places: HashMap::new(), found: Vec::new() };
    for tenure in &case.history {
        lanes.tenure(tenure);
    }
    lanes.up_now(case);
    for entry in &case.reservations {
        lanes.reservation(entry);
    }
    for run in &case.runs {
        lanes.run(run);
    }
    for finding in told {
        lanes.holders(finding);
        lanes.finding(finding);
    }
    let cause = told.first().and_then(|first| first.caused_by.as_deref());
    let about = told.iter().enumerate();
    let about = about.filter(|(at, one)| *at == 0 || Some(one.id.as_str()) == cause);
    let own: Vec<Own> = about.map(|(_, finding)| lanes.own(finding)).collect();
    lanes.finish(&own)
}

/// A text for people about an acknowledgement.
pub(super) fn acknowledged(ack: &Ack) -> String {
    let by = ack.uid.map(|uid| format!(" by uid {uid}")).unwrap_or_default();
    let until = ack.until.as_deref().map(super::build::date);
    let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
    let note = ack.note.as_deref().map(text::shown).filter(|note| !note.is_empty());
    let note = note.map(|note| format!(": {note}")).unwrap_or_default();
    format!("acknowledged{by}{until}{note}")
}

/// The pod of a container, from any part of the case. Stores and plugins name containers, but people know pods.
fn owners(case: &Case, told: &[&Finding]) -> HashMap<String, String> {
    let mut owners = HashMap::new();
    let mut learn = |container: Option<&str>, pod: Option<&Pod>| {
        let name = pod.map(text::pod).filter(|name| !name.is_empty());
        if let (Some(id), Some(name)) = (container, name) {
            owners.entry(id.to_owned()).or_insert(name);
        }
    };
    let id = |container: &Option<Container>| container.as_ref().and_then(|one| one.id.clone());
    for tenure in &case.history {
        learn(id(&tenure.container).as_deref(), tenure.pod.as_ref());
    }
    for address in &case.addresses {
        learn(id(&address.container).as_deref(), address.pod.as_ref());
        let reservation = address.reservation.as_ref();
        learn(reservation.and_then(|one| one.container_id.as_deref()), address.pod.as_ref());
    }
    for run in &case.runs {
        learn(run.container_id.as_deref(), run.pod.as_ref());
    }
    for entry in &case.reservations {
        let up = entry.kernel.iter().find_map(|holder| holder.pod.as_ref());
        let agrees = entry.agree.as_deref() == Some("yes");
        learn(entry.container_id.as_deref(), entry.pod.as_ref().or(up.filter(|_| agrees)));
    }
    for finding in told {
        learn(id(&finding.subject.container).as_deref(), finding.subject.pod.as_ref());
    }
    owners
}

/// The lanes that belong to a finding.
struct Own {
    /// The names of its subjects' lanes.
    pods: Vec<String>,
    /// The names of its holders' lanes.
    holders: Vec<String>,
    code: &'static str,
    subject: String,
}

/// The precedence of a lane: lanes of the first rank are never left out for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// What the report is about, and its cause.
    Own,
    /// What lasts.
    Lasts,
    Other,
}

fn rank(lane: &Lane, own: &[Own]) -> Rank {
    let is_own = own.iter().any(|own| match lane.kind {
        LaneKind::Pod => own.pods.contains(&lane.name),
        LaneKind::Holder => own.holders.contains(&lane.name),
        LaneKind::Finding => own.code == lane.name && own.subject == lane.detail,
    });
    match is_own {
        true => Rank::Own,
        false if lane.items.iter().any(|item| item.lasts) => Rank::Lasts,
        false => Rank::Other,
    }
}

struct Lanes {
    /// Pods by their containers' ids.
    owners: HashMap<String, String>,
    /// Lanes by the ids of containers that had an IP there: two netns may be of one name.
    places: HashMap<String, (String, String)>,
    found: Vec<Lane>,
}

/// Something that happened at one moment.
fn moment(kind: ItemKind, at: &str, text: String) -> Item {
    Item { kind, from: at.to_owned(), to: None, lasts: false, text, ended: String::new() }
}

/// Something that lasted until `to`, or still does.
fn span(kind: ItemKind, from: &str, to: Option<&str>, text: String) -> Item {
    let to = to.map(str::to_owned);
    Item { kind, from: from.to_owned(), lasts: to.is_none(), to, text, ended: String::new() }
}

impl Lanes {
    fn lane(&mut self, kind: LaneKind, name: &str, detail: &str) -> &mut Lane {
        let same = |lane: &Lane| lane.kind == kind && lane.name == name && lane.detail == detail;
        let at = self.found.iter().position(same).unwrap_or_else(|| {
            let (name, detail) = (name.to_owned(), detail.to_owned());
            self.found.push(Lane { kind, name, detail, items: Vec::new() });
            self.found.len() - 1
        });
        &mut self.found[at]
    }

    fn name(&self, pod: Option<&Pod>, container: Option<&str>) -> String {
        let named = pod.map(text::pod).filter(|name| !name.is_empty());
        let owned = || container.and_then(|id| self.owners.get(id)).cloned();
        let short =
            || container.map(|id| format!("container {}", text::shown(text::cut(id, SHORT_ID))));
        named.or_else(owned).or_else(short).unwrap_or_default()
    }

    fn tenure(&mut self, tenure: &Tenure) {
        let id = tenure.container.as_ref().and_then(|container| container.id.as_deref());
        let (name, detail) = (self.name(tenure.pod.as_ref(), id), place(&tenure.netns));
        let name = if name.is_empty() { "an unnamed owner".to_owned() } else { name };
        let mut item =
            span(ItemKind::Tenure, &tenure.from, tenure.to.as_deref(), format!("{} up", tenure.ip));
        if let Some(times) = tenure.times {
            item.text = format!("{} came and went {times} times", tenure.ip);
        }
        self.learn_place(id, &name, &detail);
        if let Some(by) = &tenure.ended_by {
            item.ended = format!("{} gone: {}", tenure.ip, by.replace('-', " "));
        }
        self.lane(LaneKind::Pod, &name, &detail).items.push(item);
    }

    /// What is up and in no history: its netns has too many addresses, or the file cannot be read.
    fn up_now(&mut self, case: &Case) {
        for address in &case.addresses {
            let (Some(ip), Some(since)) = (address.ip, address.since.as_deref()) else { continue };
            let known = |tenure: &Tenure| {
                tenure.ip == ip && tenure.to.is_none() && tenure.netns.inode == address.netns.inode
            };
            if case.history.iter().any(known) {
                continue;
            }
            let id = address.container.as_ref().and_then(|container| container.id.as_deref());
            let (name, detail) = (self.name(address.pod.as_ref(), id), place(&address.netns));
            let name = if name.is_empty() { "an unnamed owner".to_owned() } else { name };
            self.learn_place(id, &name, &detail);
            let item = span(ItemKind::Tenure, since, None, format!("{ip} up"));
            self.lane(LaneKind::Pod, &name, &detail).items.push(item);
        }
    }

    fn learn_place(&mut self, container: Option<&str>, name: &str, detail: &str) {
        if let Some(id) = container {
            self.places.insert(id.to_owned(), (name.to_owned(), detail.to_owned()));
        }
    }

    /// Where the other items of a container are, else those of its pod.
    fn of_owner(&mut self, name: &str, container: Option<&str>) -> &mut Lane {
        if let Some((name, detail)) = container.and_then(|id| self.places.get(id)).cloned() {
            return self.lane(LaneKind::Pod, &name, &detail);
        }
        let same = |lane: &&Lane| lane.kind == LaneKind::Pod && lane.name == name;
        // The newest netns of a pod of that name: what ran lately ran for that one.
        let newest = |lane: &&Lane| lane.items.iter().map(|item| item.from.clone()).max();
        let detail = self.found.iter().filter(same).max_by_key(newest);
        let detail = detail.map(|lane| lane.detail.clone()).unwrap_or_default();
        self.lane(LaneKind::Pod, name, &detail)
    }

    fn reservation(&mut self, entry: &IpamEntry) {
        let Some(since) = entry.since.as_deref() else { return };
        let name = self.name(entry.pod.as_ref(), entry.container_id.as_deref());
        let name = if name.is_empty() { text::shown(&entry.key) } else { name };
        let network = text::shown(&entry.network);
        let what = format!("{} reserved in {} {network}", entry.ip, entry.store);
        let item = span(ItemKind::Reservation, since, None, what);
        self.of_owner(&name, entry.container_id.as_deref()).items.push(item);
    }

    fn run(&mut self, run: &PluginRun) {
        let name = self.name(run.pod.as_ref(), run.container_id.as_deref());
        let name = if name.is_empty() { "runs of plugins".to_owned() } else { name };
        let kind = if run.failed() { ItemKind::FailedRun } else { ItemKind::Run };
        let within = run.within.map(|_| " (for another plugin)").unwrap_or_default();
        let what = format!("{} {}{within}", text::shown(&run.command), text::shown(&run.plugin));
        let mut item = span(kind, &run.began, run.ended.as_deref(), what);
        item.ended = match (run.signal, run.status, &run.ended) {
            (Some(signal), ..) => format!("killed by signal {signal}"),
            (None, Some(0), _) => "succeeded".to_owned(),
            (None, Some(status), _) => format!("failed with exit status {status}"),
            (None, None, Some(_)) => "had ended by then, unseen".to_owned(),
            _ => String::new(),
        };
        self.of_owner(&name, run.container_id.as_deref()).items.push(item);
    }

    /// Who is at fault, and what was done to them.
    fn holders(&mut self, finding: &Finding) {
        let over = finding.resolved_at.as_deref();
        for holder in &finding.holders {
            let (kind, what) = match (holder.exiting, holder.state) {
                (Some(true), Some(state)) => (ItemKind::Exiting, format!("exiting, state {state}")),
                (Some(true), None) => (ItemKind::Exiting, "exiting".to_owned()),
                _ => (ItemKind::Hold, "holds the netns".to_owned()),
            };
            let detail = holder.mount_place().map(|place| format!("in {place}"));
            let lane = self.lane(LaneKind::Holder, &holder.words(), &detail.unwrap_or_default());
            if let Some(since) = holder.since.as_deref() {
                let item = span(kind, since, over, what);
                let known = |other: &Item| other.kind == kind && other.from == item.from;
                if !lane.items.iter().any(known) {
                    lane.items.push(item);
                }
            }
        }
        for item in finding.evidence.iter().filter(|item| is_event(finding, item)) {
            let Some(holder) = whose(finding, item) else { continue };
            let kind = if is_signal(item) { ItemKind::Signal } else { ItemKind::Seen };
            let event = moment(kind, &item.at, item.text.clone());
            let detail = holder.mount_place().map(|place| format!("in {place}"));
            let lane = self.lane(LaneKind::Holder, &holder.words(), &detail.unwrap_or_default());
            if !lane.items.contains(&event) {
                lane.items.push(event);
            }
        }
    }

    fn finding(&mut self, finding: &Finding) {
        let over = finding.resolved_at.as_deref();
        let code = finding.code.as_str();
        let mut items = Vec::new();
        let fired = finding.firing_at.as_deref();
        if fired != Some(finding.since.as_str()) {
            let text = "seen once".to_owned();
            items.push(span(ItemKind::Pending, &finding.since, fired.or(over), text));
        }
        if let Some(fired) = fired {
            items.push(span(ItemKind::Firing, fired, over, "fires".to_owned()));
        }
        items.extend(over.map(|at| {
            let text = format!("resolved after {}", text::lasted(&finding.since, at));
            moment(ItemKind::Resolved, at, text)
        }));
        items.extend(
            finding.acked.as_ref().map(|ack| moment(ItemKind::Acked, &ack.at, acknowledged(ack))),
        );
        // What a holder's lane does not tell.
        for item in finding.evidence.iter().filter(|item| is_event(finding, item)) {
            if whose(finding, item).is_none() {
                items.push(moment(ItemKind::Seen, &item.at, item.text.clone()));
            }
        }
        self.lane(LaneKind::Finding, code, &text::subject(&finding.subject)).items.extend(items);
    }

    fn own(&self, finding: &Finding) -> Own {
        let subject = &finding.subject;
        let container = subject.container.as_ref().and_then(|one| one.id.as_deref());
        let mut pods: Vec<String> = subject.pods().map(text::pod).collect();
        pods.push(self.name(subject.pod.as_ref(), container));
        pods.retain(|name| !name.is_empty());
        Own {
            pods,
            holders: finding.holders.iter().map(Holder::words).collect(),
            code: finding.code.as_str(),
            subject: text::subject(subject),
        }
    }

    fn finish(self, own: &[Own]) -> Timeline {
        let mut timeline = Timeline { lanes: self.found, ..Timeline::default() };
        for lane in &mut timeline.lanes {
            lane.items.sort_by(|a, b| (&a.from, a.kind).cmp(&(&b.from, b.kind)));
            if lane.items.len() > MOST_ITEMS {
                let too_many = lane.items.len() - MOST_ITEMS;
                lane.items.drain(1..=too_many);
                timeline.omitted += too_many;
            }
        }
        timeline.lanes.retain(|lane| !lane.items.is_empty());
        // Of those that matter as much, the oldest stay: what came first may be why the others came.
        let order = |lane: &Lane| (lane.kind, rank(lane, own), lane.items[0].from.clone());
        timeline.lanes.sort_by_key(order);
        let (mut kind, mut nth) = (LaneKind::Pod, 0);
        let all = timeline.lanes.len();
        timeline.lanes.retain(|lane| {
            nth = if lane.kind == kind { nth + 1 } else { 1 };
            kind = lane.kind;
            let most = if rank(lane, own) == Rank::Own { MOST_OWN_LANES } else { MOST_LANES };
            nth <= most
        });
        timeline.lanes_omitted = all - timeline.lanes.len();
        timeline.lanes.sort_by_key(|lane| (lane.kind, lane.items[0].from.clone()));
        timeline
    }
}

fn place(netns: &Netns) -> String {
    match text::netns(netns) {
        name if name.is_empty() => String::new(),
        name => format!("netns {name}"),
    }
}

/// Signals begin so, as `detect::ip_held_by_stuck_process` tells them.
fn is_signal(item: &Evidence) -> bool {
    item.text.starts_with("SIG")
}

/// Whom an item of proof tells of: the holder whose pid it names, and of a signal, which was sent to the one that is on
/// its way out.
fn whose<'a>(finding: &'a Finding, item: &Evidence) -> Option<&'a Holder> {
    let names = |holder: &&Holder| {
        let pid = holder.pid.map(|pid| format!("pid {pid} "));
        pid.is_some_and(|pid| item.text.starts_with(&pid))
    };
    let leaving = |holder: &&Holder| holder.exiting == Some(true);
    let named = finding.holders.iter().find(names);
    let signalled = || finding.holders.iter().find(leaving).or(finding.holders.first());
    if is_signal(item) { signalled() } else { named }
}

/// Whether an item of proof tells of something that happened, and not of how it looked when it was last seen.
fn is_event(finding: &Finding, item: &Evidence) -> bool {
    item.at < finding.last_seen
}
