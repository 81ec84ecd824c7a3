use std::fs;

use super::*;

const ENDPOINT: &str = r#"{"ID": 42, "ContainerName": "k8s_POD", "dockerID": "c1", "IfName": "lxc1",
    "IfIndex": 9, "LXCMAC": "0a:58:00:00:00:01", "IPv4": "10.0.1.5", "IPv6": "fd00::5",
    "Options": {"secret": "canary"}, "K8sPodName": "api-0", "K8sNamespace": "shop"}"#;

fn header(json: &str) -> String {
    let coded = |text: &str| STANDARD.encode(text);
    format!("/*\n * {MARK}{}:{}\n * Container ID: c1\n */\n", coded("\"1.8.10\""), coded(json))
}

#[test]
fn both_shapes_say_the_same() {
    let newer = parse(ENDPOINT.as_bytes(), "/state/42").unwrap();
    assert_eq!(parse_header(header(ENDPOINT).as_bytes(), "/state/42").unwrap(), newer);
    let pod = PodName { namespace: "shop".into(), name: "api-0".into(), uid: None };
    let first = Reservation {
        store: "cilium".into(),
        network: "cilium".into(),
        key: "/state/42#42/10.0.1.5".into(),
        ip: [10, 0, 1, 5].into(),
        container_id: Some("c1".into()),
        ifname: None,
        pod: Some(pod),
        since: None,
    };
    assert_eq!(newer[0], first);
    assert_eq!((newer.len(), newer[1].ip.to_string()), (2, "fd00::5".into()));
    assert!(!serde_json::to_string(&newer).unwrap().contains("canary"));
}

