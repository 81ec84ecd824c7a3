use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use super::super::testing::Tree;
use super::*;
use crate::sources::netlink::testing::{Netns, in_new_netns, root, run};
use crate::testing::program;

/// The holders of one netns, and whether the search was complete.
fn held_by(facts: &[Fact], wanted: NetnsRef) -> (Vec<Holder>, bool) {
    let holder = |fact: &Fact| match &fact.what {
        Observation::Holder { netns, holder } if *netns == wanted => Some(holder.clone()),
        _ => None,
    };
    let complete = facts.iter().any(
        |fact| matches!(fact.what, Observation::HoldersSearched { netns, complete: true } if netns == wanted),
    );
    (facts.iter().filter_map(holder).collect(), complete)
}

fn inode(file: &File) -> NetnsRef {
    let inode = rustix::fs::fstat(file).unwrap().st_ino;
    NetnsRef { nsid: Some(9), ..NetnsRef::inode(inode.try_into().unwrap()) }
}

/// `sleep`, which inherits some of our fds.
struct Keeper(Child);

impl Keeper {
    fn new(keep: &[&dyn AsRawFd]) -> Self {
        let fds: Vec<i32> = keep.iter().map(|fd| fd.as_raw_fd()).collect();
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null());
        // SAFETY: dup2 and fcntl are async-signal-safe, and touch this child's fds alone.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut command, move || {
                for (place, fd) in fds.iter().enumerate() {
                    if libc::dup2(*fd, 100 + place as i32) < 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        Self(command.spawn().unwrap())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_mount_a_file_and_a_socket_are_each_found() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("with a space");
    File::create(&path).unwrap();
    let (file, socket) = in_new_netns(|| {
        let file = File::open("/proc/thread-self/ns/net").unwrap();
        (file, std::net::UdpSocket::bind("0.0.0.0:0").unwrap())
    });
    let wanted = inode(&file);
    let of_fd = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    run(Command::new("mount").args(["--bind", &of_fd]).arg(&path));
    // Opened by the mount's path, which its link in /proc then shows.
    let by_path = File::open(&path).unwrap();
    let keeper = Keeper::new(&[&file, &by_path, &socket]);
    drop((file, by_path, socket));
    let everything = Proc::new().search(&[wanted], Search::everything());
    let mounts = Proc::new().search(&[wanted], Search::mounts());
    run(Command::new("umount").arg("--lazy").arg(&path)); // the keeper has it open

    let (mut holders, complete) = held_by(&everything.unwrap(), wanted);
    // The fds of an init with more capabilities than ours cannot be read.
    let hidden = std::fs::read_link("/proc/1/fd/0");
    assert_eq!(
        complete,
        !hidden.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    );
    let pid = keeper.0.id();
    let comm = || "sleep".to_owned();
    // A mount namespace that another test creates meanwhile has a copy of every mount, and a child that another test
    // forks has a copy of every fd until its exec.
    holders.retain(|holder| match holder {
        Holder::Mount { path: at, comm, .. } => at == path.to_str().unwrap() && comm.is_none(),
        Holder::Fd { pid: of, .. } | Holder::Socket { pid: of, .. } => *of == pid,
        Holder::Orphan { .. } | Holder::Candidate { .. } => true,
    });
    holders.sort();
    let [Holder::Mount { mount_ns, comm: None, .. }, others @ ..] = &holders[..] else {
        panic!("{holders:?}")
    };
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    assert_eq!(own.to_str(), Some(&*format!("mnt:[{mount_ns}]")));
    let expected = [
        Holder::Fd { pid, fd: 100, comm: comm() },
        Holder::Fd { pid, fd: 101, comm: comm() },
        Holder::Socket { pid, fd: 102, comm: comm() },
    ];
    assert_eq!(others, expected);
    let (holders, complete) = held_by(&mounts.unwrap(), wanted);
    assert!(complete && holders.iter().all(|holder| matches!(holder, Holder::Mount { .. })));
}

#[test]
fn a_mount_in_another_mount_namespace_is_found_once() {
    if !root() {
        return;
    }
    let netns = Netns::new();
    let dir = tempfile::tempdir().unwrap();
    // Two processes in one mount namespace of their own; the first prints the pid of the second.
    let script = format!(
        "mount -t tmpfs none {0} && touch {0}/held && mount --bind /proc/{1}/ns/net {0}/held || exit
         sleep 60 >&- & echo $!
         exec sleep 60",
        dir.path().display(),
        netns.pid()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]).stdout(Stdio::piped());
    let mut first = command.spawn().unwrap();
    let mut second = String::new();
    let told = first.stdout.take().unwrap();
    io::BufRead::read_line(&mut io::BufReader::new(told), &mut second).unwrap();
    let wanted = NetnsRef::inode(netns.inode());
    let held = format!("{}/held", dir.path().display());
    let facts = Proc::new().search(&[wanted], Search::mounts());
    let own = Proc::new().mounts();
    run(Command::new("kill").arg(second.trim()));
    first.kill().unwrap();
    first.wait().unwrap();

