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
    let dir = tempfile::tempdir().unwrap();
    let store =
        Cilium::new(&Settings { cilium_state: dir.path().to_owned(), ..Settings::default() });
    for (below, part) in [
        ("42/ep_config.json", true),
        ("42/ep_config.h", true),
        ("42/bpf_lxc.o", false),
        ("42_next/ep_config.json", false),
        ("42_next_fail/ep_config.h", false),
        ("templates/ep_config.h", false),
    ] {
        assert_eq!(store.is_part(&dir.path().join(below)), part, "{below}");
    }
    fs::create_dir(dir.path().join("42")).unwrap();
    let (newer, older) = (dir.path().join("42/ep_config.json"), dir.path().join("42/ep_config.h"));
    fs::write(&older, header(ENDPOINT)).unwrap();
    assert_eq!(store.read(&older).unwrap().reservations.len(), 2);
    fs::write(&newer, ENDPOINT).unwrap();
    assert_eq!(store.read(&older).unwrap().reservations, []);
    let read = store.read(&newer).unwrap().reservations;
    assert!(read[0].since.is_some());
    fs::write(&newer, "").unwrap();
    assert!(matches!(store.read(&newer), Err(Trouble::Unreadable { effect: Some(_), .. })));
    fs::remove_file(&newer).unwrap();
    assert_eq!(store.read(&newer), Err(Trouble::Gone));
}
