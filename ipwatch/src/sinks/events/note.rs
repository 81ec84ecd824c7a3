//! The contents of an Event about a finding, and its object. Pure.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::contract::holders_in_short;
use crate::escape::escape;
use crate::finding::{Code, Finding, Severity};
use crate::remedy::before_command;
use crate::sinks::server::label;
use crate::sinks::{action, cut, journal};

/// Maximum length of the message, in bytes: a limit of the API server.
const MOST: usize = 1024;
/// Longest uid of a pod, in bytes: a UUID, or the hash of a static pod's manifest. A runtime's label may say anything.
const LONGEST_UID: usize = 64;
/// Maximum length of one text within the message, in bytes.
const PART: usize = 400;
/// The namespace of Events about nodes.
const OF_NODES: &str = "default";

/// One Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    /// Derived from the finding, so that it stays the same after a restart.
    name: String,
    namespace: String,
    about: Value,
    node: String,
    kind: &'static str,
    reason: String,
    message: String,
    /// Since when the finding fires.
    first: String,
}

impl Note {
    pub(super) fn of(finding: &Finding, node: &str) -> Self {
        let (namespace, about) = about(finding, node);
        Self {
            name: name(&finding.id, node, &about),
            namespace,
            about,
            node: node.to_owned(),
            kind: if finding.severity == Severity::Info { "Normal" } else { "Warning" },
            reason: reason(finding.code),
            message: message(finding),
            first: seconds(finding.firing_at.as_deref().unwrap_or(&finding.since)),
        }
    }

    /// The namespace of the Event: the pod's, or that of Events about nodes.
    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Path of the Events of the namespace.
    pub(super) fn all(&self) -> String {
        format!("/api/v1/namespaces/{}/events", self.namespace)
    }

    /// Path of this Event.
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.all(), self.name)
    }

    /// The whole object.
    pub(super) fn object(&self, now: &str, count: u32) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": self.name, "namespace": self.namespace },
            "involvedObject": self.about,
            "type": self.kind,
            "reason": self.reason,
            "message": self.message,
            "firstTimestamp": self.first,
            "lastTimestamp": now,
            "count": count,
            "source": { "component": "ipwatch", "host": self.node },
            "reportingComponent": "ipwatch",
            "reportingInstance": self.node,
        })
    }

    /// The patch for a repetition. `count` is `None` if an earlier run created the Event, because its count is
    /// unknown.
    pub(super) fn again(&self, now: &str, count: Option<u32>) -> Value {
        let mut patch = json!({ "type": self.kind, "message": self.message, "lastTimestamp": now });
        if let Some(count) = count {
            patch["count"] = count.into();
        }
        patch
    }
}

/// The affected pod, or the node; and the namespace of the Event, which must be that of its object.
fn about(finding: &Finding, node: &str) -> (String, Value) {
    let pod = finding.subject.pod.as_ref();
    let names = pod.and_then(|pod| {
        Some((label(pod.namespace.as_deref()?, 63)?, label(pod.name.as_deref()?, 253)?, &pod.uid))
    });
    if let Some((namespace, name, uid)) = names {
        let mut about = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name,
        });
        if let Some(uid) = uid.as_deref().and_then(|uid| label(uid, LONGEST_UID)) {
            about["uid"] = json!(uid);
        }
        return (namespace.to_owned(), about);
    }
    // kubelet names its node as its uid, too, and kubectl looks for that.
    let about = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node });
    (OF_NODES.to_owned(), about)
}

/// The Event's name: the finding's id, and a hash of node and object, because a finding about a cluster-wide range
/// has the same id on each node, and a finding that moves to another pod needs another Event.
fn name(id: &str, node: &str, about: &Value) -> String {
    let mut hash = Sha256::new();
    hash.update(node);
    hash.update([0]);
    hash.update(about.to_string());
    let hash: String = hash.finalize()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("ipwatch-{id}-{hash}")
}

