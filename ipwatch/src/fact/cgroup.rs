//! The container and pod that a cgroup path names: the only evidence left when no runtime answers. Pure.
//!
//! Shapes (`ID` 64 hex; `U` a pod UID with `-` or `_`, or 32 hex for a static pod):
//!
//! - kubelet, systemd driver: `kubepods.slice/[kubepods-QOS.slice/]kubepods[-QOS]-podU.slice/…`
//! - kubelet, cgroupfs driver: `kubepods/[QOS/]podU/ID`
//! - containerd: `cri-containerd-ID.scope`, or `…:cri-containerd:ID`, which is the systemd driver's name if systemd is
//!   not used; CRI-O: `crio-ID[.scope]`; Docker: `docker-ID.scope`, `docker/ID`; podman: `libpod-ID.scope[/container]`,
//!   `libpod_parent/libpod-ID`
//!
//! Not containers: `crio-conmon-ID.scope`, `libpod-conmon-ID.scope`, the monitors beside them.

/// The container and pod of a cgroup path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attribution {
    /// The container, 64 hexadecimal digits.
    pub container_id: Option<String>,
    /// `containerd`, `cri-o`, `docker` or `podman`; absent if the path does not tell (kubelet's cgroupfs driver names
    /// no runtime).
    pub runtime: Option<&'static str>,
    /// The pod, with dashes. A static pod's is a hash of its manifest, not the API's UID.
    pub pod_uid: Option<String>,
}

/// Parses a cgroup path from the right: in nested clusters and Docker-in-Docker, the process is in the innermost
/// container, which is in the innermost pod.
#[must_use]
pub fn attribution(path: &str) -> Option<Attribution> {
    let mut found = Attribution::default();
    let mut parts = path.split('/').rev().peekable();
    while let Some(part) = parts.next() {
        // In the pod directory of a cgroupfs driver, and in Docker's directory, containers are named by the bare id.
        let parent = parts.peek().copied().unwrap_or_default();
        for name in part.rsplit(':') {
            if found.container_id.is_none()
                && let Some((id, runtime)) = container(name, part, parent)
            {
                found.container_id = Some(id.to_owned());
                found.runtime = runtime;
            }
            if let Some(uid) = pod(name) {
                found.pod_uid = Some(uid);
                return Some(found);
            }
        }
    }
    found.container_id.is_some().then_some(found)
}

/// Number of parts of a path in which its tenant is looked for: kubelet's pods are at most six deep, and whoever may make
/// cgroups makes thousands below each other.
const TENANT_WITHIN: usize = 16;

/// The head of a path that says whose it is: what follows may be chosen by whoever is in there. It ends at the outermost
/// pod, container or service, at the slice of a user, or else after two parts. A container counts in the first two parts
/// alone, and nothing counts within a service, which may be a user's to whom its cgroup is delegated.
#[must_use]
pub fn tenant(path: &str) -> &str {
    // What is outside of our cgroup namespace begins with `/..` (`cgroup_path_ns`).
    let rest = path.trim_start_matches("/..");
    let mut end = path.len() - rest.len();
    let (mut second, mut parent) = (path, "");
    for (depth, part) in rest.split('/').skip(1).take(TENANT_WITHIN).enumerate() {
        end += 1 + part.len();
        let head = &path[..end];
        let is_users = depth == 1 && parent == "user.slice";
        let is_service = depth > 0 && part.ends_with(".service");
        let is_lxcs = part.starts_with("lxc.payload") || parent == "lxc";
        let mut names = part.split(':');
        let is_pods = names.clone().any(|name| pod(name).is_some());
        let is_container = depth < 2 && names.any(|name| container(name, part, parent).is_some());
        if is_users || is_service || is_lxcs || is_pods || is_container {
            return head;
        }
        if depth == 1 {
            second = head;
        }
        parent = part;
    }
    second
}

/// Whether the path names one container within another: a Docker container within a pod is not kubelet's.
#[must_use]
pub fn is_nested(path: &str) -> bool {
    let (mut outer, mut parent) = (None, "");
    for part in path.split('/') {
        for (id, _) in part.split(':').filter_map(|name| container(name, part, parent)) {
            if *outer.get_or_insert(id) != id {
                return true;
            }
        }
        parent = part;
    }
    false
}

/// The user in whose session a path is. Within the session, the user can choose any cgroup name.
#[must_use]
pub fn session_user(path: &str) -> Option<u32> {
    let (_, rest) = path.split_once("user.slice/user-")?;
    rest.split('/').next()?.strip_suffix(".slice")?.parse().ok()
}

/// Whether only root on the node can have made this cgroup: it is not within a user's session, within a container, or
/// within a container of LXC or systemd-nspawn, which name their cgroups `lxc.payload.NAME` and `NAME/payload`.
#[must_use]
pub fn is_roots(path: &str) -> bool {
    let mut parts = path.split('/');
    let others = |part: &str| {
        part.starts_with("user@")
            || part.starts_with("lxc.payload")
            || matches!(part, "lxc" | "payload")
    };
    !is_nested(path) && session_user(path).is_none_or(|user| user == 0) && !parts.any(others)
}

