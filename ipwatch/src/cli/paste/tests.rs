use super::*;
use crate::cli::show::sample;
use crate::contract::{Body, Pod};

fn findings() -> Vec<Finding> {
    let Body::Findings(findings) = sample("scan.json").body else { panic!("findings") };
    findings
}

/// The first four characters of the ids of the findings that a text names.
fn named(text: &str) -> String {
    match Pasted::read(text).matching(&findings()) {
        Some((Fit::Named, found)) => {
            found.iter().map(|finding| &finding.id[..4]).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}

#[test]
fn errors_as_they_are_logged_have_a_runbook() {
    for (text, code) in [
        (
            r#"plugin type="bridge" failed (add): failed to allocate for range 0: no IP addresses available in range set: 10.88.7.1-10.88.7.6"#,
            Code::IpamRangeExhausting,
        ),
        (
            "no available IPv4 addresses on this network's address pools: b",
            Code::IpamRangeExhausting,
        ),
        ("failed to find free IP in range: 10.89.0.1 - 10.89.0.254", Code::IpamRangeExhausting),
        (
            "unable to allocate IP via local cilium agent: [POST /ipam][502] postIpamFailure range is full",
            Code::IpamRangeExhausting,
        ),
        (
            "unable to allocate IP via local cilium agent: [POST /ipam][502] postIpamFailure No more IPs available",
            Code::IpamRangeExhausting,
        ),
        (
            "unable to allocate IP via local cilium agent: [POST /ipam][502] postIpamFailure all CIDR ranges are exhausted",
            Code::IpamRangeExhausting,
        ),
        (
            "requested IP address 10.88.7.3 is not available in range set 10.88.7.1-10.88.7.6",
            Code::IpamReservationLeaked,
        ),
        (
            "10.88.7.3 has been allocated to 8a1f, duplicate allocation is not allowed",
            Code::IpamReservationLeaked,
        ),
        (
            "requested ip address 10.89.0.9 is already allocated to container ID 8a1f",
            Code::IpamReservationLeaked,
        ),
        ("Address already in use", Code::IpReleasedButHeld),
        (
            r#"plugin type="bridge" failed (delete): netlink: permission denied"#,
            Code::CniDelFailing,
        ),
        (
            r#"plugin type="bridge" failed (add): failed to create veth pair: container veth name provided (eth0) already exists"#,
            Code::SandboxCrashLoop,
        ),
        (
            r#"plugin type="whereabouts" failed (add): time limit exceeded while waiting to become leader"#,
            Code::SandboxCrashLoop,
        ),
        (
            "error at storage engine: k8s get OverlappingRangeIPReservation error: client rate limiter Wait returned an error",
            Code::SandboxCrashLoop,
        ),
        (
            r#"plugin type="whereabouts" failed (delete): time limit exceeded while waiting to become leader"#,
            Code::CniDelFailing,
        ),
        (
            r#"rpc error: code = Unknown desc = failed to stop container "8a1f": an error occurs during waiting for container "8a1f" to be killed: wait container "8a1f": context deadline exceeded"#,
            Code::IpHeldByStuckProcess,
        ),
        (
            r#"error killing pod: failed to "KillPodSandbox" for "7f3a": rpc error: code = DeadlineExceeded"#,
            Code::IpHeldByStuckProcess,
        ),
        (
            "unlinkat /run/containerd/io.containerd.runtime.v2.task/k8s.io/8a1f/rootfs: device or resource busy",
            Code::MountLeakBlocksRemoval,
        ),
        (
            "IPv6: eth0: IPv6 duplicate address fd00::5 used by 02:42:ac:11:00:02 detected!",
            Code::IpDuplicate,
        ),
        (
            "Liveness probe failed: dial tcp 10.0.3.17:8080: connect: no route to host",
            Code::NeighbourFailed,
        ),
        (
            "unregister_netdevice: waiting for eth0 to become free. Usage count = 1",
            Code::NetnsTeardownStuck,
        ),
        (r#"no net directory under pci device 0000:3b:02.1"#, Code::DeviceHeldByDeadSandbox),
        (
            r#"Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "8a1f""#,
            Code::SandboxCrashLoop,
        ),
    ] {
        assert_eq!(Pasted::read(text).code(), Some(code), "{text}");
        assert!(Pasted::read(text).means().is_some(), "{text}");
    }
    assert_eq!(Pasted::read("the printer is on fire").code(), None);
}

#[test]
fn every_code_is_the_runbook_of_some_error_or_behind_one() {
    for code in Code::ALL {
        let known = TROUBLES.iter().any(|trouble| trouble.codes.contains(code));
        assert!(known, "no error leads to {code}");
    }
    for trouble in TROUBLES {
        assert!(!trouble.codes.is_empty(), "{trouble:?}");
        for part in trouble.says.iter().copied().flatten() {
            assert_eq!(part.to_lowercase(), *part);
        }
    }
}

#[test]
fn a_finding_is_found_by_its_ip() {
    for text in [
        "bind: 10.0.3.17: address already in use",
        "no IP addresses available in range set: 10.0.3.1-10.0.3.20",
        "failed to connect to 10.0.3.17:8080",
        "subnet 10.0.3.16/28 is full",
    ] {
        assert!(named(text).contains("k3f9"), "{text}: {:?}", named(text));
    }
    for text in ["10.0.3.170 and 10.0.3.1/24", "range 10.88.7.1-10.88.7.6", "at 10:00:03.17"] {
        assert_eq!(named(text), "", "{text}");
    }
}

/// The findings about the range, and not what is wrong with one of its IPs.
#[test]
fn an_error_about_a_range_is_about_the_range() {
    let mut list = findings();
    list.retain(|finding| finding.subject.ip.is_some());
    let template = list[0].clone();
    let of = |id: &str, code: Code, about: &dyn Fn(&mut Finding)| {
        let mut finding = Finding { id: id.to_owned(), code, ..template.clone() };
        finding.evidence.truncate(1);
        finding.caused_by = None;
        finding.subject = crate::finding::Subject::default();
        about(&mut finding);
        finding
    };
    let network = |finding: &mut Finding| {
        finding.subject.network = Some("shopnet".into());
        finding.evidence[0].text = "10.0.3.1: leaked, container abc".into();
    };
    let ip = |finding: &mut Finding| finding.subject.ip = "10.0.3.9".parse().ok();
    list.push(of("twice", Code::IpDuplicate, &ip));
    list.push(of("leaked", Code::IpamReservationLeaked, &network));
    list.push(of("full", Code::IpamRangeExhausting, &|finding| {
        network(finding);
        finding.caused_by = Some("leaked".into());
    }));
    let ids = |text: &str| {
        let (fit, found) = Pasted::read(text).matching(&list).unwrap();
        assert_eq!(fit, Fit::Named);
        found.into_iter().map(|finding| finding.id).collect::<Vec<_>>()
    };
    let error = "failed to allocate for range 0: no IP addresses available in range set: \
                 10.0.3.1-10.0.3.20";
    assert_eq!(ids(error), ["full", "leaked"]);
    let twice: Vec<Finding> = list.iter().filter(|one| one.id == "twice").cloned().collect();
    assert!(Pasted::read(error).matching(&twice).is_none(), "of another kind");
    // What it names otherwise is listed after them.
    let with_pod = format!("pod shop/api-0: {error}");
    assert_eq!(ids(&with_pod)[..2], ["full", "leaked"]);
    assert!(ids(&with_pod).iter().any(|id| id.starts_with("k3f9")), "{:?}", ids(&with_pod));
    assert!(!ids(&with_pod).iter().any(|id| id == "twice"), "{:?}", ids(&with_pod));
}

#[test]
fn ipv6_is_taken_with_and_without_a_port() {
    let at = |text: &str, ip: &str| Pasted::read(text).is_at(ip.parse().unwrap());
    for text in ["fd00:3::17: in use", "[fd00:3::17]:443", "fd00:3::1-fd00:3::ff", "fd00:3::/64"] {
        assert!(at(text, "fd00:3::17"), "{text}");
        assert!(!at(text, "fd00:4::17"), "{text}");
    }
    assert!(Pasted::read("dial tcp 127.0.0.1:10250, [::1]:80, 0.0.0.0").places.is_empty());
}

#[test]
fn a_finding_is_found_by_its_pod_container_netns_or_id() {
    for text in [
        r#"error syncing pod "api-0_shop(1b2c)""#,
        "pod=shop/api-0",
        "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=api-0",
        r#"KillPodSandbox for "7f3a2c1e-55d0-4c0a-9b1e-0d7c2f1a8e66""#,
        "failed to stop container 7f3a91c26e0b",
        r#"netns "/var/run/netns/cni-7f3a11c2-0b8e-4d07-9a57-2d1f6a9c0e44""#,
        "what of k3f9q2m7x5wz4a6b?",
    ] {
        assert!(named(text).contains("k3f9"), "{text}: {:?}", named(text));
    }
    // Other pods, whose names only share a prefix, and the names without their context.
    for text in ["pod=shop/api-01", "pod=eshop/api-0", "api-0", "the shop", "7f3a91c"] {
        assert_eq!(named(text), "", "{text}");
    }
    // The sandbox's id is only in the evidence.
    assert_eq!(named("failed to stop sandbox b1946ac92492d2347c62"), "r7d2");
}

#[test]
fn another_ip_of_the_same_netns_is_in_the_proof() {
    let mut list = findings();
    list[0].evidence[5].text.push_str(", fd00:3::17/64 on eth0");
    let found = Pasted::read("fd00:3::17: address already in use").matching(&list);
    let (fit, found) = found.unwrap();
    assert_eq!((fit, found.len()), (Fit::Named, 1));
}

#[test]
fn findings_of_its_kind_come_first_and_are_all_there_is_without_a_name() {
    let mut list = findings();
    list.rotate_left(2);
    let kinds = |text: &str| {
        let (fit, found) = Pasted::read(text).matching(&list).unwrap();
        (fit, found.iter().map(|finding| &finding.id[..1]).collect::<String>())
    };
    assert_eq!(kinds("10.0.3.17: address already in use"), (Fit::Named, "kr".into()));
    assert_eq!(kinds("address already in use"), (Fit::Alike, "kpr".into()));
    assert!(Pasted::read("device or resource busy").matching(&list).is_none());
    assert!(Pasted::read("something else").matching(&list).is_none());
}

#[test]
fn a_name_of_any_length_is_only_a_name() {
    let mut list = findings();
    let name = format!("a{}", ".b".repeat(126));
    list[0].subject.pod =
        Some(Pod { namespace: Some("shop".into()), name: Some(name.clone()), ..Pod::default() });
    let text = format!("pod {name}_shop\u{1b}[2J\u{202e} address already in use");
    assert_eq!(Pasted::read(&text).matching(&list).unwrap().1[0].id, list[0].id);
    let long = "é ".repeat(LONGEST);
    assert!(Pasted::read(&long).matching(&list).is_none());
}
