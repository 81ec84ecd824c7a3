use super::*;
use crate::sinks::tests::{opened, resolved};
use crate::testing::{Log, hear};

/// The log of these changes, without timestamps: their digits could match anything.
pub(in crate::sinks) fn log(changes: &[Change]) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_writer(move || writer.clone())
        .finish();
    let _hearing = hear(subscriber);
    changes.iter().for_each(write);
    log.text()
}

#[test]
fn one_line_says_it_all() {
    let log = log(&[opened("k3f9")]);
    assert_eq!(log.lines().count(), 1);
    for part in [
        "WARN ipwatch::finding: opened: ip-held-by-stuck-process 10.0.3.17 of shop/api-0, \
         held by pid 812 java",
        "id=\"k3f9\"",
        "status=\"pending\"",
        "ip=10.0.3.17",
        "pod=shop/api-0",
        "netns=4026532177",
        "holder.pid=812",
        "holder.comm=java",
    ] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
}

#[test]
fn the_level_is_the_severity_until_it_is_over() {
    let level = |severity, mut change: Change| {
        change.finding.severity = severity;
        log(&[change]).split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(level(Severity::Critical, opened("a")), "ERROR");
    assert_eq!(level(Severity::Warning, opened("a")), "WARN");
    assert_eq!(level(Severity::Info, opened("a")), "INFO");
    assert_eq!(level(Severity::Critical, resolved("a")), "INFO");
}

#[test]
fn a_hostile_name_forges_no_line() {
    let mut change = opened("a");
    change.finding.holders[0].comm = Some("x\n\u{1b}[31mERROR y".to_owned());
    change.finding.subject.pod.as_mut().unwrap().name = Some("a\rb".to_owned());
    let log = log(&[change]);
    assert_eq!(log.lines().count(), 1);
    assert!(log.contains("x\\x0a\\x1b[31mERROR y"), "{log}");
    assert!(log.contains("shop/a\\x0db"), "{log}");
    assert!(!log.trim_end().chars().any(char::is_control), "{log:?}");
}

#[test]
fn what_is_unknown_is_absent() {
    let mut change = opened("a");
    change.finding.subject = crate::finding::Subject::default();
    change.finding.holders.clear();
    let log = log(&[change]);
    assert!(log.contains("opened: ip-held-by-stuck-process id="), "{log}");
    for part in ["ip=", "pod=", "netns=", "holder"] {
        assert!(!log.contains(part), "{part} is in {log}");
    }
}

#[test]
fn a_mount_has_no_process() {
    let mut change = opened("a");
    change.finding.holders = vec![crate::contract::Holder {
        mount_path: Some("/run/netns/x".to_owned()),
        mount_ns: Some(4_026_531_841),
        mount_ns_pid: Some(805),
        mount_ns_comm: Some("ipwatch".to_owned()),
        ..crate::contract::Holder::of_kind(crate::contract::HolderKind::Mount)
    }];
    let log = log(&[change]);
    assert!(log.contains("held by mount /run/netns/x"), "{log}");
    assert!(!log.contains("805") && !log.contains("holder.pid"), "{log}");
}
