use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use super::*;
use crate::fact::{Link, Scope};
use crate::sources::netlink::testing::{Netns, in_new_netns, root, run};

mod wire;

fn door(netns: &Netns) -> Vec<NetnsPath> {
    vec![NetnsPath::Task { pid: netns.pid(), tid: netns.pid() }]
}

fn names(facts: &[Fact]) -> NetnsRef {
    let name = facts.iter().find_map(|fact| match fact.what {
        Observation::Netns { netns } => Some(netns),
        _ => None,
    });
    name.expect("a Netns fact")
}

fn link(facts: &[Fact], name: &str) -> Option<Link> {
    facts.iter().find_map(|fact| match &fact.what {
        Observation::Link { link, .. } if link.name == name => Some(link.clone()),
        _ => None,
    })
}

fn ips(facts: &[Fact]) -> BTreeSet<IpAddr> {
    let ip = |fact: &Fact| match &fact.what {
        Observation::Address { address, .. } => Some(address.key.local),
        _ => None,
    };
    facts.iter().filter_map(ip).collect()
}

/// The reported neighbour entries: IP and state, `None` if the entry is gone.
fn neighbours(facts: &[Fact]) -> Vec<(IpAddr, Option<u16>)> {
    let told = |fact: &Fact| match &fact.what {
        Observation::Neighbour { neighbour, .. } => Some((neighbour.ip, Some(neighbour.state))),
        Observation::NeighbourGone { ip, .. } => Some((*ip, None)),
        _ => None,
    };
    facts.iter().filter_map(told).collect()
}

fn ended(facts: &[Fact]) -> Vec<(Scope, bool)> {
    let end = |fact: &Fact| match &fact.what {
        Observation::Ended { scope, complete, .. } => Some((scope.clone(), *complete)),
        _ => None,
    };
    facts.iter().filter_map(end).collect()
}

fn own_inode() -> u64 {
    rustix::fs::fstat(netns_open::own().unwrap()).unwrap().st_ino
}

#[test]
fn adopts_a_netns_with_all_its_names_and_all_that_is_in_it() {
    if !root() {
        return;
    }
    let netns = Netns::new();
    netns.veth("ipwt-a");
    netns.ip("addr add 192.0.2.7/24 dev eth0");
    netns.ip("addr add 192.0.2.8 peer 198.51.100.1/32 dev eth0");
    netns.ip("link set eth0 up");
    netns.ip("route add default via 192.0.2.1");
    for last in [1, 9, 10] {
        netns.ip(&format!("neigh add 192.0.2.{last} lladdr 02:00:00:00:00:09 dev eth0"));
    }
    let mut requests = Requests::new().unwrap();
    let before = own_inode();

    let first = requests.adopt(NetnsRef::default(), &door(&netns), &[], false).unwrap();
    let eth0 = link(&first, "eth0").unwrap().ifindex;
    let known = ["192.0.2.9", "192.0.2.11"].map(|ip| (eth0, ip.parse().unwrap()));
    let wanted = NetnsRef::inode(netns.inode());
    let facts = requests.adopt(wanted, &door(&netns), &known, false).unwrap();

    let found = names(&facts);
    assert_eq!(found.inode, Some(netns.inode()));
    assert!(found.cookie.is_some() && found.cookie != requests.host().cookie);
    assert!(found.nsid.is_some());
    let eth0 = link(&facts, "eth0").unwrap();
    assert_eq!(eth0.kind.as_deref(), Some("veth"));
    assert!(eth0.up && eth0.mac.is_some() && eth0.peer.is_some());
    // The nsid of the host in that netns differs from the nsid of that netns on the host.
    assert!(eth0.peer_nsid.is_some());
    assert!(ips(&facts).contains(&"192.0.2.7".parse().unwrap()));
    assert!(!ips(&facts).contains(&"198.51.100.1".parse().unwrap()), "a peer is not held here");
    let told = |ip: &str| neighbours(&facts).into_iter().find(|told| told.0.to_string() == ip);
    assert_eq!(told("192.0.2.1").unwrap().1, Some(0x80), "a gateway");
    assert_eq!(told("192.0.2.9").unwrap().1, Some(0x80), "one that is known");
    assert_eq!(told("192.0.2.11").unwrap().1, None, "one that is gone");
    assert_eq!(told("192.0.2.10"), None, "nobody asks for it");
    let scopes = [
        (Scope::Links { netns: found }, true),
        (Scope::Addresses { netns: found }, true),
        (Scope::Routes { netns: found }, true),
        (Scope::Neighbours { netns: found }, false),
    ];
    assert_eq!(ended(&facts), scopes, "of neighbours that were not looked up nothing is said");
    assert_eq!(own_inode(), before, "the thread is home again");
}

