use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::fact::NetnsPath;
use crate::fact::{NetnsRef, Observation};
use crate::sources::netlink::testing::{in_new_netns, root, run};
use crate::sources::netlink::{AdoptError, Requests, netns_open};

/// `struct inet_diag_msg` of a connection from port 40000 to port 80.
fn message(family: i32, state: u8, timer: u8, inode: u32) -> Vec<u8> {
    let mut bytes = vec![family as u8, state, timer, 0];
    bytes.extend(40_000_u16.to_be_bytes());
    bytes.extend(80_u16.to_be_bytes());
    for last in [1, 2] {
        let mut address = [0; 16];
        match family {
            libc::AF_INET => address[..4].copy_from_slice(&[192, 0, 2, last]),
            _ => address[15] = last,
        }
        bytes.extend(address);
    }
    bytes.resize(68, 0);
    bytes.extend(inode.to_ne_bytes());
    bytes
}

fn text(message: &[u8]) -> Option<String> {
    orphan(message).map(|holder| match holder {
        Holder::Orphan { text } => text,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_closing_connection_without_an_inode_is_an_orphan() {
    let v4 = text(&message(libc::AF_INET, 4, 1, 0));
    assert_eq!(v4.unwrap(), "tcp 192.0.2.1:40000 → 192.0.2.2:80 FIN_WAIT1");
    let v6 = text(&message(libc::AF_INET6, 9, 0, 0));
    assert_eq!(v6.unwrap(), "tcp [::1]:40000 → [::2]:80 LAST_ACK");
    let mut mapped = message(libc::AF_INET6, 11, 0, 0);
    mapped[8..24].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 9]);
    assert!(text(&mapped).unwrap().starts_with("tcp 10.0.0.9:40000 → "));
}

#[test]
fn whoever_has_a_process_or_is_only_remembered_is_none() {
    let of = |state, timer, inode| text(&message(libc::AF_INET, state, timer, inode));
    assert_eq!(of(4, 1, 77), None, "a process has it");
    assert_eq!(of(5, TIMEWAIT, 0), None, "holds no netns");
    for state in [1, 2, 3, 6, 7, 8, 10, 12] {
        assert_eq!(of(state, 0, 0), None);
    }
    assert_eq!(text(&message(99, 4, 0, 0)), None, "of no known family");
    let whole = message(libc::AF_INET, 4, 0, 0);
    assert!((0..whole.len()).all(|len| text(&whole[..len]).is_none()));
}

proptest! {
    #[test]
    fn any_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = orphan(&bytes);
    }
}

/// A netns with closing connections.
struct Closing {
    netns: File,
    /// Remote ends and listeners. When they are dropped, the kernel releases the connections.
    kept: (Vec<TcpListener>, Vec<TcpStream>),
    orphans: [Holder; 2],
}

impl Closing {
    /// In the calling thread's netns. Closes, for each family, a connection with unread data in flight, and one
    /// connection that then is only in TIME_WAIT.
    fn new() -> Self {
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        // A sysctl of this netns: the connections must not last for minutes after the test.
        std::fs::write("/proc/sys/net/ipv4/tcp_orphan_retries", "3").unwrap();
        let (mut listeners, mut far) = (Vec::new(), Vec::new());
        let orphans = ["127.0.0.1:0", "[::1]:0"].map(|at| {
            let listener = TcpListener::bind(at).unwrap();
            let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            far.push(listener.accept().unwrap().0);
            listeners.push(listener);
            ours.set_nonblocking(true).unwrap();
            while ours.write(&[0; 65_536]).is_ok() {}
            let (local, remote) = (ours.local_addr().unwrap(), ours.peer_addr().unwrap());
            Holder::Orphan { text: format!("tcp {local} → {remote} FIN_WAIT1") }
        });
        // FIN_WAIT2, kept as TIME_WAIT; the remote end, in CLOSE_WAIT, has a process.
        drop(TcpStream::connect(listeners[0].local_addr().unwrap()).unwrap());
        far.push(listeners[0].accept().unwrap().0);
        let netns = File::from(netns_open::own().unwrap());
        Self { netns, kept: (listeners, far), orphans }
    }

    fn by_fd(&self) -> Vec<NetnsPath> {
        let fd = self.netns.as_raw_fd().cast_unsigned();
        vec![NetnsPath::Fd { pid: std::process::id(), fd }]
    }

    fn names(&self) -> NetnsRef {
        let inode = rustix::fs::fstat(&self.netns).unwrap().st_ino;
        NetnsRef::inode(inode.try_into().unwrap())
    }
}

#[test]
fn orphans_are_found_from_inside_and_nothing_else_is() {
    if !root() {
        return;
    }
    let closing = in_new_netns(Closing::new);
    let (wanted, doors) = (closing.names(), closing.by_fd());
    let mut requests = Requests::new().unwrap();
    let mut found = Vec::new();
    for _ in 0..2_000 {
        found = requests.orphans(wanted, &doors).unwrap();
        // The third connection leaves FIN_WAIT1 when its FIN is acknowledged.
        if found.len() < 3 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(found, closing.orphans);
    let wrong = requests.orphans(NetnsRef::inode(1), &doors);
    assert!(matches!(wrong, Err(AdoptError::Mismatch { .. })), "{wrong:?}");
    let closed = requests.orphans(wanted, &[]);
    assert!(matches!(closed, Err(AdoptError::Closed(_))), "{closed:?}");
}

#[test]
fn orphans_that_alone_hold_a_netns_are_found_by_its_handle() {
    if !root() {
        return;
    }
    let closing = in_new_netns(|| {
        let closing = Closing::new();
        // No answer will arrive any more.
        run(Command::new("ip").args(["link", "set", "lo", "down"]));
        closing
    });
    let mut requests = Requests::new().unwrap();
    let facts = requests.adopt(closing.names(), &closing.by_fd(), &[], true).unwrap();
    let names = facts.iter().find_map(|fact| match fact.what {
        Observation::Netns { netns } => Some(netns),
        _ => None,
    });
    if requests.orphans(names.unwrap(), &[NetnsPath::Handle]).is_err() {
        eprintln!("skipped: no handles of namespaces before 6.18");
        return;
    }
    let Closing { netns, kept, orphans } = closing;
    drop((netns, kept));
    let found = requests.orphans(names.unwrap(), &[NetnsPath::Handle]).unwrap();
    assert!(orphans.iter().all(|orphan| found.contains(orphan)), "{found:?}");
}
