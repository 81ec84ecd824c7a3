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

/// `PodInfo` of a release: its fields in their order, without those that later ones added.
fn pod_info(added: &str) -> String {
    format!(
        r#"{{"Name":"api-0","Namespace":"shop","TcIngress":0,"TcEgress":0,"PodNetworkType":"ENIMultiIP","PodIP":"","PodIPs":{{"IPv4":"","IPv6":""}},"SandboxExited":false,{added}}}"#
    )
}

/// `PodEipInfo` of 1.1.0, and what 1.4.1 added.
const EIP: &str =
    r#""PodEip":false,"PodEipID":"","PodEipIP":"","PodEipBandWidth":0,"PodEipChargeType":"""#;
const EIP_LATER: &str = r#","PodEipISP":"","PodEipPoolID":"","PodEipBandwidthPackageID":"""#;
/// `ResourceItem` since 1.1.0.
const ITEM: &str = r#"{"type":"eniIp","id":"00:16:3e:00:00:01.10.0.3.19","extra_eip_info":null,"eni_id":"eni-2ze1","eni_mac":"00:16:3e:00:00:01","ipv4":"10.0.3.19","ipv6":""}"#;
const NETNS: &str = r#""/var/run/netns/cni-7d3c""#;

/// What is read of a pod: the network, its IPs, the container and the uid.
fn short(json: &str) -> (String, Vec<String>, Option<String>, Option<String>) {
    let read = of_one(json);
    let pod = read[0].pod.clone().unwrap();
    assert_eq!((&*pod.namespace, &*pod.name), ("shop", "api-0"));
    let ips = read.iter().map(|r| r.ip.to_string()).collect();
    (read[0].network.clone(), ips, read[0].container_id.clone(), pod.uid)
}

/// `PodResources` of `daemon/resource_manager.go`: the IP is in the id.
#[test]
fn version_1_0_10_writes_the_type_and_the_id() {
    let item = r#"{"type":"eniIp","id":"00:16:3e:00:00:01.10.0.3.19"}"#;
    let json = format!(
        r#"{{"Resources":[{item},{{"type":"veth","id":"cali7d3c"}}],"PodInfo":{{"Name":"api-0","Namespace":"shop"}}}}"#
    );
    let expected = ("00-16-3e-00-00-01".into(), vec!["10.0.3.19".into()], None, None);
    assert_eq!(short(&json), expected);
}

/// `PodResources` of `types/res.go`.
#[test]
fn version_1_1_0_writes_the_eni_and_the_ips() {
    let info = pod_info(&format!(r#""EipInfo":{{{EIP}}},"IPStickTime":0,"PodENI":false"#));
    let json = format!(r#"{{"Resources":[{ITEM}],"PodInfo":{info},"NetNs":{NETNS}}}"#);
    let expected = ("eni-2ze1".into(), vec!["10.0.3.19".into()], None, None);
    assert_eq!(short(&json), expected);
}

#[test]
fn version_1_2_1_writes_the_pods_uid() {
    let info =
        pod_info(&format!(r#""EipInfo":{{{EIP}}},"IPStickTime":0,"PodENI":false,"PodUID":"u7""#));
    let json = format!(r#"{{"Resources":[{ITEM}],"PodInfo":{info},"NetNs":{NETNS}}}"#);
    assert_eq!(short(&json).3.as_deref(), Some("u7"));
}

#[test]
fn version_1_4_1_writes_the_containers_id() {
    let info = pod_info(&format!(
        r#""EipInfo":{{{EIP}{EIP_LATER}}},"IPStickTime":300000000000,"PodENI":false,"PodUID":"u7","NetworkPriority":"""#
    ));
    let json =
        format!(r#"{{"Resources":[{ITEM}],"PodInfo":{info},"NetNs":{NETNS},"ContainerID":"c7"}}"#);
    assert_eq!(short(&json).2.as_deref(), Some("c7"));
}

/// `PodResources` of `types/daemon/res.go`, and `NetConf` of `rpc/rpc.pb.go` as a JSON text: for a pod with an ENI of the
/// node both have its IP, for one with an ENI of the cluster (PodENI, trunk) only the `NetConf`. `time` is what 1.16.2
/// added; the rest is the same up to 1.17.5.
fn later(pod_eni: bool, time: &str) -> String {
    let info = pod_info(&format!(
        r#""EipInfo":{{{EIP}{EIP_LATER}}},"IPStickTime":0,"PodENI":{pod_eni},"PodUID":"u7","NetworkPriority":"","ERdma":false{time}"#
    ));
    let conf = r#"[{"BasicInfo":{"PodIP":{"IPv4":"10.0.3.19"},"PodCIDR":{"IPv4":"10.0.3.0/24"},"GatewayIP":{"IPv4":"10.0.3.253"},"ServiceCIDR":{"IPv4":"172.16.0.0/16"}},"ENIInfo":{"MAC":"00:16:3e:00:00:01","Trunk":true,"Vid":7,"GatewayIP":{"IPv4":"10.0.3.253"}},"Pod":{"NetworkPriority":"best-effort"},"IfName":"eth0","ExtraRoutes":[{"Dst":"10.0.0.0/8"}],"DefaultRoute":true}]"#;
    let conf = serde_json::to_string(conf).unwrap();
    let resources = if pod_eni { "null".to_owned() } else { format!("[{ITEM}]") };
    format!(
        r#"{{"Resources":{resources},"PodInfo":{info},"NetNs":{NETNS},"ContainerID":"c7","NetConf":{conf}}}"#
    )
}

#[test]
fn version_1_7_0_writes_the_configuration() {
    let shared = (vec!["10.0.3.19".to_owned()], Some("c7".to_owned()), Some("u7".to_owned()));
    let (network, ips, container, uid) = short(&later(false, ""));
    assert_eq!((&*network, &(ips, container, uid)), ("eni-2ze1", &shared));
    let (network, ips, container, uid) = short(&later(true, ""));
    assert_eq!((&*network, &(ips, container, uid)), ("terway", &shared));
    assert_eq!(of_one(&later(true, ""))[0].ifname.as_deref(), Some("eth0"));
}

#[test]
fn version_1_17_5_writes_when_the_pod_was_made() {
    let time = r#","CreateTime":"2026-07-23T18:06:55+08:00""#;
    for pod_eni in [false, true] {
        assert_eq!(of_one(&later(pod_eni, time)), of_one(&later(pod_eni, "")));
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