#[test]
fn the_table_is_read_where_many_neighbours_are_known() {
    if !root() {
        return;
    }
    let netns = Netns::new();
    netns.veth("ipwt-n");
    netns.ip("link set eth0 up");
    netns.ip("neigh add 192.0.2.10 lladdr 02:00:00:00:00:09 dev eth0");
    let known = |count: u32| -> Vec<(u32, IpAddr)> {
        (0..count).map(|n| (1, Ipv4Addr::from_bits(0xc000_0200 + n).into())).collect()
    };
    let mut requests = Requests::new().unwrap();
    let mut all = |count: u32| {
        let facts = requests.adopt(NetnsRef::default(), &door(&netns), &known(count), true);
        neighbours(&facts.unwrap())
    };
    let most = u32::try_from(MOST_LOOKED_UP).unwrap();
    let (there, gone): (Vec<_>, Vec<_>) = all(most).into_iter().partition(|told| told.1.is_some());
    assert_eq!((there.len(), gone.len()), (0, MOST_LOOKED_UP));
    assert_eq!(all(most + 1), [("192.0.2.10".parse().unwrap(), Some(0x80))]);
}

#[test]
fn a_dump_by_nsid_tells_the_same_as_one_from_inside() {
    if !root() {
        return;
    }
    let netns = Netns::new();
    let other = Netns::new();
    netns.veth("ipwt-b");
    netns.ip("addr add 192.0.2.7/24 dev eth0");
    netns.ip("addr add 2001:db8::7/64 dev eth0 nodad");
    // A device whose peer is in a third netns, which has a different nsid in each.
    netns.ip(&format!("link add side type veth peer name side netns {}", other.pid()));
    let mut requests = Requests::new().unwrap();
    let inside = requests.adopt(NetnsRef::default(), &door(&netns), &[], false).unwrap();
    let found = names(&inside);

    let by_nsid = requests.dump(found).unwrap();

    for name in ["lo", "eth0"] {
        assert_eq!(link(&by_nsid, name), link(&inside, name));
    }
    let (mut told, known) = (link(&by_nsid, "side").unwrap(), link(&inside, "side").unwrap());
    if told.peer_nsid.is_none() {
        // The third netns has no nsid on the host, so its nsid in the first cannot be resolved.
        assert_eq!(told.peer, None);
        (told.peer, told.peer_nsid) = (known.peer, known.peer_nsid);
    }
    assert_eq!(told, known);
    assert_eq!(ips(&by_nsid), ips(&inside));
    assert!(ended(&by_nsid).iter().all(|&(_, complete)| complete));
    assert_eq!(ended(&by_nsid).len(), 2);
    assert!(ips(&by_nsid).contains(&"2001:db8::7".parse().unwrap()));
    let nobody = requests.dump(NetnsRef::nsid(1 << 20));
    assert!(matches!(nobody, Err(AdoptError::Closed(_))), "{nobody:?}");
}

#[test]
fn the_host_is_dumped_under_its_own_name() {
    let mut requests = Requests::new().unwrap();
    let facts = requests.dump_host().unwrap();
    let host = requests.host();
    assert!(link(&facts, "lo").is_some_and(|lo| lo.loopback && lo.peer.is_none()));
    // If this machine has a device with hardware, sysfs names the same driver.
    for fact in &facts {
        let Observation::Link { link, .. } = &fact.what else { continue };
        let driver = std::fs::read_link(format!("/sys/class/net/{}/device/driver", link.name)).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        assert_eq!(link.parent.as_ref().and_then(|parent| parent.driver.clone()), driver);
    }
    assert!(ended(&facts).contains(&(Scope::Addresses { netns: host }, true)));
    assert_eq!((ended(&facts).len(), host.nsid), (4, None));
}

#[test]
fn another_netns_behind_the_door_is_refused_and_left_alone() {
    if !root() {
        return;
    }
    let netns = Netns::new();
    let mut requests = Requests::new().unwrap();
    let wrong_inode = NetnsRef::inode(netns.inode() + 1);
    let wrong_cookie = NetnsRef { inode: Some(netns.inode()), ..NetnsRef::cookie(1) };
    let wrong_nsid = NetnsRef::nsid(1 << 20);
    for wanted in [wrong_inode, wrong_cookie, wrong_nsid] {
        let refused = requests.adopt(wanted, &door(&netns), &[], false);
        assert!(matches!(refused, Err(AdoptError::Mismatch { .. })), "{refused:?}");
    }
    let own = [NetnsPath::Task { pid: std::process::id(), tid: std::process::id() }];
    let refused = requests.adopt(NetnsRef::default(), &own, &[], false);
    assert!(matches!(refused, Err(AdoptError::Mismatch { .. })), "the host's: {refused:?}");

    let facts = requests.adopt(NetnsRef::default(), &door(&netns), &[], true).unwrap();
    assert_eq!(
        names(&facts).nsid,
        None,
        "nothing was given an nsid, nor is it when only observing"
    );
    assert!(link(&facts, "lo").is_some());
}

