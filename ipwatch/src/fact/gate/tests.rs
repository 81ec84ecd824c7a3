//! The gate with hostile input: arbitrary text for every name of every fact.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::fact::{BootNs, CniCommand, FileSystem, Life, Look, NetnsRef, Parent, TaskKey};

const HOSTILE: &str = "aaaaaaaaaaaé;id>/tmp/x;#";

fn admit(origin: Origin, what: impl IntoIterator<Item = Observation>) -> Vec<Observation> {
    let facts = what.into_iter().map(|what| Fact { at: BootNs(7), origin, what });
    let mut facts: Vec<Fact> = facts.collect();
    Gate::default().admit(&mut facts);
    facts.into_iter().map(|fact| fact.what).collect()
}

fn refused(source: &str, name: Name, count: u64) -> Observation {
    Observation::Refused { source: source.to_owned(), name, count }
}

fn pod(name: &str) -> PodName {
    PodName { namespace: "shop".into(), name: name.into(), uid: Some("7f3a".into()) }
}

fn reservation(id: &str) -> Reservation {
    Reservation {
        store: "host-local".into(),
        network: "cbr0".into(),
        key: "/var/lib/cni/networks/cbr0/10.0.0.7".into(),
        ip: IpAddr::from([10, 0, 0, 7]),
        container_id: Some(id.into()),
        ifname: Some("eth0".into()),
        pod: Some(pod("api-0")),
        since: Some(1),
    }
}

fn sandbox(id: &str) -> Sandbox {
    Sandbox {
        runtime: "containerd".into(),
        id: id.into(),
        pod: Some(pod("api-0")),
        attempt: Some(0),
        name: None,
        life: Life::Alive,
        word: "Ready".into(),
        created: None,
        ips: Vec::new(),
        netns_path: Some("/run/netns/cni-1".into()),
        pid: Some(9),
        host_network: false,
    }
}

fn container(id: &str, sandbox: &str) -> Container {
    Container {
        runtime: "containerd".into(),
        id: id.into(),
        sandbox: Some(sandbox.into()),
        name: Some("nginx".into()),
        life: Life::Alive,
        word: "Running".into(),
    }
}

fn call(id: &str) -> CniCall {
    CniCall {
        task: TaskKey { pid: 9, tid: 9, start: 1 },
        parent: 8,
        plugin: "/opt/cni/bin/bridge".into(),
        command: CniCommand::Del,
        container_id: Some(id.into()),
        netns_path: Some("/run/netns/cni-1".into()),
        ifname: Some("eth0".into()),
        pod: Some(pod("api-0")),
    }
}

fn link(name: &str) -> Observation {
    let link = Link { ifindex: 7, name: name.into(), ..Link::default() };
    Observation::Link { netns: NetnsRef::inode(1), link }
}

fn api_pod(name: &str) -> Pod {
    Pod {
        uid: "7f3a".into(),
        namespace: "shop".into(),
        name: name.into(),
        phase: Some("Running".into()),
        ips: Vec::new(),
        deletion: None,
        grace: None,
        mirror_of: None,
    }
}

/// A longer mount point that is cut is another path, which a command would name.
#[test]
fn a_mount_point_that_is_too_long_is_left_out() {
    let point_of = |point: String| {
        let system = FileSystem {
            fs_type: "nfs4".into(),
            source: "srv:/data".into(),
            point,
            elsewhere: false,
            minor: 60,
            waiting: None,
            servers: Vec::new(),
            sure: false,
        };
        let look = Look { file_systems: vec![system], ..Look::default() };
        let task = TaskKey { pid: 1, tid: 1, start: 1 };
        let admitted = admit(Origin::Procfs, [Observation::Look { task, look: Box::new(look) }]);
        let [Observation::Look { look, .. }, rest @ ..] = &admitted[..] else {
            panic!("{admitted:?}")
        };
        (look.file_systems[0].point.clone(), rest.to_vec())
    };
    let longest = format!("/{}", "a".repeat(LONGEST_PATH - 1));
    assert_eq!(point_of(longest.clone()), (longest.clone(), vec![]));
    assert_eq!(
        point_of(format!("{longest}/b")),
        (UNNAMED.to_owned(), vec![refused("procfs", Name::Path, 1)])
    );
}

#[test]
fn what_is_as_it_should_be_passes_unchanged() {
    let facts = [
        Observation::Reservation(reservation("c1")),
        Observation::Sandbox(sandbox("c1")),
        Observation::Container(container("c2", "c1")),
        Observation::CniBegan(call("c1")),
        Observation::Pod(api_pod("api-0")),
        link("eth0"),
    ];
    assert_eq!(admit(Origin::Probe, facts.clone()), facts);
}

#[test]
fn a_reservation_stays_one_for_whomever_it_is() {
    let hostile = reservation(HOSTILE);
    let kept = Reservation { container_id: None, ..hostile.clone() };
    let said = admit(Origin::Ipam, [Observation::Reservation(hostile)]);
    let counted = refused("host-local", Name::ContainerId, 1);
    assert_eq!(said, [Observation::Reservation(kept), counted]);
}

