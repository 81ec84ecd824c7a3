//! The card of one address.

use crate::cli::table::{Paint, Style};
use crate::cli::text::{self, ShortIds};
use crate::cli::view::View;
use crate::contract::{Address, Container, Holder, Neighbour, Pod};
use crate::escape::escape;
use crate::finding::{Finding, Status};

/// Maximum number of holders with a line of their own.
const MOST_HOLDERS: usize = 8;

/// The card of a netns's address, for `explain`. Unknown lines are left out.
pub(in crate::cli) fn render(address: &Address, view: View) -> String {
    let mut card = Card::new(view.paint);
    let ip = address
        .ip
        .map_or_else(|| format!("netns {}", text::netns(&address.netns)), |ip| ip.to_string());
    let (verdict, style) = verdict_on(address);
    card.title(&ip, verdict, style);
    card.address(address, view);
    card.findings(address.findings.iter().map(String::as_str), &[], view);
    card.out
}

/// The verdict on an IP that is up in exactly one netns.
pub(super) fn verdict_on(address: &Address) -> (&'static str, Style) {
    match address.netns.state.as_deref() {
        _ if !address.findings.is_empty() => ("HELD: unsafe to hand out", Style::Red),
        Some("host") => ("the node's own", Style::Plain),
        Some("dying") => ("being torn down", Style::Yellow),
        _ => ("IN USE", Style::Plain),
    }
}

/// Lines with a label each.
pub(super) struct Card {
    pub(super) out: String,
    paint: Paint,
}

impl Card {
    pub(super) fn new(paint: Paint) -> Self {
        Self { out: String::new(), paint }
    }

    pub(super) fn title(&mut self, what: &str, verdict: &str, style: Style) {
        let (what, verdict) =
            (self.paint.paint(Style::Bold, what), self.paint.paint(style, verdict));
        self.out.push_str(&format!("{what}   {verdict}\n"));
    }

    /// Where the IP is up, and its holders.
    pub(super) fn address(&mut self, address: &Address, view: View) {
        self.line("kernel", &kernel(address, view));
        for holder in address.holders.iter().take(MOST_HOLDERS) {
            self.line("holder", &holding(holder, view));
        }
        let more = address.holders.len().checked_sub(MOST_HOLDERS).filter(|more| *more > 0);
        if let Some(more) = more {
            self.line("", &format!("{more} more (-o json shows all)"));
        }
        self.line("pod", &address.pod.as_ref().map(pod).unwrap_or_default());
        let container = address.container.as_ref().map(container).unwrap_or_default();
        self.line("runtime", &container);
        self.line("ipam", &ipam(address));
    }

    /// The findings with these ids. `open` has all open findings, from which ids are shortened.
    pub(super) fn findings<'a>(
        &mut self,
        ids: impl Iterator<Item = &'a str> + Clone,
        open: &'a [Finding],
        view: View,
    ) {
        let short =
            ShortIds::new(open.iter().map(|finding| finding.id.as_str()).chain(ids.clone()));
        for id in ids {
            let finding = open.iter().find(|finding| finding.id == *id);
            self.line("finding", &verdict(short.get(id), finding, view));
        }
    }

    pub(super) fn line(&mut self, label: &str, text: &str) {
        if !text.is_empty() {
            let label = self.paint.paint(Style::Dim, &format!("{label:<8}")).into_owned();
            self.out.push_str(&format!("{label} {}\n", escape(text)));
        }
    }
}

fn kernel(address: &Address, view: View) -> String {
    let netns = &address.netns;
    let mut parts = vec![format!("netns {}", text::netns(netns))];
    if let Some(path) = &netns.path {
        parts.push(format!("({})", text::shown(path)));
    }
    if let Some(interface) = &address.interface {
        parts.push(interface.name.clone().unwrap_or_else(|| format!("device {}", interface.index)));
        parts.extend(interface.mac.map(|mac| mac.to_string()));
        parts.extend(interface.master.as_ref().map(|master| format!("of {master}")));
    }
    let age = view.up(address);
    let up = if age.is_empty() { String::new() } else { format!(", up {age}") };
    parts.join(" ") + &up
}

