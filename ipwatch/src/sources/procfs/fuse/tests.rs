use super::super::testing::Tree;
use super::*;

fn process(tree: &Tree, pid: u32, user: u32, info: &str) {
    let at = |name: &str| format!("proc/{pid}/{name}");
    tree.file(&at("comm"), &format!("srv{pid}\n"));
    tree.file(&at("status"), &format!("Name:\tx\nUid:\t{user}\t0\t0\t0\n"));
    tree.link(&at("fd/3"), "/dev/null");
    tree.link(&at("fd/5"), "/dev/fuse");
    tree.file(&at("fdinfo/5"), info);
}

fn file_system(minor: u32) -> FileSystem {
    FileSystem {
        fs_type: "fuse".to_owned(),
        source: String::new(),
        point: String::new(),
        elsewhere: false,
        minor,
        waiting: None,
        servers: Vec::new(),
        sure: false,
    }
}

/// Pids of the servers of connection 52, and whether they are certain.
fn servers(tree: &Tree, user: Option<u32>) -> (Vec<u32>, bool) {
    let mut fs = file_system(52);
    tree.proc().name_servers(&mut fs, user, BootNs(u64::MAX));
    assert!(fs.servers.iter().all(|server| server.comm == format!("srv{}", server.pid)));
    let mut pids: Vec<u32> = fs.servers.iter().map(|server| server.pid).collect();
    pids.sort_unstable();
    (pids, fs.sure)
}

fn has_device() -> bool {
    let there = is_device_at("/dev/fuse");
    if !there {
        eprintln!("skipped: no /dev/fuse");
    }
    there
}

fn is_device_at(path: &str) -> bool {
    Dir::open("/".as_ref()).unwrap().path(path).and_then(is_device).unwrap_or(false)
}

#[test]
fn whom_the_kernel_names_is_sure() {
    if !has_device() {
        return;
    }
    let tree = Tree::new();
    process(&tree, 10, 0, "pos:\t0\nfuse_connection:\t51\n");
    process(&tree, 11, 0, "pos:\t0\nfuse_connection:\t52\n");
    process(&tree, 12, 0, "pos:\t0\n");
    assert_eq!(servers(&tree, Some(7)), (vec![11], true));
    let mut other = file_system(53);
    tree.proc().name_servers(&mut other, None, BootNs(u64::MAX));
    assert_eq!((other.servers, other.sure), (Vec::new(), false));
}

#[test]
fn one_candidate_is_sure_and_several_are_not() {
    if !has_device() {
        return;
    }
    let tree = Tree::new();
    process(&tree, 10, 0, "pos:\t0\n");
    assert_eq!(servers(&tree, None), (vec![10], true));
    process(&tree, 11, 1000, "pos:\t0\n");
    assert_eq!(servers(&tree, None), (vec![10, 11], false));
    assert_eq!(servers(&tree, Some(1000)), (vec![11], false));
    assert_eq!(servers(&tree, Some(5)), (vec![10, 11], false), "it may have changed its user");
}

#[test]
fn a_search_cut_short_is_sure_of_nothing() {
    if !has_device() {
        return;
    }
    let tree = Tree::new();
    process(&tree, 10, 0, "pos:\t0\n");
    let mut fs = file_system(52);
    tree.proc().name_servers(&mut fs, None, BootNs(0));
    assert_eq!((fs.servers, fs.sure), (Vec::new(), false));
}

/// Of a connection on a kernel that names it, and on one that does not.
#[test]
fn many_files_of_one_tenant_hide_no_server_and_nobody_else_is_named() {
    if !has_device() {
        return;
    }
    let tree = Tree::new();
    for pid in 10..26 {
        tree.many_fds(pid, "/user.slice/user-1000.slice/session-1.scope", 1_030);
    }
    process(&tree, 9, 1000, "fuse_connection:\t51\n");
    process(&tree, 40, 0, "fuse_connection:\t52\n");
    tree.file("proc/9/cgroup", "0::/user.slice/user-1000.slice/session-2.scope\n");
    tree.file("proc/40/cgroup", "0::/system.slice/sshfs.service\n");
    assert_eq!(servers(&tree, None), (vec![40], true));
    for pid in [9, 40] {
        tree.file(&format!("proc/{pid}/fdinfo/5"), "pos:\t0\n");
    }
    assert_eq!(servers(&tree, None), (Vec::new(), false), "not everything was read");
}

#[test]
fn a_file_that_is_only_called_so_is_no_device() {
    assert!(!is_device_at("/dev/null") && !is_device_at("/proc/self/status"));
}

#[test]
fn the_list_is_read_once_for_many_tasks() {
    if !has_device() {
        return;
    }
    let tree = Tree::new();
    let proc = tree.proc();
    process(&tree, 10, 0, "fuse_connection:\t52\n");
    let named = |proc: &Proc| {
        let mut fs = file_system(52);
        proc.name_servers(&mut fs, None, BootNs(u64::MAX));
        fs.servers.len()
    };
    assert_eq!(named(&proc), 1);
    process(&tree, 11, 0, "fuse_connection:\t52\n");
    assert_eq!(named(&proc.clone()), 1, "fresh enough");
    assert_eq!(named(&tree.proc()), 2);
}
