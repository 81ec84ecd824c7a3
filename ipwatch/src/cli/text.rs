//! Short forms for people: ages, ids, names.

use std::collections::HashMap;
use std::net::IpAddr;

use jiff::Timestamp;
use unicode_width::UnicodeWidthStr;

use crate::contract::{
    Address, ClusterFinding, Container, Document, FixItem, FixTarget, Holder, Netns, Pod,
    SourceState,
};
use crate::fact::SourceStatus;
use crate::finding::{Severity, Subject};
use crate::remedy::said;

/// Minimum width for wrapping, for a deep branch in a narrow terminal.
pub(super) const NARROWEST: usize = 24;
/// Minimum length of a shortened id.
const SHORTEST_ID: usize = 4;

/// The time of the document: ages are relative to it, so that the same document always has the same text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now(Option<Timestamp>);

impl Now {
    pub(super) fn of(document: &Document) -> Self {
        Self::at(&document.taken_at)
    }

    pub(super) fn at(date: &str) -> Self {
        Self(date.parse().ok())
    }

    /// The time since a date; empty if either date is unknown.
    pub(super) fn age(self, since: Option<&str>) -> String {
        let since = since.and_then(|date| date.parse::<Timestamp>().ok());
        match (self.0, since) {
            (Some(now), Some(since)) => span(now.duration_since(since).as_secs()),
            _ => String::new(),
        }
    }

    /// The time of day (UTC) if the date is on the document's day, else date and time.
    pub(super) fn clock(self, date: &str) -> String {
        let Ok(stamp) = date.parse::<Timestamp>() else { return date.to_owned() };
        let same_day = self
            .0
            .is_some_and(|now| now.strftime("%F").to_string() == stamp.strftime("%F").to_string());
        let format = if same_day { "%TZ" } else { "%F %TZ" };
        stamp.strftime(format).to_string()
    }
}

/// The duration between two dates.
pub(super) fn lasted(from: &str, to: &str) -> String {
    Now::at(to).age(Some(from))
}

/// A duration in its largest unit.
pub(super) fn span(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    match seconds.max(0) {
        s @ 0..MINUTE => format!("{s}s"),
        s if s < HOUR => format!("{}m", s / MINUTE),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s => format!("{}d", s / DAY),
    }
}

/// Ids shortened to a prefix that is unique among them.
#[derive(Debug, Default)]
pub(super) struct ShortIds(HashMap<String, String>);

impl ShortIds {
    pub(super) fn new<'a>(ids: impl IntoIterator<Item = &'a str>) -> Self {
        let mut ids: Vec<&str> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        let common =
            |a: &str, b: &str| a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
        let short = |at: usize, id: &str| {
            // Among sorted ids the most similar are neighbours.
            let before = at.checked_sub(1).map_or(0, |before| common(id, ids[before]));
            let after = ids.get(at + 1).map_or(0, |after| common(id, after));
            id.chars().take(SHORTEST_ID.max(before.max(after) + 1)).collect()
        };
        Self(ids.iter().enumerate().map(|(at, id)| ((*id).to_owned(), short(at, id))).collect())
    }

    /// The short form; an unknown id is returned whole.
    pub(super) fn get<'a>(&'a self, id: &'a str) -> &'a str {
        self.0.get(id).map_or(id, String::as_str)
    }
}

/// A name that others chose, for use within a line: quoted unless it is one plain word.
pub(super) fn shown(name: &str) -> String {
    if name.is_empty() { String::new() } else { said(name) }
}

/// `shop/api-0`, or as much of it as is known.
pub(super) fn pod(pod: &Pod) -> String {
    match (&pod.namespace, &pod.name, &pod.uid) {
        (Some(namespace), Some(name), _) => said(&format!("{namespace}/{name}")),
        (None, Some(name), _) => shown(name),
        (_, None, Some(uid)) => format!("uid {}", shown(cut(uid, 12))),
        _ => String::new(),
    }
}

