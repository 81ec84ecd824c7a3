//! An agent with its own mount namespace keeps a dead container's file system mounted.

use support::Lab;
use support::harness::case;
use support::pod::Containerd;
use support::remedy::{Shell, changes};
use support::role::{Helper, Role};

use super::{SLEEP, SOON, await_word, watching};

support::tests! {
    an_agent_keeps_a_dead_pods_shm needs [Containerd],
}

/// A file system that is unmounted on the node stays mounted in a mount namespace that was copied before and does not
/// follow the node's. (When a directory is removed, the kernel unmounts everywhere, since 3.18; so the test uses a
/// mount that a runtime keeps until the sandbox is removed.)
fn an_agent_keeps_a_dead_pods_shm(lab: &Lab) {
    // Its own containerd: for an agent that also keeps mounts of other dead pods there is one finding about all of
    // them.
    let containerd = Containerd::start(lab);
    let daemon = watching(lab, &containerd);
    let pod = containerd.run("web-0", lab.dir(), &SLEEP);
    await_word(&daemon, &pod, "Ready");
    let agent = Helper::new(Role::Agent).comm("node-agent").start();
    containerd.halt(&pod);
    let mine = |finding: &serde_json::Value| {
        finding["holders"].as_array().is_some_and(|all| {
            all.iter().any(|holder| {
                let path = holder["mount_path"].as_str().unwrap_or_default();
                holder["mount_ns_pid"] == agent.pid() && path.contains(&pod.sandbox)
            })
        })
    };
    let finding = daemon.await_firing("mount-leak-blocks-removal", SOON, mine);
    let own = std::fs::read_link(format!("/proc/{}/ns/mnt", agent.pid())).unwrap();
    for holder in finding["holders"].as_array().unwrap() {
        assert_eq!(own.to_str(), Some(&*format!("mnt:[{}]", holder["mount_ns"])), "{finding:#?}");
        assert_eq!(holder["mount_ns_comm"], "node-agent", "{finding:#?}");
    }
    let remedies = finding["remediation"].to_string();
    assert!(!remedies.contains("nsenter"), "nothing of the agent's is run: {remedies}");
    assert!(remedies.contains(&format!("umount -N {} ", agent.pid())), "{remedies}");
    let container = finding["subject"]["container"]["id"].as_str().unwrap_or_default();
    assert!([&pod.sandbox, &pod.container].contains(&&container.to_owned()), "{finding:#?}");
    // The pasted command removes it from the agent's mount namespace while the agent lives.
    let shell = Shell::new(lab);
    shell.looks(&finding);
    let unmounts = changes(&finding);
    assert!(!unmounts.is_empty(), "{finding:#?}");
    for command in unmounts {
        shell.succeeds(&command);
        shell.refuses(&command);
    }
    daemon.await_resolved(&finding, 90);
    agent.end();
    containerd.stop(&pod);
    case(
        "an agent copied all mounts, then the pod died",
        "mount-leak-blocks-removal",
        "path, mount namespace, pid",
        "yes, by the printed umount",
    );
}
