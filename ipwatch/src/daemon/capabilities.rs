//! Which capabilities the sources need, what each is for, and which of them this process lacks.
//!
//! The unit in `deploy/systemd` grants exactly these; a test compares the two.

use std::path::Path;

use rustix::thread::CapabilitySet;

/// Each capability, its kernel name, and what is lost without it.
pub(super) const NEEDED: &[(CapabilitySet, &str, &str)] = &[
    (CapabilitySet::BPF, "CAP_BPF", "probes load by CAP_SYS_ADMIN alone, if at all"),
    (CapabilitySet::PERFMON, "CAP_PERFMON", "probes load by CAP_SYS_ADMIN alone, if at all"),
    (
        CapabilitySet::NET_ADMIN,
        "CAP_NET_ADMIN",
        "no nsid is assigned, and netlink's buffers stay small",
    ),
    (CapabilitySet::NET_BROADCAST, "CAP_NET_BROADCAST", "netlink reports only the host's netns"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW", "ARP is not observed"),
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN", "no netns is entered, and no kernel stack is read"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE", "holders in containers are not seen"),
    (
        CapabilitySet::DAC_READ_SEARCH,
        "CAP_DAC_READ_SEARCH",
        "fds of other users' processes, and stores that only other users may read, are not read",
    ),
    (
        CapabilitySet::SYSLOG,
        "CAP_SYSLOG",
        "the kernel's messages about a netns that hangs are not read",
    ),
];

/// CAP_SYSLOG is only needed to read this file, which a container normally does not have.
const KERNEL_LOG: &str = "/dev/kmsg";

/// The capabilities that this process lacks and the loss caused by each, in one line.
pub(super) fn missing() -> Option<String> {
    let effective = rustix::thread::capabilities(None).ok()?.effective;
    let log = Path::new(KERNEL_LOG).exists();
    let lost: Vec<String> = NEEDED
        .iter()
        .filter(|(capability, ..)| !effective.contains(*capability))
        .filter(|(capability, ..)| log || *capability != CapabilitySet::SYSLOG)
        .map(|(_, name, cost)| format!("without {name} {cost}"))
        .collect();
    (!lost.is_empty()).then(|| lost.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_grants_these_and_no_other() {
        let unit = include_str!("../../../deploy/systemd/ipwatch.service");
        let mut granted: Vec<&str> = unit
            .lines()
            .filter_map(|line| line.strip_prefix("CapabilityBoundingSet="))
            .flat_map(str::split_whitespace)
            .collect();
        let mut needed: Vec<&str> = NEEDED.iter().map(|(_, name, _)| *name).collect();
        granted.sort_unstable();
        needed.sort_unstable();
        assert_eq!(granted, needed);
    }

    /// A mount namespace is a copy of the node's mounts: it keeps mounts that are unmounted on the node.
    #[test]
    fn the_unit_makes_no_mount_namespace() {
        let unit = include_str!("../../../deploy/systemd/ipwatch.service");
        let makes_one = [
            "BindPaths",
            "BindReadOnlyPaths",
            "ExecPaths",
            "InaccessiblePaths",
            "LogNamespace",
            "MountAPIVFS",
            "MountFlags",
            "MountImages",
            "NoExecPaths",
            "PrivateDevices",
            "PrivateIPC",
            "PrivateMounts",
            "PrivateTmp",
            "PrivateUsers",
            "ProcSubset",
            "ProtectControlGroups",
            "ProtectHome",
            "ProtectKernelLogs",
            "ProtectKernelModules",
            "ProtectKernelTunables",
            "ProtectProc",
            "ProtectSystem",
            "ReadOnlyPaths",
            "ReadWritePaths",
            // Makes no mount namespace, but blocks openat2(2), by which a netns is opened at its mount.
            "RestrictSUIDSGID",
            "RootDirectory",
            "RootImage",
            "TemporaryFileSystem",
        ];
        let names = unit.lines().filter_map(|line| line.split_once('=').map(|(name, _)| name));
        let wrong: Vec<&str> = names.filter(|name| makes_one.contains(name)).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
