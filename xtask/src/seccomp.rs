//! `cargo xtask seccomp`: `deploy/kubernetes/seccomp.json`, the profile of a container, from the system calls that the
//! unit of `deploy/systemd` allows. systemd's groups are expanded by `systemd-analyze`, so the profile is made anew only
//! by a person: another systemd may know more calls.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::place;

/// Calls that the unit does not need, because systemd does for it what the container's runtime and `--host-root` do:
/// change the root, and take the identity of the container's user after the profile is in force. (The manifest cannot
/// forbid new privileges, for Kubernetes refuses that beside CAP_SYS_ADMIN. Without it runc loads the profile early.)
const OF_A_CONTAINER: [&str; 4] = ["chroot", "setgroups", "setgid", "setuid"];
/// `LockPersonality=yes`.
const LOCKED: [&str; 1] = ["personality"];
/// Allowed by their arguments, below.
const CONDITIONAL: [&str; 5] = ["socket", "unshare", "setns", "clone", "clone3"];

/// `RestrictNamespaces=net`: `CLONE_NEWNET`, and all others (include/uapi/linux/sched.h).
const NETNS: u64 = 0x4000_0000;
const OTHER_NAMESPACES: u64 = 0x3e02_0080;
/// The families of `RestrictAddressFamilies=` by name (include/linux/socket.h).
const FAMILIES: [(&str, u64); 5] =
    [("AF_UNIX", 1), ("AF_INET", 2), ("AF_INET6", 10), ("AF_NETLINK", 16), ("AF_PACKET", 17)];

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Writes the profile.
pub(crate) fn make() -> Result<()> {
    let root = place::repository();
    let unit = fs::read_to_string(root.join("deploy/systemd/ipwatch.service"))?;
    let text = format!("{:#}\n", profile(&unit)?);
    let path = root.join("deploy/kubernetes/seccomp.json");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The values of a setting, which may be given several times.
fn settings<'a>(unit: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let prefix = format!("{name}=");
    unit.lines().filter_map(move |line| line.strip_prefix(&prefix))
}

fn profile(unit: &str) -> Result<Value> {
    let mut allowed = BTreeSet::new();
    for line in settings(unit, "SystemCallFilter") {
        let (words, denied) = match line.strip_prefix('~') {
            Some(words) => (words, true),
            None => (line, false),
        };
        for word in words.split_whitespace() {
            for call in expanded(word)? {
                if denied {
                    allowed.remove(&call)
                } else {
                    allowed.insert(call)
                };
            }
        }
    }
    allowed.extend(OF_A_CONTAINER.map(str::to_owned));
    for call in LOCKED.iter().chain(&CONDITIONAL) {
        allowed.remove(*call);
    }
    let mut rules = vec![json!({ "names": allowed, "action": "SCMP_ACT_ALLOW" })];
    let families: Vec<&str> =
        settings(unit, "RestrictAddressFamilies").flat_map(str::split_whitespace).collect();
    for (name, family) in FAMILIES {
        ensure!(families.contains(&name), "the unit does not allow {name}");
        rules.push(allowed_if("socket", &json!([argument(0, family, "SCMP_CMP_EQ")])));
    }
    ensure!(families.len() == FAMILIES.len(), "the unit allows more families than are known here");
    let others = json!([masked(0, OTHER_NAMESPACES)]);
    rules.push(allowed_if("unshare", &others));
    rules.push(allowed_if("clone", &others));
    rules.push(allowed_if("setns", &json!([argument(1, NETNS, "SCMP_CMP_EQ")])));
    // Its flags are in memory, which no filter reads. glibc then uses clone.
    rules.push(json!({ "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS }));
    Ok(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": rules,
    }))
}

fn allowed_if(call: &str, arguments: &Value) -> Value {
    json!({ "names": [call], "action": "SCMP_ACT_ALLOW", "args": arguments })
}

fn argument(index: u32, value: u64, op: &str) -> Value {
    json!({ "index": index, "value": value, "op": op })
}

/// None of these bits.
fn masked(index: u32, bits: u64) -> Value {
    json!({ "index": index, "value": bits, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" })
}

/// The calls of a group; any other word is a call.
fn expanded(word: &str) -> Result<Vec<String>> {
    if !word.starts_with('@') {
        return Ok(vec![word.to_owned()]);
    }
    let out = Command::new("systemd-analyze").args(["syscall-filter", word]).output();
    let out = out.context("systemd-analyze: install systemd")?;
    ensure!(out.status.success(), "systemd-analyze syscall-filter {word}: {}", out.status);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut calls = Vec::new();
    // The first line is the group itself.
    for line in text.lines().skip(1).map(str::trim).filter(|line| !line.starts_with('#')) {
        calls.extend(expanded(line)?);
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the unit says without groups, and that nothing was added by hand.
    #[test]
    fn the_profile_allows_what_the_unit_does() {
        let root = place::repository();
        let unit = fs::read_to_string(root.join("deploy/systemd/ipwatch.service")).unwrap();
        let text = fs::read_to_string(root.join("deploy/kubernetes/seccomp.json")).unwrap();
        let profile: Value = serde_json::from_str(&text).unwrap();
        let rules = profile["syscalls"].as_array().unwrap();
        let calls: Vec<&str> = rules[0]["names"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect();
        for line in settings(&unit, "SystemCallFilter").filter(|line| !line.starts_with('~')) {
            let plain = line.split_whitespace().filter(|word| !word.starts_with('@'));
            plain.for_each(|word| assert!(calls.contains(&word), "{word}"));
        }
        for call in ["keyctl", "setresuid", "sched_setscheduler", "mount", "init_module", "ptrace"]
        {
            assert!(!calls.contains(&call), "{call}");
        }
        let families = rules.iter().filter(|rule| rule["names"][0] == "socket").count();
        assert_eq!(families, FAMILIES.len());
        assert_eq!(settings(&unit, "RestrictNamespaces").collect::<Vec<_>>(), ["net"]);
        assert_eq!(format!("{profile:#}\n"), text, "made by cargo xtask seccomp");
    }
}