/// The entry that a finding of the cluster is about.
pub(crate) fn cluster_name(finding: &ClusterFinding) -> String {
    let object = finding.object.as_deref().unwrap_or_default();
    let offset = finding.offset.as_ref().map(|offset| format!("/{offset}")).unwrap_or_default();
    let ip = finding.ip.map(|ip| ip.to_string()).unwrap_or_default();
    let named = if object.is_empty() {
        names(&finding.nodes)
    } else {
        object_of(&format!("{object}{offset}"))
    };
    [finding.code.clone(), ip, named]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Several names, each as by [`shown`].
pub(super) fn names(names: &[String]) -> String {
    names.iter().map(|name| shown(name)).collect::<Vec<_>>().join(" ")
}

/// An object of the cluster, `KIND NAMESPACE/NAME`; kind and name each as by [`shown`].
pub(super) fn object_of(object: &str) -> String {
    match object.split_once(' ') {
        Some((kind, name)) => format!("{} {}", shown(kind), shown(name)),
        None => shown(object),
    }
}

/// A container's name, else its short id.
pub(super) fn container(container: &Container) -> String {
    match (&container.name, &container.id) {
        (Some(name), _) => shown(name),
        (None, Some(id)) => shown(cut(id, 12)),
        _ => String::new(),
    }
}

/// The pod that owns an address, else the container.
pub(super) fn owner(pod_of: Option<&Pod>, container_of: Option<&Container>) -> String {
    let named = pod_of.map(pod).filter(|name| !name.is_empty());
    named.or_else(|| container_of.map(container)).unwrap_or_default()
}

/// The owner at the beginning of a line: prefixed for a container, whose name alone could be the name of a program.
pub(super) fn owner_first(pod_of: Option<&Pod>, container_of: Option<&Container>) -> String {
    let owner = owner(pod_of, container_of);
    let is_pods = pod_of.map(pod).is_some_and(|name| !name.is_empty());
    if is_pods || owner.is_empty() { owner } else { format!("container {owner}") }
}

/// The state of the sandbox, else of the container, as the runtime reports it.
pub(super) fn state<'a>(pod_of: Option<&'a Pod>, container_of: Option<&'a Container>) -> &'a str {
    let sandbox = pod_of.and_then(|pod| pod.state.as_deref());
    sandbox.or_else(|| container_of.and_then(|of| of.state.as_deref())).unwrap_or_default()
}

/// The usual name of a netns: `host`, else the number in `net:[…]`.
pub(super) fn netns(netns: &Netns) -> String {
    match netns {
        Netns { state: Some(state), .. } if state == "host" => "host".to_owned(),
        Netns { inode: Some(inode), .. } => inode.to_string(),
        Netns { cookie: Some(cookie), .. } => format!("cookie:{cookie}"),
        Netns { nsid: Some(nsid), .. } => format!("nsid:{nsid}"),
        _ => String::new(),
    }
}

/// The first holder, preferring one that is exiting, and the number of others. Candidates are no holders.
pub(super) fn holders(list: &[Holder]) -> String {
    let first = list.iter().find(|holder| holder.exiting == Some(true)).or(list.first());
    let count = list.iter().filter(|holder| !holder.is_candidate()).count();
    match (first, count) {
        (None, _) => String::new(),
        (Some(first), 1) => first.words(),
        (Some(first), n) => format!("{} +{}", first.words(), n - 1),
    }
}

/// The subject of a finding, in one word.
pub(super) fn subject(subject: &Subject) -> String {
    if let Some(ip) = subject.ip {
        return ip.to_string();
    }
    let owner = owner(subject.pod.as_ref(), subject.container.as_ref());
    if !owner.is_empty() {
        return owner;
    }
    match (&subject.netns, &subject.network) {
        (Some(of), _) => format!("netns {}", netns(of)),
        (None, Some(network)) => match subject.several() {
            Some(count) => format!("{}, {count} IPs", shown(network)),
            None => shown(network),
        },
        _ => String::new(),
    }
}

/// The severity in tables.
pub(super) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "INFO",
        Severity::Warning => "WARN",
        Severity::Critical => "CRIT",
    }
}

/// The status of a source.
pub(super) fn status(status: SourceStatus) -> &'static str {
    match status {
        SourceStatus::Active => "active",
        SourceStatus::Degraded => "degraded",
        SourceStatus::Down => "down",
        SourceStatus::Disabled => "disabled",
    }
}

/// The sources that are degraded or down.
pub(super) fn blind_spots(document: &Document) -> impl Iterator<Item = &SourceState> {
    let blind = |status| matches!(status, SourceStatus::Degraded | SourceStatus::Down);
    document.sources.iter().filter(move |source| blind(source.status))
}

/// These sources in a few words, the worst last: `cni degraded, netlink down`. `doctor` shows the reasons.
pub(super) fn blind_names(document: &Document) -> String {
    blind_names_of(document, |_| true)
}

/// Like `blind_names`, for the selected sources.
fn blind_names_of(document: &Document, wanted: impl Fn(&str) -> bool) -> String {
    let mut blind: Vec<&SourceState> =
        blind_spots(document).filter(|source| wanted(&source.name)).collect();
    blind.sort_by_key(|source| source.status == SourceStatus::Down);
    let names: Vec<String> =
        blind.iter().map(|source| format!("{} {}", source.name, status(source.status))).collect();
    names.join(", ")
}

/// The message that something does not exist, and what to do. If a source that would report it is blind, the message
/// says that this is not proof.
pub(super) fn not_there(
    what: &str,
    next: &str,
    document: &Document,
    tells: impl Fn(&str) -> bool,
) -> String {
    match blind_names_of(document, tells).as_str() {
        "" => format!("{what}: {next}"),
        blind => format!("{what} (incomplete: {blind}): see `ipwatch doctor`"),
    }
}

/// The name of an address for `-o name`: its IP, or its netns.
pub(super) fn address_name(address: &Address) -> String {
    match address.ip {
        Some(ip) => ip.to_string(),
        None => format!("netns/{}", netns(&address.netns)),
    }
}

