use std::fs;

use super::*;

const VALID: &str = r#"{"version": "vpc-cni-ipam/1", "allocations": [
    {"networkName": "aws-cni", "containerID": "c1", "ifName": "eth0", "ipv4": "10.0.1.5",
     "allocationTimestamp": 1700000000000000000,
     "metadata": {"k8sPodNamespace": "shop", "k8sPodName": "api-0", "token": "canary"}},
    {"networkName": "aws-cni", "containerID": "c2", "ifName": "eth0", "ipv4": "", "ipv6": "fd00::5"},
    {"networkName": "aws-cni", "containerID": "c3", "ifName": "eth0", "ipv4": "nonsense", "metadata": null}
]}"#;

#[test]
fn what_is_allocated_and_to_which_pod() {
    let reservations = parse(VALID.as_bytes(), "/a/ipam.json").unwrap();
    let pod = PodName { namespace: "shop".into(), name: "api-0".into(), uid: None };
    let first = Reservation {
        store: "aws-vpc-cni".into(),
        network: "aws-cni".into(),
        key: "/a/ipam.json#aws-cni/c1/eth0/10.0.1.5".into(),
        ip: [10, 0, 1, 5].into(),
        container_id: Some("c1".into()),
        ifname: Some("eth0".into()),
        pod: Some(pod),
        since: Some(1_700_000_000_000_000_000),
    };
    assert_eq!(reservations[0], first);
    assert_eq!((reservations[1].ip.to_string(), reservations[1].since), ("fd00::5".into(), None));
    assert_eq!(reservations.len(), 2);
    assert!(!serde_json::to_string(&reservations).unwrap().contains("canary"));
    assert_eq!(parse(br#"{"version": "vpc-cni-ipam/1", "allocations": null}"#, ""), Ok(Vec::new()));
}

/// A checkpoint as a release of amazon-vpc-cni-k8s writes it: every field of `CheckpointData`, `CheckpointEntry`,
/// `IPAMKey` and `IPAMMetadata` (pkg/ipamd/datastore/data_store.go), in their order, empty ones only where the release
/// writes them.
fn written(entries: &[&str]) -> String {
    format!("{{\"version\":\"vpc-cni-ipam/1\",\"allocations\":[{}]}}", entries.join(","))
}

const KEY: &str =
    r#""networkName":"aws-cni","containerID":"9f0c3a5e7b1d4f6082a4c6e8f0123456","ifName":"eth0""#;

fn short(text: &str) -> Vec<(String, Option<String>, Option<i64>)> {
    let read = parse(text.as_bytes(), "/a/ipam.json").unwrap();
    let pod = |r: &Reservation| r.pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name));
    read.iter().map(|r| (r.ip.to_string(), pod(r), r.since)).collect()
}

