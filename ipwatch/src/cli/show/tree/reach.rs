//! What an address shares its link with, as branches: one for each bridge, parent or router.

use super::Node;
use crate::cli::table::Style;
use crate::cli::text;
use crate::contract::{Interface, Member, Segment, SegmentKind};

pub(super) fn nodes(reach: &[Segment]) -> Vec<Node> {
    if reach.is_empty() {
        return vec![Node::leaf("shares its link with nobody known")];
    }
    reach.iter().map(node).collect()
}

fn node(segment: &Segment) -> Node {
    let netns = text::netns(&segment.netns);
    let title = match (segment.kind, &segment.interface) {
        (SegmentKind::Link, Some(interface)) => {
            let kind = interface.kind.as_deref().unwrap_or("device");
            format!("link {kind} {} in netns {netns}", name(interface))
        }
        (SegmentKind::Link, None) => "link".to_owned(),
        (SegmentKind::Router, _) => format!("router netns {netns}"),
    };
    let below = segment.members.iter().map(member).collect();
    Node { text: title, below, ..Node::default() }
}

fn member(member: &Member) -> Node {
    let owner = text::owner(member.pod.as_ref(), member.container.as_ref());
    let netns = format!("netns {}", text::netns(&member.netns));
    let owner = if owner.is_empty() { netns } else { format!("{owner}, {netns}") };
    let ips: Vec<String> = member.ips.iter().map(ToString::to_string).collect();
    let ips = if ips.is_empty() { "no address".to_owned() } else { ips.join(", ") };
    let mac = member.interface.mac.map(|mac| format!(" {mac}")).unwrap_or_default();
    let line = format!("{ips} on {}{mac} of {owner}", name(&member.interface));
    if member.same_ip {
        Node::styled(format!("{line}: THE SAME IP"), Style::Red)
    } else {
        Node::leaf(line)
    }
}

fn name(interface: &Interface) -> String {
    interface.name.clone().unwrap_or_else(|| format!("device {}", interface.index))
}
