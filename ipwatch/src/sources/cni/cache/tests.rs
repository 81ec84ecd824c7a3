use super::*;

const TOKEN: &str = "canary-eyJhbGciOiJSUzI1NiJ9";

/// A file as containerd's libcni writes it, with a secret in every field that could contain one.
pub(in super::super) fn sample(container: &str, ip: &str) -> String {
    serde_json::json!({
        "kind": "cniCacheV1",
        "containerId": container,
        "config": TOKEN,
        "ifName": "eth0",
        "networkName": "net-with-dashes",
        "netns": "/var/run/netns/cni-1",
        "cniArgs": [
            ["IgnoreUnknown", "1"],
            ["K8S_POD_NAMESPACE", "shop"],
            ["K8S_POD_NAME", "api-0"],
            ["K8S_POD_INFRA_CONTAINER_ID", container],
            ["K8S_POD_UID", "7f3a"],
            ["K8S_TOKEN", TOKEN],
        ],
        "capabilityArgs": { "io.kubernetes.cri.pod-annotations": { "token": TOKEN } },
        "result": {
            "cniVersion": "1.0.0",
            "dns": { "search": [TOKEN] },
            "interfaces": [
                { "name": "cbr0", "mac": "aa:aa:aa:aa:aa:aa" },
                { "name": "veth1", "mac": TOKEN },
                { "name": "eth0", "sandbox": "/var/run/netns/cni-1", "token": TOKEN },
            ],
            "ips": [{ "address": ip, "gateway": TOKEN, "interface": 2 }, { "address": "fd00::7/64" }],
            "routes": [{ "dst": "0.0.0.0/0", "token": TOKEN }],
        },
        "token": TOKEN,
    })
    .to_string()
}

#[test]
fn an_entry_is_read_by_its_content_and_keeps_no_secret() {
    let attachment = parse(sample("c1", "10.0.3.17/24").as_bytes()).unwrap().unwrap();
    let expected = Attachment {
        made: None,
        container_id: "c1".to_owned(),
        ifname: "eth0".to_owned(),
        network: "net-with-dashes".to_owned(),
        netns_path: Some("/var/run/netns/cni-1".to_owned()),
        ips: vec![("10.0.3.17".parse().unwrap(), 24), ("fd00::7".parse().unwrap(), 64)],
        pod: Some(PodName {
            namespace: "shop".to_owned(),
            name: "api-0".to_owned(),
            uid: Some("7f3a".to_owned()),
        }),
    };
    assert_eq!(attachment, expected);
    assert!(!format!("{attachment:?}").contains(TOKEN));
}

#[test]
fn nor_does_an_error() {
    let whole = sample("c1", "10.0.3.17/24");
    let wrong = whole.replace("\"eth0\",\"kind\"", &format!("{{\"{TOKEN}\":1}},\"kind\""));
    assert_ne!(wrong, whole, "the sample has changed");
    for text in [wrong.as_str(), &format!("{{\"ifName\": {TOKEN}}}"), &format!("\"{TOKEN}\"")] {
        let error = parse(text.as_bytes()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(TOKEN), "{error}");
    }
}

#[test]
fn torn_at_any_byte_is_torn_and_never_wrong() {
    let whole = sample("c1", "10.0.3.17/24");
    for cut in 0..whole.len() {
        let torn = parse(&whole.as_bytes()[..cut]);
        assert!(
            matches!(torn, Err(CacheError::Json(JsonError::Torn(bytes))) if bytes == cut),
            "{cut}: {torn:?}"
        );
    }
}

#[test]
fn the_older_format_names_no_container() {
    let bare = r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}"#;
    assert!(matches!(parse(bare.as_bytes()), Ok(None)));
    let older = r#"{"ip4":{"ip":"10.0.0.2/24"},"dns":{}}"#;
    assert!(matches!(parse(older.as_bytes()), Ok(None)));
}

#[test]
fn what_is_missing_or_strange_is_left_out() {
    let least = r#"{"kind":"cniCacheV1","containerId":"c","ifName":"eth0","networkName":"n",
        "cniArgs":null,"result":{"ips":[{"address":"10.0.0.2"},{"address":"10.0.0.3/99"},
        {"address":"::/0"},{}],"interfaces":null}}"#;
    let attachment = parse(least.as_bytes()).unwrap().unwrap();
    assert_eq!(attachment.ips, [("::".parse().unwrap(), 0)]);
    assert_eq!((attachment.pod, attachment.netns_path), (None, None));
    for nameless in [
        r#"{"kind":"cniCacheV1","ifName":"eth0"}"#,
        r#"{"kind":"cniCacheV1","containerId":"c","ifName":""}"#,
        r#"{"kind":"cniCacheV1","containerId":"c","ifName":"a b"}"#,
        r#"{"kind":"cniCacheV1","containerId":"c;id","ifName":"eth0"}"#,
    ] {
        assert!(matches!(parse(nameless.as_bytes()), Err(CacheError::Nameless(_))), "{nameless}");
    }
    // A pod without a name is ignored.
    let half = r#"{"kind":"cniCacheV1","containerId":"c","ifName":"e","cniArgs":[["K8S_POD_NAMESPACE","shop"]]}"#;
    assert_eq!(parse(half.as_bytes()).unwrap().unwrap().pod, None);
}

#[test]
fn sizes_are_bounded() {
    let long = sample(&"c".repeat(json::LONGEST_NAME + 1), "10.0.0.2/24");
    assert!(matches!(parse(long.as_bytes()), Err(CacheError::Json(JsonError::Malformed(..)))));
    let ips = vec![serde_json::json!({ "address": "10.0.0.2/24" }); MOST_IPS + 5];
    let many = serde_json::json!({
        "kind": "cniCacheV1", "containerId": "c", "ifName": "e", "result": { "ips": ips },
    });
    assert_eq!(parse(many.to_string().as_bytes()).unwrap().unwrap().ips.len(), MOST_IPS);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("huge");
    std::fs::write(&path, " ".repeat(LONGEST + 1)).unwrap();
    assert!(matches!(read(&path), Err(CacheError::TooLong)));
    let deep = "[".repeat(100_000);
    assert!(parse(format!("{{\"config\":{deep}").as_bytes()).is_err(), "no stack overflow");
}
