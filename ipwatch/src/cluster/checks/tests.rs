//! Cases from the field, and cases that must not be reported.

mod calico;
mod duplicates;
mod freeing;

use serde_json::json;

use super::*;
use crate::cluster::fixtures::{
    Objects, calico, calico_pod, commands, crashed, lines, overlapping, pod, pool,
};
use crate::cluster::snapshot::{Listed, State};
use crate::contract::Step;

#[test]
fn a_crashed_nodes_allocations_are_found_and_freed_offset_by_offset() {
    let cluster = crashed().judged();
    let [range] = &cluster.ranges[..] else { panic!("{cluster:#?}") };
    assert_eq!(range.range, "192.168.7.10-192.168.7.14");
    assert_eq!((range.usable, range.used, range.free), (Some(5), 5, Some(0)));
    assert_eq!((range.leaked, range.recoverable, range.compared), (2, 2, true));
    assert_eq!(range.from, ["network-attachment-definitions/default/ipvlan"]);
    let why = "it names no pod, and no pod has this IP";
    let leaked = |ip: &str| format!("likely ipam-reservation-leaked {ip} {why}");
    let told = lines(&cluster);
    assert_eq!(told[..2], [leaked("192.168.7.11"), leaked("192.168.7.13")]);
    assert!(told[2..].iter().all(|line| line.contains("ipam-records-disagree")), "{told:#?}");
    assert_eq!(cluster.findings[0].severity, Severity::Critical, "nothing is left");
    let offsets: Vec<_> = cluster.findings.iter().map(|one| one.offset.as_deref()).collect();
    assert_eq!(offsets[..2], [Some("11"), Some("13")]);
    let commands = commands(&cluster);
    assert_eq!(commands.len(), 2, "{commands:#?}");
    for (command, id, at) in [(commands[0], "dead-1", 11), (commands[1], "dead-2", 13)] {
        assert!(command.contains(&format!(
            "{{\"op\":\"test\",\"path\":\"/spec/allocations/{at}/id\",\"value\":\"{id}\"}}"
        )));
    }
    assert!(commands[0].contains("' && printf ") && commands[0].ends_with("/192.168.7.11 -f -"));
    assert!(!commands[1].contains("delete"), "{commands:#?}");
}

#[test]
fn what_one_look_alone_says_is_not_told() {
    let (before, kubectl) = (crashed(), Kubectl::default());
    let mut after = crashed();
    // One allocation was freed meanwhile, and the IP given to another container.
    after.pools = vec![pool(json!({
        "10": {"id": "aaaa", "podref": "shop/web-0"},
        "11": {"id": "new"},
        "13": {"id": "dead-2"},
    }))];
    let told = judge("", &before.look(), &after.look(), &kubectl);
    let leaked: Vec<_> = told.findings.iter().filter(|one| one.code == LEAKED).collect();
    assert_eq!(leaked.len(), 1, "{leaked:#?}");
    assert_eq!(leaked[0].id.as_deref(), Some("dead-2"));
    // A pod that the first list of pods did not have yet.
    let mut late = crashed();
    late.pods.push(pod("web-3", "node-1", "10.0.1.3", &["192.168.7.11", "192.168.7.13"]));
    let told = judge("", &before.look(), &late.look(), &kubectl);
    assert_eq!(told.ranges[0].leaked, 0, "{:#?}", lines(&told));
}

#[test]
fn a_pod_that_is_being_made_has_its_allocation() {
    let mut told = crashed();
    let mut made = pod("web-3", "node-1", "10.0.1.9", &[]);
    made["status"] = json!({"phase": "Pending"});
    made["metadata"]["annotations"] = json!({});
    told.pods.push(made);
    told.pools =
        vec![pool(json!({"10": {"id": "new", "podref": "shop/web-3"}, "11": {"id": "dead"}}))];
    told.overlapping.clear();
    let cluster = told.judged();
    let [one] = &cluster.findings[..] else { panic!("{:#?}", lines(&cluster)) };
    assert_eq!((one.id.as_deref(), &*one.certainty), (Some("dead"), "likely"));
    assert!(one.evidence[0].contains("1 pods have a node and no IP yet"), "{:?}", one.evidence);
    // The runtimes are asked for the container before anything is freed.
    let asks = |step: &Step| step.command.as_deref() == Some("crictl inspectp dead");
    let asked = one.remediation.iter().position(asks).unwrap();
    assert!(one.remediation[asked].what.contains("being made, \"node-1\": where"));
    assert!(one.remediation[asked..].iter().any(|step| step.changes));
}

