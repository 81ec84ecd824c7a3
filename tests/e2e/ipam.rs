//! What IPAM can hand out and to whom, asked on the command line: `query ipam`, `query ip`, `check`.

use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use support::network::{self, Container, Network};
use support::{Config, Daemon, Lab, Netns, eventually};

use crate::lead::ips;

support::tests! {
    reservations_stand_beside_kernel_and_range needs [Cni],
    an_ip_is_checked_before_it_is_handed_out needs [Cni],
    two_thousand_leaks_are_a_page,
}

/// A /29 on a bridge: 5 IPs besides the gateway.
fn network(lab: &Lab, node: &Netns) -> Network {
    let subnet = format!("{}/29", lab.ip(0));
    Network::new(lab, node, "net", "bridge", &subnet, json!({ "bridge": "br1" }))
}

fn daemon(lab: &Lab) -> Daemon {
    let config = Config::default().networks(&[network::conf_dir(lab)], &network::bin_dir(lab));
    let daemon = Daemon::start(lab, &config);
    daemon.await_source("host-local");
    daemon
}

/// Waits for the network's range to have `used` IPs in use.
fn range(daemon: &Daemon, network: &Network, used: u64) -> Value {
    eventually("the range is told", 10, || {
        let ranges = daemon.list("ranges", &["query", "ipam", network.name()]);
        ranges.into_iter().find(|range| range["used"] == used)
    })
}

fn reservations_stand_beside_kernel_and_range(lab: &Lab) {
    let node = Netns::new(lab, "node");
    let network = network(lab, &node);
    let daemon = daemon(lab);
    let (container, pod) = (Container::new(lab, 1), Netns::new(lab, "pod"));
    let ip = network.add(&container, &pod).unwrap();
    let told = range(&daemon, &network, 1);
    assert_eq!(
        (&told["usable"], &told["free"], &told["leaked"], &told["store"]),
        (&json!(5), &json!(4), &Value::Null, &json!("host-local")),
        "no runtime can say whether the container is gone: {told}"
    );
    let entry = eventually("store and kernel are told together", 10, || {
        let all = daemon.list("reservations", &["query", "ipam", &ip]);
        all.into_iter().find(|entry| !entry["kernel"].as_array().is_none_or(Vec::is_empty))
    });
    assert_eq!(entry["container_id"], container.id.as_str(), "{entry}");
    assert_eq!(entry["kernel"][0]["netns"]["inode"], pod.inode, "{entry}");
    assert_eq!(entry["network"], network.name(), "{entry}");
    let address = daemon.await_ip(&ip, pod.inode);
    assert_eq!(address["reservation"]["container_id"], container.id.as_str(), "{address}");
    assert_eq!(address["reservation"]["store"], "host-local", "{address}");

    network.del(&container, Some(&pod)).unwrap();
    let told = range(&daemon, &network, 0);
    assert_eq!(told["free"], 5, "{told}");
    let gone = daemon.ask(&["query", "ipam", &ip]);
    assert_eq!(gone.status.code(), Some(3), "{}", String::from_utf8_lossy(&gone.stderr));
}

