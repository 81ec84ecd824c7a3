//! Unix sockets at which fds wait unread. An fd in flight holds its netns, and no process has it: the kernel shows how
//! many fds wait at a socket (`scm_fds` in fdinfo: `unix_show_fdinfo`, 5.6) and not what they are. The owners of these
//! sockets are therefore candidates. Missed are a socket that is in flight itself, and before 6.3 a connection that its
//! listener has not accepted (`unix_count_nr_fds`).

use std::collections::{HashMap, HashSet};
use std::io;

use super::super::Proc;
use super::super::fds::{Fds, Turn};
use super::super::files::{Dir, numbered};
use crate::clock;
use crate::fact::{BootNs, Holder};

/// Maximum number of candidates of one search, and of one process in a turn.
const MOST: usize = 8;
const MOST_OF_ONE: usize = 2;

impl Proc {
    /// The processes at whose Unix sockets fds wait unread, each socket once, and at most [`MOST`]. What cannot be read,
    /// or not before `until`, or is beyond a maximum, is left out: candidates prove nothing, and neither does their absence.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub(crate) fn unread_fds(&self, until: BootNs) -> io::Result<Vec<Holder>> {
        let root = Dir::open(&self.root)?;
        let own = std::process::id();
        let mut fds = Fds::new(&root, until)?;
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        let mut of_tenants: HashMap<usize, usize> = HashMap::new();
        while let Some(turn) = fds.next() {
            let of_tenant = of_tenants.entry(turn.tenant).or_default();
            if turn.pid != own && *of_tenant < MOST {
                for holder in of_process(&turn, until, &mut seen) {
                    found.push((*of_tenant, holder));
                    *of_tenant += 1;
                }
            }
        }
        // The first of each tenant, then the second of each.
        found.sort_by_key(|(nth, _)| *nth);
        found.truncate(MOST);
        Ok(found.into_iter().map(|(_, holder)| holder).collect())
    }
}

fn of_process(
    Turn { pid, dir, fds, .. }: &Turn,
    until: BootNs,
    seen: &mut HashSet<u64>,
) -> Vec<Holder> {
    let mut found = Vec::new();
    for &fd in fds {
        if clock::now() > until || found.len() >= MOST_OF_ONE {
            break;
        }
        let mut buffer = [0; 64];
        let Ok(link) = dir.link(&format!("fd/{fd}"), &mut buffer) else { continue };
        let Some(socket) = numbered(link, "socket") else { continue };
        if !seen.insert(socket) {
            continue;
        }
        let Ok(info) = dir.text(format!("fdinfo/{fd}")) else { continue };
        let unread =
            info.lines().find_map(|line| line.strip_prefix("scm_fds:")?.trim().parse().ok());
        if let Some(unread) = unread.filter(|unread| *unread > 0) {
            found.push(Holder::Candidate { pid: *pid, fd, comm: dir.comm(), unread });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::super::testing::Tree;
    use super::*;

    /// A process of a made-up tree with sockets: fd, inode, unread fds.
    fn process(tree: &Tree, pid: u32, comm: &str, sockets: &[(u32, u64, &str)]) {
        tree.file(&format!("proc/{pid}/comm"), &format!("{comm}\n"));
        for (fd, inode, scm_fds) in sockets {
            tree.link(&format!("proc/{pid}/fd/{fd}"), &format!("socket:[{inode}]"));
            let info = format!("pos:\t0\nflags:\t02\nmnt_id:\t10\nino:\t{inode}\n{scm_fds}");
            tree.file(&format!("proc/{pid}/fdinfo/{fd}"), &info);
        }
    }

    fn found(tree: &Tree) -> Vec<Holder> {
        tree.proc().unread_fds(BootNs(u64::MAX)).unwrap()
    }

    #[test]
    fn a_socket_with_unread_fds_is_a_candidate_and_counts_once() {
        let tree = Tree::new();
        let pid = 4_000_001; // beyond pid_max of most hosts: never our own
        process(&tree, pid, "agent", &[(3, 77, "scm_fds: 0\n"), (5, 78, "scm_fds: 2\n")]);
        process(&tree, pid + 1, "child", &[(9, 78, "scm_fds: 2\n")]);
        process(&tree, pid + 2, "tcp", &[(3, 79, ""), (4, 80, "scm_fds: x\n")]);
        let [Holder::Candidate { fd: 5 | 9, unread: 2, .. }] = &found(&tree)[..] else {
            panic!("{:?}", found(&tree))
        };
    }

    #[test]
    fn there_is_a_most() {
        let tree = Tree::new();
        let many: Vec<_> = (0..20).map(|n| (n, 500 + u64::from(n), "scm_fds: 1\n")).collect();
        process(&tree, 4_000_000, "greedy", &many);
        assert_eq!(found(&tree).len(), MOST_OF_ONE, "it leaves room for others");
        for n in 0..20 {
            let one = &[(3, u64::from(n), "scm_fds: 1\n")];
            process(&tree, 4_000_001 + n, "agent", one);
        }
        assert_eq!(found(&tree).len(), MOST);
        assert!(tree.proc().unread_fds(BootNs(0)).unwrap().is_empty(), "its time is over");
    }

    #[test]
    fn candidates_of_one_tenant_are_not_all() {
        let tree = Tree::new();
        let (first, last) = (4_000_000, 4_000_100);
        for pid in first..first + 20 {
            tree.many_fds(pid, "/user.slice/user-1000.slice/a.scope", 0);
            process(&tree, pid, "greedy", &[(3, pid.into(), "scm_fds: 1\n")]);
        }
        tree.many_fds(last, "/system.slice/agent.service", 200);
        process(&tree, last, "agent", &[(200, 78, "scm_fds: 2\n")]);
        let is_agents =
            |holder: &Holder| matches!(holder, Holder::Candidate { pid, .. } if *pid == last);
        assert!(found(&tree).iter().any(is_agents), "{:?}", found(&tree));
    }

    /// A child has the receiving end of a pair of sockets, with an fd in flight to it.
    #[test]
    fn an_fd_in_flight_names_the_process_that_would_receive_it() {
        use rustix::net::{
            AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
            SocketType, sendmsg, socketpair,
        };
        use std::os::fd::AsFd;
        let (near, far) =
            socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        let file = File::open("/dev/null").unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd(), file.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let data = [io::IoSlice::new(b"x")];
        sendmsg(&near, &data, &mut control, SendFlags::empty()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").stdin(far).spawn().unwrap();
        let wanted = Holder::Candidate { pid: child.id(), fd: 0, comm: "sleep".into(), unread: 2 };
        // A child that another test forks meanwhile has a copy of the socket until its exec, and the host's own
        // processes may be more than the maximum.
        let is_found = (0..50).any(|_| {
            let found = Proc::new().unread_fds(BootNs(u64::MAX)).unwrap_or_default();
            std::thread::sleep(std::time::Duration::from_millis(10));
            found.contains(&wanted) || found.len() == MOST
        });
        let _ = child.kill();
        let _ = child.wait();
        assert!(is_found);
    }
}
