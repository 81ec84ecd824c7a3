//! What `doctor` shows for each event, and why.

use super::*;

#[test]
fn every_kind_of_event_belongs_to_one_event() {
    let mut kinds: Vec<u16> = EVENTS.iter().flat_map(|event| event.kinds).copied().collect();
    kinds.sort_unstable();
    // The iterators' kinds never pass through the ring buffer.
    assert_eq!(kinds, (kind::NETNS_CREATED..kind::TASK_SEEN).collect::<Vec<_>>());
}

#[test]
fn a_watch_that_was_asked_for_and_refused_is_shown_with_the_reason() {
    let standing =
        |event, rung| Standing { event, rung, programs: &[], hook: "", why: Why::default() };
    let mut standings: Vec<Standing> =
        EVENTS.iter().map(|event| standing(event.name, Some(Rung::Kprobe))).collect();
    let arp = standings.iter_mut().find(|it| it.is_above_the_watch()).unwrap();
    arp.lacks_the_watch(None);
    assert_eq!(arp.why, Why::default());
    arp.lacks_the_watch(Some(Reason::Forbidden));
    let report = report(&standings, &|_| 0, &|_| 0, &|_| None);
    let shown = report.iter().find(|probe| probe.event == ARP_CLAIM).unwrap();
    let why = format!("{}: forbidden by the configuration", Rung::Socket);
    assert_eq!((&*shown.status, shown.why.as_ref()), ("fallback", Some(&why)));
    assert!(!standing(ARP_CLAIM, Some(Rung::Socket)).is_above_the_watch());
    assert!(!standing(ARP_CLAIM, None).is_above_the_watch());
}

#[test]
fn without_bpf_every_event_still_shows_with_the_reason() {
    let report = unavailable("no BTF");
    assert_eq!(report.len(), EVENTS.len());
    for probe in report {
        let status = if probe.event == "cni-call" { "missing" } else { "fallback" };
        assert_eq!(probe.status, status, "{probe:?}");
        assert_eq!(probe.why.as_deref(), Some("no BTF"));
        assert!(
            ["netlink", "procfs", "snapshot", "none"].contains(&probe.rung.as_str()),
            "{probe:?}"
        );
    }
}

#[test]
fn what_is_attached_and_not_seen_is_degraded_and_says_what_is_done_instead() {
    let standing = |event: &Event| Standing {
        event: event.name,
        programs: &[],
        rung: Some(Rung::TpBtf),
        hook: "",
        why: Why::default(),
    };
    let standings: Vec<Standing> = EVENTS.iter().map(standing).collect();
    let proof = |verdict: &str, why: Option<&str>| contract::Proof {
        verdict: verdict.to_owned(),
        micros: None,
        ago_secs: 1,
        why: why.map(str::to_owned),
    };
    let proofs = |event: &str| match event {
        "sigkill" => Some(proof("not-seen", Some("a SIGKILL"))),
        "cni-call" => Some(proof("not-seen", Some("a plugin that begins"))),
        "ipv6-address" => Some(proof("not-tried", Some("IPv6 is off"))),
        "process-exec" => Some(proof("seen", None)),
        _ => None,
    };
    let report = report(&standings, &|_| 0, &|_| 0, &proofs);
    let degraded: Vec<(&str, Option<&str>)> = report
        .iter()
        .filter(|probe| probe.status != "active")
        .map(|probe| (probe.event.as_str(), probe.why.as_deref()))
        .collect();
    let sigkill = "attached, not seen by the canary: a SIGKILL; \
                   instead: procfs, /proc/PID/task/TID/status";
    let calls = "attached, not seen by the canary: a plugin that begins; \
                 runs of CNI plugins are not seen";
    assert_eq!(degraded, [("sigkill", Some(sigkill)), ("cni-call", Some(calls))]);
}

#[test]
fn a_rung_that_holds_by_its_second_hook_is_no_lower_one() {
    let mut why = Why::default();
    why.add(Some(Rung::Fentry), Reason::Refused(Refusal::NoHook("first_name")));
    why.reached(Rung::Kprobe);
    assert!(why.text().is_some());
    why.reached(Rung::Fentry);
    assert_eq!(why.text(), None);
}

#[test]
fn a_rung_that_holds_shows_why_it_is_not_a_better_one() {
    let mut why = Why::default();
    why.add(Some(Rung::Fentry), Reason::Refused(Refusal::NoHook("first_name")));
    let refused = Refusal::Refused("load refused (EPERM)".to_owned());
    why.add(Some(Rung::Fentry), Reason::Refused(refused));
    why.add(Some(Rung::Fentry), Reason::Refused(Refusal::NoHook("second_name")));
    let standings: Vec<Standing> = EVENTS
        .iter()
        .map(|event| Standing {
            event: event.name,
            programs: &[],
            rung: (event.name == "ipv4-address").then_some(Rung::Kprobe),
            hook: "fib_inetaddr_event",
            why: why.clone(),
        })
        .collect();
    let seen = |kind| u64::from(kind == kind::IPV4_UP || kind == kind::IPV4_DOWN);
    let lost = |kind| u64::from(kind == kind::IPV4_DOWN) * 3;
    let report = report(&standings, &seen, &lost, &|_| None);
    let probe = report.iter().find(|probe| probe.event == "ipv4-address").unwrap();
    assert_eq!((probe.rung.as_str(), probe.status.as_str()), ("kprobe", "fallback"));
    assert_eq!(probe.why.as_deref(), Some("fentry: load refused (EPERM)"));
    assert_eq!((probe.seen, probe.lost), (Some(2), Some(3)));
    assert!(report.iter().all(|other| other.event == probe.event || other.lost.is_none()));
}
