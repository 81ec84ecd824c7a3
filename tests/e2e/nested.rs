//! The daemon in a pid namespace within the node's, as on a node that is itself a container (kind, k3d, minikube, LXD):
//! the kernel's pids are not those of `/proc`.

use std::process::Command;

use support::fuse::Hung;
use support::role::{Helper, Role, Running};
use support::{Config, Daemon, Lab, Netns, eventually, sys};

support::tests! {
    pids_are_those_of_its_own_namespace needs [Fuse],
}

const GRACE: u32 = 2;

/// The last two of what `NSpid` says: how a process is called in its own pid namespace, and around it.
fn names(pid: u32) -> Option<(u32, u32)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let names = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut names = names.split_whitespace().rev().map(|name| name.parse().expect("a pid"));
    Some((names.next()?, names.next()?))
}

fn child(of: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn with_address(lab: &Lab, hint: &str, host: u8) -> Netns {
    let netns = Netns::new(lab, hint);
    netns.veth_to_host();
    netns.add_address(&lab.cidr(host), "eth0");
    netns
}

fn pids_are_those_of_its_own_namespace(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let (inner, outer) = (with_address(lab, "inner", 7), with_address(lab, "outer", 8));
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--"]);
    unshare.arg(support::daemon::binary());
    let config = Config::default().grace(GRACE).cache_dir(&lab.subdir("cni"));
    let mut daemon = Daemon::spawn_by(unshare, lab, &config, &lab.subdir("state"));
    // Whoever asks is outside, where no pid of theirs leads.
    daemon.await_ready();
    let init = child(daemon.pid()).expect("the daemon itself");
    assert_eq!(names(init).map(|(own, _)| own), Some(1), "it is in a pid namespace of its own");
    let file = hung.file();
    let park = Helper::new(Role::Park).inside(&outer).start();
    let helper: Running =
        Helper::new(Role::Opener).inside(&inner).pid_namespace_of(init).arg(&file).start();
    let outside = eventually("it is started", 5, || helper.child());
    let (own, _) = names(outside).expect("it is two pid namespaces deep");
    assert_ne!(own, outside);
    daemon.await_holder(lab.ip(7), inner.inode, "the one inside", |h| h["pid"] == own);
    sys::kill(outside, libc::SIGKILL).expect("kill it");
    let finding = daemon.await_firing("ip-held-by-stuck-process", GRACE + 12, |finding| {
        finding["subject"]["netns"]["inode"] == inner.inode
    });
    assert_eq!(finding["holders"][0]["pid"], own, "{finding:#}");
    // Of the one outside only its netns is known.
    let address = daemon.await_ip(lab.ip(8), outer.inode);
    let holders = address["holders"].to_string();
    assert!(!holders.contains("\"process\""), "{} is not to be named: {holders}", park.pid());
    let procfs = daemon.source("procfs").expect("it is told");
    assert_eq!(procfs["status"], "degraded", "{procfs:#}");
    assert!(procfs["detail"].as_str().unwrap().contains("pid namespace"), "{procfs:#}");
    hung.release();
    support::poll::until("it has ended", 10, || daemon.findings_in(inner.inode).is_empty());
}
