use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use super::super::testing::{Made, Tree};
use super::*;
use crate::fact::{Observation, Process, TaskKey};
use crate::sources::netlink::testing::{root, run};

const FUSE_STACK: &str = "[<0>] request_wait_answer+0x1/0x2\n[<0>] fuse_flush+0x1/0x2 [fuse]\n";

/// A hanging task that is exiting, with this stack and these mounts.
fn hung(tree: &Tree, stack: &'static str, mounts: &str) -> TaskKey {
    let made = Made { state: 'D', flags: PF_EXITING, stack, ..Made::default() };
    tree.task(&made);
    tree.file("proc/40/task/40/mountinfo", mounts);
    made.key()
}

fn look(tree: &Tree, task: TaskKey) -> Look {
    look_with(&tree.proc(), task)
}

fn look_with(proc: &Proc, task: TaskKey) -> Look {
    match proc.look(task).unwrap().what {
        Observation::Look { look, .. } => *look,
        other => panic!("{other:?}"),
    }
}

fn points(look: &Look) -> Vec<&str> {
    look.file_systems.iter().map(|fs| fs.point.as_str()).collect()
}

const MOUNTS: &str = "\
30 1 259:1 / / rw - overlay overlay rw,lowerdir=/l
31 30 0:51 / /idle rw - fuse.sshfs u@h:/ rw,user_id=0,group_id=0
32 30 0:52 / /hung\\040one rw - fuse bad rw,user_id=1000,group_id=0
33 30 0:53 / /ctl rw - fusectl fusectl rw
34 30 0:60 / /data rw - nfs4 10.9.0.4:/data rw,vers=4.2
35 30 0:60 /x /again rw - nfs4 10.9.0.4:/data rw,vers=4.2
36 30 259:1 /etc/hosts /etc/hosts rw - ext4 /dev/vda1 rw
37 30 259:1 /etc/name /etc/hostname rw - ext4 /dev/vda1 rw
38 30 0:61 / /share rw - cifs //srv/share rw
39 30 0:54 / /unknown rw - fuse third rw
garbage
";

#[test]
fn a_fuse_wait_names_the_connection_that_waits_first() {
    let tree = Tree::new();
    let task = hung(&tree, FUSE_STACK, MOUNTS);
    tree.file("sys/fs/fuse/connections/51/waiting", "0\n");
    tree.file("sys/fs/fuse/connections/52/waiting", "3\n");
    let look = look(&tree, task);
    assert_eq!(points(&look), ["/hung one", "/unknown", "/idle"]);
    let first = &look.file_systems[0];
    assert_eq!((first.fs_type.as_str(), first.source.as_str()), ("fuse", ""), "its own word");
    assert_eq!((first.minor, first.waiting), (52, Some(3)));
    assert_eq!(look.file_systems[1].waiting, None);
}

#[test]
fn a_password_in_a_source_stays_behind() {
    let tree = Tree::new();
    let mounts = "38 30 0:61 / /share rw - cifs //me:secret@srv/share rw\n";
    let task = hung(&tree, "[<0>] smb2_reconnect+0x1/0x2\n[<0>] cifs_close+0x1/0x2\n", mounts);
    let look = look(&tree, task);
    assert_eq!(look.file_systems[0].source, "//srv/share");
}

#[test]
fn each_kind_of_wait_names_its_file_systems_and_no_other() {
    let cases: [(&str, &[&str]); 8] = [
        ("rpc_wait_bit_killable\nnfs4_proc_getattr", &["/data"]),
        ("wait_for_response\ncompound_send_recv\nsmb2_flush", &["/share"]),
        ("io_schedule\njbd2_log_wait_commit\next4_sync_file", &["/etc/hosts"]),
        ("percpu_rwsem_wait\n__percpu_down_read\nvfs_write", &["/etc/hosts"]),
        ("percpu_rwsem_wait\n__percpu_down_read\nexit_signals", &[]),
        (
            "folio_wait_bit_common\nfilemap_fault",
            &["/idle", "/hung one", "/data", "/share", "/unknown", "/etc/hosts"],
        ),
        ("fuse_dev_do_read\nfuse_dev_read", &[]),
        ("futex_wait", &[]),
    ];
    for (stack, expected) in cases {
        let tree = Tree::new();
        let frames: String = stack.lines().map(|name| format!("[<0>] {name}+0x1/0x2\n")).collect();
        let task = hung(&tree, frames.leak(), MOUNTS);
        assert_eq!(points(&look(&tree, task)), expected, "{stack}");
    }
}

