use super::super::testing::{Made, Tree};
use super::*;

#[test]
fn the_hierarchy_that_names_the_container() {
    let v2 = "0::/kubepods.slice/x.scope\n";
    assert_eq!(naming(v2), Some("/kubepods.slice/x.scope"));
    let hybrid =
        "12:memory:/kubepods/podU/ID-and-more\n1:name=systemd:/kubepods/podU/ID\n0::/init\n";
    assert_eq!(naming(hybrid), Some("/kubepods/podU/ID"));
    let without_systemd = "9:name=systemd:/\n4:memory:/docker/ID\n0::/\n";
    assert_eq!(naming(without_systemd), Some("/docker/ID"));
    assert_eq!(naming("3:cpu,cpuacct:/a:b\n"), Some("/a:b"), "a path may hold a colon");
    assert_eq!(naming("nonsense"), None);
}

#[test]
fn frozen_by_v1_itself_or_from_above() {
    let tree = Tree::new();
    tree.file("freezer/pod/freezer.state", "THAWED\n");
    tree.file("freezer/pod/a/freezer.state", "THAWED\n");
    let of = |path: &str| tree.proc().frozen(Some(&format!("5:freezer:{path}\n0::/\n")), true);
    assert_eq!(of("/pod/a"), Some(false));
    for state in ["FREEZING\n", "FROZEN\n"] {
        tree.file("freezer/pod/freezer.state", state);
        assert_eq!(of("/pod/a"), Some(true), "{state}");
    }
    assert_eq!(of("/"), Some(false), "the root cannot be frozen");
    assert_eq!(of("/not/there"), None);
    assert_eq!(of("/not/there (deleted)"), Some(false));
    assert_eq!(of("/../outside"), None);
}

#[test]
fn frozen_by_v2_or_being_frozen() {
    let tree = Tree::new();
    tree.file("unified/pod/cgroup.events", "populated 1\nfrozen 0\n");
    tree.file("unified/pod/cgroup.freeze", "0\n");
    tree.file("unified/pod/a/cgroup.events", "populated 1\nfrozen 0\n");
    let of = || tree.proc().frozen(Some("0::/pod/a\n"), false);
    assert_eq!(of(), Some(false));
    // A task that hangs in the kernel never stops, so its cgroup never becomes completely frozen.
    tree.file("unified/pod/cgroup.freeze", "1\n");
    assert_eq!(of(), Some(true));
    tree.file("unified/pod/cgroup.freeze", "0\n");
    tree.file("unified/pod/a/cgroup.events", "populated 1\nfrozen 1\n");
    assert_eq!(of(), Some(true));
    // It ends nevertheless, and who hangs in the kernel may have been put there to be taken for frozen.
    assert_eq!(tree.proc().frozen(Some("0::/pod/a\n"), true), Some(false), "it was killed");
}

/// With cgroups below each other whose names are longer than a page, the file of a process cannot be read.
#[test]
fn a_cgroup_that_cannot_be_read_freezes_nobody_who_leaves_a_v2() {
    let tree = Tree::new();
    let of = |leaving| tree.proc().frozen(None, leaving);
    assert_eq!(of(true), None, "there may be a v1");
    let head = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t9\t1\n";
    tree.file("proc/cgroups", &format!("{head}freezer\t5\t9\t1\n"));
    assert_eq!(of(true), None);
    tree.file("proc/cgroups", &format!("{head}freezer\t0\t9\t1\n"));
    assert_eq!((of(true), of(false)), (Some(false), None));
    tree.file("proc/cgroups", head);
    assert_eq!((of(true), of(false)), (Some(false), None), "a kernel without it");
}

#[test]
fn what_froze_it_is_the_nearest_that_was_asked_itself() {
    let tree = Tree::new();
    let file = |path: &str, text: &str| tree.file(path, text);
    let of = |lines: &str| tree.proc().frozen_by(lines);
    file("freezer/pod/freezer.self_freezing", "0\n");
    file("freezer/pod/a/freezer.self_freezing", "0\n");
    file("unified/pod/cgroup.freeze", "0\n");
    file("unified/pod/a/cgroup.freeze", "0\n");
    let both = "5:freezer:/pod/a\n0::/pod/a\n";
    assert_eq!(of(both), None);
    file("unified/pod/cgroup.freeze", "1\n");
    let told = |told: Option<String>, end: &str| told.is_some_and(|path| path.ends_with(end));
    assert!(told(of(both), "unified/pod/cgroup.freeze"));
    file("unified/pod/a/cgroup.freeze", "1\n");
    assert!(told(of("0::/pod/a\n"), "unified/pod/a/cgroup.freeze"));
    file("freezer/pod/freezer.self_freezing", "1\n");
    assert!(told(of(both), "freezer/pod/freezer.state"));
    assert_eq!(of("0::/pod/../a\n"), None);
    assert_eq!(of("0::/pod/a (deleted)\n"), None);
}

