use super::super::testing::Tree;
use super::*;

const NODE_PID: &str = "pid:[4026531836]";
const NODE_USER: &str = "user:[4026531837]";
const ROOT: &str = "Name:\tx\nPPid:\t1\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n";
const NOBODY: &str = "Name:\tx\nPPid:\t1\nUid:\t65534\t65534\t65534\t65534\n";
const ID: &str = "8f4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";

/// A process of root in pid 1's namespaces.
fn process(tree: &Tree, pid: u32, comm: &str, exe: &str) {
    let of = |name: &str| format!("proc/{pid}/{name}");
    tree.file(&of("comm"), &format!("{comm}\n"));
    tree.file(&of("status"), ROOT);
    tree.link(&of("exe"), exe);
    tree.link(&of("ns/pid"), NODE_PID);
    tree.link(&of("ns/user"), NODE_USER);
    tree.file(&of("fd/.here"), "");
    tree.file(&of("net/unix"), "");
}

fn tree() -> Tree {
    let tree = Tree::new();
    process(&tree, 1, "systemd", "/usr/lib/systemd/systemd");
    tree
}

fn shim(tree: &Tree, pid: u32, cwd: &str) {
    process(tree, pid, "containerd-shim", "/usr/bin/containerd-shim-runc-v2");
    tree.link(&format!("proc/{pid}/cwd"), cwd);
    tree.file(&format!("proc/{pid}/task/{pid}/children"), "41 42 ");
}

/// Makes a process listen at `path`, with fd 3.
fn listens(tree: &Tree, pid: u32, path: &str) {
    let fd = format!("proc/{pid}/fd/3");
    let _ = std::fs::remove_file(tree.path(&fd));
    tree.link(&fd, "socket:[777]");
    let table = format!(
        "Num       RefCount Protocol Flags    Type St Inode Path\n\
         0000000000000000: 00000003 00000000 00000000 0001 03 777 /not/accepting\n\
         0000000000000000: 00000002 00000000 00010000 0001 01 778 /somebody/elses\n\
         0000000000000000: 00000002 00000000 00010000 0001 01 777 {path}\n"
    );
    std::fs::write(tree.path(&format!("proc/{pid}/net/unix")), table).unwrap();
}

fn replace(tree: &Tree, below: &str, text: &str) {
    let path = tree.path(below);
    std::fs::remove_file(&path).unwrap();
    tree.link(below, text);
}

#[test]
fn a_containerd_with_its_socket_and_its_state() {
    let tree = tree();
    process(&tree, 10, "containerd", "/usr/bin/containerd (deleted)");
    listens(&tree, 10, "/none/sock");
    let log = format!("/none/state/io.containerd.runtime.v2.task/k8s.io/{ID}/log");
    tree.link("proc/10/fd/14", &log);
    shim(&tree, 20, &format!("/none/state/io.containerd.runtime.v2.task/k8s.io/{ID}"));
    let seen = tree.proc().runtimes().unwrap();
    let [containerd] = &*seen.runtimes else { panic!("{seen:?}") };
    assert_eq!((containerd.pid, containerd.engine), (10, Engine::Containerd));
    assert_eq!(containerd.sockets, ["/none/sock"]);
    assert_eq!(containerd.dirs, ["/none/state"]);
    let [shim] = &*seen.monitors else { panic!("{seen:?}") };
    assert_eq!((shim.pid, shim.engine), (20, Some(Engine::Containerd)));
    assert_eq!(shim.dir.as_deref(), Some("/none/state"));
    assert_eq!(shim.namespace.as_deref(), Some("k8s.io"));
    assert_eq!(shim.container_id.as_deref(), Some(ID));
    assert_eq!(shim.children, [41, 42]);
    assert!(seen.complete);
}