/// A holder and its state.
pub(super) fn holding(holder: &Holder, view: View) -> String {
    let mut text = holder.words();
    if let Some(place) = holder.mount_place() {
        text.push_str(&format!(" in {place}"));
    }
    let age = view.now.age(holder.since.as_deref());
    match (holder.exiting, age.as_str()) {
        (Some(true), "") => text.push_str(", exiting"),
        (Some(true), age) => text.push_str(&format!(", exiting for {age}")),
        _ => {}
    }
    if let Some(state) = holder.state {
        text.push_str(&format!(", state {state}"));
    }
    text
}

/// A pod, and what its runtime says of its sandbox.
pub(in crate::cli) fn pod(of: &Pod) -> String {
    let mut parts = vec![text::pod(of)];
    // If a pod has only a uid, that is already its name.
    let uid = of.uid.as_deref().filter(|_| of.name.is_some());
    parts.extend(uid.map(|uid| format!("uid {}", text::cut(uid, 8))));
    let state = of.state.as_ref().map(|state| format!(", sandbox {}", text::shown(state)));
    let attempt = of.attempt.map(|attempt| format!(", attempt {attempt}"));
    parts.join(" ") + &state.unwrap_or_default() + &attempt.unwrap_or_default()
}

/// A container, and what its runtime says of it.
pub(in crate::cli) fn container(of: &Container) -> String {
    let id = of.id.as_deref().filter(|_| of.name.is_some()).map(|id| text::cut(id, 12));
    let runtime = of.runtime.as_deref().map(|runtime| format!(" of {runtime}"));
    let state = of.state.as_deref().map(|state| format!(", {}", text::shown(state)));
    let id = id.map(|id| format!(" {id}")).unwrap_or_default();
    format!(
        "{}{id}{}{}",
        text::container(of),
        runtime.unwrap_or_default(),
        state.unwrap_or_default()
    )
}

/// The reservation.
pub(super) fn ipam(address: &Address) -> String {
    let Some(reservation) = &address.reservation else { return String::new() };
    let network = reservation.network.as_deref().map(|network| format!(" {network}"));
    let container = reservation.container_id.as_deref().map(|id| text::cut(id, 12));
    let pod = reservation.pod.as_ref().map(text::pod).filter(|pod| !pod.is_empty());
    let holder = match (pod, container) {
        (Some(pod), Some(container)) => format!(" for {pod} ({container})"),
        (Some(pod), None) => format!(" for {pod}"),
        (None, Some(container)) => format!(" for {container}"),
        (None, None) => String::new(),
    };
    format!("{}{} reserves it{holder}", reservation.store, network.unwrap_or_default())
}

pub(super) fn entry(neighbour: &Neighbour, view: View) -> String {
    let mut parts = vec![neighbour.state.clone()];
    parts.extend(neighbour.mac.map(|mac| mac.to_string()));
    let device = neighbour.interface.name.clone();
    parts.push(format!(
        "on {} of netns {}",
        device.unwrap_or_else(|| format!("device {}", neighbour.interface.index)),
        text::netns(&neighbour.netns)
    ));
    let age = view.now.age(neighbour.since.as_deref());
    if !age.is_empty() {
        parts.push(format!("for {age}"));
    }
    parts.join(" ")
}

/// A finding in a few words.
pub(super) fn verdict(short: &str, finding: Option<&Finding>, view: View) -> String {
    let Some(finding) = finding else { return format!("{short} (ipwatch explain {short})") };
    let pending = if finding.status == Status::Pending { " pending" } else { "" };
    let severity = text::severity(finding.severity).to_lowercase();
    let age = view.now.age(Some(&finding.since));
    format!("{short} {severity}{pending} {} for {age} (ipwatch explain {short})", finding.code)
}