    let (found, complete) = held_by(&facts.unwrap(), wanted);
    assert!(complete);
    let [Holder::Mount { path, comm, cgroup, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!(*path, held);
    // Shows people whose mount namespace it is.
    assert!(comm.is_some() && cgroup.is_some(), "{found:?}");
    let own = own.unwrap();
    assert!(!own.iter().any(
        |fact| matches!(&fact.what, Observation::Holder { holder: Holder::Mount { path, .. }, .. }
        if *path == held)
    ));
    let Observation::Began(Scope::Mounts { mount_ns }) = own.first().unwrap().what else {
        panic!()
    };
    let ended = &own.last().unwrap().what;
    assert!(matches!(ended, Observation::Ended { scope, complete: true, .. }
        if *scope == Scope::Mounts { mount_ns }));
}

#[test]
fn a_mount_outside_of_the_root_of_a_process_is_found_through_another() {
    if !root() {
        return;
    }
    let netns = Netns::new();
    let dir = tempfile::tempdir().unwrap();
    // Two processes in one mount namespace of their own; the first, in a chroot, prints the pid of the second.
    let script = format!(
        "mount -t tmpfs none {0} && touch {0}/held && mkdir {0}/jail && mount --bind / {0}/jail || exit
         mount --bind /proc/{1}/ns/net {0}/held && mount --bind {0}/held {0}/jail/etc/passwd || exit
         sleep 60 >&- & echo $!
         exec chroot {0}/jail sleep 60",
        dir.path().display(),
        netns.pid()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]).stdout(Stdio::piped());
    let mut first = command.spawn().unwrap();
    let mut second = String::new();
    let told = first.stdout.take().unwrap();
    io::BufRead::read_line(&mut io::BufReader::new(told), &mut second).unwrap();
    let own_root = format!("/proc/{}/root", first.id());
    let is_in_a_chroot = (0..2_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        std::fs::read_link(&own_root).is_ok_and(|root| root.ends_with("jail"))
    });
    let wanted = NetnsRef::inode(netns.inode());
    let paths = || {
        let (found, complete) =
            held_by(&Proc::new().search(&[wanted], Search::mounts()).unwrap(), wanted);
        assert!(complete);
        let path = |holder: Holder| match holder {
            Holder::Mount { path, .. } => path,
            _ => panic!("{holder:?}"),
        };
        let mut paths: Vec<String> = found.into_iter().map(path).collect();
        paths.sort();
        paths
    };
    let both = paths();
    run(Command::new("kill").arg(second.trim()));
    let namespace = format!("/proc/{}/ns/mnt", second.trim());
    let is_over = (0..2_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        std::fs::read_link(&namespace).is_err()
    });
    let left = paths();
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(is_in_a_chroot && is_over);
    let path = |below: &str| format!("{}/{below}", dir.path().display());
    assert_eq!(both, [path("held"), path("jail/etc/passwd")]);
    // Alone it hides the one, and the path of the other is that in the mount namespace, where commands look.
    assert_eq!(left, [path("jail/etc/passwd")]);
}

#[test]
fn a_copy_that_goes_with_the_nodes_mount_is_no_holder() {
    if !root() {
        return;
    }
    let netns = Netns::new();
    let dir = tempfile::tempdir().unwrap();
    let held = dir.path().join("held");
    let on = |program: &str, args: &[&str]| run(Command::new(program).args(args).arg(&held));
    let shell = |script: &str| run(Command::new("sh").args(["-ec", script]).arg(dir.path()));
    shell("mount -t tmpfs none \"$0\" && mount --make-shared \"$0\" && touch \"$0/held\"");
    on("mount", &["--bind", &format!("/proc/{}/ns/net", netns.pid())]);
    // As with PrivateTmp=, and as with an agent's copy of `/` that is private.
    let apart = ["slave", "private"].map(|propagation| {
        let mut sleeper = Command::new("unshare");
        sleeper.args(["-m", "--propagation", propagation, "sh", "-c", "echo && exec sleep 60"]);
        let mut sleeper = sleeper.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let said = sleeper.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(said), &mut line).unwrap();
        sleeper
    });
    let wanted = NetnsRef::inode(netns.inode());
    let [slave, private] = [apart[0].id(), apart[1].id()];
    let pids = || {
        let (mut found, complete) =
            held_by(&Proc::new().search(&[wanted], Search::mounts()).unwrap(), wanted);
        assert!(complete);
        // A mount namespace that another test makes meanwhile has a copy, too.
        found.retain(|holder| match holder {
            Holder::Mount { pid, foreign, .. } => !foreign || [slave, private].contains(pid),
            _ => true,
        });
        let pid = |holder: &Holder| match holder {
            Holder::Mount { pid, foreign, .. } => foreign.then_some(*pid),
            _ => panic!("{holder:?}"),
        };
        (found.len(), found.iter().filter_map(pid).collect::<Vec<u32>>())
    };
    let both = pids();
    on("umount", &[]);
    let left = pids();
    shell("umount \"$0\"");
    for mut sleeper in apart {
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    assert_eq!(both, (2, vec![private]), "the node's own, and not that of {slave}");
    assert_eq!(left, (1, vec![private]));
}