#[test]
fn an_endpoint_without_a_pod() {
    let host = parse(br#"{"ID": 1, "IPv4": "", "IPv6": null, "K8sPodName": ""}"#, "").unwrap();
    assert_eq!(host, []);
    let health = parse(br#"{"ID": 2, "IPv4": "10.0.1.9"}"#, "").unwrap();
    assert_eq!((health.len(), &health[0].pod, &health[0].container_id), (1, &None, &None));
}

#[test]
fn what_is_no_endpoint() {
    let error = |text: &str| parse(text.as_bytes(), "").unwrap_err();
    assert!(error("").contains("torn: it is empty"));
    assert!(error(&ENDPOINT[..40]).contains("torn"));
    assert!(error("{}").contains("names no endpoint"));
    assert!(!error(r#"{"ID": "canary"}"#).contains("canary"));
    let error = |text: &str| parse_header(text.as_bytes(), "").unwrap_err();
    assert!(error("").contains("no CILIUM_BASE64_ line"));
    assert!(error("CILIUM_BASE64_abc").contains("torn"));
    assert!(error("CILIUM_BASE64_abc:=!").contains("base64"));
    assert!(error("CILIUM_BASE64_abc:").contains("torn"));
}

#[test]
fn which_files_are_endpoints() {
    let store = Cilium::new(&Settings { cilium_state: "/state".into(), ..Settings::default() });
    for (below, part) in [
        ("42/ep_config.json", true),
        ("42/ep_config.h", true),
        ("42/lxc_config.h", true),
        ("42/bpf_lxc.o", false),
        ("42_next/ep_config.json", true),
        ("42_next_fail/ep_config.h", true),
        ("42_stale/ep_config.h", false),
        ("templates/ep_config.h", false),
        ("templates_next/ep_config.h", false),
    ] {
        assert_eq!(store.is_part(&Path::new("/state").join(below)), part, "{below}");
    }
}

/// For each set of existing files: the number of IPs read, and for which container.
#[test]
fn the_newest_shape_of_an_endpoint_counts_and_its_own_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        Cilium::new(&Settings { cilium_state: dir.path().to_owned(), ..Settings::default() });
    fs::create_dir(dir.path().join("42_next")).unwrap();
    let own = dir.path().join("42/ep_config.json");
    let next = dir.path().join("42_next/ep_config.json");
    assert_eq!(store.read(&own), Err(Trouble::Gone));
    let newer = |id: &str| ENDPOINT.replace("\"c1\"", &format!("\"{id}\""));
    let container = |path: &Path| {
        let read = store.read(path).unwrap();
        read.reservations.first().map(|one| one.container_id.clone().unwrap())
    };
    fs::write(&next, newer("next")).unwrap();
    assert_eq!(container(&next).as_deref(), Some("next"), "an agent restores it");
    fs::create_dir(dir.path().join("42")).unwrap();
    assert_eq!(container(&next), None, "there is the endpoint's own");
    for (name, text) in [
        ("lxc_config.h", header(&newer("first"))),
        ("ep_config.h", header(&newer("second"))),
        ("ep_config.json", newer("third")),
    ] {
        let path = dir.path().join("42").join(name);
        fs::write(&path, text).unwrap();
        assert_eq!(store.unit(&path), own);
    }
    for (id, name) in
        [("third", "ep_config.json"), ("second", "ep_config.h"), ("first", "lxc_config.h")]
    {
        assert_eq!(container(&own).as_deref(), Some(id));
        fs::remove_file(dir.path().join("42").join(name)).unwrap();
    }
    assert_eq!(store.read(&own), Err(Trouble::Gone));
    fs::write(&own, "").unwrap();
    let trouble = store.read(&own).unwrap_err();
    assert!(matches!(&trouble, Trouble::Unreadable { effect: Some(_), .. }));
    assert!(trouble.to_string().starts_with("ep_config.json: torn"), "{trouble}");
}

/// Every field of `serializableEndpoint` (pkg/endpoint/restore.go) in its order, as of cilium's commits 005d3ed35c13 and,
/// with what the IPAM pools added, 082016e01fba. What is not read of it is as short as the types allow.
fn written(by_pools: bool) -> String {
    let pool = |version: u8| match by_pools {
        true => format!(r#""IPv{version}IPAMPool":"default","#),
        false => String::new(),
    };
    let uid = if by_pools {
        r#","CiliumEndpointUID":"0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0""#
    } else {
        ""
    };
    format!(
        concat!(
            r#"{{"ID":42,"ContainerName":"","dockerID":"c1","DockerNetworkID":"","DockerEndpointID":"","#,
            r#""IfName":"lxc7d3c5a1b2c3d","IfIndex":9,"#,
            r#""OpLabels":{{"Custom":{{}},"OrchestrationIdentity":{{}},"Disabled":{{}},"OrchestrationInfo":{{}}}},"#,
            r#""LXCMAC":"0a:58:0a:00:01:05","IPv6":"fd00::5",{}"IPv4":"10.0.1.5",{}"#,
            r#""NodeMAC":"0a:58:0a:00:01:06","#,
            r#""SecLabel":{{"id":4711,"labels":{{}},"labelsSHA256":""}},"#,
            r#""Options":{{"map":{{"Debug":0}}}},"DNSRules":{{}},"DNSHistory":[],"#,
            r#""DNSZombies":{{"deletes":{{}}}},"K8sPodName":"api-0","K8sNamespace":"shop","#,
            r#""DatapathConfiguration":{{}}{}}}"#
        ),
        pool(6),
        pool(4),
        uid
    )
}

#[test]
fn documents_as_of_005d3ed35c13_and_as_of_082016e01fba_are_read_alike() {
    for by_pools in [false, true] {
        let text = written(by_pools);
        let read = parse(text.as_bytes(), "/state/42").unwrap();
        let ips: Vec<String> = read.iter().map(|r| r.ip.to_string()).collect();
        assert_eq!(ips, ["10.0.1.5", "fd00::5"], "{text}");
        assert!(read.iter().all(|r| r.container_id.as_deref() == Some("c1")), "{text}");
        let pod = read[0].pod.as_ref().unwrap();
        assert_eq!((&*pod.namespace, &*pod.name, &pod.uid), ("shop", "api-0", &None));
        assert_eq!((&read[0].ifname, &*read[0].key), (&None, "/state/42#42/10.0.1.5"));
        assert_eq!(parse_header(header(&text).as_bytes(), "/state/42").unwrap(), read);
    }
}

/// `serializableEndpoint` of 1.16 and newer.
#[test]
fn newer_documents_name_the_pods_uid_and_interface() {
    let json = ENDPOINT.replace(
        "\"K8sNamespace\"",
        "\"K8sUID\": \"u1\", \"ContainerIfName\": \"eth0\", \"NetnsCookie\": 7, \"K8sNamespace\"",
    );
    let read = parse(json.as_bytes(), "/state/42").unwrap();
    assert_eq!(read[0].ifname.as_deref(), Some("eth0"));
    assert_eq!(read[0].pod.as_ref().unwrap().uid.as_deref(), Some("u1"));
}
