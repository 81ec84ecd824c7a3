//! A real sandbox of containerd: the pod is named from its cgroup and from the CNI result cache, also of the past, and
//! where a shell completes its name.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use support::fuse::Hung;
use support::pod::{CNI_CACHE, Containerd, Setup};
use support::{Config, Daemon, Lab, daemon, eventually};

support::tests! {
    a_pod_is_named_by_its_ip needs [Pods],
    the_past_is_asked_by_ip_pod_and_time needs [Containerd],
    a_shell_completes_what_the_daemon_knows needs [Pods],
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

/// Two pods have one IP, one after the other.
fn the_past_is_asked_by_ip_pod_and_time(lab: &Lab) {
    // One IP for pods: the other one is the gateway's.
    let setup = Setup { subnet: Some(format!("{}/30", lab.ip(0))), ..Setup::default() };
    let containerd = Containerd::start_as(lab, &setup);
    let daemon = Daemon::start(lab, &config());
    let past = |args: &[&str]| daemon.list("history", &[&["query", "history"], args].concat());
    let of = |tenures: &[Value]| -> Vec<Value> {
        tenures.iter().map(|tenure| tenure["pod"]["name"].clone()).collect()
    };
    let mut times = Vec::new();
    let mut ip = String::new();
    for name in ["web-0", "web-1"] {
        let pod = containerd.pod(name).sandbox();
        eventually(&format!("{name} is named"), 10, || {
            daemon.ip_in(&pod.ip, pod.netns).filter(|address| address["pod"]["name"] == name)
        });
        // A tenure has milliseconds, and this moment is within it.
        std::thread::sleep(Duration::from_millis(20));
        times.push(Timestamp::now().to_string());
        std::thread::sleep(Duration::from_millis(20));
        containerd.stop(&pod);
        daemon.await_no_ip(&pod.ip, pod.netns);
        ip = pod.ip;
    }
    let both = past(&[&ip]);
    assert_eq!(of(&both), ["web-1", "web-0"], "the newest first: {both:#?}");
    assert!(both.iter().all(|tenure| tenure["to"].is_string()), "both are over: {both:#?}");
    for (name, at) in ["web-0", "web-1"].into_iter().zip(&times) {
        assert_eq!(of(&past(&[&ip, "--at", at])), [name], "at {at}: {both:#?}");
        let by_pod = past(&[&ip, "--pod", &format!("shop/{name}")]);
        assert_eq!(of(&by_pod), [name], "{by_pod:#?}");
        assert_eq!(by_pod[0]["ip"], *ip, "{by_pod:#?}");
    }
    let other = daemon.ask(&["query", "history", "--pod", "shop/web-7"]);
    let said = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(3), "{said}");
}

/// What bash offers after these words, by the script that `ipwatch completions bash` prints.
fn completed(socket: &Path, words: &str) -> String {
    let script = r#"
        source <(ipwatch completions bash)
        COMP_WORDS=(ipwatch --socket "$1" $2) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_TYPE=9
        _clap_complete_ipwatch ipwatch "${COMP_WORDS[COMP_CWORD]}" ""
        printf '%s\n' "${COMPREPLY[@]}""#;
    let path = std::env::var("PATH").unwrap_or_default();
    let dir = daemon::binary().parent().expect("a directory").display().to_string();
    let mut bash = Command::new("bash");
    bash.args(["-c", script, "bash"]).arg(socket).arg(words).env("PATH", format!("{dir}:{path}"));
    let out = bash.output().expect("run bash");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.is_empty(), "{words}: {said}");
    String::from_utf8(out.stdout).expect("text")
}

fn a_shell_completes_what_the_daemon_knows(lab: &Lab) {
    let daemon = Daemon::start(lab, &config());
    let containerd = Containerd::shared(lab);
    let pod = containerd.run("web-0", lab.dir(), &["/bin/sleep", "1000"]);
    eventually("the pod is named", 10, || {
        daemon.ip_in(&pod.ip, pod.netns).filter(|address| address["pod"]["name"] == "web-0")
    });
    let netns = pod.path.file_name().and_then(|name| name.to_str()).expect("a name");
    for (words, offered) in [
        ("query pod shop/w", "shop/web-0"),
        (&format!("query ip {}", &pod.ip[..3]), pod.ip.as_str()),
        (&format!("check {}", &pod.ip[..3]), pod.ip.as_str()),
        ("query history --pod shop/", "shop/web-0"),
        ("query netns cni-", netns),
        ("explain ip-dup", "ip-duplicate"),
        ("query fi", "findings"),
    ] {
        let all = completed(daemon.socket(), words);
        assert!(all.lines().any(|line| line.trim_end() == offered), "{words}: {all}");
    }
    // Without a daemon there is nothing to offer, and nothing is said.
    let nobody = lab.dir().join("nobody");
    assert_eq!(completed(&nobody, "query pod shop/w").trim(), "");
    assert_eq!(completed(&nobody, "explain ip-dup").trim(), "ip-duplicate");
}
