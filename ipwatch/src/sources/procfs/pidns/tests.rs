use super::super::testing::Tree;
use super::*;

/// A process of pid namespace `ns`, with pid `inside` in it, whose only thread sleeps in this function.
fn process(tree: &Tree, pid: u32, ns: u32, inside: u32, wchan: &str, stack: &str) {
    let at = |name: &str| format!("proc/{pid}/{name}");
    tree.link(&at("ns/pid"), &format!("pid:[{ns}]"));
    tree.file(&at("comm"), "init\n");
    tree.file(&at("status"), &format!("Name:\tinit\nNSpid:\t{pid}\t{inside}\n"));
    tree.file(&at(&format!("task/{pid}/wchan")), wchan);
    tree.file(&at(&format!("task/{pid}/stack")), stack);
}

const ZAP: &str = "[<0>] do_wait+0x1/0x2\n[<0>] zap_pid_ns_processes+0x1/0x2\n";

fn waiting(tree: &Tree, pid: u32) -> Vec<u32> {
    let dir = Dir::open(&tree.path(&format!("proc/{pid}"))).unwrap();
    let found = tree.proc().waited_for_by(&dir, BootNs(u64::MAX));
    found.iter().map(|process| process.pid).collect()
}

#[test]
fn the_init_of_its_own_pid_namespace_waits_for_it() {
    let tree = Tree::new();
    tree.link("proc/self/ns/pid", "pid:[1]");
    process(&tree, 40, 7, 5, "request_wait_answer", "");
    process(&tree, 30, 7, 1, "do_wait", ZAP);
    process(&tree, 31, 8, 1, "do_wait", ZAP); // another container's
    assert_eq!(waiting(&tree, 40), [30]);
}

#[test]
fn an_init_that_lives_or_a_child_that_looks_like_one_does_not() {
    let tree = Tree::new();
    process(&tree, 40, 7, 5, "request_wait_answer", "");
    process(&tree, 30, 7, 1, "do_wait", "[<0>] do_wait+0x1/0x2\n[<0>] kernel_wait4+0x1/0x2\n");
    process(&tree, 31, 7, 6, "do_wait", ZAP);
    assert!(waiting(&tree, 40).is_empty());
    // If stacks cannot be read, the function in wchan suffices.
    process(&tree, 41, 9, 5, "request_wait_answer", "");
    process(&tree, 32, 9, 1, "zap_pid_ns_processes", "");
    assert_eq!(waiting(&tree, 41), [32]);
    tree.link("proc/self/ns/pid", "pid:[9]");
    assert!(waiting(&tree, 41).is_empty(), "the namespace of everybody");
}