/// A description, and what forges the process.
type Forgery = (&'static str, fn(&Tree));

/// Whatever the name of a process: its user, namespaces and executable decide.
#[test]
fn a_process_that_is_only_called_so_is_none() {
    let cwd = format!("/none/state/io.containerd.runtime.v2.task/k8s.io/{ID}");
    let forge: [Forgery; 4] = [
        ("another user", |tree| {
            for pid in [10, 20] {
                std::fs::write(tree.path(&format!("proc/{pid}/status")), NOBODY).unwrap();
            }
        }),
        ("one real id of another user", |tree| {
            for pid in [10, 20] {
                let mixed = ROOT.replace("Uid:\t0", "Uid:\t65534");
                std::fs::write(tree.path(&format!("proc/{pid}/status")), mixed).unwrap();
            }
        }),
        ("a container's root", |tree| {
            for pid in [10, 20] {
                replace(tree, &format!("proc/{pid}/ns/pid"), "pid:[4026532999]");
            }
        }),
        ("another program", |tree| {
            for pid in [10, 20] {
                replace(tree, &format!("proc/{pid}/exe"), "/usr/bin/python3.11");
            }
        }),
    ];
    for (who, forge) in forge {
        let tree = tree();
        process(&tree, 10, "containerd", "/usr/bin/containerd");
        shim(&tree, 20, &cwd);
        let seen = tree.proc().runtimes().unwrap();
        assert_eq!((seen.runtimes.len(), seen.monitors.len()), (1, 1));
        forge(&tree);
        assert_eq!(
            tree.proc().runtimes().unwrap(),
            RuntimesSeen { complete: true, ..Default::default() },
            "{who}"
        );
    }
}

/// The links of a process with more capabilities than ipwatch cannot be read.
#[test]
fn one_whose_links_do_not_read_counts() {
    let tree = tree();
    process(&tree, 10, "crio", "/usr/bin/crio");
    for name in ["exe", "ns/pid", "ns/user"] {
        std::fs::remove_file(tree.path(&format!("proc/10/{name}"))).unwrap();
    }
    let seen = tree.proc().runtimes().unwrap();
    assert_eq!(seen.runtimes[0].engine, Engine::CriO);
    // Without its fds, its sockets are unknown.
    std::fs::remove_dir_all(tree.path("proc/10/fd")).unwrap();
    std::fs::write(tree.path("proc/10/fd"), "no directory").unwrap();
    assert!(!tree.proc().runtimes().unwrap().complete);
}

#[test]
fn the_containerd_of_dockerd_is_dockerds() {
    let tree = tree();
    process(&tree, 10, "dockerd", "/usr/bin/dockerd");
    listens(&tree, 10, "/none/docker/sock");
    process(&tree, 11, "containerd", "/usr/bin/containerd");
    listens(&tree, 11, "/none/docker/exec/containerd/containerd.sock");
    std::fs::write(tree.path("proc/11/status"), ROOT.replace("PPid:\t1", "PPid:\t10")).unwrap();
    tree.link(
        "proc/11/fd/9",
        &format!("/none/docker/exec/io.containerd.runtime.v2.task/moby/{ID}/log"),
    );
    let seen = tree.proc().runtimes().unwrap();
    let [docker] = &*seen.runtimes else { panic!("{seen:?}") };
    assert_eq!((docker.pid, docker.engine), (10, Engine::Docker));
    assert!(docker.dirs.contains(&"/none/docker/exec".to_owned()), "{docker:?}");
    // A dockerd that found containerd running is not its parent.
    std::fs::write(tree.path("proc/11/status"), ROOT).unwrap();
    assert_eq!(tree.proc().runtimes().unwrap().runtimes.len(), 2, "another's");
    listens(&tree, 10, "/none/docker/exec/metrics.sock");
    assert_eq!(tree.proc().runtimes().unwrap().runtimes.len(), 1);
}

#[test]
fn a_dockerd_without_one_uses_the_nodes() {
    let tree = tree();
    process(&tree, 10, "dockerd", "/usr/bin/dockerd");
    listens(&tree, 10, "/run/docker.sock");
    process(&tree, 11, "containerd", "/usr/bin/containerd");
    listens(&tree, 11, "/run/containerd/containerd.sock");
    shim(&tree, 20, &format!("/run/containerd/io.containerd.runtime.v2.task/moby/{ID}"));
    let seen = tree.proc().runtimes().unwrap();
    assert_eq!(seen.runtimes.len(), 2);
    assert!(seen.runtimes.iter().all(|process| process.dirs == ["/run/containerd"]), "{seen:?}");
    assert_eq!(seen.monitors[0].engine, Some(Engine::Docker));
}

#[test]
fn a_conmon_names_its_runtime_by_its_cgroup() {
    let cases = [
        ("/machine.slice/libpod-conmon-", Some(Engine::Podman)),
        ("/kubepods.slice/kubepods-pod1.slice/crio-conmon-", Some(Engine::CriO)),
        ("/user.slice/", None),
    ];
    for (cgroup, engine) in cases {
        let tree = tree();
        process(&tree, 20, "conmon", "/usr/bin/conmon");
        tree.link(
            "proc/20/cwd",
            &format!("/run/containers/storage/overlay-containers/{ID}/userdata"),
        );
        tree.file("proc/20/cgroup", &format!("0::{cgroup}{ID}.scope\n"));
        let seen = tree.proc().runtimes().unwrap();
        assert_eq!(seen.monitors[0].engine, engine);
        assert_eq!(seen.monitors[0].container_id.as_deref(), Some(ID));
    }
}

/// Its commands have the same name.
#[test]
fn a_podman_counts_where_it_listens() {
    let tree = tree();
    process(&tree, 10, "podman", "/usr/bin/podman");
    assert!(tree.proc().runtimes().unwrap().runtimes.is_empty());
    listens(&tree, 10, "/run/podman/podman.sock");
    assert_eq!(tree.proc().runtimes().unwrap().runtimes[0].engine, Engine::Podman);
}

#[test]
fn hostile_lines_of_the_table_are_none() {
    let inodes = BTreeSet::from([777]);
    for line in [
        "",
        "a",
        "0: 2 0 zz 1 1 777 /x",
        "0: 2 0 00010000 1 1 x /x",
        "0: 2 0 00010000 1 1 777 @abstract",
        "0: 2 0 00010000 1 1 777",
    ] {
        assert_eq!(listener(line, &inodes), None, "{line}");
    }
    assert_eq!(listener("0: 2 0 00010000 1 1 777 /x", &inodes).as_deref(), Some("/x"));
}
