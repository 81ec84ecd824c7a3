use super::*;

/// podman's own file, with three containers in two networks.
const FILE_OF_TESTS: &[u8] = include_bytes!("../bolt/fixtures/netavark.db");

fn part_of(subnet: &str) -> Option<RangePart> {
    part(&serde_json::from_str(subnet).unwrap())
}

#[test]
fn podmans_file_says_who_has_which_ip() {
    let snapshot = Snapshot::parse(FILE_OF_TESTS.to_vec(), EFFECT).unwrap();
    let content = content(&snapshot, Path::new("/t/ipam.db")).unwrap();
    let said: Vec<(&str, String, &str)> = content
        .reservations
        .iter()
        .map(|r| (r.network.as_str(), r.ip.to_string(), &r.container_id.as_deref().unwrap()[..4]))
        .collect();
    let expected = [
        ("dual", "10.211.6.2".to_owned(), "1752"),
        ("dual", "fd00:211:6::2".to_owned(), "1752"),
        ("pods", "10.211.5.129".to_owned(), "fa77"),
        ("pods", "10.211.5.7".to_owned(), "414d"),
    ];
    assert_eq!(said, expected);
    assert_eq!(content.reservations[0].key, "/t/ipam.db#dual#10.211.6.2");
}

#[test]
fn a_networks_file_says_what_it_can_hand_out() {
    let json =
        br#"{ "name": "dual", "id": "69", "driver": "bridge", "options": { "token": "canary" },
        "subnets": [{ "subnet": "10.211.6.0/24", "gateway": "10.211.6.1" },
                    { "subnet": "fd00:211:6::/64", "gateway": "fd00:211:6::1" }],
        "ipam_options": { "driver": "host-local" } }"#;
    let range = range(json, Path::new("/t/dual.json")).unwrap().unwrap();
    assert_eq!((range.network.as_str(), range.sets.len()), ("dual", 2));
    let v4 = &range.sets[0][0];
    assert_eq!(
        (v4.first.to_string(), v4.last.to_string()),
        ("10.211.6.1".into(), "10.211.6.254".into())
    );
    assert_eq!(v4.usable(), 253);
    assert_eq!(range.sets[1][0].last.to_string(), "fd00:211:6:0:ffff:ffff:ffff:ffff");
}

#[test]
fn a_lease_range_is_taken_as_it_stands() {
    let lease = |lease: &str| {
        part_of(&format!(
            r#"{{"subnet":"10.0.0.0/24","gateway":"10.0.0.1","lease_range":{lease}}}"#
        ))
    };
    let whole = lease(r#"{"start_ip":"10.0.0.129","end_ip":"10.0.0.255"}"#).unwrap();
    assert_eq!((whole.usable(), whole.except.len()), (127, 0));
    assert_eq!(lease(r#"{"end_ip":"10.0.0.9"}"#).unwrap().usable(), 8);
    assert_eq!(lease(r#"{"start_ip":"10.0.0.9","end_ip":"10.0.0.1"}"#), None);
    assert_eq!(lease(r#"{"start_ip":"10.0.0.9","end_ip":"fd00::1"}"#), None);
    assert_eq!(part_of(r#"{"subnet":"10.0.0.0/33"}"#), None);
}

#[test]
fn a_network_whose_ips_are_anothers_to_give_has_no_range() {
    for json in [
        r#"{"name":"a","subnets":[{"subnet":"10.0.0.0/24"}],"ipam_options":{"driver":"dhcp"}}"#,
        r#"{"name":"a","subnets":null}"#,
        r#"{"name":"a","subnets":[{"subnet":"10.0.0.0/24"},{"subnet":"x"}]}"#,
    ] {
        assert_eq!(range(json.as_bytes(), Path::new("/t")).unwrap(), None, "{json}");
    }
    assert!(range(b"{}", Path::new("/t")).is_err());
    assert!(range(b"{\"name\":", Path::new("/t")).is_err());
}

#[test]
fn its_parts_are_the_file_and_the_networks() {
    let store = Netavark::new(Path::new("/run/n/ipam.db"), Path::new("/etc/n"));
    for (path, expected) in [
        ("/run/n/ipam.db", true),
        ("/etc/n/a.json", true),
        ("/run/n/a.json", false),
        ("/etc/n/a.conf", false),
    ] {
        assert_eq!(store.is_part(Path::new(path)), expected, "{path}");
    }
    assert_eq!(store.directories().len(), 2);
}

#[test]
fn a_file_that_is_none_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = Netavark::new(&dir.path().join("ipam.db"), dir.path());
    let network = dir.path().join("a.json");
    assert_eq!(store.read(&network), Err(Trouble::Gone));
    std::fs::write(&network, b"").unwrap();
    assert!(matches!(store.read(&network), Err(Trouble::Busy(_))));
    std::fs::write(&network, b"[1]").unwrap();
    assert!(matches!(store.read(&network), Err(Trouble::Unreadable { effect: None, .. })));
    let db = dir.path().join("ipam.db");
    std::fs::write(&db, [0; 9000]).unwrap();
    assert!(matches!(store.read(&db), Err(Trouble::Unreadable { effect: Some(EFFECT), .. })));
    std::fs::write(&db, FILE_OF_TESTS).unwrap();
    assert_eq!(store.read(&db).unwrap().reservations.len(), 4);
}
