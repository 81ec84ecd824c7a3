//! The demo's own pods and configuration: the commands in its findings do what they say.

#[path = "../../xtask/src/demo/stage.rs"]
pub(crate) mod stage;

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use support::remedy::{Shell, change, changes, forms};
use support::{Config, Daemon, Lab};

use crate::remedies::Fusectl;

use self::stage::{Pod, Stage};

support::tests! {
    // If several connections hang, none is blamed: no other may exist.
    the_commands_that_it_prints_do_what_they_say needs [Fuse] @ Alone,
}

/// Seconds until both looks have seen it.
const SOON: u32 = 40;

fn firing(daemon: &Daemon, code: &str, pod: Pod) -> Value {
    daemon.await_firing(code, SOON, |finding| finding["subject"]["ip"] == pod.ip().as_str())
}

fn the_commands_that_it_prints_do_what_they_say(lab: &Lab) {
    let (_fusectl, shell) = (Fusectl::new(), Shell::new(lab));
    let roles = std::env::current_exe().expect("this binary");
    let mut stage = Stage::new(&lab.subdir("demo"), &roles).expect("a stage");
    stage.healthy().expect("a healthy pod");
    stage.leaked().expect("a netns that is left");
    stage.duplicate().expect("two pods with one IP");
    stage.hanging().expect("a pod that hangs");
    let daemon = Daemon::start(lab, &Config::of(&stage.config()));
    assert!(stage.kill_hanging().expect("kill it"));
    let leaked = firing(&daemon, "netns-leaked", Pod::LEAKED);
    let stuck = firing(&daemon, "ip-held-by-stuck-process", Pod::STUCK);
    let twice = firing(&daemon, "ip-duplicate", Pod::TWIN);
    // The demo's output about its pods must be about these.
    let of_demo = |finding: &Value| {
        [Pod::HEALTHY, Pod::LEAKED, Pod::STUCK, Pod::FIRST]
            .iter()
            .any(|pod| finding["subject"]["ip"] == pod.ip())
    };
    for finding in daemon.findings().iter().filter(|finding| of_demo(finding)) {
        let known = [&leaked, &stuck, &twice].iter().any(|one| one["id"] == finding["id"]);
        assert!(known, "{finding:#?}");
    }
    // A single look without the daemon gives the same commands.
    let known: BTreeSet<String> = [&leaked, &stuck, &twice].into_iter().flat_map(forms).collect();
    let config = lab.dir().join("ipwatch.toml");
    let looked = daemon.ask(&["scan", "-o", "json", "--config", config.to_str().expect("text")]);
    let looked: Value = serde_json::from_slice(&looked.stdout).expect("a document");
    let looked = looked["findings"].as_array().expect("findings");
    let looked: Vec<&Value> = looked.iter().filter(|finding| of_demo(finding)).collect();
    assert!(!looked.is_empty(), "one look shows what hangs");
    for finding in looked {
        // None of them asks a daemon.
        let commands: Vec<&Value> = finding["steps"]
            .as_array()
            .expect("steps")
            .iter()
            .map(|step| &step["command"])
            .filter(|command| command.is_string())
            .collect();
        let asks = |command: &&Value| {
            let command = command.as_str().expect("text");
            command.contains("query") || command.contains("kubectl")
        };
        assert!(!commands.iter().any(asks), "{finding:#?}");
        let forms = forms(finding);
        assert!(forms.is_subset(&known), "no test runs {:?}", forms.difference(&known));
    }
    [&leaked, &stuck, &twice].into_iter().for_each(|finding| shell.looks(finding));

    let unmount = change(&leaked, "&& umount /");
    assert_eq!(changes(&leaked), [unmount.as_str()], "nothing else changes anything");
    shell.succeeds(&unmount);
    daemon.await_resolved(&leaked, SOON);
    shell.refuses(&unmount);

    let (cordon, abort) = (change(&stuck, "kubectl cordon "), change(&stuck, "/abort"));
    assert_eq!(changes(&stuck).len(), 2, "nothing else changes anything");
    shell.succeeds(&cordon);
    shell.succeeds(&abort);
    daemon.await_resolved(&stuck, SOON);
    [cordon, abort].iter().for_each(|command| shell.refuses(command));
    drop(stage);
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
    assert!(
        !mounts.contains(&format!(" {}/", lab.dir().display())),
        "something stays mounted: {mounts}"
    );
}
