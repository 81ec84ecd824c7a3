//! The daemon dies in the middle of things and comes back.

use std::sync::atomic::{AtomicBool, Ordering};

use support::stuck::Stuck;
use support::{Config, Daemon, Lab, Netns, eventually};

support::tests! {
    killed_in_the_middle_of_churn_it_comes_back_right needs [Fuse],
    it_stops_in_order_and_leaves_no_socket,
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
    // Deleted while nobody watched; and one that came meanwhile.
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

fn it_stops_in_order_and_leaves_no_socket(lab: &Lab) {
    let daemon = Daemon::start(lab, &Config::default());
    let socket = daemon.socket().to_owned();
    assert!(socket.exists());
    let status = daemon.stop();
    assert!(status.success(), "{status}");
    assert!(!socket.exists());
}