/// Prefixes of the systemd driver's scopes. `…-conmon-` is not among them.
const RUNTIMES: &[(&str, &str)] = &[
    ("cri-containerd", "containerd"),
    ("nerdctl", "containerd"),
    ("crio", "cri-o"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("libpod-payload", "podman"),
];

fn runtime(prefix: &str) -> Option<&'static str> {
    RUNTIMES.iter().find(|(known, _)| *known == prefix).map(|(_, runtime)| *runtime)
}

fn container<'a>(
    name: &'a str,
    part: &str,
    parent: &str,
) -> Option<(&'a str, Option<&'static str>)> {
    if is_id(name) {
        // `SLICE:RUNTIME:ID` in one part, else Docker's directory, else no runtime.
        let beside = part.rsplit(':').nth(1).and_then(runtime);
        return Some((name, beside.or_else(|| runtime(parent))));
    }
    let (prefix, id) = name.strip_suffix(".scope").unwrap_or(name).rsplit_once('-')?;
    let runtime = runtime(prefix)?;
    is_id(id).then_some((id, Some(runtime)))
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && is_lower_hex(text)
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The pod of `podU` or `PREFIX-podU.slice`.
fn pod(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1,
        None => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    is_uid(&uid).then_some(uid)
}

fn is_uid(text: &str) -> bool {
    let groups = text.split('-');
    let uuid = || groups.clone().map(str::len).eq([8, 4, 4, 4, 12]);
    (text.len() == 32 || uuid()) && groups.clone().all(is_lower_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "8f4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
    const OTHER: &str = "00001b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
    const UID: &str = "1c0de3f2-8a5b-4c9d-9e8f-0123456789ab";
    const STATIC: &str = "5f1d2c3b4a59687706152433f2e1d0c9";

    /// ID, OTHER, U (with dashes), V (with underscores) and S stand for the constants above.
    fn read(shape: &str) -> Option<Attribution> {
        let path = shape
            .replace("OTHER", OTHER)
            .replace("ID", ID)
            .replace("podU", &format!("pod{UID}"))
            .replace("podV", &format!("pod{}", UID.replace('-', "_")))
            .replace("podS", &format!("pod{STATIC}"));
        attribution(&path)
    }

    fn is(
        id: Option<&str>,
        runtime: Option<&'static str>,
        uid: Option<&str>,
    ) -> Option<Attribution> {
        let owned = |text: &str| text.to_owned();
        Some(Attribution { container_id: id.map(owned), runtime, pod_uid: uid.map(owned) })
    }

    #[test]
    fn every_shape_of_a_pod() {
        let slice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podV.slice";
        let cases = [
            (format!("{slice}/cri-containerd-ID.scope"), Some("containerd")),
            (format!("{slice}/crio-ID.scope"), Some("cri-o")),
            (format!("{slice}/crio-ID.scope/container"), Some("cri-o")),
            (format!("{slice}/docker-ID.scope"), Some("docker")),
            ("/kubepods.slice/kubepods-podV.slice/docker-ID.scope".to_owned(), Some("docker")),
            ("/kubepods/besteffort/podU/ID".to_owned(), None),
            ("/kubepods/podU/ID".to_owned(), None),
            ("/kubepods/burstable/podU/crio-ID".to_owned(), Some("cri-o")),
            (
                "/system.slice/containerd.service/kubepods-burstable-podV.slice:cri-containerd:ID"
                    .to_owned(),
                Some("containerd"),
            ),
            (format!("/docker/OTHER/kubelet{slice}/cri-containerd-ID.scope"), Some("containerd")),
        ];
        for (path, runtime) in cases {
            assert_eq!(read(&path), is(Some(ID), runtime, Some(UID)), "{path}");
        }
    }

    #[test]
    fn every_shape_without_a_pod() {
        for (path, runtime) in [
            ("/docker/ID", Some("docker")),
            ("/system.slice/docker-ID.scope", Some("docker")),
            ("/machine.slice/libpod-ID.scope", Some("podman")),
            ("/machine.slice/libpod-ID.scope/container", Some("podman")),
            ("/libpod_parent/libpod-ID", Some("podman")),
            ("/user.slice/user-1000.slice/libpod-payload-ID", Some("podman")),
            ("/default/ID", None),
        ] {
            assert_eq!(read(path), is(Some(ID), runtime, None), "{path}");
        }
    }

    #[test]
    fn a_pod_without_a_container_and_a_static_one() {
        let systemd = "/kubepods.slice/kubepods-pod5f1d2c3b4a59687706152433f2e1d0c9.slice";
        assert_eq!(read(systemd), is(None, None, Some(STATIC)));
        assert_eq!(read("/kubepods/podS/ID"), is(Some(ID), None, Some(STATIC)));
        // The container around a nested cluster is not the container of its pods.
        assert_eq!(read("/docker/OTHER/kubepods/podU"), is(None, None, Some(UID)));
        // A container inside a pod is.
        let nested = is(Some(ID), Some("docker"), Some(UID));
        assert_eq!(read("/kubepods/podU/OTHER/docker/ID"), nested);
    }

    #[test]
    fn a_container_within_another_is_nested() {
        let is_nested = |shape: &str| is_nested(&shape.replace("OTHER", OTHER).replace("ID", ID));
        for path in [
            "/kubepods/pod1/OTHER/docker/ID",
            "/kubepods.slice/kubepods-pod1.slice/cri-containerd-OTHER.scope/docker/ID/init",
            "/kubepods/pod1/OTHER/kubepods/pod2/ID",
            "/system.slice/x.service/kubepods-pod1.slice:cri-containerd:OTHER/docker/ID",
        ] {
            assert!(is_nested(path), "{path}");
        }
        for path in [
            "/kubepods/pod1/ID",
            "/kubepods.slice/kubepods-pod1.slice/crio-ID.scope/container",
            "/kubepods/pod1/ID/system.slice/x.service",
            "/machine.slice/libpod-ID.scope/libpod-payload-ID",
            "/system.slice/x.service/kubepods-pod1.slice:cri-containerd:ID",
            "/user.slice",
        ] {
            assert!(!is_nested(path), "{path}");
        }
    }

    /// Whatever cgroups somebody makes below his own, he has the share of one, and is nobody else.
    #[test]
    fn nobody_chooses_whose_his_cgroups_are() {
        let pod = |uid: &str| format!("/kubepods/besteffort/pod{uid}");
        let slice = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
            UID.replace('-', "_")
        );
        let other = pod("00000000-8a5b-4c9d-9e8f-0123456789ab");
        for own in [
            "/user.slice/user-1000.slice".to_owned(),
            pod(UID),
            slice.clone(),
            format!("/kubelet.slice/kubelet{slice}"),
            format!("/system.slice/docker-{ID}.scope"),
            format!("/docker/{ID}"),
            "/system.slice/a.service".to_owned(),
            "/system.slice/system-a.slice/a@1.service".to_owned(),
            "/lxc.payload.web".to_owned(),
            "/lxc/web".to_owned(),
            "/../../user.slice/user-1000.slice".to_owned(),
            format!("/../..{}", pod(UID)),
        ] {
            let docker = format!("/docker/{OTHER}");
            for made in ["", "/user@1000.service/x", &docker, &other, "/a/b/c", &"/a".repeat(999)] {
                assert_eq!(tenant(&format!("{own}{made}")), own, "{made}");
            }
        }
        let deep = format!("/a/b{}", "/c".repeat(999));
        for (path, whose) in [("/", "/"), ("", ""), ("/init.scope", "/init.scope"), (&deep, "/a/b")]
        {
            assert_eq!(tenant(path), whose);
        }
    }

    #[test]
    fn what_is_no_container() {
        for path in [
            "/",
            "",
            "/system.slice/sshd.service",
            "/user.slice/user-0.slice/session-1.scope",
            "/kubepods.slice/kubepods-burstable.slice",
            "/machine.slice/libpod-conmon-ID.scope",
            "/system.slice/crio-conmon-ID.scope",
            "/agent/83ff8dd5b7bc87f588886bd6278e6601",
            "/kubepods/podnot-a-uid",
            "/docker/8f4c1b2a9d7e",
        ] {
            assert_eq!(read(path), None, "{path}");
        }
        // The monitor of a pod's container is in no container, but in the pod.
        let monitor = "/kubepods.slice/kubepods-podV.slice/crio-conmon-ID.scope";
        assert_eq!(read(monitor), is(None, None, Some(UID)));
    }

    #[test]
    fn a_session_is_its_users() {
        let cases = [
            ("/user.slice/user-1000.slice/session-1.scope", Some(1000)),
            ("/user.slice/user-0.slice/user@0.service/x", Some(0)),
            ("/user.slice", None),
            ("/user.slice/user-1000.slicer/x", None),
            ("/system.slice/user-1000.slice", None),
        ];
        for (path, user) in cases {
            assert_eq!(session_user(path), user, "{path}");
        }
    }

    #[test]
    fn a_cgroup_that_others_than_root_can_make_is_not_roots() {
        let docker = format!("docker-{ID}.scope");
        for (parent, expected) in [
            ("/kubepods.slice", true),
            ("/system.slice", true),
            // Docker started from root's session.
            ("/user.slice/user-0.slice", true),
            // A user's systemd manages its part of the tree, and so does root in a container.
            ("/user.slice/user-1000.slice/user@1000.service", false),
            ("/user.slice/user-1000.slice/session-1.scope", false),
            ("/lxc.payload.web/system.slice", false),
            ("/lxc/web/system.slice", false),
            ("/machine.slice/systemd-nspawn@web.service/payload/system.slice", false),
        ] {
            assert_eq!(is_roots(&format!("{parent}/{docker}")), expected, "{parent}");
        }
        assert!(!is_roots(&format!("/kubepods/pod1/{OTHER}/{docker}")));
    }
}
