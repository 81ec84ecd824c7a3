use std::fs;

use super::*;

fn parts(network: &Network) -> Vec<Vec<String>> {
    let part = |part: &RangePart| format!("{}-{} {}", part.first, part.last, part.usable());
    network.sets.iter().map(|set| set.iter().map(part).collect()).collect()
}

#[test]
fn a_list_with_range_sets_and_a_subnet_at_the_top() {
    let networks = parse(
        br#"{"cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "bridge", "token": "canary", "ipam": {"type": "host-local",
                "dataDir": "/run/ipam", "subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.10",
                "ranges": [[{"subnet": "10.2.0.0/24"}, {"subnet": "10.3.0.0/30"}],
                           [{"subnet": "fd00::/64", "rangeStart": "fd00::10", "rangeEnd": "fd00::1f"}]],
                "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "ipam": null}]}"#,
    )
    .unwrap();
    assert_eq!(networks.len(), 1);
    assert_eq!(
        (&*networks[0].name, networks[0].data_dir.as_deref()),
        ("net", Some(Path::new("/run/ipam")))
    );
    assert_eq!(
        parts(&networks[0]),
        [
            vec!["10.1.0.1-10.1.0.10 9"],
            vec!["10.2.0.1-10.2.0.254 253", "10.3.0.1-10.3.0.2 1"],
            vec!["fd00::10-fd00::1f 16"]
        ]
    );
}

