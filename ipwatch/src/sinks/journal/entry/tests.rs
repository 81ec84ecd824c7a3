//! The fields, and the message catalog, which must have an entry with the runbook of every code.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::*;
use crate::bounded;
use crate::contract::Step;
use crate::sinks::tests::{of_two_reservations, opened, resolved, updated};

const CATALOG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/systemd/ipwatch.catalog");

fn of(change: &Change) -> BTreeMap<&'static str, String> {
    fields(change).into_iter().collect()
}

#[test]
fn an_entry_says_what_it_is_about() {
    let fields = of(&opened("k3f9"));
    for (name, value) in [
        ("IPWATCH_ID", "k3f9"),
        ("IPWATCH_CODE", "ip-held-by-stuck-process"),
        ("IPWATCH_SEVERITY", "warning"),
        ("IPWATCH_STATUS", "pending"),
        ("IPWATCH_CHANGE", "opened"),
        ("IPWATCH_IP", "10.0.3.17"),
        ("IPWATCH_NETNS", "4026532177"),
        ("IPWATCH_NETNS_COOKIE", "4711"),
        ("IPWATCH_POD", "shop/api-0"),
        ("IPWATCH_HOLDER_PID", "812"),
        ("IPWATCH_HOLDER_COMM", "java"),
        ("SYSLOG_IDENTIFIER", "ipwatch"),
    ] {
        assert_eq!(fields.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(fields["MESSAGE"].starts_with("opened: ip-held-by-stuck-process 10.0.3.17"));
    assert!(!fields.contains_key("IPWATCH_NETWORK"), "what is unknown is absent");
}

#[test]
fn each_ip_of_several_reservations_is_a_field_of_the_entry() {
    let change = of_two_reservations("k3f9");
    let all = fields(&change).into_iter().filter(|(name, _)| *name == "IPWATCH_IP");
    assert_eq!(all.map(|(_, ip)| ip).collect::<Vec<_>>(), ["10.0.3.17", "10.0.3.18"]);
    let fields = of(&change);
    assert_eq!(fields["IPWATCH_NETWORK"], "pods");
    let message = &fields["MESSAGE"];
    assert!(
        message.starts_with("opened: ipam-reservation-leaked network pods (5 IPs)"),
        "{message}"
    );
}

#[test]
fn only_a_critical_finding_that_fires_may_page_and_once_per_cause() {
    let priority = |severity, mut change: Change, cause: Option<&str>| {
        change.finding.severity = severity;
        change.finding.caused_by = cause.map(str::to_owned);
        of(&change)["PRIORITY"].clone()
    };
    assert_eq!(priority(Severity::Critical, updated("a"), None), "2");
    assert_eq!(priority(Severity::Critical, updated("a"), Some("b")), "4");
    assert_eq!(priority(Severity::Critical, opened("a"), None), "4", "pending");
    assert_eq!(priority(Severity::Warning, updated("a"), None), "4");
    assert_eq!(priority(Severity::Critical, resolved("a"), None), "6");
    assert_eq!(priority(Severity::Info, updated("a"), None), "6");
    let mut known = updated("a");
    known.finding.acked = Some(crate::finding::Ack {
        at: "x".into(),
        uid: Some(1000),
        until: None,
        note: Some("a\nb".into()),
    });
    assert_eq!(priority(Severity::Critical, known.clone(), None), "4", "acknowledged");
    assert_eq!(of(&known)["IPWATCH_ACKED_NOTE"], "a\\x0ab");
}

#[test]
fn a_hostile_name_forges_no_field_and_no_line() {
    let mut change = opened("a");
    change.finding.holders[0].comm = Some("x\nPRIORITY=0\u{1b}[2J".to_owned());
    change.finding.subject.pod.as_mut().unwrap().name = Some("a\nMESSAGE=b".to_owned());
    change.finding.impact = "y".repeat(1 << 20);
    let fields = fields(&change);
    assert_eq!(fields.iter().filter(|(name, _)| *name == "PRIORITY").count(), 1);
    for (name, value) in fields {
        assert!(value.len() <= LONGEST, "{name}");
        let clean =
            value.chars().all(|c| !c.is_control() || (c == '\n' && name == "IPWATCH_ACTION"));
        assert!(clean, "{name}: {value:?}");
    }
}

#[test]
fn actions_are_told_whole_or_not_at_all() {
    let step = |at: usize| Step {
        what: format!("Free {at}"),
        command: Some(format!("rm /run/{}-{at}", "x".repeat(1000))),
        ..Step::default()
    };
    let actions = |steps: Vec<Step>| {
        let mut change = opened("k3f9");
        let line = |step: &Step| format!("{}: {}", step.what, step.command.as_ref().unwrap());
        change.finding.remediation = steps.iter().map(line).collect();
        change.finding.steps = steps;
        (of(&change)["IPWATCH_ACTION"].clone(), change.finding.remediation)
    };
    let (told, lines) = actions((0..3).map(step).collect());
    assert_eq!(told, lines.join("\n"));
    let (told, lines) = actions((0..20).map(step).collect());
    assert!(told.len() <= LONGEST, "{}", told.len());
    let told: Vec<&str> = told.lines().collect();
    let (last, told) = told.split_last().unwrap();
    assert_eq!(*last, "For further steps see ipwatch explain k3f9");
    assert!(told.len() >= 6 && *told == lines[..told.len()], "{told:#?}");
}

#[test]
fn what_an_older_version_wrote_is_not_told_as_commands() {
    let mut change = opened("k3f9");
    change.finding.steps.clear();
    change.finding.remediation = vec!["Have it repeated: crictl stopp x;id;#".into()];
    let told = &of(&change)["IPWATCH_ACTION"];
    assert_eq!(told, "See its runbook: ipwatch explain ip-held-by-stuck-process");
    change.finding.remediation.clear();
    assert!(!of(&change).contains_key("IPWATCH_ACTION"));
}

/// The message catalog as it should be. journald reads lines that begin with `#` or `;` as comments, and `-- ` as the
/// next entry (catalog-import, systemd 252); therefore headings lose their `#`.
fn catalog() -> String {
    let mut text = "# What `journalctl -x` prints for findings: made from docs/findings, one entry a code.\n\
                    # The tests compare it; IPWATCH_BLESS=1 cargo test -p ipwatch --lib catalog writes it anew.\n"
        .to_owned();
    for code in Code::ALL {
        let _ = write!(
            text,
            "\n-- {}\nSubject: ipwatch: {code}\nDefined-By: ipwatch\nDocumentation: man:ipwatch(1)\n\n\
             @IPWATCH_IMPACT@\n\n\
             Severity @IPWATCH_SEVERITY@, @IPWATCH_STATUS@ since @IPWATCH_SINCE@. What is known of it now:\n\n    \
             ipwatch explain @IPWATCH_ID@\n\n",
            message_id(*code)
        );
        let runbook = code.runbook().trim();
        let lines = runbook.lines().filter(|line| *line != format!("# {code}"));
        for line in lines {
            let line = line.replace("**", "");
            let line = match line.trim_start_matches('#') {
                heading if heading.len() < line.len() => heading.trim().to_uppercase(),
                _ => line.clone(),
            };
            let line = if line.starts_with([';', '-']) { format!(" {line}") } else { line };
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

#[test]
fn the_catalog_holds_the_runbook_of_every_code() {
    let wanted = catalog();
    if std::env::var_os("IPWATCH_BLESS").is_some() {
        std::fs::write(CATALOG, &wanted).unwrap();
        return;
    }
    let there = bounded::read_text(Path::new(CATALOG), 1 << 20).unwrap();
    assert!(
        there == wanted,
        "deploy/systemd/ipwatch.catalog is behind docs/findings: see its head"
    );
}

/// An id that changes no longer matches anybody's filters and catalogs.
#[test]
fn message_ids_stay_what_they_were() {
    assert_eq!(message_id(Code::IpHeldByStuckProcess).len(), 32);
    let catalog = bounded::read_text(Path::new(CATALOG), 1 << 20).unwrap();
    let ids: Vec<&str> = catalog.lines().filter_map(|line| line.strip_prefix("-- ")).collect();
    let wanted: Vec<String> = Code::ALL.iter().map(|code| message_id(*code)).collect();
    assert_eq!(ids, wanted);
    // The catalog has no other variables than ours, and no line that is read as a comment.
    let body = catalog.lines().skip(2);
    for line in body {
        assert!(!line.starts_with(['#', ';']), "{line}");
        let variables = line.split('@').skip(1).step_by(2);
        assert!(variables.clone().all(|name| name.starts_with("IPWATCH_")), "{line}");
    }
}
