//! `--redact`: replaces names and IPs by stand-ins, the same name by the same stand-in, also in sentences and commands.
//! Pure.
//!
//! A name is recognised by its field, by quotes around it, or by its form: IPs, MACs, UUIDs, long hexadecimal ids, the parts
//! of paths. In doubt a word is replaced. A plain word that occurs only within a sentence is not recognised: a pod in the
//! evidence of another pod's finding, the host in a source's URL, the note of an acknowledgement. Numbers of processes,
//! netns and devices, times, and the runtimes' words for states are not replaced.

use std::collections::HashMap;
use std::net::IpAddr;

use serde_json::Value;

use super::case::Case;
use super::names::{Names, SHORT_ID};
use crate::contract::report::Report;
use crate::contract::{Container, Holder, Netns, Pod, Prefix};
use crate::escape::escape;
use crate::remedy::said;

/// Fields of a report that contain only ipwatch's own words, numbers and dates.
const OWN: [&str; 14] = [
    "schema",
    "code",
    "severity",
    "status",
    "kind",
    "when",
    "since",
    "at",
    "from",
    "to",
    "taken_at",
    "resolved_at",
    "blind",
    "version",
];
/// The longest IP, in characters: an IPv6 address that ends in an IPv4 address.
const LONGEST_IP: usize = 45;
/// Texts of ipwatch itself that appear in quotes.
const OWN_WORDS: [&str; 1] = ["address already in use"];
/// Parts of paths that every node has.
const COMMON: [&str; 43] = [
    "abort",
    "besteffort",
    "burstable",
    "bin",
    "cgroup",
    "cni",
    "connections",
    "containerd",
    "containers",
    "cri",
    "dev",
    "docker",
    "etc",
    "fd",
    "fs",
    "fuse",
    "host",
    "io.containerd.runtime.v2.task",
    "k8s.io",
    "kubelet",
    "kubepods",
    "lib",
    "log",
    "mnt",
    "mountinfo",
    "net",
    "netns",
    "networks",
    "ns",
    "null",
    "pods",
    "proc",
    "root",
    "rootfs",
    "run",
    "self",
    "stack",
    "stat",
    "sys",
    "task",
    "tmp",
    "var",
    "waiting",
];

/// The report with stand-ins for names.
pub(super) fn redact(report: &Report, case: &Case) -> Result<Report, serde_json::Error> {
    let mut names = Names::default();
    collect(case, &mut names);
    if case.about.parse::<Prefix>().is_err() && !names.covers(&case.about) {
        // The beginning of an id.
        names.add("name", &case.about);
    }
    let mut value = serde_json::to_value(report)?;
    texts(&mut value, &mut |field, text| learn(field, text, &mut names));
    names.settle();
    let mut forms = Forms::default();
    texts(&mut value, &mut |_, text| *text = replaced(text, &names, &mut forms));
    let mut report: Report = serde_json::from_value(value)?;
    report.redacted = true;
    Ok(report)
}

/// Every text that may contain a name, with its field.
fn texts(value: &mut Value, each: &mut impl FnMut(&str, &mut String)) {
    within("", value, each);
}

fn within(field: &str, value: &mut Value, each: &mut impl FnMut(&str, &mut String)) {
    match value {
        Value::String(text) => each(field, text),
        Value::Array(list) => list.iter_mut().for_each(|value| within(field, value, each)),
        Value::Object(fields) => {
            for (field, value) in fields {
                if !OWN.contains(&field.as_str()) {
                    within(field, value, each);
                }
            }
        }
        _ => {}
    }
}

