use super::super::testing::Tree;
use super::*;

const ID: &str = "0f3c5a";
const OTHER: &str = "77aa11";

fn ids() -> Vec<String> {
    vec![ID.to_owned(), OTHER.to_owned()]
}

fn process(tree: &Tree, pid: u32, mount_ns: u32, mounts: &str) {
    let at = |name: &str| format!("proc/{pid}/{name}");
    tree.file(&at("comm"), &format!("p{pid}\n"));
    tree.file(&at("cgroup"), &format!("0::/kubepods/of-{pid}\n"));
    tree.file(&at("mountinfo"), mounts);
    tree.link(&at("ns/mnt"), &format!("mnt:[{mount_ns}]"));
}

/// The mounts found, and the ids whose search was complete.
fn searched(tree: &Tree, ids: &[String]) -> (Vec<ContainerMount>, Vec<String>) {
    let (mut mounts, mut of, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for fact in tree.proc().container_mounts(ids).unwrap() {
        match fact.what {
            Observation::ContainerMount(mount) => mounts.push(mount),
            Observation::ContainerMountsSearched { ids, complete } => {
                whole.extend(ids.iter().filter(|_| complete).cloned());
                of.extend(ids);
            }
            other => panic!("{other:?}"),
        }
    }
    of.sort();
    let mut ids = ids.to_vec();
    ids.sort();
    assert_eq!(of, ids);
    (mounts, whole)
}

/// The mounts found, and whether the search was complete for each.
fn found(tree: &Tree, ids: &[String]) -> (Vec<ContainerMount>, bool) {
    let (mounts, whole) = searched(tree, ids);
    assert!(whole.is_empty() || whole.len() == ids.len());
    (mounts, !whole.is_empty())
}

#[test]
fn every_mount_of_a_container_is_found_where_it_leaked_to() {
    let tree = Tree::new();
    process(&tree, 1, 5, "50 1 0:9 / /run/x/0f3c5a/rootfs rw - overlay overlay rw\n");
    let agent = "\
60 1 0:9 / /host/run/x/0f3c5a/rootfs\\040(1) rw - overlay overlay rw
61 1 0:8 /k8s/0f3c5a/hosts /etc/hosts rw - ext4 /dev/vda1 rw
62 1 0:7 / /host/run/x/0f3c5a-not/rootfs rw - overlay overlay rw
63 1 0:6 /kubepods/0f3c5a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
64 1 0:4 net:[4026532177] /run/77aa11/ns rw - nsfs nsfs rw
";
    process(&tree, 20, 6, agent);
    process(&tree, 21, 6, agent);
    let (mut found, complete) = found(&tree, &ids());
    found.sort_by_key(|mount| (mount.mount_ns, mount.path.clone()));
    assert!(complete);
    let paths: Vec<_> =
        found.iter().map(|mount| (mount.container_id.as_str(), mount.path.as_str())).collect();
    let expected = [
        (ID, "/run/x/0f3c5a/rootfs"),
        (ID, "/etc/hosts"),
        (ID, "/host/run/x/0f3c5a/rootfs (1)"),
        (OTHER, "/run/77aa11/ns"),
    ];
    assert_eq!(paths, expected);
    assert_eq!(
        found.iter().map(|mount| mount.host).collect::<Vec<_>>(),
        [true, false, false, false]
    );
    let leaked = &found[2];
    assert_eq!((leaked.mount_ns, leaked.fs_type.as_str()), (6, "overlay"));
    let pids: Vec<_> = leaked.processes.iter().map(|of| (of.pid, of.comm.as_str())).collect();
    assert_eq!(pids.len(), 2);
    assert!(pids.contains(&(20, "p20")) && pids.contains(&(21, "p21")));
    assert_eq!(leaked.cgroup, Some(format!("/kubepods/of-{}", pids[0].0)), "of the first");
}

#[test]
fn what_cannot_be_read_or_told_leaves_the_search_open() {
    let tree = Tree::new();
    process(&tree, 1, 5, "");
    assert!(found(&tree, &ids()).1);
    let strange = vec![ID.to_owned(), "a/b".to_owned(), String::new()];
    assert!(!found(&tree, &strange).1, "no directory can be called so");
    let many: Vec<String> = (0..=MOST_IDS).map(|n| format!("id{n}")).collect();
    assert!(!found(&tree, &many).1);
    tree.file("proc/9/ns/mnt", "no link: EINVAL");
    assert!(!found(&tree, &ids()).1);
}

#[test]
fn ten_thousand_mounts_do_not_swamp_the_search() {
    let tree = Tree::new();
    let mounts: String = (0..10_000)
        .map(|n| format!("{n} 1 0:9 / /host/run/{ID}/{n} rw - overlay overlay rw\n"))
        .collect();
    process(&tree, 1, 5, &mounts);
    process(&tree, 20, 6, "20000 1 0:9 / /x/77aa11/y rw - tmpfs tmpfs rw\n");
    let (found, whole) = searched(&tree, &ids());
    assert_eq!(whole, [OTHER], "some of the other were not told");
    let of = |id: &str| found.iter().filter(|mount| mount.container_id == id).count();
    assert_eq!((of(ID), of(OTHER)), (MOST_MOUNTS, 1), "one container does not hide another");
}

#[test]
fn a_process_that_hides_its_namespace_adds_only_what_is_new() {
    let tree = Tree::new();
    let mount = "50 1 0:9 / /run/x/0f3c5a/rootfs rw - overlay overlay rw\n";
    process(&tree, 1, 5, mount);
    process(&tree, 20, 5, mount);
    assert_eq!(found(&tree, &ids()).0.len(), 1);
}
