use super::*;
use crate::sources::ipam::Store;

const FILE_OF_TESTS: &[u8] = include_bytes!("../bolt/fixtures/terway.db");

fn read(bytes: &[u8]) -> Result<Content, Trouble> {
    content(&Snapshot::parse(bytes.to_vec(), EFFECT)?, Path::new("/t/ResRelation.db"))
}

fn of<'a>(content: &'a Content, pod: &str) -> Vec<&'a Reservation> {
    let named = |r: &&Reservation| r.pod.as_ref().is_some_and(|name| name.name == pod);
    content.reservations.iter().filter(named).collect()
}

#[test]
fn every_shape_of_a_pods_resources_is_read() {
    let content = read(FILE_OF_TESTS).unwrap();
    let dual = of(&content, "dual");
    assert_eq!(dual.len(), 2);
    let expected = Reservation {
        store: "terway".to_owned(),
        network: "eni-2ze1".to_owned(),
        key: "/t/ResRelation.db#shop/dual#10.0.3.17".to_owned(),
        ip: "10.0.3.17".parse().unwrap(),
        container_id: Some("c1".repeat(32)),
        ifname: None,
        pod: Some(PodName {
            namespace: "shop".to_owned(),
            name: "dual".to_owned(),
            uid: Some("uid-dual".to_owned()),
        }),
        since: None,
    };
    assert!(dual.contains(&&expected), "{dual:#?}");
    assert!(dual.iter().any(|r| r.ip.to_string() == "fd00::17"), "{dual:#?}");
    for (pod, ip) in [("whole-eni", "10.0.3.18"), ("old", "10.0.3.19"), ("old-eni", "10.0.3.20")] {
        let ips: Vec<String> = of(&content, pod).iter().map(|r| r.ip.to_string()).collect();
        assert_eq!(ips, [ip], "{pod}");
    }
    // Named only by its key.
    assert_eq!(of(&content, "nameless").len(), 1);
    // A pod without an IP.
    assert!(of(&content, "veth").is_empty());
    assert_eq!(content.reservations.len(), 6 + 14);
    assert!(content.ranges.is_empty());
    assert!(!format!("{content:?}").contains("canary"));
}

#[test]
fn an_entry_that_is_none_is_told_without_its_content() {
    let at = FILE_OF_TESTS.windows(8).rposition(|w| w == b"\"10.0.4.").unwrap();
    let mut bytes = FILE_OF_TESTS.to_vec();
    bytes[at] = b'}';
    let Err(Trouble::Unreadable { reason, .. }) = read(&bytes) else { panic!() };
    assert!(reason.starts_with("shop/api-"), "{reason}");
    assert!(!reason.contains("10.0.4"), "{reason}");
}

#[test]
fn a_deep_value_in_a_field_that_is_not_read_is_skipped_and_in_one_that_is_told() {
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let mut into = Vec::new();
    let mut put = |json: String| add(&mut into, Path::new("/t"), b"a/b", json.as_bytes());
    let fields = r#""Resources":[{"type":"eniIp","id":"m.10.0.0.1"}]"#;
    put(format!(r#"{{{fields},"NetNs":{}}}"#, deep(100))).unwrap();
    assert!(put(format!(r#"{{"Resources":{}}}"#, deep(100))).is_err());
    assert!(put(format!(r#"{{"PodInfo":{}}}"#, deep(100_000))).is_err());
    assert!(put(format!(r#"{{{fields},"ContainerID":"{}"}}"#, "x".repeat(10_000))).is_err());
    assert_eq!(into.len(), 1);
}

#[test]
fn a_file_without_its_bucket_says_nothing() {
    assert!(matches!(read(include_bytes!("../bolt/fixtures/netavark.db")), Err(Trouble::Busy(_))));
}

#[test]
fn only_its_file_is_a_part() {
    let store = store(Path::new("/var/lib/cni/terway"));
    assert!(store.is_part(Path::new("/var/lib/cni/terway/ResRelation.db")));
    assert!(!store.is_part(Path::new("/var/lib/cni/terway/pod.db")));
    assert_eq!(store.directories()[0].path, Path::new("/var/lib/cni/terway"));
}

fn of_one(json: &str) -> Vec<Reservation> {
    let mut into = Vec::new();
    add(&mut into, Path::new("/t/ResRelation.db"), b"shop/api-0", json.as_bytes()).unwrap();
    into
}

/// `PodResources` of Terway 1.7: a pod with an ENI of its own (PodENI, or a member of a trunk).
#[test]
fn a_pod_with_an_eni_from_the_cluster_has_its_ips_in_the_configuration_alone() {
    let conf = r#"[{"BasicInfo":{"PodCIDR":{"IPv4":"10.0.5.0/24"},"PodIP":{"IPv4":"10.0.5.7","IPv6":"fd00::7"},
        "GatewayIP":{"IPv4":"10.0.5.253"}},"ENIInfo":{"MAC":"00:16:3e:00:00:07","Trunk":true},"IfName":"eth0"},
        {"BasicInfo":{"PodIP":{"IPv4":"10.0.6.7"}},"IfName":"eth1"}]"#;
    let json = serde_json::json!({
        "Resources": null, "ContainerID": "c7", "NetConf": conf,
        "PodInfo": {"Name": "api-0", "Namespace": "shop", "PodENI": true, "PodIP": "", "PodUID": "u7"},
    });
    let read = of_one(&json.to_string());
    let short = |r: &Reservation| format!("{} {}", r.ip, r.ifname.as_deref().unwrap());
    let short: Vec<String> = read.iter().map(short).collect();
    assert_eq!(short, ["10.0.5.7 eth0", "fd00::7 eth0", "10.0.6.7 eth1"]);
    assert_eq!((&*read[0].network, read[0].container_id.as_deref()), ("terway", Some("c7")));
    assert_eq!(read[0].pod.as_ref().unwrap().uid.as_deref(), Some("u7"));
    // If the resources contain the IP, the configuration adds nothing.
    let both = r#"{"Resources":[{"type":"eniIp","eni_id":"eni-1","ipv4":"10.0.3.1"}],"NetConf":"[{\"BasicInfo\":{\"PodIP\":{\"IPv4\":\"10.0.3.1\"}}}]"}"#;
    assert_eq!(of_one(both).len(), 1);
    for nothing in [r#"{"NetConf":""}"#, r#"{"NetConf":null}"#, r#"{"NetConf":"{"}"#, "{}"] {
        assert_eq!(of_one(nothing), [], "{nothing}");
    }
}

/// Terway 1.0.10.
#[test]
fn old_shapes_name_their_network_and_all_ips_of_a_pod() {
    let old = of_one(r#"{"Resources":[{"type":"eniIp","id":"00:16:3e:00:00:01.10.0.3.19"}]}"#);
    assert_eq!(
        (&*old[0].network, old[0].ip.to_string()),
        ("00-16-3e-00-00-01", "10.0.3.19".into())
    );
    let whole = r#"{"Resources":[{"type":"eni","id":"00:16:3e:00:00:02"}],
        "PodInfo":{"PodIP":"","PodIPs":{"IPv4":"10.0.3.20","IPv6":"fd00::20"}}}"#;
    let ips: Vec<String> = of_one(whole).iter().map(|r| r.ip.to_string()).collect();
    assert_eq!(ips, ["10.0.3.20", "fd00::20"]);
}