#[test]
fn one_plugin_and_those_that_work_for_another() {
    let names = |text: &str| -> Vec<_> {
        parse(text.as_bytes()).unwrap().into_iter().map(|it| (it.name, it.subnet_file)).collect()
    };
    let single = r#"{"name": "a", "type": "macvlan", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}"#;
    assert_eq!(names(single), [("a".to_owned(), None)]);
    let flannel = r#"{"name": "cbr0", "plugins": [{"type": "flannel", "delegate": {"isDefaultGateway": true}}]}"#;
    assert_eq!(names(flannel), [("cbr0".to_owned(), Some(FLANNEL.into()))]);
    let moved = r#"{"name": "cbr0", "type": "flannel", "subnetFile": "/x/y.env"}"#;
    assert_eq!(names(moved), [("cbr0".to_owned(), Some("/x/y.env".into()))]);
    let multus =
        format!(r#"{{"name": "multus", "type": "multus", "delegates": [{single}, {flannel}]}}"#);
    assert_eq!(names(&multus), [("a".to_owned(), None), ("cbr0".to_owned(), Some(FLANNEL.into()))]);
    for other in [
        r#"{"name": "c", "type": "cilium-cni"}"#,
        r#"{"name": "d", "type": "macvlan", "ipam": {"type": "dhcp"}}"#,
        r#"{"type": "macvlan", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}"#,
        r#"{"name": "../x", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}"#,
        "{}",
    ] {
        assert_eq!(names(other), [], "{other}");
    }
    let calico = r#"{"name": "k8s", "type": "calico", "ipam": {"type": "host-local", "subnet": "usePodCidr"}}"#;
    assert!(parse(calico.as_bytes()).unwrap()[0].sets.is_empty());
}

#[test]
fn what_is_no_configuration() {
    let json = |bytes: &[u8]| matches!(parse(bytes), Err(Wrong::Json(_)));
    assert!(json(b"") && json(b"{\"name\": \"a") && json(b"[]") && json(b"\xff{}"));
    let wrong = br#"{"name": "a", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/31"}}"#;
    assert!(matches!(parse(wrong), Err(Wrong::Range(error)) if error.contains("too small")));
    let secret = parse(b"{\"name\": {\"password\": \"canary\"}}").unwrap_err();
    assert!(!secret.to_string().contains("canary"), "{secret}");
    let many = format!(r#"{{"name": "a", "plugins": [{}{{}}]}}"#, "{},".repeat(64));
    assert!(json(many.as_bytes()));
}

#[test]
fn deep_json_is_refused_or_passed_over() {
    for depth in [100, 100_000] {
        let deep = |open: &str, close: &str| open.repeat(depth) + &close.repeat(depth);
        let unasked = format!(r#"{{"name": "a", "x": {}}}"#, deep("[", "]"));
        assert_eq!(parse(unasked.as_bytes()), Ok(Vec::new()), "{depth}");
        let asked = deep(r#"{"plugins":["#, "]}");
        assert!(parse(asked.as_bytes()).is_err() || depth == 100);
    }
}

#[test]
fn files_of_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let network = |name: &str, more: &str| {
        format!(r#"{{"name": "{name}", "type": "bridge", "ipam": {{"type": "host-local"{more}}}}}"#)
    };
    put("1.conf", &network("a", r#", "dataDir": "/data/a", "subnet": "10.1.0.0/24""#));
    put("2.json", &network("b", r#", "dataDir": "not/absolute", "subnet": "10.2.0.0/24""#));
    put("3.conflist", r#"{"name": "cbr0", "type": "flannel"}"#);
    put("4.txt", &network("d", r#", "dataDir": "/data/d""#));
    put("5.conf", "{");
    let missing = dir.path().join("missing");
    let found = named(&[dir.path().to_owned(), missing]);
    assert_eq!(found.data_dirs, [PathBuf::from("/data/a")]);
    assert_eq!(found.subnet_files, [PathBuf::from(FLANNEL)]);
    let of = |name: &str| {
        content(&dir.path().join(name), Path::new("/default")).map(|(ranges, _)| ranges)
    };
    assert_eq!(of("1.conf").unwrap()[0].data_dir.as_deref(), Some("/data/a/a"));
    assert_eq!(of("2.json").unwrap()[0].data_dir.as_deref(), Some("/default/b"));
    assert!(matches!(of("5.conf"), Err(Trouble::Unreadable { effect: Some(_), .. })));
    assert_eq!(of("6.conf"), Err(Trouble::Gone));
}

#[test]
fn what_ipwatch_ipam_stands_before_is_the_store() {
    let plain = r#"{"type": "host-local", "dataDir": "/run/ipam", "ranges": [[{"subnet": "10.1.0.0/24"}]]}"#;
    let list = |ipam: &str| {
        let text =
            format!(r#"{{"name": "net", "plugins": [{{"type": "bridge", "ipam": {ipam}}}]}}"#);
        parse(text.as_bytes()).unwrap()
    };
    let wrapped = format!(r#"{{"type": "ipwatch-ipam", "gateMax": 60, "delegate": {plain}}}"#);
    assert_eq!(list(&wrapped), list(plain));
    assert_eq!(list(plain).len(), 1);
    assert_eq!(list(r#"{"type": "ipwatch-ipam"}"#), []);
    assert_eq!(list(&format!(r#"{{"type": "other", "delegate": {plain}}}"#)), []);
}

/// A network without a known range may hand out IPs all the same.
#[test]
fn every_network_is_named_whether_or_not_its_range_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let of = |text: &str| -> Vec<(String, bool)> {
        let path = dir.path().join("1.conflist");
        fs::write(&path, text).unwrap();
        let (ranges, networks) = content(&path, Path::new("/default")).unwrap();
        assert_eq!(ranges, []);
        networks.into_iter().map(|network| (network.name, network.elsewhere)).collect()
    };
    let own = |name: &str, elsewhere| vec![(name.to_owned(), elsewhere)];
    let flannel = r#"{"name": "cbr0", "plugins": [{"type": "flannel", "subnetFile": "/none"}]}"#;
    assert_eq!(of(flannel), own("cbr0", false), "flanneld has not written its subnet yet");
    let canal = r#"{"name": "k8s-pod-network", "plugins": [{"type": "calico",
        "ipam": {"type": "host-local", "subnet": "usePodCidr"}}]}"#;
    assert_eq!(of(canal), own("k8s-pod-network", false), "the API server has its subnet");
    assert_eq!(of(r#"{"name": "cilium", "type": "cilium-cni"}"#), own("cilium", false));
    let multus = format!(r#"{{"name": "m", "type": "multus", "delegates": [{flannel}]}}"#);
    assert_eq!(of(&multus), [own("cbr0", false), own("m", true)].concat());
    assert!(of(r#"{"name": "m", "plugins": [{"type": "multus-shim"}]}"#)[0].1);
    assert_eq!(of("{}"), []);
}