#[test]
fn version_1_7_0_writes_the_key_and_the_ipv4() {
    let text = written(&[&format!(r#"{{{KEY},"ipv4":"10.0.1.5"}}"#)]);
    assert_eq!(short(&text), [("10.0.1.5".into(), None, None)]);
}

#[test]
fn version_1_10_0_writes_one_of_both_families() {
    let text = written(&[
        &format!(r#"{{{KEY},"ipv4":"10.0.1.5"}}"#),
        &format!(r#"{{{KEY},"ipv6":"2600:1f13::5"}}"#),
    ]);
    let expected = [("10.0.1.5".into(), None, None), ("2600:1f13::5".into(), None, None)];
    assert_eq!(short(&text), expected);
}

#[test]
fn version_1_11_0_writes_the_time_and_the_pod() {
    let entry = |metadata: &str| {
        let rest = r#""ipv4":"10.0.1.5","allocationTimestamp":1700000000000000000"#;
        written(&[&format!(r#"{{{KEY},{rest},"metadata":{metadata}}}"#)])
    };
    let since = Some(1_700_000_000_000_000_000);
    let full = entry(r#"{"k8sPodNamespace":"shop","k8sPodName":"api-0"}"#);
    assert_eq!(short(&full), [("10.0.1.5".into(), Some("shop/api-0".into()), since)]);
    assert_eq!(
        short(&entry("{}")),
        [("10.0.1.5".into(), None, since)],
        "taken over from the runtime"
    );
}

/// The same up to 1.23.0. A pod with several interfaces has an entry for each, in the file of its network card.
#[test]
fn version_1_20_0_writes_the_number_of_interfaces() {
    let metadata = r#"{"k8sPodNamespace":"shop","k8sPodName":"api-0","interfacesCount":2}"#;
    let rest = r#""ipv4":"10.0.1.5","allocationTimestamp":1700000000000000000"#;
    let text = written(&[&format!(r#"{{{KEY},{rest},"metadata":{metadata}}}"#)]);
    let since = Some(1_700_000_000_000_000_000);
    assert_eq!(short(&text), [("10.0.1.5".into(), Some("shop/api-0".into()), since)]);
}

/// `backfillNetworkIface` of the datastore: allocations taken over from the runtime.
#[test]
fn a_placeholder_is_no_interface() {
    let migrated = VALID.replace("\"ifName\": \"eth0\"", "\"ifName\": \"unknown\"");
    let read = parse(migrated.as_bytes(), "/a/ipam.json").unwrap();
    assert_eq!(
        (&read[0].ifname, &*read[0].key),
        (&None, "/a/ipam.json#aws-cni/c1/unknown/10.0.1.5")
    );
}

#[test]
fn what_is_no_checkpoint() {
    let error = |text: &str| parse(text.as_bytes(), "").unwrap_err();
    assert!(
        error(r#"{"version": "vpc-cni-ipam/2", "allocations": []}"#).contains("\"vpc-cni-ipam/2\"")
    );
    assert!(error(r#"{"allocations": []}"#).contains("no version"));
    assert!(error("").contains("torn: it is empty"));
    assert!(error(&VALID[..VALID.len() / 2]).contains("torn"));
    assert!(error("[]").contains("not understood"));
    let quoted = error(r#"{"version": "vpc-cni-ipam/1", "allocations": [{"ipv4": ["canary"]}]}"#);
    assert!(quoted.contains("line 1") && !quoted.contains("canary"), "{quoted}");
}

#[test]
fn the_file_and_those_of_further_cards() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("ipam.json");
    let store = Aws::new(&Settings { aws_checkpoint: checkpoint.clone(), ..Settings::default() });
    assert_eq!(store.directories(), [Directory { path: dir.path().to_owned(), nested: false }]);
    for (name, part) in [
        ("ipam.json", true),
        ("ipam-nic-1.json", true),
        ("ipam-nic-.json", false),
        ("ipam-nic-x.json", false),
        ("ipam.json.tmp12", false),
        ("other.json", false),
    ] {
        assert_eq!(store.is_part(&dir.path().join(name)), part, "{name}");
    }
    let plain = Settings { aws_checkpoint: dir.path().join("ipam"), ..Settings::default() };
    let plain = Aws::new(&plain);
    for (name, part) in
        [("ipam", true), ("ipam-nic-1.json", true), ("ipam-nic-1", true), ("ipam.json", false)]
    {
        assert_eq!(plain.is_part(&dir.path().join(name)), part, "{name}");
    }
    assert_eq!(store.read(&checkpoint), Err(Trouble::Gone));
    fs::write(&checkpoint, VALID).unwrap();
    assert_eq!(store.read(&checkpoint).unwrap().reservations.len(), 2);
    fs::write(&checkpoint, "").unwrap();
    let trouble = store.read(&checkpoint).unwrap_err();
    assert!(matches!(trouble, Trouble::Unreadable { effect: Some(_), .. }), "{trouble:?}");
    fs::write(&checkpoint, vec![b' '; LONGEST + 1]).unwrap();
    assert!(store.read(&checkpoint).unwrap_err().to_string().contains("longer"));
}
