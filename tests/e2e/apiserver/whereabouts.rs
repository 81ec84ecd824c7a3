//! Whereabouts' pools in a real API server, which validates them; no Whereabouts controller runs. The containers are
//! real ones of containerd, and their Whereabouts IP is a second one, as with Multus.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};
use support::kubernetes::{ControlPlane, stores};
use support::pod::{Containerd, PodSandbox};
use support::poll::until;
use support::remedy::{Shell, change, changes};
use support::{Daemon, Lab};

use crate::lead::exhaustion::{EXHAUSTING, network_of};
use crate::lead::{SOON, await_ready, config_for, evidence, ips, is_about, is_of};

support::tests! {
    a_crashed_nodes_allocations_are_told needs [ApiServer, Containerd],
    what_is_no_allocation_is_counted_and_spoils_no_other needs [SharedApiServer],
}

const LEAKED: &str = "ipam-reservation-leaked";
const STORE: &str = "whereabouts";

pub(super) fn lines(lab: &Lab, control: &ControlPlane) -> String {
    let config = control.agent_config();
    format!("[kubernetes]\nkubeconfig = {config:?}\nwhereabouts = true\nnode = {:?}", lab.tag())
}

/// The node crashes with two of its five pods, without a DEL, and comes back without a trace of them.
fn crash(containerd: &mut Containerd<'_>, pods: &[PodSandbox]) {
    crate::lead::exhaustion::crash(containerd, pods);
    for pod in pods {
        rustix::mount::unmount(&pod.path, rustix::mount::UnmountFlags::DETACH).unwrap();
        fs::remove_file(&pod.path).unwrap();
    }
    containerd.restart_empty();
}

/// The case from the field: a network of five IPs whose range is given only in its definition. Two belong to pods
/// that died with the node, and one of those has no pod name, as in older versions.
fn a_crashed_nodes_allocations_are_told(lab: &Lab) {
    let control = ControlPlane::start_as(lab, &[]);
    stores::whereabouts(&control);
    let overlapping = stores::overlapping(&control);
    let mut containerd = Containerd::start(lab);
    let name = |n: usize| format!("db-{n}");
    let dead: Vec<PodSandbox> = (0..2).map(|n| containerd.pod(&name(n)).sandbox()).collect();
    crash(&mut containerd, &dead);
    let living = containerd.pod("db-2").sandbox();

    let (range, ip) =
        (format!("{}/27", lab.ip(192)), |offset: u8| lab.ip(192 + offset).to_string());
    let ipam = json!({ "range": range, "range_start": ip(10), "range_end": ip(14) });
    stores::network(&control, "storage", &ipam);
    let network = stores::pool_name(&range);
    // Two of other nodes' pods: this node cannot tell whether they live.
    let far = |n: u8| json!({ "id": format!("{n:064x}"), "podref": format!("shop/far-{n}") });
    let allocations = json!({
        "10": { "id": dead[0].sandbox },
        "11": { "id": living.sandbox, "podref": "shop/db-2", "ifname": "net1" },
        "12": { "id": dead[1].sandbox, "podref": "shop/db-1", "ifname": "net1" },
        "13": far(1), "14": far(2),
    });
    stores::pool(&control, &network, &json!({ "range": range, "allocations": allocations }))
        .unwrap();

    stores::reserve(&control, &overlapping, &ip(12), "shop/db-1", &dead[1].sandbox);

    let config = config_for(&containerd).line(&lines(lab, &control));
    let daemon = Daemon::start(lab, &config);
    await_ready(&daemon, std::slice::from_ref(&living));
    let full = daemon.await_firing(EXHAUSTING, SOON, |finding| {
        is_of(&network)(finding) && evidence(finding).contains("2 of them leaked")
    });
    let ranges = daemon.list("ranges", &["query", "ipam", &network]);
    let [of_pool] = &ranges[..] else { panic!("one range: {ranges:#?}") };
    for (key, number) in [("usable", 5), ("used", 5), ("leaked", 2), ("free", 0)] {
        assert_eq!(of_pool[key], number, "{of_pool:#?}");
    }
    assert_eq!(of_pool["range"], format!("{}-{}", ip(10), ip(14)));
    let text = evidence(&full) + &full["impact"].to_string();
    for said in ["5 of 5 taken, 2 of them leaked, 0 free", ", 2 after the leaked IPs are freed."] {
        assert!(text.contains(said), "{said}: {full:#?}");
    }
    // The text quoted to pods is this plugin's, not host-local's.
    assert!(full.to_string().contains("Could not allocate IP in range"), "{full:#?}");
    assert!(!full.to_string().contains("available in range set"), "{full:#?}");
    for (offset, pod) in [(11, "shop/db-2"), (12, "shop/db-1")] {
        let card = String::from_utf8(daemon.ask(&["query", "ip", &ip(offset)]).stdout).unwrap();
        assert!(card.contains(pod), "the allocation's podref: {card}");
    }
    let shell = Shell::new(lab).with_kubectl(&control.admin_config());
    shell.looks(&full);
    let leak = daemon.await_firing(LEAKED, SOON, |finding| {
        [10, 12].iter().all(|offset| is_about(&ip(*offset))(finding)) && is_of(&network)(finding)
    });
    let text = leak.to_string();
    for (pod, offset, reference) in [(&dead[0], 10, None), (&dead[1], 12, Some("shop/db-1"))] {
        let key = format!("ippools/kube-system/{network}/{offset}");
        // Only a scan through the API server knows the overlapping reservation as it is, so that no other is deleted.
        let freed =
            [format!("Free offset {offset} of the pool"), "ipwatch cluster scan".to_owned()];
        for said in [&key, &pod.sandbox, &freed[0], &freed[1]] {
            assert!(text.contains(said), "{said}: {leak:#?}");
        }
        assert!(reference.is_none_or(|pod| evidence(&leak).contains(pod)), "{leak:#?}");
        assert!(evidence(&full).contains(&format!("{}: leaked", ip(offset))), "{full:#?}");
    }
    // Nothing is reported about the living pod, nor about those of other nodes.
    let of_pool = daemon.findings().into_iter().filter(|f| is_of(&network)(f));
    let told: BTreeSet<String> =
        of_pool.flat_map(|finding| ips(&finding).map(str::to_owned).collect::<Vec<_>>()).collect();
    assert_eq!(told, BTreeSet::from([ip(10), ip(12)]));
    assert_ne!(network, network_of(&containerd));
    comes_back(&shell, &control, &network, &overlapping, &leak, &ip(12));
    shell.looks(&leak);
    for offset in [10, 12] {
        frees(&shell, &control, &network, &leak, offset);
    }
    daemon.await_resolved(&leak, SOON);
    let shell = Fix { lab, daemon: &daemon, control: &control };
    shell.frees_the_leaks(&network, &overlapping, &dead, [&ip(10), &ip(12)]);
}

