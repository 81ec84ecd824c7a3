//! Addresses as trees, one for each netns: its addresses and holders.
//!
//! The title of a tree is the pod or container that owns the netns, if known; its branches are addresses, holders and
//! findings. Text that a container chose is escaped. A line that is too long for the terminal is wrapped without
//! breaking the drawing.

mod reach;

use unicode_width::UnicodeWidthStr;

use super::card;
use crate::cli::table::Style;
use crate::cli::text::{self, ShortIds};
use crate::cli::view::View;
use crate::contract::{Address, Holder, HolderKind, Netns};
use crate::escape::escape;
use crate::finding::{Finding, Severity};

/// The trees of these addresses. `findings`: the open findings, because addresses have only their ids.
pub(in crate::cli) fn render(addresses: &[Address], findings: &[Finding], view: View) -> String {
    let named = addresses.iter().flat_map(|address| &address.findings);
    let open = findings.iter().map(|finding| &finding.id);
    let told = Forest { findings, ids: ShortIds::new(open.chain(named).map(String::as_str)), view };
    let trees: Vec<String> =
        by_netns(addresses).iter().map(|group| draw(&told.netns(group), view)).collect();
    trees.join("\n")
}

/// The addresses grouped by netns, in the order of the netns.
fn by_netns(addresses: &[Address]) -> Vec<Vec<&Address>> {
    let mut groups: Vec<Vec<&Address>> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for address in addresses {
        let Netns { cookie, inode, nsid, .. } = address.netns;
        // The cookie alone identifies a netns; without a cookie, inode and nsid do.
        let key = cookie.map_or((None, inode, nsid), |cookie| (Some(cookie), None, None));
        let place = *places.entry(key).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(address),
            None => groups.push(vec![address]),
        }
    }
    groups
}

/// A line and the nodes below it.
#[derive(Debug, Default)]
struct Node {
    text: String,
    style: Style,
    below: Vec<Node>,
}

impl Node {
    fn leaf(text: impl Into<String>) -> Self {
        Self::styled(text, Style::Plain)
    }

    fn styled(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style, below: Vec::new() }
    }
}

/// What the lines are made from.
struct Forest<'a> {
    findings: &'a [Finding],
    ids: ShortIds,
    view: View,
}

impl Forest<'_> {
    /// The tree of one netns.
    fn netns(&self, group: &[&Address]) -> Node {
        let Some(first) = group.first() else { return Node::default() };
        let dying = first.netns.state.as_deref() == Some("dying");
        let style = if dying { Style::Yellow } else { Style::Bold };
        let mut root = Node::styled(title(first), style);
        if let (Some(_), Some(container)) = (&first.pod, &first.container) {
            root.below.push(Node::leaf(format!("container {}", card::container(container))));
        }
        // Every netns has a loopback and link-local addresses: they are shown only if there is no other, or with `--all`.
        let local = |address: &Address| address.ip.is_some_and(text::is_local);
        let all = self.view.all || group.iter().all(|address| local(address));
        let shown = group.iter().filter(|address| all || !local(address));
        root.below.extend(shown.map(|address| self.address(address)));
        root.below.extend(self.holders(&first.holders));
        if first.holders.is_empty() && first.netns.state.is_none() {
            root.below.push(Node::leaf("no holder is known"));
        }
        let mut ids: Vec<&str> =
            group.iter().flat_map(|address| &address.findings).map(String::as_str).collect();
        ids.sort_unstable();
        ids.dedup();
        root.below.extend(ids.iter().map(|id| self.finding(id)));
        root
    }

    fn address(&self, address: &Address) -> Node {
        let Some(ip) = address.ip else { return Node::leaf("no address") };
        let len = address.prefix_len.map(|len| format!("/{len}")).unwrap_or_default();
        let mut text = format!("{ip}{len}");
        if let Some(interface) = &address.interface {
            let name = interface.name.clone();
            text.push_str(" on ");
            text.push_str(&name.unwrap_or_else(|| format!("device {}", interface.index)));
            if let Some(mac) = interface.mac {
                text.push_str(&format!(" {mac}"));
            }
        }
        let age = self.view.up(address);
        if !age.is_empty() {
            text.push_str(&format!(", up {age}"));
        }
        let mut node = Node::leaf(text);
        let ipam = card::ipam(address);
        if !ipam.is_empty() {
            node.below.push(Node::leaf(ipam));
        }
        let reach = address.reach.as_deref().map(reach::nodes);
        node.below.extend(reach.into_iter().flatten());
        node
    }

    /// Threads are placed under their process, even if only the threads are in the netns.
    fn holders(&self, holders: &[Holder]) -> Vec<Node> {
        let mut nodes: Vec<(Option<u32>, Node)> = Vec::new();
        let (threads, others): (Vec<&Holder>, Vec<&Holder>) =
            holders.iter().partition(|holder| holder.kind == HolderKind::Thread);
        for holder in others {
            let pid = holder.pid.filter(|_| holder.kind == HolderKind::Process);
            nodes.push((pid, self.holder(holder)));
        }
        for thread in threads {
            let own = nodes.iter_mut().find(|(pid, _)| pid.is_some() && *pid == thread.pid);
            match own {
                Some((_, process)) => process.below.push(self.holder(thread)),
                None => {
                    let pid = thread.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
                    let mut process = Node::leaf(format!("pid {pid}, by its threads alone"));
                    process.below.push(self.holder(thread));
                    nodes.push((thread.pid, process));
                }
            }
        }
        nodes.into_iter().map(|(_, node)| node).collect()
    }

    fn holder(&self, holder: &Holder) -> Node {
        let style = if holder.exiting == Some(true) { Style::Yellow } else { Style::Plain };
        let text = card::holding(holder, self.view);
        match (holder.kind, holder.pid) {
            // Its process is the node above.
            (HolderKind::Thread, Some(pid)) => {
                let own = text.strip_prefix(&format!("pid {pid} ")).unwrap_or(&text);
                Node::styled(own, style)
            }
            _ => Node::styled(text, style),
        }
    }

    fn finding(&self, id: &str) -> Node {
        let known = self.findings.iter().find(|finding| finding.id == id);
        let style = match known.map(|finding| finding.severity) {
            Some(Severity::Critical) => Style::Red,
            _ => Style::Yellow,
        };
        let verdict = card::verdict(self.ids.get(id), known, self.view);
        Node::styled(format!("finding {verdict}"), style)
    }
}