#[test]
fn every_cpu_limit_on_the_way_up_is_read() {
    let tree = Tree::new();
    let file = |path: &str, text: &str| tree.file(path, text);
    let of = |lines: &str| {
        let limits = tree.proc().cpu_limits(lines);
        limits.into_iter().map(|one| (one.thousandths, one.exhausted)).collect::<Vec<_>>()
    };
    let stat = |count: u32| format!("usage_usec 5\nnr_periods 9\nnr_throttled {count}\n");
    file("unified/pod/cpu.max", "50000 100000\n");
    file("unified/pod/cpu.stat", &stat(3));
    file("unified/pod/a/cpu.max", "max 100000\n");
    file("unified/pod/a/cpu.stat", &stat(0));
    assert_eq!(of("0::/pod/a\n"), [(500, 3)], "that of the one above");
    file("unified/pod/a/cpu.max", "5000 100000\n");
    assert_eq!(of("0::/pod/a\n"), [(50, 0), (500, 3)]);
    assert_eq!(of("0::/pod/a (deleted)\n"), []);
    assert_eq!(of("0::/\n"), []);
    file("unified/pod/a/cpu.max", "5000 0\n");
    assert_eq!(of("0::/pod/a\n"), [(500, 3)], "nothing is divided by nothing");

    file("cpu/pod/cpu.cfs_quota_us", "-1\n");
    file("cpu/pod/cpu.cfs_period_us", "100000\n");
    file("cpu/pod/cpu.stat", &stat(1));
    assert_eq!(of("4:cpu,cpuacct:/pod\n0::/\n"), []);
    file("cpu/pod/cpu.cfs_quota_us", "20000\n");
    assert_eq!(of("4:cpu,cpuacct:/pod\n0::/\n"), [(200, 1)]);
}

#[test]
fn a_freezer_that_is_not_mounted_may_freeze() {
    let tree = Tree::new();
    let mut proc = tree.proc();
    proc.hierarchies = Hierarchies::default();
    assert_eq!(proc.frozen(Some("5:freezer:/pod\n"), true), None);
    assert_eq!(proc.frozen(Some("5:freezer:/\n0::/\n"), true), Some(false));
    assert_eq!(proc.frozen(Some("4:memory:/pod\n"), true), Some(false), "no freezer at all");
}

#[test]
fn the_hierarchies_are_found_where_they_are_mounted() {
    let tree = Tree::new();
    tree.file(
        "proc/self/mountinfo",
        "36 31 0:33 / /my\\040cg/freezer rw - cgroup cgroup rw,freezer\n\
         37 31 0:34 /docker/x /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
         38 31 0:35 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n",
    );
    let found = Hierarchies::find(&tree.path("proc"));
    assert_eq!(found.freezer.as_deref(), Some(Path::new("/my cg/freezer")));
    assert_eq!(found.cpu.as_deref(), Some(Path::new("/sys/fs/cgroup/cpu")));
    assert_eq!(found.unified.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
}

#[test]
fn a_cgroup_is_told_of_the_very_process_asked_for() {
    let tree = Tree::new();
    let made = Made { cgroup: "0::/kubepods/podU/ID\n", ..Made::default() };
    tree.task(&made);
    let told = tree.proc().cgroup(made.key()).unwrap().unwrap().what;
    assert_eq!(
        told,
        Observation::Cgroup { task: made.key(), path: "/kubepods/podU/ID".to_owned() }
    );
    let reused = TaskKey { start: 1, ..made.key() };
    assert_eq!(tree.proc().cgroup(reused).unwrap(), None);
    let gone = TaskKey { pid: 41, tid: 41, ..made.key() };
    assert_eq!(tree.proc().cgroup(gone).unwrap(), None);
}