#[test]
fn a_device_keeps_its_place_under_a_name_of_ours() {
    for name in ["a;id", "$(id)", "-a", "\u{1b}[2J", "sixteen-bytes-xx"] {
        let counted = refused("netlink", Name::Device, 1);
        assert_eq!(admit(Origin::Netlink, [link(name)]), [link("ifindex:7"), counted], "{name}");
    }
}

#[test]
fn a_list_that_has_lost_an_entry_is_not_complete() {
    let scope = Scope::Runtime { runtime: "containerd".into() };
    let list = |id: &str, sandbox_of: &str| {
        vec![
            Observation::Began(scope.clone()),
            Observation::Sandbox(sandbox("c1")),
            Observation::Container(container(id, sandbox_of)),
            Observation::Ended { scope: scope.clone(), began: BootNs(7), complete: true },
        ]
    };
    let complete = |said: &[Observation]| {
        said.iter().any(|what| matches!(what, Observation::Ended { complete: true, .. }))
    };
    assert!(complete(&admit(Origin::Runtime, list("c2", "c1"))));
    for (id, of) in [(HOSTILE, "c1"), ("c2", HOSTILE)] {
        let said = admit(Origin::Runtime, list(id, of));
        assert!(!complete(&said) && said.contains(&refused("containerd", Name::ContainerId, 1)));
    }
    // The next listing is independent, and so is another runtime's. The division into batches does not matter.
    let mut gate = Gate::default();
    let mut tell = |what| {
        let mut facts = vec![Fact { at: BootNs(7), origin: Origin::Runtime, what }];
        gate.admit(&mut facts);
        facts.into_iter().map(|fact| fact.what).collect::<Vec<_>>()
    };
    let first: Vec<Observation> = list(HOSTILE, "c1").into_iter().flat_map(&mut tell).collect();
    let second: Vec<Observation> = list("c2", "c1").into_iter().flat_map(&mut tell).collect();
    assert!(!complete(&first) && complete(&second));
    tell(Observation::Sandbox(sandbox(HOSTILE)));
    let other = Scope::Runtime { runtime: "cri-o".into() };
    let ended = |scope| Observation::Ended { scope, began: BootNs(7), complete: true };
    assert!(complete(&tell(ended(other))) && !complete(&tell(ended(scope.clone()))));
}

#[test]
fn a_pod_without_a_name_spoils_the_list_of_pods() {
    let mirror = Pod { mirror_of: Some("x y".into()), ..api_pod("api-0") };
    for pod in [api_pod("--all"), api_pod(""), mirror] {
        let ended = Observation::Ended { scope: Scope::Pods, began: BootNs(7), complete: true };
        let said = admit(Origin::Kubernetes, [Observation::Pod(pod), ended]);
        assert!(matches!(
            said[..],
            [Observation::Ended { complete: false, .. }, Observation::Refused { .. }]
        ));
    }
}

#[test]
fn a_run_for_no_container_is_none_and_what_only_adds_is_left_out() {
    let said = admit(Origin::Probe, [Observation::CniBegan(call(HOSTILE))]);
    assert_eq!(said, [refused("probes", Name::ContainerId, 1)]);
    let strange = CniCall {
        netns_path: Some("relative".into()),
        ifname: Some("a b".into()),
        pod: Some(pod("--all")),
        ..call("c1")
    };
    let kept = CniCall { netns_path: None, ifname: None, pod: None, ..call("c1") };
    let said = admit(Origin::Probe, [Observation::CniBegan(strange)]);
    assert_eq!(said[0], Observation::CniBegan(kept), "a DEL is under way for its container");
    assert_eq!(said.len(), 4, "{said:?}");
}

#[test]
fn a_holder_is_one_wherever_it_is_mounted() {
    let mounted = |path: &str| Observation::Holder {
        netns: NetnsRef::inode(1),
        holder: Holder::Mount {
            mount_ns: 5,
            path: path.to_owned(),
            pid: 9,
            comm: None,
            cgroup: None,
            foreign: true,
        },
    };
    let long = format!("/{}", "a".repeat(LONGEST_PATH));
    assert_eq!(admit(Origin::Procfs, [mounted(&long)])[0], mounted("unnamed"));
    assert_eq!(admit(Origin::Procfs, [mounted("/a;id")]), [mounted("/a;id")]);
}

/// Hostile text: anything, and text that is nearly a name.
fn text() -> impl Strategy<Value = String> {
    let near = prop::sample::select(b"abz09AZ-_./:;@+=, $'\"\n\0\x1b".as_slice());
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(near, 0..20),
        prop::collection::vec(Just(b'a'), 0..300),
    ];
    bytes.prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Every name in a fact's JSON, by its key.
fn names(value: &serde_json::Value, found: &mut Vec<(Name, String)>) {
    let kind = |key: &str| match key {
        "container_id" | "id" | "sandbox" | "container" => Some(Name::ContainerId),
        "namespace" => Some(Name::Namespace),
        "pod" => Some(Name::PodName),
        "uid" | "mirror_of" => Some(Name::PodUid),
        "network" => Some(Name::Network),
        "ifname" | "device" => Some(Name::Device),
        "netns_path" | "data_dir" => Some(Name::Path),
        _ => None,
    };
    for (key, value) in value.as_object().into_iter().flatten() {
        match (kind(key), value.as_str()) {
            (Some(name), Some(text)) => found.push((name, text.to_owned())),
            _ => names(value, found),
        }
    }
}