#[cfg(test)]
mod tests {
    use super::super::ip::{self, Around};
    use super::super::{plain, sample};
    use super::*;
    use crate::contract::Body;

    fn address(name: &str, at: usize) -> (Address, View) {
        let document = sample(name);
        let view = plain(&document);
        let Body::Addresses(mut list) = document.body else { panic!("addresses") };
        (list.swap_remove(at), view)
    }

    #[test]
    fn all_that_is_known_and_not_a_line_more() {
        let (address, view) = address("query-ip.json", 0);
        let Body::Findings(findings) = sample("scan.json").body else { panic!("findings") };
        let Body::Neighbours(mut neighbours) = sample("query-neigh.json").body else {
            panic!("neighbours")
        };
        neighbours.truncate(1);
        let around = Around { neighbours, findings, ..Around::default() };
        let text = ip::render(address.ip.unwrap(), &[address], &around, view);
        let expected = "\
10.0.3.17   HELD: unsafe to hand out
kernel   netns 4026532177 (/run/netns/cni-7f3a11c2-0b8e-4d07-9a57-2d1f6a9c0e44) eth0 0a:58:0a:00:03:11, up 6d
holder   pid 640 pause
holder   pid 812 java, exiting for 5m, state D
pod      shop/api-0 uid 7f3a2c1e, sandbox NotReady, attempt 3
runtime  api 7f3a91c26e0b of containerd, Running
neigh    REACHABLE 0a:58:0a:00:03:11 on cni0 of netns host for 30s
finding  k3f9 warn ip-held-by-stuck-process for 5m (ipwatch explain k3f9)
";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_was_up_when_ipwatch_first_looked_is_at_least_as_old() {
        let (address, view) = address("query-ip.json", 0);
        let line = |preexisting, ascii| {
            kernel(&Address { preexisting, ..address.clone() }, View { ascii, ..view })
        };
        assert!(line(false, false).ends_with(", up 6d"));
        assert!(line(true, false).ends_with(", up ≥6d"));
        assert!(line(true, true).ends_with(", up >=6d"));
    }

    /// Whereabouts' podref says more to people than the container that only the runtime knows.
    #[test]
    fn a_reservation_is_for_the_pod_that_its_store_names() {
        let (mut address, _) = address("query-netns.json", 3);
        let reservation = address.reservation.as_mut().unwrap();
        reservation.pod = Some(crate::contract::Pod {
            namespace: Some("shop".into()),
            name: Some("db-1".into()),
            ..Default::default()
        });
        let line = |address: &Address| ipam(address);
        assert_eq!(line(&address), "host-local cbr0 reserves it for shop/db-1 (b1946ac92492)");
        address.reservation.as_mut().unwrap().container_id = None;
        assert_eq!(line(&address), "host-local cbr0 reserves it for shop/db-1");
    }

    #[test]
    fn every_kind_of_holder_has_its_words() {
        let (address, view) = address("query-netns.json", 3);
        let text = render(&address, view);
        for part in [
            "10.0.3.23   IN USE",
            "holder   pid 2204 thread 2207 worker, state S",
            "holder   pid 2204 thread 2209 worker, exiting for 20s, state D",
            "holder   mount /run/netns/cni-aa10 in the mount namespace of pid 1840 node-agent",
            "holder   fd 14 of pid 1977 node-agent",
            "holder   socket fd 15 of pid 1977 node-agent",
            "holder   socket tcp 10.0.3.23:443 → 10.0.9.9:51234 FIN-WAIT-1 of no process",
            "ipam     host-local cbr0 reserves it for b1946ac92492",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("pod ") && !text.contains("finding"), "{text}");
    }

    #[test]
    fn hostile_names_are_shown_escaped() {
        let (mut address, view) = address("query-ip.json", 0);
        address.holders[0].comm = Some("\u{1b}]0;x\u{7}\nholder   pid 1 init".into());
        let text = render(&address, view);
        assert!(text.contains("\\x1b]0;x\\x07\\x0aholder"), "{text}");
    }
}