/// `ipwatch fix` with an administrator's kubeconfig.
struct Fix<'a> {
    lab: &'a Lab,
    daemon: &'a Daemon,
    control: &'a ControlPlane,
}

impl Fix<'_> {
    fn run(&self, args: &[&str]) -> (Vec<Value>, Option<i32>) {
        crate::fix::items(&self.command(args).output().expect("run it"))
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = crate::fix::command(self.lab, self.daemon, args);
        command.arg("--kubeconfig").arg(self.control.admin_config()).args(["-o", "json"]);
        command
    }

    /// Both are leaked again. They are freed, and nothing else; with a pod of the same name it frees nothing of it; what was
    /// given out since does not come back.
    fn frees_the_leaks(
        &self,
        pool: &str,
        overlapping: &str,
        dead: &[PodSandbox],
        [old, new]: [&str; 2],
    ) {
        let api = self.control.api();
        let path = format!("{}/{pool}", stores::POOLS);
        let reservation = format!("{overlapping}/{new}");
        let allocations = || api.get(&path).expect("the pool")["spec"]["allocations"].clone();
        let set = |change: &dyn Fn(&mut Value)| {
            let mut object = api.get(&path).expect("the pool");
            change(&mut object["spec"]["allocations"]);
            api.ask("PUT", &path, Some(&object)).expect("write the pool");
        };
        let mine = json!({ "id": dead[1].sandbox, "podref": "shop/db-1", "ifname": "net1" });
        stores::reserve(self.control, overlapping, new, "shop/db-1", &dead[1].sandbox);
        set(&|all| {
            all["10"] = json!({ "id": dead[0].sandbox });
            all["12"] = mine.clone();
        });
        let both = |finding: &Value| {
            [old, new].iter().all(|ip| is_about(ip)(finding)) && is_of(pool)(finding)
        };
        let leak = self.daemon.await_firing(LEAKED, SOON, both);
        let id = leak["id"].as_str().expect("an id");
        let before = allocations();
        let (plan, code) = self.run(&[id]);
        assert_eq!(code, Some(0), "{plan:#?}");
        for ip in [old, new] {
            assert_eq!(crate::fix::state(&plan, ip).0, "planned", "{plan:#?}");
        }
        assert_eq!(allocations(), before, "a plan changes nothing");

        // A pod of the same name is there again: Whereabouts gives it the same IP.
        let shop = json!({ "metadata": { "name": "shop" } });
        api.create("/api/v1/namespaces", &shop);
        let pod = json!({
            "metadata": { "name": "db-1" },
            "spec": {
                "nodeName": "far", "automountServiceAccountToken": false,
                "containers": [{ "name": "main", "image": "none" }],
            },
        });
        api.create("/api/v1/namespaces/shop/pods", &pod);
        let (done, code) = self.run(&[id, "--yes", "--only", new]);
        let (state, why) = crate::fix::state(&done, new);
        assert_eq!((state, code), ("skipped", Some(1)), "{done:#?}");
        assert!(why.contains("there is a pod shop/db-1 again"), "{why}");
        assert_eq!(allocations(), before);
        api.force_delete("/api/v1/namespaces/shop/pods/db-1");

        // Another container is given the IP right after the plan.
        let living = json!({ "id": "f".repeat(64), "podref": "shop/db-7", "ifname": "net1" });
        set(&|all| all["12"] = living.clone());
        // The finding may be another one by then.
        let _ = self.command(&[id, "--yes", "--only", new]).output().expect("run it");
        assert_eq!(allocations()["12"], living, "a living pod's IP was freed");
        set(&|all| all["12"] = mine.clone());
        let leak = self.daemon.await_firing(LEAKED, SOON, both);

        let (done, code) = self.run(&[leak["id"].as_str().expect("an id"), "--yes"]);
        assert_eq!(code, Some(0), "{done:#?}");
        let mut expected = before.clone();
        for offset in ["10", "12"] {
            expected.as_object_mut().expect("allocations").remove(offset);
        }
        assert_eq!(allocations(), expected, "exactly the leaked ones");
        assert!(api.get(&reservation).is_err(), "its overlapping reservation, too");
        self.daemon.await_resolved(&leak, SOON);

        set(&|all| all["10"] = living.clone());
        let (undone, code) = self.run(&[pool, "--undo", "--yes"]);
        assert_eq!(code, Some(1), "{undone:#?}");
        assert_eq!(crate::fix::state(&undone, new).0, "restored", "{undone:#?}");
        let (state, why) = crate::fix::state(&undone, old);
        assert!(state == "skipped" && why.contains("given out again"), "{undone:#?}");
        assert_eq!((&allocations()["10"], &allocations()["12"]), (&living, &mine));
        let back = api.get(&reservation).expect("its overlapping reservation");
        assert_eq!(back["spec"]["containerid"], dead[1].sandbox, "{back:#?}");
    }
}

