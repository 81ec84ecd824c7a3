#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]

use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::state::{Entry, State};
use crate::testing::{Network, environment, script};

/// The program itself, for tests that kill it.
#[test]
fn as_a_program() {
    if std::env::var_os("IPWATCH_IPAM_PROGRAM").is_none() {
        return;
    }
    if std::env::var("CNI_COMMAND").unwrap() != "release" {
        let _ = main();
        return;
    }
    // What `ipwatch cni release` does.
    let config = Config::read(&read_input().unwrap()).unwrap();
    let boot = name::boot_of(&fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap());
    let bin: Vec<_> = std::env::split_paths(&std::env::var_os("CNI_PATH").unwrap()).collect();
    let place = parked::Place {
        state_dir: &config.state_dir,
        socket: &config.socket,
        boot: boot.as_deref(),
        bin: &bin,
    };
    parked::release_network(place, &config.name, false, None).unwrap();
}

fn scripted(body: &str) -> (tempfile::TempDir, Call) {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "other", body);
    let config = json!({
        "cniVersion": "1.1.0", "name": "net",
        "ipam": { "delegate": { "type": "other" }, "socket": dir.path().join("none"),
                  "stateDir": dir.path().join("state") },
    });
    let mut environment = environment("STATUS", "");
    environment.path = vec![dir.path().to_owned()];
    let config = Config::read(config.to_string().as_bytes()).unwrap();
    (
        dir,
        Call {
            environment,
            config,
            boot: None.into(),
            parent: None,
            reserved: false.into(),
            set: true,
        },
    )
}

#[test]
fn what_the_delegate_says_is_passed_through() {
    let (_dir, mut call) = scripted("printf '{\"code\":  1234,\"msg\":\"mine\"}'; exit 3");
    for command in [Command::Add, Command::Del, Command::Check, Command::Gc, Command::Status] {
        call.environment.command = command;
        let answer = call.serve().unwrap();
        assert_eq!((answer.code, &*answer.stdout), (3, &b"{\"code\":  1234,\"msg\":\"mine\"}"[..]));
    }
}

/// A delegate that is killed, as by the OOM killer, may have made its reservation before. One that refuses has not.
#[test]
fn what_an_add_that_was_cut_may_have_reserved_is_freed() {
    let calls = |add: &str| {
        let (dir, mut call) =
            scripted(&format!("echo $CNI_COMMAND >>\"$0.log\"; [ $CNI_COMMAND != ADD ] || {add}"));
        call.environment.command = Command::Add;
        let _ = call.serve();
        call.take_back_unless(false);
        fs::read_to_string(dir.path().join("other.log")).unwrap()
    };
    assert_eq!(calls("kill -9 $$"), "ADD\nDEL\n");
    assert_eq!(calls("exit 1"), "ADD\n");
}

#[test]
fn a_delegate_without_status_serves() {
    let versions = |of: &str| {
        format!(
            "if [ $CNI_COMMAND = VERSION ]; then echo '{{\"supportedVersions\":[{of}]}}'; exit 0; fi\n\
             echo '{{\"code\":3,\"msg\":\"missing containerID\"}}'; exit 1"
        )
    };
    let old = scripted(&versions("\"0.4.0\",\"1.0.0\"")).1.serve().unwrap();
    assert_eq!(old, Answer { code: 0, stdout: Vec::new() });
    assert_eq!(scripted(&versions("\"1.1.0\"")).1.serve().unwrap().code, 1);
    // The real one of Debian 12 does not know it either.
    let Some(net) = Network::new(&["10.88.7.0/24"]) else { return };
    assert!(net.run("STATUS", "").unwrap().is_ok());
}