fn an_ip_is_checked_before_it_is_handed_out(lab: &Lab) {
    let node = Netns::new(lab, "node");
    let network = network(lab, &node);
    let daemon = daemon(lab);
    let (container, pod) = (Container::new(lab, 1), Netns::new(lab, "pod"));
    let ip = network.add(&container, &pod).unwrap();
    let _ = range(&daemon, &network, 1);
    daemon.await_ip(&ip, pod.inode);
    let check = |args: &[&str]| {
        let out = daemon.ask(&[&["check", "-o", "json"], args].concat());
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        (out.status.code(), serde_json::from_str::<Value>(&said).unwrap_or_default())
    };
    let (code, taken) = check(&[&ip]);
    assert_eq!(code, Some(1), "{taken}");
    assert_eq!(taken["verdict"]["free"], false, "{taken}");
    assert_eq!(taken["verdict"]["holders"][0]["netns"]["inode"], pod.inode, "{taken}");
    assert_eq!(taken["verdict"]["reservations"][0]["container_id"], container.id.as_str());
    let (code, nobodys) = check(&["192.0.2.77"]);
    assert_eq!((code, &nobodys["verdict"]["in_pool"]), (Some(0), &Value::Bool(false)), "{nobodys}");
    assert_eq!(check(&["192.0.2.77", "--strict"]).0, Some(4), "no pool has it");
    // The owner of the netns follows from its mount path, which is read shortly after its IP.
    eventually("it is its own", 10, || {
        (check(&[&ip, "--container", &container.id[..12]]).0 == Some(0)).then_some(())
    });
    assert_eq!(check(&["0.0.0.0"]).0, Some(1), "no address of a container");
    // Freed in the store, but still configured: the case that kubelet does not see.
    std::fs::remove_file(network.reservations().join(&ip)).unwrap();
    let freed = eventually("the store has let go of it", 10, || {
        let (code, verdict) = check(&[&ip]);
        assert_eq!(code, Some(1), "whoever asks is kept from it: {verdict}");
        let none = verdict["verdict"]["reservations"].as_array().is_some_and(Vec::is_empty);
        none.then_some(verdict)
    });
    assert_eq!(freed["verdict"]["holders"][0]["netns"]["inode"], pod.inode, "{freed}");
    let usage = daemon.ask(&["check", "10.0.3.0/24"]);
    assert_eq!(usage.status.code(), Some(2));
}

/// A node that crashed and whose reservations will never be released: forty networks with fifty each. No runtime is
/// asked, and no daemon runs.
fn two_thousand_leaks_are_a_page(lab: &Lab) {
    let (networks, each) = (40_u8, 50_u8);
    let before_any_boot = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let node = Netns::new(lab, "node");
    for n in 0..networks {
        let (name, subnet) = (format!("n{n}"), format!("198.18.{n}.0/26"));
        let network = Network::new(lab, &node, &name, "bridge", &subnet, json!({}));
        fs::create_dir_all(network.reservations()).unwrap();
        for last in 2..2 + each {
            let path = network.reservations().join(format!("198.18.{n}.{last}"));
            fs::write(&path, format!("{n:032x}{last:032x}\r\neth0")).unwrap();
            File::open(&path).unwrap().set_modified(before_any_boot).unwrap();
        }
    }
    let config = Config::default().networks(&[network::conf_dir(lab)], &network::bin_dir(lab));
    let file = lab.dir().join("scan.toml");
    fs::write(&file, config.leak_age(1).text()).unwrap();
    let scan = |more: &[&str]| {
        let mut scan = Command::new(support::daemon::binary());
        let out = scan.arg("scan").arg("--config").arg(&file).args(more).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "exit code 1 says: findings. {said}");
        String::from_utf8(out.stdout).unwrap()
    };
    let ours = format!("{}-n", lab.tag());
    let document: Value = serde_json::from_str(&scan(&["-o", "json"])).unwrap();
    let leaks = document["findings"].as_array().expect("findings").iter().filter(|finding| {
        let network = finding["subject"]["network"].as_str().unwrap_or_default();
        finding["code"] == "ipam-reservation-leaked" && network.starts_with(&ours)
    });
    let leaks: Vec<&Value> = leaks.collect();
    assert_eq!(leaks.len(), usize::from(networks), "each network has one cause");
    for leak in leaks {
        assert_eq!(leak["status"], "firing", "{leak:#}");
        let impact = leak["impact"].as_str().unwrap_or_default();
        assert!(impact.contains(": 11 of 61 free, 50 leaked before the last boot. "), "{impact}");
        assert_eq!(ips(leak).count(), usize::from(each), "{leak:#}");
    }
    let page = scan(&[]);
    assert!(page.lines().count() <= 60, "{page}");
    assert!(page.contains(", 50 IPs ") && !page.contains("consequence"), "{page}");
    let rest = page.lines().find(|line| line.starts_with("… and ")).expect("the rest is counted");
    // A scan covers the whole node, where other tests may have findings meanwhile.
    assert!(rest.contains(" more causes: ") && rest.contains(" WARN"), "{rest}");
    assert!(rest.ends_with(" (--all)"), "{rest}");
}