proptest! {
    /// No invalid name is admitted, whatever is reported.
    #[test]
    fn nothing_but_names_gets_in(text in prop::collection::vec(text(), 8)) {
        let [a, b, c, d, e, f, g, h] = <[String; 8]>::try_from(text).unwrap();
        let pod = || PodName { namespace: a.clone(), name: b.clone(), uid: Some(c.clone()) };
        let facts = [
            Observation::Reservation(Reservation {
                network: e.clone(), ifname: Some(f.clone()), pod: Some(pod()), ..reservation(&d)
            }),
            Observation::Range(Range {
                store: "host-local".into(), network: e.clone(), path: g.clone(),
                data_dir: Some(h.clone()), sets: Vec::new(),
                shares: false,
            }),
            Observation::Attachment(Attachment {
                container_id: d.clone(), ifname: f.clone(), network: e.clone(),
                netns_path: Some(g.clone()), ips: Vec::new(), made: None, pod: Some(pod()),
            }),
            Observation::AttachmentGone { container_id: d.clone(), ifname: f.clone() },
            Observation::Sandbox(Sandbox {
                pod: Some(pod()), name: Some(e.clone()), netns_path: Some(g.clone()), ..sandbox(&d)
            }),
            Observation::SandboxGone { runtime: "cri-o".into(), id: d.clone() },
            Observation::Container(Container { name: Some(e.clone()), ..container(&d, &h) }),
            Observation::ContainerGone { runtime: "cri-o".into(), id: d.clone() },
            Observation::Pod(Pod {
                uid: c.clone(), namespace: a.clone(), mirror_of: Some(h.clone()), ..api_pod(&b)
            }),
            Observation::PodGone { uid: c.clone() },
            Observation::Endpoint(Endpoint {
                store: "calico".into(), key: g.clone(), namespace: a.clone(), pod: b.clone(),
                container: Some(d.clone()), device: Some(f.clone()), ips: Vec::new(),
            }),
            Observation::CniBegan(CniCall {
                netns_path: Some(g.clone()), ifname: Some(f.clone()), pod: Some(pod()), ..call(&d)
            }),
            Observation::CniError { container_id: d.clone(), command: CniCommand::Add, text: h.clone() },
            Observation::ContainerMount(ContainerMount {
                container_id: d.clone(), mount_ns: 5, host: false, path: g.clone(),
                fs_type: h.clone(), processes: Vec::new(), cgroup: None, started: None,
            }),
        ];
        for what in admit(Origin::Probe, facts) {
            let value = serde_json::to_value(&what).unwrap();
            let mut found = Vec::new();
            names(&value, &mut found);
            for (name, text) in found {
                let none = name == Name::Network && text.is_empty();
                prop_assert!(none || name.fits(&text), "{}: {:?} in {}", name, text, value);
            }
        }
        let parent = Parent { bus: a.clone(), address: b.clone(), driver: Some(c.clone()) };
        let link = Link {
            ifindex: 7, name: f, kind: Some(e), parent: Some(parent), ..Link::default()
        };
        let netns = NetnsRef::inode(1);
        let said = admit(Origin::Netlink, [Observation::Link { netns, link }]);
        let Some(Observation::Link { link, .. }) = said.first() else { panic!("{said:?}") };
        prop_assert!(Name::Device.fits(&link.name), "{:?}", link.name);
    }
}

#[test]
fn a_monitor_without_its_container_stays_and_a_runtime_without_a_directory_is_not_all() {
    let runtime = |dir: &str| RuntimeProcess {
        pid: 10,
        engine: crate::fact::Engine::Containerd,
        started: None,
        sockets: vec!["/run/containerd/containerd.sock".into()],
        dirs: vec![dir.into()],
        asked: false,
        ignored: false,
    };
    let monitor = |id: &str| Monitor {
        pid: 11,
        engine: None,
        dir: None,
        namespace: Some("k8s.io".into()),
        container_id: Some(id.into()),
        children: vec![12],
        ignored: false,
    };
    let told = |dir: &str, id: &str| Observation::RuntimeProcesses {
        runtimes: vec![runtime(dir)],
        monitors: vec![monitor(id)],
        complete: true,
    };
    let fine = told("/run/containerd", "c1");
    assert_eq!(admit(Origin::Procfs, [fine.clone()]), [fine]);
    let kept = admit(Origin::Procfs, [told("run\0", HOSTILE)]);
    let Observation::RuntimeProcesses { runtimes, monitors, complete } = &kept[0] else {
        panic!("{kept:?}")
    };
    assert_eq!((runtimes[0].dirs.len(), monitors[0].children.len(), *complete), (0, 1, false));
    assert_eq!(monitors[0].container_id, None);
    assert!(kept.contains(&refused("procfs", Name::ContainerId, 1)), "{kept:?}");
}