#[test]
fn nothing_is_told_from_a_list_that_is_not_whole() {
    let unknown = || State::Unknown("needs the right to list pods".to_owned());
    let kubectl = Kubectl::default();
    for state in [unknown(), State::Part(1)] {
        let mut look = crashed().look();
        look.pods.state = state;
        let cluster = judge("", &crashed().look(), &look, &kubectl);
        assert!(cluster.findings.iter().all(|one| one.code != LEAKED), "{:#?}", lines(&cluster));
        let cluster = judge("", &look, &crashed().look(), &kubectl);
        assert!(!cluster.ranges[0].compared && cluster.ranges[0].leaked == 0);
    }
    let mut told = crashed();
    told.pools = vec![pool(json!({"11": {"id": "a", "podref": "shop/gone"}}))];
    assert_eq!(told.judged().ranges[0].leaked, 1);
    let mut look = told.look();
    look.pods.state = State::Part(1);
    assert_eq!(judge("", &look, &look, &kubectl).ranges[0].leaked, 0, "it may be the other half's");
    // Without a list of nodes no node counts as deleted.
    let mut told = crashed();
    told.pods.push(pod("lost", "node-3", "10.0.3.3", &["192.168.7.11"]));
    assert_eq!(told.judged().ranges[0].leaked, 2);
    let mut look = told.look();
    look.nodes.state = unknown();
    assert_eq!(judge("", &look, &look, &kubectl).ranges[0].leaked, 1);
    look.nodes = Listed::default();
    assert_eq!(judge("", &look, &look, &kubectl).ranges[0].leaked, 1, "no node at all");
    // If the list of pools is incomplete, an overlapping reservation may belong to a missing pool.
    let mut told = crashed();
    told.overlapping.push(overlapping("192.168.7.99", "shop/gone"));
    assert!(lines(&told.judged()).iter().any(|line| line.contains("192.168.7.99")));
    let mut look = told.look();
    look.pools.state = State::Part(1);
    let cluster = judge("", &look, &look, &kubectl);
    assert!(!lines(&cluster).iter().any(|line| line.contains("192.168.7.99")));
}

#[test]
fn pods_that_are_gone_ended_or_elsewhere() {
    let mut told = crashed();
    told.pools = vec![pool(json!({
        "10": {"id": "a", "podref": "shop/gone"},
        "11": {"id": "b", "podref": "shop/ended"},
        "12": {"id": "c", "podref": "shop/lost"},
        "13": {"id": "d", "podref": "shop/other"},
        "14": {"id": "e", "podref": "shop/claimed", "ipamclaimref": "shop/claim"},
    }))];
    told.overlapping.clear();
    let mut ended = pod("ended", "node-1", "10.0.1.5", &["192.168.7.11"]);
    ended["status"]["phase"] = json!("Failed");
    told.pods = vec![
        ended,
        pod("lost", "node-9", "10.0.9.2", &["192.168.7.12"]),
        pod("other", "node-1", "10.0.1.6", &["192.168.7.20"]),
    ];
    let cluster = told.judged();
    assert_eq!(
        lines(&cluster),
        [
            "likely ipam-reservation-leaked 192.168.7.10 its pod shop/gone is gone",
            "likely ipam-reservation-leaked 192.168.7.11 its pod shop/ended has ended (Failed)",
            "likely ipam-reservation-leaked 192.168.7.12 its pod shop/lost is on node node-9, which is gone",
            "doubtful ipam-reservation-doubtful 192.168.7.13 its pod shop/other lives and has other IPs",
        ]
    );
    let range = &cluster.ranges[0];
    assert_eq!((range.leaked, range.doubtful, range.recoverable), (3, 1, 3));
    assert!(cluster.findings[3].remediation.iter().all(|step| !step.changes), "only to look");
    // Without Multus' status the IPs of a second network are unknown.
    told.pods[2]["metadata"]["annotations"] = json!({});
    assert_eq!(told.judged().ranges[0].doubtful, 0);
    // Another pod has the IP of a deleted pod.
    told.pods.push(pod("thief", "node-1", "10.0.1.7", &["192.168.7.10"]));
    let cluster = told.judged();
    assert_eq!((cluster.ranges[0].leaked, cluster.ranges[0].doubtful), (2, 1));
    let doubtful = cluster.findings.iter().filter(|one| one.code == DOUBTFUL);
    assert!(doubtful.flat_map(|one| &one.remediation).all(|step| !step.changes));
}