/// The leaked pod's successor of the same name runs on another node with the same IP. Each printed command is run,
/// and neither its allocation nor its overlapping reservation may be deleted.
fn comes_back(
    shell: &Shell,
    control: &ControlPlane,
    pool: &str,
    overlapping: &str,
    leak: &Value,
    ip: &str,
) {
    const NEW: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
    let (path, kept) = (format!("{}/{pool}", stores::POOLS), format!("{overlapping}/{ip}"));
    let before = control.api().get(&path).expect("the pool")["spec"]["allocations"].clone();
    let set = |allocations: &Value| {
        let mut object = control.api().get(&path).expect("the pool");
        object["spec"]["allocations"] = allocations.clone();
        control.api().ask("PUT", &path, Some(&object)).expect("write the pool");
    };
    let living = json!({ "id": NEW, "podref": "shop/db-1", "ifname": "net1" });
    let mut now = before.clone();
    now["12"] = living.clone();
    set(&now);
    stores::reserve(control, overlapping, ip, "shop/db-1", NEW);
    for command in changes(leak) {
        let _ = shell.run(&command);
    }
    let after = control.api().get(&path).expect("the pool");
    assert_eq!(after["spec"]["allocations"]["12"], living, "a living pod's IP was freed");
    let after = control.api().get(&kept).expect("a living pod's reservation is there");
    assert_eq!(after["spec"]["containerid"], NEW, "{after:#?}");
    set(&before);
}

/// The printed command frees the allocation only if it is still the leaked one.
fn frees(shell: &Shell, control: &ControlPlane, pool: &str, leak: &Value, offset: u8) {
    let command = change(leak, &format!("/spec/allocations/{offset}/"));
    let path = format!("{}/{pool}", stores::POOLS);
    let (key, object) = (offset.to_string(), control.api().get(&path).expect("the pool"));
    let mine = object["spec"]["allocations"][&key].clone();
    assert!(mine.is_object(), "{object:#?}");
    let set = |one: &Value| {
        let mut object = control.api().get(&path).expect("the pool");
        object["spec"]["allocations"][&key] = one.clone();
        control.api().ask("PUT", &path, Some(&object)).expect("write the pool");
    };
    let has =
        || control.api().get(&path).expect("the pool")["spec"]["allocations"].get(&key).is_some();
    // Meanwhile a living pod gets the IP.
    set(&json!({ "id": "new", "podref": "shop/new-0" }));
    shell.refuses(&command);
    assert!(has(), "a living pod's IP was freed");
    set(&mine);
    shell.succeeds(&command);
    assert!(!has());
    shell.refuses(&command);
}

