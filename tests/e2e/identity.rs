//! Reused identifiers of the kernel must not mix up two netns, nor must two boots be mixed up.

use serde_json::Value;
use support::fuse::Hung;
use support::role::{Helper, Role};
use support::stuck::{self, How};
use support::{Config, Daemon, Lab, Netns, daemon, patience, poorer};

support::tests! {
    reuse_mixes_nothing_up @ Alone Kernel Stock Rung,
    reuse_mixes_nothing_up_without_cookies @ Alone Kernel Rung,
    without_btf_the_inode_of_a_process_that_ended_is_anothers @ Alone Kernel Stock,
    an_earlier_boot_never_merges_with_this_one needs [Fuse] @ Kernel Rung,
}

fn reuse_mixes_nothing_up(lab: &Lab) {
    reuse(lab, &Config::default(), |netns| netns.cookie);
}

fn reuse_mixes_nothing_up_without_cookies(lab: &Lab) {
    reuse(lab, &Config::default().provisional(), |_| None);
}

/// Creates and deletes 500 netns in a row (fewer on an emulated CPU). Each has an address that no earlier one had, so
/// that a mix-up is visible. `cookie` is the expected cookie.
fn reuse(lab: &Lab, config: &Config, cookie: fn(&Netns) -> Option<u64>) {
    let daemon = Daemon::start(lab, config);
    let [.., x, _] = std::process::id().to_be_bytes();
    let address = |n: u32| format!("10.{x}.{}.{}", n / 250, n % 250 + 1);
    let (mut inodes, mut reused) = (Vec::new(), 0);
    let mut nsids = Vec::new();
    let rounds = 500 / patience();
    for n in 0..rounds {
        let netns = Netns::new(lab, "r");
        reused += u32::from(inodes.contains(&netns.inode));
        inodes.push(netns.inode);
        netns.veth_to_host();
        netns.add_address(&format!("{}/32", address(n)), "eth0");
        if n % 10 == 9 {
            nsids.push(has_only(&daemon, &netns, &address(n), cookie(&netns)));
        }
    }
    println!("{rounds} netns, {reused} of them with an inode that an earlier one had");
    assert!(reused > 0, "this test shows nothing unless inodes are reused");
    let told = nsids.len();
    nsids.sort_unstable();
    nsids.dedup();
    assert!(nsids.len() < told, "nor unless nsids are: {nsids:?}");
    support::poll::until("none of them is left", 20, || {
        let all = daemon.list("addresses", &["query", "ip", &format!("10.{x}.0.0/16")]);
        (0..rounds).all(|n| !all.iter().any(|entry| entry["ip"] == address(n)))
    });
}

/// Checks that only this address is known of the netns, and nothing of its predecessors. Returns its nsid.
fn has_only(daemon: &Daemon, netns: &Netns, ip: &str, cookie: Option<u64>) -> i64 {
    daemon.await_ip(ip, netns.inode);
    let mut seen = Vec::new();
    let nsid = support::poll::settled(10, || {
        seen = daemon.list("addresses", &["query", "netns", &netns.inode.to_string()]);
        let global = seen.iter().filter(|entry| entry["scope"] == "global");
        let ips: Vec<&Value> = global.map(|entry| &entry["ip"]).collect();
        let cookie = seen.iter().all(|entry| entry["netns"]["cookie"].as_u64() == cookie);
        let own = seen.first().and_then(|entry| entry["netns"]["nsid"].as_i64());
        own.filter(|_| ips == [ip] && cookie)
    });
    nsid.unwrap_or_else(|| {
        panic!("in {} only {ip} is expected, of cookie {cookie:?}: {seen:#?}", netns.inode)
    })
}

/// The end of a netns that only a process held is not reported. The next netns with its inode is mounted.
fn without_btf_the_inode_of_a_process_that_ended_is_anothers(lab: &Lab) {
    let state = lab.subdir("state");
    let mut daemon =
        Daemon::spawn_by(poorer::without_btf(&daemon::binary()), lab, &Config::default(), &state);
    daemon.await_ready();
    for n in 1.. {
        let mut first = Helper::new(Role::Mover).start();
        let inode = first.ask("unshare");
        let inode: u64 =
            inode.trim_start_matches("net:[").trim_end_matches(']').parse().expect("an inode");
        support::poll::until("its loopback is known", 10, || {
            !daemon.list("addresses", &["query", "netns", &inode.to_string()]).is_empty()
        });
        first.end();
        // The kernel frees an inode when it has destroyed the netns, and assigns the lowest free one.
        let mut others: Vec<Netns> = Vec::new();
        while others.len() < 10 && others.last().is_none_or(|netns| netns.inode != inode) {
            std::thread::sleep(std::time::Duration::from_millis(50) * patience());
            others.push(Netns::new(lab, &format!("i{n}-{}", others.len())));
        }
        let Some(next) = others.last().filter(|netns| netns.inode == inode) else {
            assert!(n < 10, "this test shows nothing unless inodes are reused");
            continue;
        };
        next.veth_to_host();
        next.add_address(&lab.cidr(7), "eth0");
        daemon.await_ip(lab.ip(7), inode);
        return;
    }
}

/// The daemon sees another boot id; the process that hangs is the same.
fn an_earlier_boot_never_merges_with_this_one(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let netns = Netns::new(lab, "boot");
    netns.veth_to_host();
    netns.add_address(&lab.cidr(7), "eth0");
    let mut helper = stuck::start(How::Kill, &netns, &mut hung);
    stuck::hang(How::Kill, &mut helper);
    let config = Config::default().grace(1);
    let finding = |daemon: &Daemon| {
        support::eventually("the finding fires", 15, || {
            let all = daemon.findings_in(netns.inode);
            all.into_iter().find(|finding| finding["status"] == "firing")
        })
    };
    let first = Daemon::start(lab, &config);
    let before = finding(&first);
    assert!(first.stop().success());

    let boot = poorer::in_another_boot(lab, &daemon::binary());
    let state = lab.subdir("state");
    let mut second = Daemon::spawn_by(boot, lab, &config, &state);
    second.await_ready();
    let after = finding(&second);
    assert_ne!(before["id"], after["id"], "another boot, another finding");
    let all = second.list("findings", &["query", "findings", "--all"]);
    let old = all.iter().find(|f| f["id"] == before["id"]).expect("the old one is remembered");
    assert_eq!(old["status"], "resolved", "a reboot ends what stood before it: {old}");
    let history = second.list("history", &["query", "history", &lab.ip(7).to_string()]);
    assert_eq!(history.len(), 2, "one tenure for each boot: {history:?}");
    assert!(history[0]["to"].is_null(), "the newest first, and it lasts: {history:?}");
    assert_eq!(history[1]["ended_by"], "reboot", "{history:?}");
}