#[test]
fn pools_and_overlapping_reservations_that_disagree() {
    let mut told = crashed();
    told.pools = vec![pool(json!({
        "10": {"id": "a", "podref": "shop/web-0"},
        "12": {"id": "b", "podref": "shop/web-1"},
    }))];
    told.overlapping = vec![
        overlapping("192.168.7.10", "shop/web-0"),
        overlapping("192.168.7.11", "shop/gone"),
        overlapping("blue-192.168.7.14", "shop/web-2"),
    ];
    let cluster = told.judged();
    assert_eq!(
        lines(&cluster),
        [
            "likely ipam-records-disagree 192.168.7.14 no pool has an entry for it: the pool takes the IP for free",
            "likely ipam-reservation-leaked 192.168.7.11 its pod shop/gone is gone; no pool has an entry for it",
            "likely ipam-records-disagree 192.168.7.12 it has no overlapping reservation: a pool of an \
             overlapping range may hand it out",
        ]
    );
    assert_eq!(cluster.ranges[0].leaked, 0, "the pool has none");
    let delete = commands(&cluster);
    assert_eq!(delete.len(), 1);
    assert!(
        delete[0].contains("\"uid\":\"uid-192.168.7.11\"")
            && delete[0].contains("| kubectl delete --raw="),
        "{delete:?}"
    );
    // Its pod has ended, but may still have the IP: only steps that look.
    let mut ended = pod("gone", "node-1", "10.0.1.9", &[]);
    ended["status"]["phase"] = json!("Failed");
    told.pods.push(ended);
    assert_eq!(commands(&told.judged()), [""; 0]);
    // The same if another pod has the IP that has ended, or is on a deleted node.
    told.pods.pop();
    let mut other = pod("other", "node-1", "10.0.1.9", &["192.168.7.11"]);
    other["status"]["phase"] = json!("Failed");
    told.pods.push(other);
    assert_eq!(commands(&told.judged()), [""; 0]);
    told.pods.pop();
    told.overlapping[1] = overlapping("192.168.7.11", "");
    assert_eq!(commands(&told.judged()).len(), 1);
    told.pods.push(pod("lost", "node-9", "10.0.9.2", &["192.168.7.11"]));
    assert_eq!(commands(&told.judged()), [""; 0]);
    // A cluster without overlapping reservations does not use them.
    told.overlapping.clear();
    assert_eq!(lines(&told.judged()), [""; 0]);
}

#[test]
fn hostile_objects_spoil_no_other() {
    let mut told = crashed();
    told.overlapping.clear();
    told.pools = vec![
        pool(json!({
            "15": {"id": "dead", "podref": "shop/gone"},
            "x": {"id": "a"}, "-1": {"id": "b"}, "1e3": {"id": "c"}, "32": {"id": "outside"},
            "340282366920938463463374607431768211455": {"id": "far"},
            "11": "a text", "12": {"id": 7},
            "13": {"id": "\u{1b}[2J\u{202e}", "podref": "a'b/$(reboot)", "newer": [1]},
        })),
        json!({"metadata": {"name": "v6", "namespace": "kube-system"},
               "spec": {"range": "fd00:7::/64", "allocations": {"18446744073709551615": {"id": "six", "podref": "shop/gone"}}, "schema": 2}}),
        json!({"metadata": {"name": "none", "namespace": "kube-system"}, "spec": {"range": "10.0.0.0/99"}}),
    ];
    let look = told.look();
    assert_eq!(look.pools.state, State::Part(8));
    let cluster = judge("", &look, &look, &Kubectl::default());
    let ips: Vec<String> =
        cluster.findings.iter().filter_map(|one| Some(one.ip?.to_string())).collect();
    assert_eq!(ips, ["192.168.7.13", "192.168.7.15", "fd00:7::ffff:ffff:ffff:ffff"]);
    for command in commands(&cluster) {
        assert!(command.chars().all(|c| (' '..='~').contains(&c)), "{command:?}");
    }
}