/// `ip-held-by-stuck-process` as `IpHeldByStuckProcess`.
pub(in crate::sinks) fn reason(code: Code) -> String {
    let upper = |word: &str| {
        let (first, rest) = word.split_at(1);
        format!("{}{rest}", first.to_ascii_uppercase())
    };
    code.as_str().split('-').map(upper).collect()
}

/// The finding's subject, its holder, the impact, and the first remediation step.
pub(in crate::sinks) fn message(finding: &Finding) -> String {
    let mut parts = Vec::new();
    let about = journal::about(finding);
    let held = holders_in_short(&finding.holders).map(|holders| format!("held by {holders}"));
    let title: Vec<String> = [about, held].into_iter().flatten().collect();
    if !title.is_empty() {
        parts.push(title.join(", ") + ".");
    }
    parts.push(finding.impact.clone());
    let mut parts: Vec<String> =
        parts.iter().map(|part| cut(before_command(&escape(part)), PART)).collect();
    parts.push(format!("On the node: ipwatch explain {}.", finding.id));
    // A command is last, so that nothing is pasted with it.
    if let Some(step) = finding.advice().first() {
        const NEXT: &str = "Next: ";
        let told: usize = parts.iter().map(|part| part.len() + 1).sum();
        let most = MOST.saturating_sub(told).min(PART).saturating_sub(NEXT.len());
        parts.push(format!("{NEXT}{}", action(step, &finding.id, most)));
    }
    cut(parts.join(" "), MOST)
}