/// What an item of `fix` is about: an IP, a path, a device.
pub(super) fn fix_name(item: &FixItem) -> String {
    match &item.target {
        FixTarget::FreeReservation { ip, .. } | FixTarget::FreeAllocation { ip, .. } => {
            ip.to_string()
        }
        FixTarget::UnmountNetns { path, .. } => path.clone(),
        FixTarget::DeletePair { interface, .. } => {
            interface.name.clone().unwrap_or_else(|| format!("ifindex:{}", interface.index))
        }
        FixTarget::Nothing { about } => about.clone(),
    }
}

/// `1 finding`, `3 findings`.
pub(super) fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// The first `length` characters.
pub(super) fn cut(text: &str, length: usize) -> &str {
    text.char_indices().nth(length).map_or(text, |(end, _)| &text[..end])
}

/// Wraps `text` at spaces into lines of at most `room` columns. A longer word stays whole, so that a path or a name
/// can be copied. So does a quotation: a part of it would be outside its quotes.
pub(super) fn wrapped(text: &str, room: Option<usize>) -> Vec<&str> {
    let Some(room) = room else { return vec![text] };
    let part = |from: usize, to: usize| text[from..to].trim_matches(' ');
    let mut lines = Vec::new();
    let (mut start, mut end) = (0, 0);
    for word in text.split_inclusive(' ') {
        let next = end + word.len();
        let quoted = text[..end].matches('"').count() % 2 == 1;
        if part(start, next).width() > room && !part(start, end).is_empty() && !quoted {
            lines.push(part(start, end));
            start = end;
        }
        end = next;
    }
    lines.push(part(start, end));
    lines
}

/// The lead of a line that continues another: it must not begin with foreign text, because it may be pasted alone.
pub(super) fn continued(ascii: bool) -> &'static str {
    if ascii { "... " } else { "… " }
}

/// Whether an address exists in every netns, and says nothing about any.
pub(super) fn is_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    }
}

/// Our own signs in ASCII, for a locale without UTF-8.
pub(super) fn in_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '·' => out.push('-'),
            '…' => out.push_str("..."),
            '→' => out.push_str("->"),
            '≥' => out.push_str(">="),
            '×' => out.push('x'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::HolderKind;

    #[test]
    fn our_own_signs_have_a_form_in_ascii() {
        assert_eq!(in_ascii("a · b… ≥6m →"), "a - b... >=6m ->");
        assert_eq!(in_ascii("é"), "é", "a name is another's");
    }

    #[test]
    fn ages_as_people_say_them() {
        let now = Now::at("2026-01-02T03:10:10.000Z");
        for (since, age) in [
            ("2026-01-02T03:10:10.900Z", "0s"),
            ("2026-01-02T03:10:01.000Z", "9s"),
            ("2026-01-02T03:04:05.000Z", "6m"),
            ("2026-01-01T03:04:05.000Z", "24h"),
            ("2025-12-27T01:00:00.000Z", "6d"),
            ("garbage", ""),
        ] {
            assert_eq!(now.age(Some(since)), age, "{since}");
        }
        assert_eq!(now.age(None), "");
        assert_eq!(lasted("2026-01-02T02:58:00.120Z", "2026-01-02T03:05:00.000Z"), "6m");
    }

    #[test]
    fn times_of_another_day_carry_their_date() {
        let now = Now::at("2026-01-02T03:10:10.000Z");
        assert_eq!(now.clock("2026-01-02T03:04:11.190Z"), "03:04:11Z");
        assert_eq!(now.clock("2025-12-27T01:00:00.000Z"), "2025-12-27 01:00:00Z");
        assert_eq!(now.clock("garbage"), "garbage");
    }

    #[test]
    fn ids_are_as_short_as_they_can_be() {
        let ids = ShortIds::new(["k3f9aaaa", "k3f9abcd", "p81czzzz", "k3f9aaaa"]);
        assert_eq!(ids.get("p81czzzz"), "p81c");
        assert_eq!(ids.get("k3f9aaaa"), "k3f9aa");
        assert_eq!(ids.get("k3f9abcd"), "k3f9ab");
        assert_eq!(ids.get("unknown-id"), "unknown-id");
    }

    #[test]
    fn the_holder_at_fault_comes_first() {
        let process = |pid, exiting| Holder {
            pid: Some(pid),
            comm: Some("java".into()),
            exiting,
            ..Holder::of_kind(HolderKind::Process)
        };
        assert_eq!(holders(&[process(1, None), process(2, Some(true))]), "pid 2 java +1");
        assert_eq!(holders(&[process(1, None)]), "pid 1 java");
        assert_eq!(holders(&[]), "");
    }

    #[test]
    fn cutting_keeps_characters_whole() {
        assert_eq!(cut("äöü", 2), "äö");
        assert_eq!(cut("ab", 5), "ab");
    }
}