#[test]
fn an_ipv6_networks_reservation_is_found_by_its_name() {
    let mut told = crashed();
    told.pools = vec![json!({
        "metadata": {"name": "blue-fd00-7---64", "namespace": "kube-system"},
        "spec": {"range": "fd00:7::/64", "allocations": {"17": {"id": "a", "podref": "shop/gone"}}},
    })];
    told.overlapping = vec![overlapping("blue-fd00-7--11", "shop/gone")];
    let cluster = told.judged();
    let [one] = &cluster.findings[..] else { panic!("{:#?}", lines(&cluster)) };
    assert!(
        one.remediation
            .last()
            .unwrap()
            .command
            .as_ref()
            .unwrap()
            .ends_with("/blue-fd00-7--11 -f -")
    );
}

#[test]
fn a_node_that_does_not_answer_keeps_what_its_pods_have() {
    let mut told = crashed();
    told.nodes[1]["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-02T03:04:05Z"}]);
    let told = lines(&told.judged());
    assert!(
        told.iter().any(|line| line.ends_with(
            "node node-2 has not answered since 2026-01-02T03:04:05Z: 2 allocations of its pods stay until the pods are deleted"
        )),
        "{told:#?}"
    );
}

#[test]
fn every_command_asks_the_cluster_that_was_scanned() {
    let kubectl =
        Kubectl { flags: ["--kubeconfig", "/k", "--context", "prod"].map(str::to_owned).to_vec() };
    let mut twins = crashed();
    twins.pods.push(pod("twin", "node-1", "10.0.2.2", &[]));
    let mut bare = calico();
    bare.pods.push(calico_pod("bare", "node-1", "10.1.0.9"));
    for told in [twins, bare] {
        let cluster = judge("", &told.look(), &told.look(), &kubectl);
        let steps = cluster.findings.iter().flat_map(|one| &one.remediation);
        let commands: Vec<&str> = steps.filter_map(|step| step.command.as_deref()).collect();
        assert!(commands.len() > 5);
        for command in commands {
            let named = command.contains("--kubeconfig /k --context prod")
                || command.starts_with(
                    "env DATASTORE_TYPE=kubernetes KUBECONFIG=/k calicoctl --context=prod ",
                );
            assert!(named, "{command}");
        }
    }
}

#[test]
fn an_allocation_that_names_nobody_may_be_of_one_of_whom_nothing_is_said() {
    let of = |told: &Objects| -> Vec<String> {
        lines(&told.judged()).into_iter().filter(|line| line.contains(" 192.168.7.13 ")).collect()
    };
    // The pod asks Multus for networks, but its status annotation was overwritten.
    let mut told = crashed();
    told.overlapping.clear();
    let mut unsaid = pod("web-4", "node-1", "10.0.1.9", &[]);
    unsaid["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/networks": "default/ipvlan"});
    told.pods.push(unsaid);
    let asked = |told: &Objects| -> usize {
        let cluster = told.judged();
        let steps = cluster.findings.iter().flat_map(|one| &one.remediation);
        steps.filter(|step| step.what.starts_with("only if none of them knows it: ")).count()
    };
    let lines = of(&told);
    assert!(lines[0].starts_with("likely ipam-reservation-leaked"), "{lines:?}");
    assert_eq!(asked(&told), 2);
    // The Multus status of the pod cannot be parsed.
    told.pods[3]["metadata"]["annotations"] =
        json!({"k8s.v1.cni.cncf.io/network-status": "[{\"ips\": [\"192.168.7.x\"]}]"});
    assert_eq!(asked(&told), 2);
    // A pod that asks for no network has none.
    told.pods[3]["metadata"]["annotations"] = json!({});
    assert!(of(&told)[0].starts_with("likely ipam-reservation-leaked"));
    assert_eq!(asked(&told), 0);
    // A pod that has ended and has the IP.
    told.pods[3] = pod("job", "node-1", "10.0.1.9", &["192.168.7.13"]);
    told.pods[3]["status"]["phase"] = json!("Failed");
    let lines = of(&told);
    assert!(
        lines[0].ends_with("only shop/job has this IP, and it has ended (Failed)"),
        "{lines:?}"
    );
    // The overlapping reservation names a living pod.
    told.pods.pop();
    told.overlapping.push(overlapping("192.168.7.13", "shop/web-0"));
    assert!(of(&told)[0].starts_with("doubtful ipam-reservation-doubtful"));
}

