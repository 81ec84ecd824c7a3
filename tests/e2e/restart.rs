//! The daemon is killed during changes, and restarted.

use std::sync::atomic::{AtomicBool, Ordering};

use support::stuck::Stuck;
use support::{Config, Daemon, Lab, Netns, eventually};

support::tests! {
    killed_in_the_middle_of_churn_it_comes_back_right needs [Fuse],
    it_stops_in_order_and_leaves_no_socket,
    an_address_is_as_old_as_the_first_daemon_knew,
}

fn killed_in_the_middle_of_churn_it_comes_back_right(lab: &Lab) {
    let stuck = Stuck::new(lab);
    let config = Config::default().grace(1);
    let finding = |daemon: &Daemon| {
        eventually("the finding fires", 15, || {
            let all = daemon.findings_in(stuck.netns.inode);
            all.into_iter().find(|finding| finding["status"] == "firing")
        })
    };
    let churned = Netns::new(lab, "churn");
    churned.veth_to_host();
    let done = AtomicBool::new(false);
    let before = std::thread::scope(|scope| {
        scope.spawn(|| churn(lab, &churned, &done));
        let daemon = Daemon::start(lab, &config);
        let before = finding(&daemon);
        daemon.crash();
        std::thread::sleep(std::time::Duration::from_millis(200));
        done.store(true, Ordering::Relaxed);
        before
    });
    // Addresses deleted while the daemon was down, and one that was added meanwhile.
    churned.add_address(&lab.cidr(200), "eth0");
    let daemon = Daemon::start(lab, &config);
    let after = finding(&daemon);
    assert_eq!(before["id"], after["id"], "the same finding");
    assert_eq!(before["since"], after["since"], "since the same moment");
    let known = daemon.list("addresses", &["query", "netns", &churned.inode.to_string()]);
    let mut known: Vec<&str> = known
        .iter()
        .filter(|address| address["scope"] == "global")
        .filter_map(|address| address["ip"].as_str())
        .collect();
    let json = churned.ip_json();
    let infos =
        json.as_array().unwrap().iter().flat_map(|link| link["addr_info"].as_array().unwrap());
    let mut real: Vec<&str> = infos
        .filter(|info| info["scope"] == "global")
        .filter_map(|info| info["local"].as_str())
        .collect();
    known.sort_unstable();
    real.sort_unstable();
    assert_eq!(known, real);
}

/// Adds and deletes addresses as fast as `ip` can.
fn churn(lab: &Lab, netns: &Netns, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        let lines = |verb: &str| -> String {
            (10..60).map(|n| format!("addr {verb} {}/32 dev eth0\n", lab.ip(n))).collect()
        };
        netns.ip_batch(&lines("add"));
        netns.ip_batch(&lines("del"));
    }
}

/// One address comes before the first daemon, the other one is seen to come.
fn an_address_is_as_old_as_the_first_daemon_knew(lab: &Lab) {
    let netns = [Netns::new(lab, "old"), Netns::new(lab, "new")];
    netns.iter().for_each(|one| drop(one.veth_to_host()));
    netns[0].add_address(&lab.cidr(7), "eth0");
    let daemon = Daemon::start(lab, &Config::default());
    daemon.await_ip(lab.ip(7), netns[0].inode);
    netns[1].add_address(&lab.cidr(8), "eth0");
    let known = |daemon: &Daemon| {
        [(7, true), (8, false)].map(|(n, preexisting)| {
            let at = &netns[usize::from(n - 7)];
            let address = daemon.await_ip(lab.ip(n), at.inode);
            assert_eq!(
                address["preexisting"].as_bool().unwrap_or_default(),
                preexisting,
                "{address}"
            );
            let card = daemon.ask(&["query", "ip", &lab.ip(n).to_string()]);
            let card = String::from_utf8_lossy(&card.stdout).into_owned();
            assert_eq!(card.contains(", up ≥") || card.contains(", up >="), preexisting, "{card}");
            address["since"].clone()
        })
    };
    let before = known(&daemon);
    let _ = daemon.stop();
    assert_eq!(known(&Daemon::start(lab, &Config::default())), before);
}

fn it_stops_in_order_and_leaves_no_socket(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let socket = daemon.socket().to_owned();
    assert!(socket.exists());
    let status = daemon.stop();
    assert!(status.success(), "{status}");
    assert!(!socket.exists());
}