#[test]
fn a_process_that_hides_its_namespaces_still_shows_its_mounts() {
    let tree = Tree::new();
    let mount = "7 2 0:4 net:[4026532177] /run/netns/x rw - nsfs nsfs rw\n";
    for pid in [10, 11] {
        tree.file(&format!("proc/{pid}/mountinfo"), mount);
        std::fs::create_dir_all(tree.path(&format!("proc/{pid}/ns"))).unwrap();
        std::os::unix::fs::symlink("mnt:[5]", tree.path(&format!("proc/{pid}/ns/mnt"))).unwrap();
    }
    let wanted = NetnsRef::inode(4_026_532_177);
    let found = || held_by(&tree.proc().search(&[wanted], Search::mounts()).unwrap(), wanted);
    let (holders, complete) = found();
    assert!(
        complete
            && matches!(&holders[..], [Holder::Mount { mount_ns: 5, path, .. }]
        if path == "/run/netns/x"),
        "{holders:?}"
    );
    // If a mount namespace cannot be identified, only its mounts that were not seen elsewhere are new.
    tree.file(
        "proc/12/mountinfo",
        &format!("{mount}8 2 0:4 net:[4026532177] /y rw - nsfs nsfs rw\n"),
    );
    tree.file("proc/12/ns/mnt", "no link: EINVAL");
    assert!(!found().1, "unreadable for no good reason");
}

#[test]
fn a_tenant_with_many_mounts_fills_no_memory_and_hides_no_other_mount() {
    let tree = Tree::new();
    let many: String = (0..100_000)
        .map(|id| format!("{id} 2 0:4 net:[4026532177] /{id} rw - nsfs nsfs rw\n"))
        .collect();
    tree.file("proc/10/mountinfo", &many);
    tree.link("proc/10/ns/mnt", "mnt:[5]");
    tree.file("proc/11/mountinfo", "200000 2 0:4 net:[4026532178] /x rw - nsfs nsfs rw\n");
    tree.link("proc/11/ns/mnt", "mnt:[6]");
    let both = [NetnsRef::inode(4_026_532_177), NetnsRef::inode(4_026_532_178)];
    let facts = tree.proc().search(&both, Search::mounts()).unwrap();
    let of = |netns| {
        let (holders, complete) = held_by(&facts, netns);
        (holders.len(), complete)
    };
    assert_eq!(both.map(of), [(256, true), (1, true)]);
}

#[test]
fn a_netns_of_unknown_inode_and_a_search_out_of_time_prove_nothing() {
    let nameless = NetnsRef::nsid(4);
    let other = NetnsRef::inode(1);
    let late = Search { until: BootNs(0), ..Search::everything() };
    let facts = Proc::new().search(&[nameless, other], Search::mounts()).unwrap();
    assert!(!held_by(&facts, nameless).1);
    let facts = Proc::new().search(&[other], late).unwrap();
    assert!(!held_by(&facts, other).1);
}

#[test]
fn another_ipwatch_is_told_by_its_program() {
    let dir = tempfile::tempdir().unwrap();
    let own = Dir::open("/proc/self".as_ref()).unwrap();
    let is_ipwatch = |pid: u32| {
        let dir = Dir::open(format!("/proc/{pid}").as_ref()).unwrap();
        Process { pid, dir: &dir, home: None, pidfd: None, comm: None }.is_ipwatch()
    };
    assert!(is_ipwatch(std::process::id()));
    let stranger = dir.path().join(own.comm());
    program::copy("/bin/sleep", &stranger);
    let mut child = Command::new(&stranger).arg("60").spawn().unwrap();
    let named = Dir::open(format!("/proc/{}", child.id()).as_ref()).unwrap();
    let has_our_name = (0..2_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        named.comm() == own.comm()
    });
    let taken_for_one = is_ipwatch(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(has_our_name && !taken_for_one, "a name alone");
}