#[test]
fn the_first_door_that_agrees_is_taken() {
    if !root() {
        return;
    }
    let (netns, other) = (Netns::new(), Netns::new());
    let mut requests = Requests::new().unwrap();
    let wanted = NetnsRef::inode(netns.inode());
    let doors = [
        NetnsPath::Task { pid: u32::MAX >> 2, tid: 1 },
        NetnsPath::Handle, // the cookie is not known
        door(&other).remove(0),
        door(&netns).remove(0),
    ];
    let facts = requests.adopt(wanted, &doors, &[], true).unwrap();
    assert_eq!(names(&facts).inode, wanted.inode);
    // Without a door to the right netns, the wrong one is reported.
    let refused = requests.adopt(wanted, &doors[..3], &[], true);
    assert!(matches!(refused, Err(AdoptError::Mismatch { .. })), "{refused:?}");
    let refused = requests.adopt(wanted, &[doors[2].clone(), doors[0].clone()], &[], true);
    assert!(matches!(refused, Err(AdoptError::Mismatch { .. })), "{refused:?}");
    let closed = requests.adopt(wanted, &doors[..2], &[], true);
    assert!(matches!(closed, Err(AdoptError::Closed(_))), "{closed:?}");
}

#[test]
fn every_kind_of_door_opens() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("with a space");
    File::create(&path).unwrap();
    // Held by an fd, a socket and a mount of this process, and by no task.
    let (fd, socket) = in_new_netns(|| {
        (File::from(netns_open::own().unwrap()), std::net::UdpSocket::bind("0.0.0.0:0").unwrap())
    });
    let pid = std::process::id();
    let number = |fd: &dyn std::os::fd::AsRawFd| fd.as_raw_fd().cast_unsigned();
    let of_fd = format!("/proc/{pid}/fd/{}", number(&fd));
    run(Command::new("mount").args(["--bind", &of_fd]).arg(&path));
    let mut requests = Requests::new().unwrap();
    let shown = path.to_str().unwrap().to_owned();
    let by_fd = NetnsPath::Fd { pid, fd: number(&fd) };
    let wanted = names(
        &requests.adopt(NetnsRef::default(), std::slice::from_ref(&by_fd), &[], true).unwrap(),
    );
    let mut doors = vec![
        by_fd,
        NetnsPath::Socket { pid, fd: number(&socket) },
        NetnsPath::Mount { pid, path: shown.clone() },
    ];
    if rustix::system::uname().release().to_str().is_ok_and(|version| newer(version, (6, 18))) {
        doors.push(NetnsPath::Handle);
    }
    let adopted: Vec<_> = doors
        .iter()
        .map(|door| requests.adopt(wanted, std::slice::from_ref(door), &[], true))
        .collect();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let by_link = NetnsPath::Mount { pid, path: link.to_str().unwrap().to_owned() };
    let followed = requests.adopt(wanted, &[by_link], &[], true);
    run(Command::new("umount").arg(&path));
    assert!(matches!(followed, Err(AdoptError::Closed(_))), "{followed:?}");
    for (door, adopted) in doors.iter().zip(adopted) {
        assert_eq!(names(&adopted.unwrap_or_else(|error| panic!("{door:?}: {error}"))), wanted);
    }
}

fn newer(version: &str, than: (u32, u32)) -> bool {
    let mut parts = version.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= than
}

#[test]
fn what_is_no_netns_is_never_opened() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    run(Command::new("mkfifo").arg(&fifo)); // to open it for reading would block for ever
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/proc/1/ns/net", &link).unwrap();
    let (pid, plain) = (std::process::id(), File::open(dir.path()).unwrap());
    let user = File::open("/proc/self/ns/user").unwrap();
    let number = |file: &File| std::os::fd::AsRawFd::as_raw_fd(file).cast_unsigned();
    let mut requests = Requests::new().unwrap();
    let at =
        |path: &std::path::Path| NetnsPath::Mount { pid, path: path.to_str().unwrap().to_owned() };
    for door in [
        at(&fifo),
        at(&link),
        at(dir.path()),
        NetnsPath::Fd { pid, fd: number(&plain) },
        NetnsPath::Fd { pid, fd: number(&user) },
        NetnsPath::Socket { pid, fd: number(&plain) },
    ] {
        let refused = requests.adopt(NetnsRef::default(), std::slice::from_ref(&door), &[], true);
        assert!(matches!(refused, Err(AdoptError::Closed(_))), "{door:?}: {refused:?}");
    }
}
