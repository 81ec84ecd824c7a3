use super::*;
use crate::sources::ipam::Store;

/// dockerd's own file, with two containers in two networks.
const FILE_OF_TESTS: &[u8] = include_bytes!("../bolt/fixtures/libnetwork.db");

fn read(bytes: &[u8]) -> Result<Content, Trouble> {
    content(&Snapshot::parse(bytes.to_vec(), EFFECT)?, Path::new("/t/local-kv.db"))
}

/// The content of single documents.
fn said(documents: &[(&str, &str)]) -> Content {
    let mut found = Documents::default();
    for (key, json) in documents {
        let value = [&[0; INDEX], json.as_bytes()].concat();
        found.add(format!("{PREFIX}{key}/").as_bytes(), &value).unwrap();
    }
    found.content(Path::new("/t"))
}

#[test]
fn dockerds_file_says_who_has_which_ip() {
    let content = read(FILE_OF_TESTS).unwrap();
    let mut said: Vec<(&str, String, &str)> = content
        .reservations
        .iter()
        .map(|r| (r.network.as_str(), r.ip.to_string(), &r.container_id.as_deref().unwrap()[..4]))
        .collect();
    said.sort();
    let expected = [
        ("office", "10.211.4.2".to_owned(), "826b"),
        ("office", "fd00:211:4::2".to_owned(), "826b"),
        ("shop", "10.211.3.128".to_owned(), "826b"),
        ("shop", "10.211.3.130".to_owned(), "c1c7"),
    ];
    assert_eq!(said, expected);
    let keys: Vec<&str> = content.reservations.iter().map(|r| r.key.as_str()).collect();
    assert!(keys.iter().all(|key| key.starts_with("/t/local-kv.db#docker/network/v1.0/endpoint/")));
}

#[test]
fn and_what_its_networks_can_hand_out() {
    let content = read(FILE_OF_TESTS).unwrap();
    let names: Vec<&str> = content.ranges.iter().map(|range| range.network.as_str()).collect();
    assert_eq!(names, ["office", "shop"]);
    let (office, shop) = (&content.ranges[0], &content.ranges[1]);
    // .1 is the gateway of a /29.
    assert_eq!((office.sets.len(), office.sets[0][0].usable()), (2, 5));
    assert_eq!(office.sets[1][0].first.to_string(), "fd00:211:4::1");
    let part = &shop.sets[0][0];
    // A range within the subnet: its first address can be allocated, the broadcast address cannot.
    let ends = (part.first.to_string(), part.last.to_string());
    assert_eq!(ends, ("10.211.3.128".to_owned(), "10.211.3.254".to_owned()));
    let except: Vec<String> = part.except.iter().map(ToString::to_string).collect();
    assert_eq!(except, ["10.211.3.200", "10.211.3.254"]);
}

#[test]
fn an_endpoint_that_nobody_joined_yet_has_no_container() {
    let endpoint = ("endpoint/n1/e1", r#"{"ep_iface":{"addr":"10.0.0.2/24"},"sandbox":""}"#);
    let content =
        said(&[endpoint, ("endpoint_count/n1", "{}"), ("endpoint/n1/e2", r#"{"ep_iface":null}"#)]);
    let [only] = content.reservations.as_slice() else { panic!("{content:?}") };
    assert_eq!((only.container_id.as_deref(), only.network.as_str()), (None, "n1"));
    assert_eq!(only.key, "/t#docker/network/v1.0/endpoint/n1/e1/#10.0.0.2");
}

#[test]
fn pools_that_others_know_are_no_range() {
    let network = |ipam: &str, scope: &str, info: &str| {
        let info = serde_json::json!({
            "name": "a", "ipamType": ipam, "scope": scope, "ipamV4Info": info,
            "labels": { "token": "canary" },
        });
        said(&[("network/n1", &info.to_string())]).ranges
    };
    let info = r#"[{"PoolID":"LocalDefault/10.0.0.0/24","IPAMData":"{}"}]"#;
    assert_eq!(network("default", "local", info)[0].sets[0][0].usable(), 254);
    assert!(network("infoblox", "local", info).is_empty());
    assert!(network("default", "swarm", info).is_empty());
    for info in [
        "[]",
        "x",
        r#"[{"PoolID":"a","IPAMData":"{}"}]"#,
        r#"[{"PoolID":"a/10.0.0.0/24","IPAMData":""}]"#,
    ] {
        assert!(network("default", "local", info).is_empty(), "{info}");
    }
}

#[test]
fn a_document_that_is_none_is_told_without_its_content() {
    let mut found = Documents::default();
    let mut add = |key: &str, json: &[u8]| found.add(key.as_bytes(), &[&[0; INDEX], json].concat());
    let Err(Trouble::Unreadable { reason, .. }) =
        add("docker/network/v1.0/sandbox/s1/", b"{\"Cid\":canary}")
    else {
        panic!()
    };
    assert!(reason.contains("sandbox/s1") && !reason.contains("canary"), "{reason}");
    // Not to be read, or empty.
    for (key, json) in
        [("other/sandbox/s1/", &b"x"[..]), ("docker/network/v1.0/endpoint_count/", b"")]
    {
        assert_eq!(add(key, json), Ok(()));
    }
    assert_eq!(found.add(b"docker/network/v1.0/sandbox/s1/", b"short"), Ok(()));
}

#[test]
fn its_file_is_below_the_data_root() {
    let store = store(Path::new("/var/lib/docker"));
    assert_eq!(store.directories()[0].path, Path::new("/var/lib/docker/network/files"));
    assert!(store.is_part(Path::new("/var/lib/docker/network/files/local-kv.db")));
    assert!(!store.is_part(Path::new("/var/lib/docker/network/files/other.db")));
}
