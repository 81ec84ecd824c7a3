use super::*;
use ipwatch_common::{MISSING, Netns};

/// A record as the kernel half writes it: the header, then `fields` in order.
fn record(kind: u16, fields: &[&[u8]]) -> Vec<u8> {
    let body = fields.concat();
    let size = (Header::SIZE + body.len()) as u16;
    let head: [&[u8]; 4] =
        [&kind.to_ne_bytes(), &size.to_ne_bytes(), &[0; 4], &77u64.to_ne_bytes()];
    [head.concat(), body].concat()
}

/// The observations from one record.
fn say(bytes: &[u8]) -> Vec<Observation> {
    let mut facts = Vec::new();
    decode(bytes, &mut facts).unwrap();
    for fact in &facts {
        assert_eq!((fact.at, fact.origin), (BootNs(77), Origin::Probe));
    }
    facts.into_iter().map(|fact| fact.what).collect()
}

fn netns_bytes(cookie: u64, inode: u32) -> Vec<u8> {
    [&cookie.to_ne_bytes()[..], &inode.to_ne_bytes(), &MISSING.to_ne_bytes()].concat()
}

fn netns(cookie: u64, inode: u32) -> NetnsRef {
    NetnsRef { cookie: Some(cookie), inode: Some(inode), nsid: None }
}

/// How long the task has not run, in nanoseconds.
const IDLE: u64 = 9_000_000_000;

/// A task 7/`tid` named `name`.
fn task_bytes(kind: u16, tid: u32, flags: u32, pending: u64, name: &[u8]) -> Vec<u8> {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name);
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    record(
        kind,
        &[
            &netns_bytes(5, 6),
            &words(&[7, tid]),
            &1_239_999_999u64.to_ne_bytes(),
            &words(&[3, flags, 1, 0]),
            &pending.to_ne_bytes(),
            &IDLE.to_ne_bytes(),
            &comm,
        ],
    )
}

fn key(tid: u32) -> TaskKey {
    TaskKey { pid: 7, tid, start: 123 }
}

struct AddressBytes {
    kind: u16,
    family: u8,
    local: [u8; 16],
    peer: [u8; 16],
}

impl AddressBytes {
    fn say(&self) -> Observation {
        let bytes = record(
            self.kind,
            &[
                &netns_bytes(5, 6),
                &self.local,
                &self.peer,
                &4u32.to_ne_bytes(),
                &0x80u32.to_ne_bytes(),
                &[self.family, 24, 0, 1],
                &[2, 0, 0, 0, 0, 9],
                &[0; 6],
            ],
        );
        say(&bytes).remove(0)
    }
}

fn v4(ip: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&ip);
    bytes
}

#[test]
fn a_netns_lives_and_dies() {
    let bytes = |kind| record(kind, &[&netns_bytes(5, 6)]);
    assert_eq!(
        say(&bytes(kind::NETNS_CREATED)),
        [Observation::NetnsCreated { netns: netns(5, 6) }]
    );
    assert_eq!(say(&bytes(kind::NETNS_DYING)), [Observation::NetnsDying { netns: netns(5, 6) }]);
    assert_eq!(say(&bytes(kind::NETNS_GONE)), [Observation::NetnsGone { netns: netns(5, 6) }]);
}

#[test]
fn a_kernel_without_cookies_names_a_netns_by_its_inode() {
    let record = Netns { cookie: 0, inode: 6, refs: MISSING };
    assert_eq!(netns_ref(&record), NetnsRef::inode(6));
}

#[test]
fn a_fork_names_the_task_its_parent_and_its_start_in_ticks() {
    let what = say(&task_bytes(kind::TASK_FORK, 7, 0, 0, b"sh\xff"));
    let [Observation::Task(task)] = what.as_slice() else { panic!("{what:?}") };
    assert_eq!(task.key, key(7));
    assert_eq!(task.netns, netns(5, 6));
    assert_eq!(task.comm, "sh\u{fffd}");
    assert_eq!(task.parent, Some(3));
    assert!(!task.exiting && !task.killed);
    assert_eq!(task.state, None, "an event does not tell");
}

/// A pid of 0: the task has no number in our pid namespace.
#[test]
fn a_task_that_is_not_shown_is_none() {
    assert_eq!(say(&task_bytes(kind::TASK_FORK, 0, 0, 0, b"sh")), []);
    assert_eq!(say(&task_bytes(kind::TASK_RELEASE, 0, 0, 0, b"sh")), []);
}