#[test]
fn check_asks_about_the_real_id() {
    let Some(net) = Network::new(&["10.88.7.0/24"]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    let result = net.run("ADD", "c1").unwrap().stdout;
    let check = |container: &str| {
        let mut config = net.config();
        config["prevResult"] = serde_json::from_slice(&result).unwrap();
        let mut call = net.call("CHECK", container);
        call.config = Config::read(config.to_string().as_bytes()).unwrap();
        call.serve().unwrap()
    };
    assert!(check("c1").is_ok());
    assert!(!check("c2").is_ok());
}

#[test]
fn gc_tells_the_delegate_of_what_is_parked() {
    let (dir, mut call) = scripted("cat >\"$0.heard\"");
    let entry = Entry {
        id: "ipwatch-parked-0f3c9a12-7-1".into(),
        ifname: name::IFNAME.into(),
        ips: Vec::new(),
        config: json!({}),
        path: Vec::new(),
        unanswered_since: None,
        next_try: 0,
        who: String::new(),
    };
    State { parked: vec![entry] }.write(&call.config.state_dir, "net").unwrap();
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "cni.dev/valid-attachments": [],
        "ipam": { "delegate": { "type": "other" }, "stateDir": call.config.state_dir },
    });
    call.config = Config::read(config.to_string().as_bytes()).unwrap();
    call.environment.command = Command::Gc;
    assert!(call.serve().unwrap().is_ok());
    let heard = fs::read(dir.path().join("other.heard")).unwrap();
    let heard: Value = serde_json::from_slice(&heard).unwrap();
    let valid = &heard["cni.dev/valid-attachments"];
    assert_eq!(valid[0]["containerID"], "ipwatch-parked-0f3c9a12-7-1", "{heard}");
    assert_eq!(heard["ipam"], json!({ "type": "other" }));
}

/// A delegate that collects garbage by CNI 1.1's rule, which Debian's host-local does not know: what is not among
/// `cni.dev/valid-attachments` goes.
#[test]
fn gc_by_cnis_rule_takes_what_is_stale_and_leaves_what_is_parked() {
    let Some(mut net) = Network::new(&["10.88.7.0/24"]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    assert_eq!(
        (net.add("stale"), net.add("valid")),
        (vec!["10.88.7.3".into()], vec!["10.88.7.4".into()])
    );
    let bin = net.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let store = net.dir.path().join("ipam/net");
    let collect = format!(
        "[ $CNI_COMMAND = GC ] || exec /usr/lib/cni/host-local\n\
         config=$(cat)\n\
         for file in {}/10.*; do\n\
         id=$(head -n 1 $file | tr -d '\\r')\n\
         case $config in *'\"containerID\":\"'$id'\"'*) ;; *) rm $file ;; esac\n\
         done",
        store.display()
    );
    script(&bin, "host-local", &collect);
    net.path = vec![bin];
    let gc = |net: &Network| {
        let mut call = net.call("GC", "");
        let mut config = net.config();
        let valid = json!([{ "containerID": "valid", "ifname": "eth0" }]);
        config["cniVersion"] = "1.1.0".into();
        config["cni.dev/valid-attachments"] = valid.clone();
        config["cni.dev/attachments"] = valid;
        call.config = Config::read(config.to_string().as_bytes()).unwrap();
        assert!(call.serve().unwrap().is_ok());
    };
    let left = |net: &Network| net.stored().into_keys().collect::<Vec<_>>();
    gc(&net);
    assert_eq!(left(&net), ["10.88.7.2", "10.88.7.4"]);
    // The same where the state file is lost.
    fs::remove_file(net.state_dir().join("net.parked")).unwrap();
    gc(&net);
    assert_eq!(left(&net), ["10.88.7.2", "10.88.7.4"]);
    // It does not keep it for ever.
    net.daemon.holds(&[]);
    net.del("valid");
    assert_eq!(left(&net), [] as [String; 0]);
}

#[test]
fn a_del_is_put_off_for_a_while() {
    let Some(mut net) = Network::new(&["10.88.7.0/24"]) else { return };
    net.add("c1");
    // For five seconds so far.
    net.daemon.answers(|_| {
        r#"{"schema":"ipwatch/v1","held":{"addresses":[{"ip":"10.88.7.2","state":"held",
            "who":"10.88.7.2 is still held by pid 5 (cat)","for_secs":5}]}}"#
            .into()
    });
    for _ in 0..2 {
        let failure = net.run("DEL", "c1").unwrap_err();
        assert_eq!(failure.code, Code::TryAgain);
        assert!(failure.msg.contains("pid 5 (cat)"), "{failure}");
        assert_eq!(net.stored()["10.88.7.2"], "c1 eth0", "the store keeps it");
    }
    assert_eq!(net.counted("gated"), 2);
    net.more = json!({ "gateMax": 5 });
    net.del("c1");
    assert_eq!(net.stored().len(), 0);
    // Without a daemon every DEL passes.
    net.more = json!({});
    net.add("c2");
    fs::remove_file(net.daemon.socket()).unwrap();
    net.del("c2");
    assert_eq!(net.stored().len(), 0);
}