/// Adds the names from the fields of the daemon's answers.
fn collect(case: &Case, names: &mut Names) {
    names.add("node", &case.node);
    let findings = || case.findings.iter().chain(&case.around);
    for finding in findings() {
        names.add_id("finding", &finding.id);
        let subject = &finding.subject;
        subject.pods().for_each(|one| pod(one, names));
        subject.containers().for_each(|one| container(one, names));
        subject.netns.iter().for_each(|one| netns(one, names));
        names.add_if("network", subject.network.as_deref());
        subject.reservations.iter().for_each(|one| names.add("key", &one.key));
        finding.holders.iter().for_each(|one| holder(one, names));
    }
    for address in &case.addresses {
        address.pod.iter().for_each(|one| pod(one, names));
        address.container.iter().for_each(|one| container(one, names));
        netns(&address.netns, names);
        address.holders.iter().for_each(|one| holder(one, names));
        if let Some(reservation) = &address.reservation {
            names.add_if("network", reservation.network.as_deref());
            names.add_id_if("container", reservation.container_id.as_deref());
        }
    }
    for tenure in &case.history {
        tenure.pod.iter().for_each(|one| pod(one, names));
        tenure.container.iter().for_each(|one| container(one, names));
        netns(&tenure.netns, names);
    }
    for run in &case.runs {
        run.pod.iter().for_each(|one| pod(one, names));
        names.add_id_if("container", run.container_id.as_deref());
    }
    for entry in &case.reservations {
        names.add("network", &entry.network);
        names.add_id_if("container", entry.container_id.as_deref());
        entry.pod.iter().for_each(|one| pod(one, names));
        if entry.key.parse::<IpAddr>().is_err() {
            names.add("key", &entry.key);
        }
    }
}

fn pod(pod: &Pod, names: &mut Names) {
    // A container often has the name of its pod, which is added first.
    names.add_if("pod", pod.name.as_deref());
    names.add_if("namespace", pod.namespace.as_deref());
    names.add_id_if("uid", pod.uid.as_deref());
}

fn container(container: &Container, names: &mut Names) {
    names.add_id_if("container", container.id.as_deref());
    names.add_if("container", container.name.as_deref());
}

fn netns(netns: &Netns, names: &mut Names) {
    let file = netns.path.as_deref().and_then(|path| path.rsplit('/').next());
    names.add_if("netns", file);
}

fn holder(holder: &Holder, names: &mut Names) {
    names.add_if("process", holder.comm.as_deref());
    names.add_if("process", holder.mount_ns_comm.as_deref());
    names.add_if("mount", holder.mount_path.as_deref().filter(|path| !path.starts_with('/')));
}

/// Adds the names in a sentence that are in no field: texts in quotes, names after a pid, and parts of paths. Quotes within
/// a command belong to the shell, or to the JSON that it searches for.
fn learn(field: &str, text: &str, names: &mut Names) {
    if field != "command" {
        learn_quoted(text, names);
    }
    for (at, _) in text.match_indices("pid ") {
        let rest = text[at + 4..].trim_start_matches(|c: char| c.is_ascii_digit());
        let name = rest.strip_prefix(" (").and_then(|rest| rest.split(')').next());
        names.add_if("process", name.filter(|name| !name.contains('"')));
    }
    let outside = text.split("pid namespace (").nth(1).and_then(|rest| rest.split(')').next());
    names.add_if("process", outside);
    for word in text.split(|c: char| c.is_whitespace() || "\"'=,;()>".contains(c)) {
        if let Some(path) = word.strip_prefix('/') {
            path.split('/').filter(|part| is_telling(part)).for_each(|part| names.add_part(part));
        }
    }
}

fn learn_quoted(text: &str, names: &mut Names) {
    let pieces: Vec<&str> = text.split('"').collect();
    // Between an opening quote and its closing one.
    for value in pieces.iter().skip(1).step_by(2).take((pieces.len() - 1) / 2) {
        // A path is replaced part by part, an IP as a whole.
        let is_own = OWN_WORDS.contains(value) || value.starts_with('/');
        if !is_own && value.parse::<IpAddr>().is_err() && !names.covers(value) {
            names.add_spelt("name", value);
        }
    }
}

/// Whether a part of a path may contain a name.
fn is_telling(part: &str) -> bool {
    let is_number = part.bytes().all(|byte| byte.is_ascii_digit());
    let is_common = COMMON.contains(&part) || part.starts_with("kubepods");
    !part.is_empty() && !is_number && !is_common && part.parse::<IpAddr>().is_err()
}

/// The same text with stand-ins.
fn replaced(text: &str, names: &Names, forms: &mut Forms) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let mut before: Option<char> = None;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let known = names.at(rest, before);
        let (length, stand_in) = known
            .or_else(|| form_at(rest, before).map(|(length, form)| (length, forms.of(form))))
            .unwrap_or_else(|| (c.len_utf8(), c.to_string()));
        out.push_str(&stand_in);
        before = rest[..length].chars().next_back();
        at += length;
    }
    out
}