/// The owner of the netns, the runtime's state of it, and the netns.
fn title(address: &Address) -> String {
    let mut parts = vec![text::owner_first(address.pod.as_ref(), address.container.as_ref())];
    match (&address.pod, &address.container) {
        (Some(pod), _) => {
            let attempt = pod.attempt.map(|attempt| format!("attempt {attempt}"));
            let state = pod.state.as_ref().map(|state| format!("sandbox {state}"));
            let runtime: Vec<String> = state.into_iter().chain(attempt).collect();
            parts.push(runtime.join(", "));
        }
        (None, Some(container)) => parts.push(container.state.clone().unwrap_or_default()),
        (None, None) => {}
    }
    let path = address.netns.path.as_deref().map(|path| format!(" ({})", text::shown(path)));
    parts.push(format!("netns {}{}", text::netns(&address.netns), path.unwrap_or_default()));
    if address.netns.state.as_deref() == Some("dying") {
        parts.push("being torn down".to_owned());
    }
    parts.retain(|part| !part.is_empty());
    parts.join("   ")
}

/// The parts of the drawing, all of the same width.
#[derive(Debug, Clone, Copy)]
struct Guides {
    branch: &'static str,
    last: &'static str,
    bar: &'static str,
}

const GAP: &str = "   ";
const BOXES: Guides = Guides { branch: "├─ ", last: "└─ ", bar: "│  " };
const ASCII: Guides = Guides { branch: "|- ", last: "`- ", bar: "|  " };

fn draw(root: &Node, view: View) -> String {
    let guides = if view.ascii { ASCII } else { BOXES };
    let mut out = String::new();
    line(&mut out, root, ("", ""), guides, view);
    branches(&mut out, &root.below, "", guides, view);
    out
}

fn branches(out: &mut String, nodes: &[Node], lead: &str, guides: Guides, view: View) {
    for (at, node) in nodes.iter().enumerate() {
        let (first, rest) =
            if at + 1 == nodes.len() { (guides.last, GAP) } else { (guides.branch, guides.bar) };
        let (first, rest) = (format!("{lead}{first}"), format!("{lead}{rest}"));
        line(out, node, (&first, &rest), guides, view);
        branches(out, &node.below, &rest, guides, view);
    }
}

/// Draws a node after `first`: on one line, or on several if the terminal requires it.
fn line(out: &mut String, node: &Node, (first, rest): (&str, &str), guides: Guides, view: View) {
    // Continuation lines leave room for the bar that leads to the nodes below.
    let hang = if node.below.is_empty() { GAP } else { guides.bar };
    let room = view
        .width
        .map(|width| width.saturating_sub(rest.width() + hang.width()).max(text::NARROWEST));
    let on = text::continued(view.ascii);
    let room = room.map(|room| room.saturating_sub(on.width()));
    for (at, part) in text::wrapped(&escape(&node.text), room).into_iter().enumerate() {
        let lead = if at == 0 { first.to_owned() } else { format!("{rest}{hang}{on}") };
        out.push_str(&format!("{lead}{}\n", view.paint.paint(node.style, part)));
    }
}

#[cfg(test)]
mod tests;