/// What the schema accepts, and what it refuses.
fn what_is_no_allocation_is_counted_and_spoils_no_other(lab: &Lab) {
    let control = ControlPlane::shared(lab);
    // An object of a newer version, with unknown fields.
    let mut newer: Value = serde_norway::from_str(stores::IP_POOLS).unwrap();
    let spec = &mut newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["properties"]["shards"] = json!({ "type": "array", "items": { "type": "integer" } });
    let one = &mut spec["properties"]["allocations"]["additionalProperties"]["properties"];
    one["claim"] = json!({ "type": "object", "properties": { "of": { "type": "string" } } });
    stores::whereabouts_as(&control, &newer.to_string());
    let pool = |name: &str, range: &str, allocations: Value| {
        stores::pool(&control, name, &json!({ "range": range, "allocations": allocations }))
    };
    // What the API server refuses.
    for wrong in [json!({ "1": { "id": 7 } }), json!({ "1": "c1" }), json!({ "1": {} }), json!([])]
    {
        let refused = pool("wrong", "10.0.0.0/27", wrong.clone());
        assert!(
            refused.as_ref().is_err_and(|error| error.starts_with("422")),
            "{wrong}: {refused:?}"
        );
    }
    // What it accepts: nine entries are invalid.
    let strange = json!({
        "x": { "id": "c" }, "-1": { "id": "c" }, "1.5": { "id": "c" }, "0x1": { "id": "c" },
        "99999999999999999999999999999999999999999": { "id": "c" }, "32": { "id": "outside" },
        "1": { "id": "c1", "podref": "no reference" },
        "2": { "id": "c2", "podref": "shop/\r\neth0", "ifname": "\u{1b}[31m" },
    });
    pool("strange", "10.0.0.0/27", strange).unwrap();
    let six = json!({ "1": { "id": "a" }, "18446744073709551615": { "id": "b" }, "18446744073709551616": { "id": "c" } });
    pool("six", "fd00::/64", six).unwrap();
    pool("none", "10.0.0.0", json!({ "1": { "id": "c" } })).unwrap();
    pool("none-either", "10.0.0.0/33", json!({ "1": { "id": "c" } })).unwrap();
    let spec = json!({
        "range": "10.0.1.0/24", "shards": [1, 2],
        "allocations": { "7": { "id": "c7", "podref": "shop/api-0", "claim": { "of": "shop/keep" } } },
    });
    stores::pool(&control, "newer", &spec).unwrap();
    stores::network(&control, "wrong", &json!({ "range": "10.0.0.0/99" }));
    stores::network(&control, "newer", &json!({ "range": "10.0.1.0/24", "shards": 2 }));

    let config = support::Config::default().line(&lines(lab, &control));
    let daemon = Daemon::start(lab, &config);
    let expected: BTreeSet<(String, String)> = [
        ("10.0.0.1", "strange/1"),
        ("10.0.0.2", "strange/2"),
        ("10.0.1.7", "newer/7"),
        ("fd00::1", "six/1"),
        ("fd00::ffff:ffff:ffff:ffff", "six/18446744073709551615"),
    ]
    .map(|(ip, key)| (ip.to_owned(), format!("ippools/kube-system/{key}")))
    .into();
    let mut known = BTreeSet::new();
    let reservations = || {
        let both =
            ["0.0.0.0/0", "::/0"].map(|all| daemon.list("reservations", &["query", "ipam", all]));
        let mut all = both.concat();
        all.retain(|entry| entry["store"] == STORE);
        all
    };
    until("what is an allocation is known", 40, || {
        let all = reservations();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        known = all.iter().map(|entry| (text(&entry["ip"]), text(&entry["key"]))).collect();
        known.len() >= expected.len()
    });
    assert_eq!(known, expected);
    for (name, wrong) in [(STORE, "9 entries"), ("whereabouts-networks", "1 entries")] {
        // Each kind is listed separately, in any order.
        until(&format!("{name} says what it does not understand"), 40, || {
            let source = daemon.source(name).unwrap();
            source["status"] == "degraded" && source["detail"].to_string().contains(wrong)
        });
    }
    // No raw control character reaches a terminal.
    let shown = daemon.ask(&["query", "ipam", "10.0.0.0/8"]);
    assert!(!shown.stdout.iter().any(|byte| matches!(byte, 0x1b | b'\r')), "{shown:?}");
    // A valid one is deleted: this is noticed despite all the invalid ones.
    let path = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools/newer";
    control.api().force_delete(path);
    until("one that is gone is gone", 20, || {
        reservations().iter().all(|entry| entry["ip"] != "10.0.1.7")
    });
    assert!(daemon.findings().iter().all(|finding| finding["code"] != LEAKED));
}
