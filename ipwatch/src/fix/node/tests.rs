use super::*;
use crate::fact::Origin;

fn fact(what: Observation) -> Fact {
    Fact { at: BootNs(1), origin: Origin::Netlink, what }
}

#[test]
fn a_container_with_its_own_pids_is_not_the_node() {
    assert!(sees_all_processes("pid:[4026531836]".as_ref()));
    for other in ["pid:[4026532201]", "pid:[40265318360]", ""] {
        assert!(!sees_all_processes(other.as_ref()), "{other}");
    }
}

#[test]
fn netns_that_ended_are_told_from_those_that_do_not_open() {
    let task = |pid| NetnsPath::Task { pid, tid: pid };
    let list = |all: &[(u32, &[u32])]| {
        let doors = |pids: &[u32]| pids.iter().map(|pid| task(*pid)).collect();
        all.iter().map(|(inode, pids)| (*inode, doors(pids))).collect::<BTreeMap<_, Vec<_>>>()
    };
    let failed = list(&[(7, &[70, 71]), (8, &[80]), (9, &[])]);
    // 8 is the inode of a new one, and 10 is new.
    let now = list(&[(7, &[71, 72]), (8, &[81]), (9, &[90]), (10, &[100])]);
    assert_eq!(of_these(&failed, now).into_keys().collect::<Vec<_>>(), [7, 9]);
    assert_eq!(of_these(&failed, list(&[(10, &[100])])).len(), 0, "churn");
}

#[test]
fn half_a_list_of_mounts_is_no_list() {
    let ended = |complete| {
        let scope = Scope::Mounts { mount_ns: 1 };
        fact(Observation::Ended { scope, began: BootNs(1), complete })
    };
    for (facts, whole) in [
        (vec![], false),
        (vec![ended(true)], true),
        (vec![ended(true), ended(false)], false),
        (vec![ended(false), ended(true)], false),
    ] {
        assert_eq!(are_all_complete(&facts), whole, "{facts:?}");
    }
}

#[test]
fn half_a_list_of_addresses_is_no_proof() {
    let scope = Scope::Addresses { netns: NetnsRef::inode(1) };
    for (complete, ok) in [(true, true), (false, false)] {
        let ended = Observation::Ended { scope: scope.clone(), began: BootNs(1), complete };
        assert_eq!(note(&[fact(ended)], "the node", &mut BTreeMap::new()).is_ok(), ok);
    }
    assert!(note(&[], "the node", &mut BTreeMap::new()).is_err());
}

#[test]
fn what_is_mounted_elsewhere_or_more_than_once_is_left() {
    let found = |holders: Vec<Holder>, complete: bool| {
        let netns = NetnsRef::inode(7);
        let mut facts: Vec<Fact> =
            holders.into_iter().map(|holder| fact(Observation::Holder { netns, holder })).collect();
        facts.push(fact(Observation::HoldersSearched { netns, complete }));
        facts
    };
    let mount = |pid: u32, path: &str| Holder::Mount {
        mount_ns: 1,
        path: path.to_owned(),
        pid,
        comm: None,
        cgroup: None,
        foreign: pid != 1,
    };
    let fd = || Holder::Fd { pid: 9, fd: 3, comm: "agent".to_owned() };
    let judge = |facts: Vec<Fact>| match is_whole(&facts) {
        true => only_mount(&facts, "/run/netns/a"),
        false => Err("half a search".to_owned()),
    };
    assert_eq!(judge(found(vec![mount(1, "/run/netns/a")], true)), Ok(()));
    for (holders, complete) in [
        (vec![], true),
        (vec![mount(1, "/run/netns/a")], false),
        (vec![mount(1, "/run/netns/b")], true),
        (vec![mount(9, "/run/netns/a")], true),
        (vec![mount(1, "/run/netns/a"); 2], true),
        (vec![mount(1, "/run/netns/a"), fd()], true),
    ] {
        assert!(judge(found(holders.clone(), complete)).is_err(), "{holders:?} {complete}");
    }
}

/// A netns that nothing leads to but an fd of a process which is elsewhere.
#[test]
fn a_netns_that_an_fd_alone_keeps_is_looked_at() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let name = format!("ipw-fd-{}", std::process::id());
    let ip = "198.51.100.77";
    let run = |program: &str, args: &str| {
        let out = std::process::Command::new(program).args(args.split(' ')).output().unwrap();
        assert!(out.status.success(), "{program} {args}: {out:?}");
    };
    run("ip", &format!("netns add {name}"));
    run("ip", &format!("-n {name} address add {ip}/32 dev lo"));
    let script = format!("exec 9</run/netns/{name}; echo open; exec sleep 60");
    let mut holder = std::process::Command::new("sh")
        .args(["-c", &script])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut said).unwrap();
    run("ip", &format!("netns delete {name}"));
    let asked = |ip: &str, looks: bool| {
        let ip: IpAddr = ip.parse().unwrap();
        // Its own thread: it visits other netns.
        std::thread::spawn(move || {
            let mut node = Node::new().unwrap();
            if looks {
                node.look_for_kept().unwrap();
            }
            node.nobody_has(ip, clock::now().plus(60_000_000_000))
        })
        .join()
        .unwrap()
    };
    let unseen = asked(ip, false);
    let (held, other) = (asked(ip, true), asked("198.51.100.78", true));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(unseen, Ok(()), "neither a task nor a mount leads to it");
    assert!(held.is_err_and(|why| why.contains("has the IP up")), "the fd keeps it");
    assert_eq!(other, Ok(()));
    assert_eq!(asked(ip, true), Ok(()), "it is gone");
}