#[test]
fn pools_of_single_nodes_have_the_networks_reservations() {
    let mut told = crashed();
    told.pools = vec![json!({
        "metadata": {"name": "blue-node-1-192.168.7.0-28", "namespace": "kube-system"},
        "spec": {"range": "192.168.7.0/28", "allocations": {
            "10": {"id": "a", "podref": "shop/web-0"}, "11": {"id": "b", "podref": "shop/gone"},
        }},
    })];
    told.overlapping = vec![
        overlapping("blue-192.168.7.10", "shop/web-0"),
        overlapping("blue-192.168.7.11", "shop/gone"),
    ];
    let cluster = told.judged();
    // Its node is ready.
    let leaked = "certain ipam-reservation-leaked 192.168.7.11 its pod shop/gone is gone";
    assert_eq!(lines(&cluster), [leaked]);
    assert!(commands(&cluster)[0].ends_with("/blue-192.168.7.11 -f -"));
    // For a pool of a deleted node the network is unknown.
    told.nodes.remove(0);
    let lines = lines(&told.judged());
    assert!(!lines.iter().any(|line| line.contains("no pool has")), "{lines:#?}");
}

#[test]
fn no_object_gives_a_command_an_option() {
    let mut told = calico();
    told.blocks[1]["spec"]["affinity"] = json!("host:--kubeconfig=/tmp/x");
    let cluster = told.judged();
    let orphaned = cluster.findings.iter().find(|one| one.code == "ipam-block-orphaned").unwrap();
    assert_eq!(orphaned.nodes, ["--kubeconfig=/tmp/x"]);
    let steps = cluster.findings.iter().flat_map(|one| &one.remediation);
    for word in steps.flat_map(|step| &step.runs).flat_map(|run| &run.argv) {
        let ours = crate::cluster::remedy::is_our_option(word);
        assert!(ours || !word.starts_with('-'), "{word}");
    }
}

#[test]
fn what_a_living_pod_has_is_not_freed_for_one_of_a_node_that_is_gone() {
    let mut told = crashed();
    told.overlapping.clear();
    told.pools = vec![pool(json!({"11": {"id": "b", "podref": "shop/lost"}}))];
    told.pods.push(pod("lost", "node-9", "10.0.9.2", &["192.168.7.11"]));
    assert_eq!((commands(&told.judged()).len(), told.judged().ranges[0].leaked), (0, 1));
    told.pods.push(pod("heir", "node-1", "10.0.1.9", &["192.168.7.11"]));
    let cluster = told.judged();
    assert_eq!(commands(&cluster), [""; 0]);
    let why = "its pod shop/lost is on node node-9, which is gone, and shop/heir has the IP";
    let line = format!("doubtful ipam-reservation-doubtful 192.168.7.11 {why}");
    assert!(lines(&cluster).contains(&line), "{:#?}", lines(&cluster));
    // An entry without a podref belongs to the pod that has the IP now.
    told.pools = vec![pool(json!({"11": {"id": "b"}}))];
    assert_eq!(told.judged().ranges[0].leaked, 0);
    // The same for a pod that has ended.
    told.pools = vec![pool(json!({"11": {"id": "b", "podref": "shop/lost"}}))];
    let lost = told.pods.len() - 2;
    told.pods[lost] = pod("lost", "node-1", "10.0.1.8", &["192.168.7.11"]);
    told.pods[lost]["status"]["phase"] = json!("Failed");
    let cluster = told.judged();
    assert_eq!((commands(&cluster).len(), cluster.ranges[0].doubtful), (0, 1));
    told.pods.pop();
    assert_eq!(commands(&told.judged()).len(), 1);
}

#[test]
fn an_overlapping_reservation_of_a_living_pod_keeps_the_entry_too() {
    let mut told = crashed();
    told.pools = vec![pool(json!({"11": {"id": "b", "podref": "shop/gone"}}))];
    told.overlapping = vec![overlapping("192.168.7.11", "shop/gone")];
    assert_eq!(commands(&told.judged()).len(), 1);
    // Another pod has it by now, without a Multus status yet.
    let mut made = pod("made", "node-1", "10.0.1.9", &[]);
    made["metadata"]["annotations"] = json!({});
    told.pods.push(made);
    told.overlapping = vec![overlapping("192.168.7.11", "shop/made")];
    let cluster = told.judged();
    assert_eq!(commands(&cluster), [""; 0]);
    assert!(lines(&cluster)[0].starts_with("doubtful "), "{:#?}", lines(&cluster));
    // The reservation of a claim outlives its pods.
    told.overlapping = vec![overlapping("192.168.7.11", "shop/gone")];
    told.overlapping[0]["spec"]["ipamclaimref"] = json!("shop/claim");
    assert_eq!(lines(&told.judged()), [""; 0]);
}
