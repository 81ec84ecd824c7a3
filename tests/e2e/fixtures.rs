//! Checks the fixtures, on which the other tests rely, against `/proc` alone, and guards assumptions about the
//! kernel.

use support::collector::Collector;
use support::fuse::Hung;
use support::pod::{CNI_CACHE, Containerd, Pod};
use support::proc::{View, tasks_in};
use support::role::{Helper, Role};
use support::stuck::{self, How};
use support::{Lab, Netns, eventually, innocent, poorer};

support::tests! {
    a_netns_has_an_address_and_goes_without_a_trace @ Kernel Stock,
    devices_stand_where_they_should @ Kernel Stock,
    each_holder_is_the_only_one @ Kernel Stock,
    a_zombie_leader_leaves_its_thread @ Kernel Stock,
    a_mover_moves @ Kernel Stock,
    an_agent_keeps_a_mount @ Kernel Stock,
    a_poorer_world_lacks_what_it_should @ Kernel Stock,
    stuck_processes_look_as_documented needs [Fuse] @ Kernel Stock,
    a_v1_frozen_process_looks_stuck needs [FreezerV1] @ Kernel Stock,
    a_v2_frozen_process_sleeps needs [FreezerV2] @ Kernel Stock,
    a_core_dump_hangs_with_its_flag_up needs [Fuse, PlainCore] @ Kernel Stock,
    other_innocents_look_as_documented @ Kernel Stock,
    a_pod_runs_and_stops needs [Pods],
    a_pods_process_hangs needs [Pods, Fuse],
    the_collector_listens needs [Rotel],
}

fn a_netns_has_an_address_and_goes_without_a_trace(lab: &Lab) {
    let netns = Netns::new(lab, "a");
    let host = netns.veth_to_host();
    netns.add_address(&lab.cidr(1), "eth0");
    assert!(netns.ip_json().to_string().contains(&lab.ip(1).to_string()));
    assert!(tasks_in(netns.inode).is_empty(), "nothing but its name holds it");
    drop(netns);
    support::poll::until("the veth goes with its netns", 10, || {
        !std::path::Path::new("/sys/class/net").join(&host).exists()
    });
}

fn devices_stand_where_they_should(lab: &Lab) {
    let (node, pod) = (Netns::new(lab, "node"), Netns::new(lab, "pod"));
    node.ip("link add br0 type bridge");
    node.veth_to("v0", &pod, "eth0");
    node.ip("link set v0 master br0");
    pod.ip("link add mv0 link eth0 type macvlan mode bridge");
    assert_ne!(pod.mac("mv0"), pod.mac("eth0"));
    assert!(node.ip("-j link show dev v0").contains("\"master\":\"br0\""));
}

fn each_holder_is_the_only_one(lab: &Lab) {
    for role in [Role::HoldFd, Role::HoldSocket, Role::HoldInFlight] {
        let netns = Netns::new(lab, "h");
        let host = netns.veth_to_host();
        let path = netns.path().to_str().unwrap().to_owned();
        let helper = Helper::new(role).arg(&path).start();
        netns.unname();
        assert!(tasks_in(netns.inode).is_empty(), "{role:?}: no task is in it");
        let device = std::path::Path::new("/sys/class/net").join(&host);
        assert!(device.exists(), "{role:?} keeps the netns and its devices");
        helper.end();
        support::poll::until("it goes with its holder", 10, || !device.exists());
    }
}

fn a_zombie_leader_leaves_its_thread(lab: &Lab) {
    let netns = Netns::new(lab, "z");
    let path = netns.path().to_str().unwrap().to_owned();
    let helper = Helper::new(Role::ZombieLeader).arg(&path).start();
    netns.unname();
    let pid = helper.pid();
    let leader = View::leader(pid).unwrap();
    assert_eq!((leader.state, leader.netns), ('Z', None));
    let inside = tasks_in(netns.inode);
    assert_eq!(inside.len(), 1, "{inside:?}");
    assert!(inside[0].0 == pid && inside[0].1 != pid, "{inside:?}");
}

fn a_mover_moves(lab: &Lab) {
    let (a, b) = (Netns::new(lab, "a"), Netns::new(lab, "b"));
    let mut mover = Helper::new(Role::Mover).inside(&a).start();
    assert_eq!(tasks_in(a.inode), [(mover.pid(), mover.pid())]);
    assert_eq!(mover.ask(&format!("setns {}", b.path().display())), format!("net:[{}]", b.inode));
    assert_eq!(tasks_in(b.inode), [(mover.pid(), mover.pid())]);
    let own = mover.ask("unshare");
    assert_eq!(View::leader(mover.pid()).unwrap().netns.map(|n| format!("net:[{n}]")), Some(own));
    assert!(tasks_in(a.inode).is_empty() && tasks_in(b.inode).is_empty());
}

fn an_agent_keeps_a_mount(lab: &Lab) {
    let netns = Netns::new(lab, "m");
    let host = netns.veth_to_host();
    let agent = Helper::new(Role::Agent).start();
    netns.unmount();
    assert!(tasks_in(netns.inode).is_empty());
    let mounts = std::fs::read_to_string(format!("/proc/{}/mounts", agent.pid())).unwrap();
    assert!(mounts.contains(netns.path().to_str().unwrap()));
    let device = std::path::Path::new("/sys/class/net").join(host);
    assert!(device.exists());
    agent.end();
    support::poll::until("it goes with its mount namespace", 10, || !device.exists());
}