#[test]
fn a_release_and_a_free_both_release() {
    for kind in [kind::TASK_RELEASE, kind::TASK_FREE] {
        let what = say(&task_bytes(kind, 8, PF_EXITING, 0, b"java"));
        assert_eq!(what, [Observation::TaskReleased { task: key(8) }]);
    }
}

#[test]
fn a_peer_is_kept_apart_from_the_address_that_is_held() {
    let address = |peer| {
        let bytes = AddressBytes {
            kind: kind::IPV4_UP,
            family: AF_INET,
            local: v4([10, 0, 0, 1]),
            peer: v4(peer),
        };
        let Observation::Address { address, .. } = bytes.say() else { panic!() };
        address
    };
    // Without a peer, ifa_address is the address itself.
    assert_eq!(address([10, 0, 0, 1]).key.peer, None);
    let address = address([10, 0, 0, 9]);
    assert_eq!(address.key.local.to_string(), "10.0.0.1");
    assert_eq!(address.key.peer.unwrap().to_string(), "10.0.0.9");
    assert_eq!((address.key.ifindex, address.key.prefix_len), (4, 24));
    assert_eq!((address.scope, address.flags), (Some(0), Some(0x80)));
}

#[test]
fn an_address_goes_by_the_key_it_came_by() {
    let mut bytes = AddressBytes {
        kind: kind::IPV6_READY,
        family: AF_INET6,
        local: "fe80::5".parse::<Ipv6Addr>().unwrap().octets(),
        peer: [0; 16],
    };
    let Observation::Address { address, .. } = bytes.say() else { panic!() };
    assert_eq!(address.scope, Some(253));
    for kind in [kind::IPV6_DOWN, kind::IPV6_REMOVED] {
        bytes.kind = kind;
        assert_eq!(bytes.say(), Observation::AddressGone { netns: netns(5, 6), key: address.key });
    }
}

#[test]
fn a_dad_failure_names_who_answered() {
    let bytes = AddressBytes {
        kind: kind::DAD_FAILED,
        family: AF_INET6,
        local: "fd00::1".parse::<Ipv6Addr>().unwrap().octets(),
        peer: [0; 16],
    };
    let offender = Some(Mac([2, 0, 0, 0, 0, 9]));
    let ip = "fd00::1".parse().unwrap();
    assert_eq!(
        bytes.say(),
        Observation::DadFailed { netns: netns(5, 6), ifindex: 4, ip, offender }
    );
}

#[test]
fn a_moved_device_leaves_the_netns_it_was_in() {
    let indices = [9u32.to_ne_bytes(), 4u32.to_ne_bytes()].concat();
    let bytes = record(kind::DEVICE_MOVED, &[&netns_bytes(1, 2), &netns_bytes(5, 6), &indices]);
    assert_eq!(say(&bytes), [Observation::LinkGone { netns: netns(1, 2), ifindex: 9 }]);
}