/// A date without fractions of a second, as in every object of the API.
pub(in crate::sinks) fn seconds(date: &str) -> String {
    match date.split_once('.') {
        Some((date, _)) => format!("{date}Z"),
        None => date.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::contract::Step;
    use crate::sinks::tests::updated;

    /// The Event about a finding.
    pub(in crate::sinks) fn object(finding: &Finding) -> Value {
        Note::of(finding, "node-17").object("2026-01-01T00:00:09Z", 3)
    }

    fn note(change: impl FnOnce(&mut Finding)) -> Value {
        let mut finding = updated("abc").finding;
        change(&mut finding);
        object(&finding)
    }

    #[test]
    fn it_says_who_holds_what_and_what_to_do() {
        let told = note(|_| {});
        assert_eq!(told["reason"], "IpHeldByStuckProcess");
        assert_eq!(told["type"], "Warning");
        assert_eq!(
            told["message"],
            "10.0.3.17, held by pid 812 java. the IP cannot be used On the node: ipwatch explain abc. \
             Next: bring back the NFS server"
        );
        assert_eq!(
            told["involvedObject"],
            json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "api-0", "uid": "7f3a"})
        );
        assert_eq!(told["metadata"]["namespace"], "shop");
        assert_eq!(told["firstTimestamp"], "2026-01-01T00:00:08Z");
        assert_eq!((&told["count"], &told["reportingInstance"]), (&json!(3), &json!("node-17")));
        assert_eq!(note(|finding| finding.severity = Severity::Info)["type"], "Normal");
        assert!(Code::ALL.iter().all(|code| reason(*code).chars().all(|c| c.is_alphanumeric())));
    }

    #[test]
    fn a_uid_that_no_pod_can_have_is_left_out() {
        let uid = |uid: &str| {
            let mut told = note(|finding| {
                finding.subject.pod.as_mut().unwrap().uid = Some(uid.to_owned());
            });
            told["involvedObject"]["uid"].take()
        };
        let real = "7f3a0c1e-8a5b-4c9d-9e8f-0123456789ab";
        assert_eq!(uid(real), real);
        for none in ["a\n\u{1b}[2J", "", &"a".repeat(LONGEST_UID + 1)] {
            assert_eq!(uid(none), Value::Null, "{none:?}");
        }
    }

    #[test]
    fn without_a_pod_that_can_be_it_is_on_the_node() {
        let cases: [fn(&mut Finding); 4] = [
            |finding| finding.subject.pod = None,
            |finding| finding.subject.pod.as_mut().unwrap().name = None,
            |finding| finding.subject.pod.as_mut().unwrap().namespace = Some("../secrets".into()),
            |finding| finding.subject.pod.as_mut().unwrap().name = Some("a\n".into()),
        ];
        for case in cases {
            let told = note(case);
            assert_eq!(told["involvedObject"]["kind"], "Node", "{told}");
            assert_eq!(told["metadata"]["namespace"], "default");
        }
    }

    #[test]
    fn a_range_is_another_one_on_each_node_and_a_pods_on_each_pod() {
        let mut finding = updated("abc").finding;
        let one = Note::of(&finding, "node-1").path();
        assert_eq!(one, Note::of(&finding, "node-1").path());
        assert_ne!(one, Note::of(&finding, "node-2").path());
        finding.subject.pod.as_mut().unwrap().uid = Some("another".into());
        assert_ne!(one, Note::of(&finding, "node-1").path());
    }

    fn step(what: &str, command: Option<&str>) -> Step {
        Step { what: what.into(), command: command.map(str::to_owned), ..Step::default() }
    }

    /// The message of a finding with this first step.
    fn next(what: &str, command: Option<&str>, impact: usize) -> String {
        let told = note(|finding| {
            finding.impact = "i".repeat(impact);
            finding.steps = vec![step(what, command)];
            finding.remediation = vec![match command {
                Some(command) => format!("{what}: {command}"),
                None => what.to_owned(),
            }];
        });
        let message = told["message"].as_str().unwrap().to_owned();
        assert!(message.len() <= MOST, "{}", message.len());
        assert!(message.contains(" On the node: ipwatch explain abc. Next: "), "{message}");
        message
    }

    #[test]
    fn a_command_is_told_whole_or_not_at_all() {
        let command = |length: usize| format!("ipwatch check && rm {}", "/x".repeat(length / 2));
        assert!(next("Free it", Some(&command(100)), 9).contains(&command(100)));
        for (length, impact) in [(2000, 9), (400, 9), (300, 4000), (378, 400), (370, 4000)] {
            let command = command(length);
            let message = next("Free it", Some(&command), impact);
            let whole = message.contains(&command);
            assert!(whole || !message.contains("ipwatch check"), "{message}");
            assert!(
                whole || message.contains("Next: Free it (see ipwatch explain abc)"),
                "{message}"
            );
        }
        // If the words alone are too long, they are cut, even within quotes.
        let message = next(&format!("Free \"{}\"", "x ".repeat(500)), Some("rm /x"), 4000);
        assert!(!message.contains("rm /x"), "{message}");
        assert!(message.contains("Next: Free \"x x"), "{message}");
        assert_eq!(message.matches('"').count(), 2, "{message}");
    }

    #[test]
    fn what_an_older_version_wrote_is_not_told_as_a_command() {
        let told = note(|finding| {
            finding.steps.clear();
            finding.remediation = vec!["Have it repeated: crictl stopp x;id;#".into()];
        });
        let message = told["message"].as_str().unwrap();
        assert!(!message.contains("crictl"), "{message}");
        assert!(message.contains("Next: See its runbook: ipwatch explain ip-held"), "{message}");
    }

    #[test]
    fn text_that_is_cut_within_quotes_ends_them() {
        let told = note(|finding| finding.impact = format!("\"{}\" is lost", "x ".repeat(500)));
        let message = told["message"].as_str().unwrap();
        assert!(message.contains("x…\" On the") || message.contains(" …\" On the"), "{message}");
    }

    #[test]
    fn hostile_text_is_escaped_and_long_text_is_cut() {
        let told = note(|finding| {
            finding.holders[0].comm = Some("\u{1b}[2J\njava".into());
            finding.impact = "ü".repeat(4000);
        });
        let message = told["message"].as_str().unwrap();
        assert!(message.len() <= MOST && message.contains("\\x1b[2J\\x0ajava"), "{message}");
        assert!(message.contains('…') && message.contains("Next: bring back"), "{message}");
        let told = note(|finding| finding.steps[0].what = "\u{202e}".repeat(4000));
        assert!(told["message"].as_str().unwrap().len() <= MOST);
    }
}