/// What is recognised by its form only.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Form {
    Ip(IpAddr),
    Mac(String),
    /// The beginning of an id: runtimes print ids in full and shortened.
    Id(String),
}

fn form_at(text: &str, before: Option<char>) -> Option<(usize, Form)> {
    let id = |length: usize| {
        let short = text.get(..SHORT_ID.min(length)).unwrap_or_default();
        (length, Form::Id(short.to_owned()))
    };
    address_at(text, before).or_else(|| id_at(text, before).map(id))
}

/// The address that a text begins with.
fn address_at(text: &str, before: Option<char>) -> Option<(usize, Form)> {
    let is_part = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b'.' | b':');
    if before.is_some_and(|c| c.is_ascii_hexdigit() || c == ':') {
        return None;
    }
    let mut end = text.bytes().take(LONGEST_IP).take_while(is_part).count();
    // The end of a sentence or a port may follow.
    while end > 0 {
        let word = &text[..end];
        if let Ok(ip) = word.parse::<IpAddr>() {
            let kept = ip.is_loopback() || ip.is_unspecified();
            return (!kept).then_some((end, Form::Ip(ip)));
        }
        if is_mac(word) {
            return Some((end, Form::Mac(word.to_ascii_lowercase())));
        }
        end = word.rfind(['.', ':'])?;
    }
    None
}

fn is_mac(word: &str) -> bool {
    let hex = |pair: &str| pair.len() == 2 && pair.bytes().all(|byte| byte.is_ascii_hexdigit());
    word.split(':').count() == 6 && word.split(':').all(hex)
}

/// The length of the id that a text begins with: a UUID, or 12 or at least 32 hexadecimal digits. Masks and numbers of the
/// kernel have other lengths.
fn id_at(text: &str, before: Option<char>) -> Option<usize> {
    if before.is_some_and(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_hexdigit).count();
    let first = digits(text);
    if matches!(first, 12 | 13 | 32..)
        && text[..first].bytes().any(|byte| byte.is_ascii_alphabetic())
    {
        return Some(first);
    }
    let mut at = first;
    let groups = [4, 4, 4, 12];
    let is_uuid = first == 8
        && groups.iter().all(|wanted| {
            let rest = &text[at..];
            let fits = rest.starts_with(['-', '_']) && digits(&rest[1..]) == *wanted;
            at += 1 + wanted;
            fits
        });
    is_uuid.then_some(at)
}

/// Stand-ins for what is recognised by its form only. Stand-ins for addresses are from the ranges for documentation (RFC
/// 5737, 3849) and, if these are used up, for benchmarks (RFC 2544).
#[derive(Debug, Default)]
struct Forms {
    known: HashMap<Form, String>,
    counts: [u32; 4],
}

impl Forms {
    fn of(&mut self, form: Form) -> String {
        if let Some(known) = self.known.get(&form) {
            return known.clone();
        }
        let kind = match form {
            Form::Ip(IpAddr::V4(_)) => 0,
            Form::Ip(IpAddr::V6(_)) => 1,
            Form::Mac(_) => 2,
            Form::Id(_) => 3,
        };
        self.counts[kind] += 1;
        let n = self.counts[kind];
        let stand_in = match (kind, n) {
            (0, 1..=254) => format!("192.0.2.{n}"),
            (0, _) => format!("198.{}.{}.{}", 18 + ((n >> 16) & 1), (n >> 8) & 255, n & 255),
            (1, _) => format!("2001:db8::{n:x}"),
            (3, _) => format!("id-{n}"),
            _ => format!("02:00:00:{:02x}:{:02x}:{:02x}", (n >> 16) & 255, (n >> 8) & 255, n & 255),
        };
        self.known.insert(form, stand_in.clone());
        stand_in
    }
}

/// The ways in which a name is written: as it is, escaped, within quotes of a sentence, within quotes of a shell.
pub(super) fn spellings(name: &str) -> Vec<String> {
    let quoted = said(name);
    let within = quoted.split('"').nth(1).map(str::to_owned);
    let shell = name.replace('\'', r"'\''");
    let mut all = vec![name.to_owned(), escape(name).into_owned(), shell];
    all.extend(within);
    all.sort();
    all.dedup();
    all
}