#[test]
fn a_device_that_is_moved_to_where_it_is_leaves_nothing() {
    let indices = [9u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat();
    let bytes = record(kind::DEVICE_MOVED, &[&netns_bytes(1, 2), &netns_bytes(1, 2), &indices]);
    assert_eq!(say(&bytes), []);
}

const REACHABLE: u8 = 0x02;
const STALE: u8 = 0x04;
const FAILED: u8 = 0x20;
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn neighbour(old: u8, new: u8, flags: u32, claim: Option<[u8; 6]>) -> Neighbour {
    let bytes = record(
        kind::NEIGHBOUR,
        &[
            &netns_bytes(5, 6),
            &v4([10, 0, 0, 7]),
            &4u32.to_ne_bytes(),
            &flags.to_ne_bytes(),
            &[AF_INET, old, new, u8::from(claim.is_some())],
            &OURS,
            &claim.unwrap_or_default(),
        ],
    );
    let Observation::Neighbour { neighbour, .. } = say(&bytes).remove(0) else { panic!() };
    neighbour
}

#[test]
fn a_claim_that_does_not_override_loses_and_is_told() {
    let lost = neighbour(REACHABLE, REACHABLE, 0, Some(THEIRS));
    assert_eq!((lost.mac, lost.claimed), (Some(Mac(OURS)), Some(Mac(THEIRS))));
    assert_eq!(lost.state, u16::from(REACHABLE), "the entry stays as it is");
    let fixed = neighbour(NUD_PERMANENT, REACHABLE, NEIGH_UPDATE_F_OVERRIDE, Some(THEIRS));
    assert_eq!(fixed.claimed, Some(Mac(THEIRS)), "a permanent entry yields to no packet");
}

#[test]
fn an_update_that_wins_changes_the_entry() {
    let won = neighbour(STALE, REACHABLE, NEIGH_UPDATE_F_OVERRIDE, Some(THEIRS));
    assert_eq!((won.mac, won.claimed), (Some(Mac(THEIRS)), None));
    let new = neighbour(0, REACHABLE, 0, Some(THEIRS));
    assert_eq!((new.mac, new.claimed), (Some(Mac(THEIRS)), None), "there was nothing to defend");
    let failed = neighbour(REACHABLE, FAILED, NEIGH_UPDATE_F_OVERRIDE, None);
    assert_eq!((failed.mac, failed.state), (None, u16::from(FAILED)));
}

#[test]
fn a_hand_is_told_from_a_packet_on_old_and_new_kernels() {
    for admin in [0x80, 0x8000_0000] {
        let flags = admin | NEIGH_UPDATE_F_OVERRIDE;
        let set = neighbour(NUD_PERMANENT, NUD_PERMANENT, flags, Some(THEIRS));
        assert!(set.admin);
        assert_eq!((set.mac, set.claimed), (Some(Mac(THEIRS)), None));
    }
    assert!(!neighbour(STALE, FAILED, 0x01, None).admin);
}

/// A claim of 10.0.0.7 on device 4: the origin of its fact, and its kind.
fn claim(kind: u16, operation: u8, announces: u8) -> (Origin, ClaimKind) {
    let ip = [10, 0, 0, 7];
    let bytes = record(
        kind,
        &[&netns_bytes(5, 6), &4u32.to_ne_bytes(), &ip, &THEIRS, &[operation, announces]],
    );
    let mut facts = Vec::new();
    assert_eq!(decode(&bytes, &mut facts), Ok(kind));
    let Observation::Claimed { netns: place, claim } = &facts[0].what else { panic!() };
    assert_eq!(*place, netns(5, 6));
    assert_eq!((claim.ifindex, claim.ip), (4, Ipv4Addr::from(ip).into()));
    assert_eq!(claim.mac, Mac(THEIRS));
    (facts[0].origin, claim.kind)
}

#[test]
fn a_claim_says_what_packet_it_was_and_who_heard_it() {
    assert_eq!(claim(kind::CLAIM, 1, 0), (Origin::Probe, ClaimKind::Request));
    assert_eq!(claim(kind::CLAIM, 2, 0), (Origin::Probe, ClaimKind::Reply));
    assert_eq!(claim(kind::CLAIM_ON_WIRE, 2, 0), (Origin::Wire, ClaimKind::Reply));
    for operation in [1, 2] {
        let told = claim(kind::CLAIM_ON_WIRE, operation, 1);
        assert_eq!(told, (Origin::Wire, ClaimKind::Announcement));
    }
}

#[test]
fn states_read_as_procfs_shows_them() {
    for (state, exit_state, letter) in [
        (0x0, 0x0, 'R'),
        (0x1, 0x0, 'S'),
        (0x2001, 0x0, 'S'),
        (0x2, 0x0, 'D'),
        (0x102, 0x0, 'D'),
        (0x402, 0x0, 'I'),
        (0x8000, 0x0, 'D'),
        (0x104, 0x0, 'T'),
        (0x8, 0x0, 't'),
        (0x0, 0x10, 'X'),
        (0x0, 0x20, 'Z'),
        (0x40, 0x0, 'P'),
    ] {
        assert_eq!(state_letter(state, exit_state), letter, "{state:#x} {exit_state:#x}");
    }
}

#[test]
fn garbage_is_refused_and_says_nothing() {
    let good = record(kind::NETNS_GONE, &[&netns_bytes(5, 6)]);
    let mut facts = Vec::new();
    for end in 0..good.len() {
        assert!(decode(&good[..end], &mut facts).is_err(), "{end}");
    }
    let mut long = good.clone();
    long.extend([0; 8]);
    assert!(decode(&long, &mut facts).is_err());
    let longer = record(kind::NETNS_GONE, &[&netns_bytes(5, 6), &[0; 8]]);
    assert!(decode(&longer, &mut facts).is_err(), "even where its header agrees");
    let unknown = record(kind::TASK_SEEN, &[&netns_bytes(5, 6)]);
    assert!(decode(&unknown, &mut facts).is_err(), "iterators do not write to the ring");
    let family = AddressBytes { kind: kind::IPV4_UP, family: 99, local: [0; 16], peer: [0; 16] };
    let bytes = record(
        family.kind,
        &[
            &netns_bytes(5, 6),
            &family.local,
            &family.peer,
            &[0; 8],
            &[family.family, 0, 0, 0],
            &[0; 12],
        ],
    );
    assert!(decode(&bytes, &mut facts).is_err());
    assert!(facts.is_empty());
}