fn a_poorer_world_lacks_what_it_should(lab: &Lab) {
    let says = |mut command: std::process::Command, args: &[&str]| {
        let out = command.args(args).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let sh = which("sh");
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boot_id = ["-c", "read id < /proc/sys/kernel/random/boot_id; echo $id"];
    let other = says(poorer::in_another_boot(lab, &sh), &boot_id);
    assert!(other.starts_with("00000000-1111") && other != own, "{other}");
    assert_eq!(
        says(poorer::without_btf(&sh), &["-c", "echo /sys/kernel/btf/*"]).trim(),
        "/sys/kernel/btf/*"
    );
    assert_eq!(
        says(
            poorer::without_bpf(&sh),
            &[
                "-c",
                "while read k v; do case $k in Seccomp:) echo $v;; esac; done < /proc/self/status"
            ]
        )
        .trim(),
        "2"
    );
}

fn which(name: &str) -> std::path::PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.exists()).unwrap()
}

fn stuck_processes_look_as_documented(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let netns = Netns::new(lab, "s");
    let mut running = Vec::new();
    for how in How::ALL {
        let mut helper = stuck::start(how, &netns, &mut hung);
        let view = stuck::hang(how, &mut helper);
        assert_eq!(view.netns, Some(netns.inode), "{how:?} still holds its netns");
        assert_eq!(view.exiting(), how.exits(), "{how:?} {view:?}");
        assert!(view.stack.contains("request_wait_answer"), "{how:?} {view:?}");
        let expected = match how {
            How::Exit | How::ThreadKill => ('S', false),
            How::Term => ('D', false),
            How::Kill | How::KilledReader | How::GroupExit => ('D', true),
        };
        assert_eq!((view.state, view.killed()), expected, "{how:?} {view:?}");
        running.push((how, helper));
    }
    hung.release();
    for (how, helper) in &mut running {
        assert!(helper.ends(10), "{how:?} ends when its file system does");
    }
}

fn a_v1_frozen_process_looks_stuck(lab: &Lab) {
    for killed in [false, true] {
        let netns = Netns::new(lab, "f");
        let innocent = innocent::frozen_v1(lab, &netns, killed);
        // While it enters the freezer, or reacts to a signal, it shows no wchan.
        let view = eventually("it sleeps in the refrigerator", 20, || {
            View::leader(innocent.helper.pid()).filter(|view| view.wchan == "__refrigerator")
        });
        assert_eq!((view.state, view.killed(), view.exiting()), ('D', killed, false), "{view:?}");
        assert_eq!(view.netns, Some(netns.inode));
    }
}

fn a_v2_frozen_process_sleeps(lab: &Lab) {
    let netns = Netns::new(lab, "f");
    let mut innocent = innocent::frozen_v2(lab, &netns);
    let view = View::leader(innocent.helper.pid()).unwrap();
    assert_eq!((view.state, view.netns), ('S', Some(netns.inode)), "{view:?}");
    innocent.helper.signal(libc::SIGKILL);
    assert!(innocent.helper.ends(10), "unlike in v1, SIGKILL ends a frozen process");
}

fn a_core_dump_hangs_with_its_flag_up(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let netns = Netns::new(lab, "c");
    let mut innocent = innocent::dumping_core(&netns, &hung);
    let view = View::leader(innocent.helper.pid()).unwrap();
    assert!(view.core_dumping && view.netns == Some(netns.inode), "{view:?}");
    hung.release();
    assert!(innocent.helper.ends(10), "it ends when the dump fails");
}

fn other_innocents_look_as_documented(lab: &Lab) {
    let netns = Netns::new(lab, "o");
    let state = |pid| View::leader(pid).unwrap();
    let parent = innocent::vfork_parent(&netns);
    let view = state(parent.helper.pid());
    assert_eq!((view.state, view.wchan.as_str()), ('D', "kernel_clone"), "{view:?}");
    let stopped = innocent::stopped(&netns);
    assert_eq!(state(stopped.helper.pid()).state, 'T');
    let busy = innocent::busy(&netns);
    assert_eq!(state(busy.helper.pid()).netns, Some(netns.inode));
    let zombie = innocent::zombie(&netns);
    let view = state(zombie.helper.pid());
    assert_eq!((view.state, view.netns), ('Z', None), "a zombie holds no netns");
}

fn a_pod_runs_and_stops(lab: &Lab) {
    let containerd = Containerd::shared(lab);
    let pod = containerd.run("web-0", lab.dir(), &["/bin/sleep", "1000"]);
    assert!(pod.ip.starts_with("10."), "{pod:?}");
    let cached = |pod: &Pod| {
        let files = std::fs::read_dir(CNI_CACHE).unwrap().flatten();
        files.filter(|file| file.file_name().to_string_lossy().contains(&pod.sandbox)).count()
    };
    assert_eq!(cached(&pod), 2, "the results of lo and eth0");
    let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", pod.pid)).unwrap();
    assert!(cgroup.contains(&format!("/kubepods/besteffort/pod{}/{}", pod.uid, pod.container)));
    containerd.stop(&pod);
    assert_eq!(cached(&pod), 0);
    assert!(tasks_in(pod.netns).is_empty());
}

/// Nobody stops this pod: its remains must be swept all the same.
fn a_pods_process_hangs(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let containerd = Containerd::shared(lab);
    let pod = containerd.run("db-0", hung.dir(), &["/bin/cat", "/host/hang"]);
    pod.hang(&mut hung);
}

fn the_collector_listens(lab: &Lab) {
    let collector = Collector::start(lab);
    assert!(collector.endpoint.starts_with("http://127.0.0.1:"));
}
