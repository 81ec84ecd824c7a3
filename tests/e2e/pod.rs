//! A real sandbox of containerd: the pod is named from its cgroup and from the CNI result cache.

use std::path::Path;

use support::fuse::Hung;
use support::pod::{CNI_CACHE, Containerd};
use support::{Config, Daemon, Lab, eventually};

support::tests! {
    a_pod_is_named_by_its_ip needs [Pods],
    a_stuck_pod_is_named_in_the_finding needs [Pods, Fuse],
}

fn config() -> Config {
    Config::default().grace(2).cache_dir(Path::new(CNI_CACHE))
}

fn a_pod_is_named_by_its_ip(lab: &Lab) {
    let daemon = Daemon::start(lab, &config());
    let containerd = Containerd::shared(lab);
    let pod = containerd.run("web-0", lab.dir(), &["/bin/sleep", "1000"]);
    let address = eventually("the pod is named", 10, || {
        daemon.ip_in(&pod.ip, pod.netns).filter(|address| address["pod"]["name"] == "web-0")
    });
    assert_eq!(address["pod"]["namespace"], "shop", "{address}");
    assert_eq!(address["pod"]["uid"], pod.uid, "{address}");
    assert!(address["container"]["id"].is_string(), "{address}");
    for name in ["shop/web-0", "web-0", &pod.sandbox[..12]] {
        let found = daemon.list("addresses", &["query", "pod", name]);
        assert!(found.iter().any(|entry| entry["ip"] == pod.ip), "{name}: {found:?}");
    }
    let holders = address["holders"].to_string();
    assert!(holders.contains(&format!("\"pid\":{}", pod.pid)), "{holders}");
    containerd.stop(&pod);
    daemon.await_no_ip(&pod.ip, pod.netns);
}

fn a_stuck_pod_is_named_in_the_finding(lab: &Lab) {
    let mut hung = Hung::mount(lab);
    let daemon = Daemon::start(lab, &config());
    let containerd = Containerd::shared(lab);
    let pod = containerd.run("db-0", hung.dir(), &["/bin/cat", "/host/hang"]);
    pod.hang(&mut hung);
    let finding = eventually("the finding fires", 15, || {
        let all = daemon.findings_in(pod.netns);
        all.into_iter().find(|finding| finding["status"] == "firing")
    });
    assert_eq!(finding["subject"]["pod"]["namespace"], "shop", "{finding}");
    assert_eq!(finding["subject"]["pod"]["name"], "db-0", "{finding}");
    assert_eq!(finding["holders"][0]["pid"], pod.pid, "the stuck one, not the pause: {finding}");
    let evidence = finding["evidence"].to_string();
    assert!(evidence.contains(&pod.container), "its cgroup is part of the proof: {evidence}");
}