#[test]
fn only_a_task_that_cannot_leave_is_asked_about() {
    let stuck = Made { state: 'D', flags: PF_EXITING, stack: FUSE_STACK, ..Made::default() };
    let killed = "Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n";
    let cases = [
        (stuck.clone(), true),
        (Made { flags: 0, status: killed, ..stuck.clone() }, true),
        (Made { flags: 0, ..stuck.clone() }, false),
        (Made { state: 'R', ..stuck.clone() }, false),
        (Made { netns: None, ..stuck.clone() }, false),
        (Made { wchan: "__refrigerator", ..stuck }, false),
    ];
    for (made, asked) in cases {
        let tree = Tree::new();
        tree.task(&made);
        tree.file("proc/40/task/40/mountinfo", MOUNTS);
        let look = look(&tree, made.key());
        assert_eq!(!look.file_systems.is_empty(), asked, "{} {}", made.state, made.flags);
    }
}

#[test]
fn a_task_that_shows_no_mounts_is_helped_out() {
    let tree = Tree::new();
    let made = Made { state: 'D', flags: PF_EXITING, stack: FUSE_STACK, ..Made::default() };
    tree.task(&made);
    let fuse = |at: &str| format!("32 30 0:52 / {at} rw - fuse bad rw\n");
    tree.file("proc/1/mountinfo", &fuse("/first"));
    assert_eq!(points(&look(&tree, made.key())), ["/first"], "nothing else is known");
    tree.link("proc/40/task/40/ns/mnt", "mnt:[7]");
    for (pid, mount_ns) in [(50, 6), (51, 7)] {
        tree.file(&format!("proc/{pid}/mountinfo"), &fuse(&format!("/of-{pid}")));
        tree.link(&format!("proc/{pid}/ns/mnt"), &format!("mnt:[{mount_ns}]"));
    }
    assert_eq!(points(&look(&tree, made.key())), ["/of-51"], "the same mount namespace");
    tree.file("proc/40/task/40/mountinfo", &fuse("/own"));
    assert_eq!(points(&look(&tree, made.key())), ["/own"]);
}

#[test]
fn a_mount_point_is_that_of_the_mount_namespace_only_if_seen_from_its_root() {
    let seen_from = |link: &str| {
        let tree = Tree::new();
        let task = hung(&tree, FUSE_STACK, MOUNTS);
        tree.link("proc/40/task/40/root", link);
        look(&tree, task).file_systems[0].elsewhere
    };
    assert!(!seen_from("/"));
    assert!(seen_from("/jail"), "in a chroot");
    let tree = Tree::new();
    let made = Made { state: 'D', flags: PF_EXITING, stack: FUSE_STACK, ..Made::default() };
    tree.task(&made);
    tree.file("proc/1/mountinfo", MOUNTS);
    tree.link("proc/1/root", "/");
    assert!(look(&tree, made.key()).file_systems[0].elsewhere, "the node's, perhaps not its own");
    tree.link("proc/40/task/40/ns/mnt", "mnt:[7]");
    tree.file("proc/50/mountinfo", MOUNTS);
    tree.link("proc/50/ns/mnt", "mnt:[7]");
    tree.link("proc/50/root", "/jail");
    assert!(look(&tree, made.key()).file_systems[0].elsewhere, "of another, in a chroot");
    std::fs::remove_file(tree.path("proc/50/root")).unwrap();
    tree.link("proc/50/root", "/");
    assert!(!look(&tree, made.key()).file_systems[0].elsewhere);
}

#[test]
fn ten_thousand_mounts_are_weighed_and_few_told() {
    let tree = Tree::new();
    let mut mounts: String =
        (0..10_000).map(|n| format!("{n} 1 1:{n} / /m/{n} rw - ext4 /dev/{n} rw\n")).collect();
    mounts.push_str("99999 1 0:7 / /nfs rw - nfs srv:/ rw\n");
    let task = hung(&tree, "[<0>] io_schedule+0x1/0x2\n", &mounts);
    assert_eq!(look(&tree, task).file_systems.len(), MOST);
    let tree = Tree::new();
    let task = hung(&tree, "[<0>] nfs_wait_bit_killable+0x1/0x2\n", &mounts);
    assert_eq!(points(&look(&tree, task)), ["/nfs"]);
}

/// A FUSE file system that answers only FUSE_INIT, mounted for this process.
struct Mute {
    device: Option<std::fs::File>,
    dir: tempfile::TempDir,
}

impl Mute {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let device = std::fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("ipwt", dir.path(), "fuse", flags, options.as_c_str()).unwrap();
        let mut mute = Self { device: Some(device), dir };
        let unique = mute.request();
        let mut reply = [80_u32.to_ne_bytes(), [0; 4]].concat();
        reply.extend(unique);
        for word in [7_u32, 31, 0, 0, 0, 4096] {
            reply.extend(word.to_ne_bytes());
        }
        reply.resize(80, 0);
        mute.device.as_mut().unwrap().write_all(&reply).unwrap();
        mute
    }

    /// Takes the next request and returns its number.
    fn request(&mut self) -> [u8; 8] {
        let mut request = vec![0; 1 << 17];
        let len = self.device.as_mut().unwrap().read(&mut request).unwrap();
        request[..len][8..16].try_into().unwrap()
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        self.device = None; // aborts the connection: what hung goes on
        let flags = rustix::mount::UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(self.dir.path(), flags);
    }
}

/// A made-up `/sys` with fusectl mounted, because it may not be mounted elsewhere.
struct Control(tempfile::TempDir);

impl Control {
    const AT: &str = "fs/fuse/connections";

    fn new() -> Self {
        let sys = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(sys.path().join(Self::AT)).unwrap();
        let mut mount = Command::new("mount");
        run(mount.args(["-t", "fusectl", "none"]).arg(sys.path().join(Self::AT)));
        Self(sys)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(self.0.path().join(Self::AT), flags);
    }
}

/// A child that is killed and waited for when this is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The pids of the children of a process.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = crate::bounded::read_text(path.as_ref(), 4096).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..2_000 {
        if let Some(found) = found() {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("never: {what}");
}

/// Returns a look at a process that accesses a file that is never served, in a pid namespace whose init was killed; and
/// that init. `ask` is the shell command for the access.
fn hang_in_a_container(ask: &str) -> Option<(Look, u32, String)> {
    if !root() || !std::path::Path::new("/dev/fuse").exists() {
        return None;
    }
    let control = Control::new();
    let mute = Mute::new();
    let file = mute.dir.path().join("file");
    let mut command = Command::new("unshare");
    command.args(["-n", "-p", "-f", "sh", "-c"]);
    command.arg(format!("{ask} {} & exec sleep 60", file.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let outer = Ended(command.spawn().unwrap());
    let mut mute = mute; // dropped before `outer` is waited for: what hangs goes on then
    mute.request();
    let init = eventually("an init", || {
        let init = children(outer.0.id()).first().copied()?;
        let dir = Dir::open(format!("/proc/{init}").as_ref()).ok()?;
        (dir.comm() == "sleep").then_some(init)
    });
    // The innermost process is the one that accesses the file.
    let stuck = eventually("one that asks", || {
        let mut pid = init;
        while let Some(&child) = children(pid).first() {
            pid = child;
        }
        let dir = Dir::open(format!("/proc/{pid}").as_ref()).ok()?;
        (dir.comm() == "stat").then_some(pid)
    });
    run(Command::new("kill").args(["-KILL", &init.to_string()]));
    let proc = Proc { sys: control.0.path().to_owned(), ..Proc::new() };
    let dir = Dir::open(format!("/proc/{stuck}").as_ref()).unwrap();
    let start = look::stat(&dir).unwrap().starttime;
    let task = TaskKey { pid: stuck, tid: stuck, start };
    let seen = eventually("init waits for it", || {
        let look = look_with(&proc, task);
        look.waited_for_by.iter().any(|waits| waits.pid == init).then_some(look)
    });
    Some((seen, init, mute.dir.path().to_str().unwrap().to_owned()))
}

#[test]
fn a_container_that_hangs_on_fuse_shows_the_server_and_its_own_init() {
    let Some((seen, init, point)) = hang_in_a_container("stat") else { return };
    // Other tasks on this machine may hang at other file systems.
    let all = &seen.file_systems;
    let fs = all.iter().find(|fs| fs.point == point).unwrap_or_else(|| panic!("{point}: {all:?}"));
    assert_eq!(fs.waiting, Some(1), "{fs:?}");
    assert!(fs.servers.iter().any(|server| server.pid == std::process::id()), "{fs:?}");
    assert_eq!(seen.waited_for_by, [Process { pid: init, comm: "sleep".to_owned() }]);
}

#[test]
fn the_init_of_the_outer_container_waits_too() {
    let nested = "unshare -p -f sh -c 'stat $0 & exec sleep 60'";
    let Some((seen, init, _)) = hang_in_a_container(nested) else { return };
    assert!(seen.waited_for_by.iter().any(|waits| waits.pid == init));
}
