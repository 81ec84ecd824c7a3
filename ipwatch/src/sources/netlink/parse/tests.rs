use proptest::prelude::*;

use super::link::{IFLA_PARENT_DEV_BUS_NAME, IFLA_PARENT_DEV_NAME};
use super::*;
use crate::fact::Parent;

const NETNS: NetnsRef = NetnsRef { cookie: None, inode: None, nsid: Some(3) };

/// `struct ifinfomsg` of device 7, up, of this family.
fn ifinfo(family: u8) -> Vec<u8> {
    let mut bytes = vec![family, 0, 1, 0];
    bytes.extend(7_i32.to_ne_bytes());
    bytes.extend(1_u32.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    bytes
}

/// All observations from a message.
fn all(kind: u16, payload: &[u8]) -> Result<Vec<Observation>, DecodeError> {
    let mut told = Vec::new();
    tell(kind, payload, NETNS, &mut |what| told.push(what))?;
    Ok(told)
}

/// The only observation from a message, if any.
fn what(kind: u16, payload: &[u8], netns: NetnsRef) -> Result<Option<Observation>, DecodeError> {
    assert_eq!(netns, NETNS);
    let mut told = all(kind, payload)?;
    assert!(told.len() < 2, "{told:?}");
    Ok(told.pop())
}

fn with(mut message: Vec<u8>, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    for (kind, value) in attributes {
        message.extend((value.len() as u16 + 4).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(*value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    message
}

fn framed(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32 + 16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes.extend(payload);
    bytes
}

#[test]
fn a_link_with_a_name_that_is_no_text_is_still_a_link() {
    let name = (libc::IFLA_IFNAME, &b"eth\xff\x1b[2J\0"[..]);
    // An attribute that is too short for its kind (an MTU of one byte).
    let broken = (libc::IFLA_MTU, &b"\x01"[..]);
    let mac = (libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9][..]);
    let message = with(ifinfo(0), &[broken, name, mac]);
    let Ok(Some(Observation::Link { netns, link })) = what(libc::RTM_NEWLINK, &message, NETNS)
    else {
        panic!("no link")
    };
    assert_eq!((netns, link.ifindex, link.up), (NETNS, 7, true));
    assert_eq!(link.name, "eth\u{fffd}\u{1b}[2J");
    assert_eq!(link.mac, Some(Mac([2, 0, 0, 0, 0, 9])));
}

#[test]
fn the_hardware_behind_a_link_is_known_by_bus_and_address() {
    let name = (libc::IFLA_IFNAME, &b"eth1\0"[..]);
    let bus = (IFLA_PARENT_DEV_BUS_NAME, &b"pci\0"[..]);
    let address = (IFLA_PARENT_DEV_NAME, &b"0000:00:05.0\0"[..]);
    let parent = |attributes: &[(u16, &[u8])]| {
        let message = with(ifinfo(0), attributes);
        match what(libc::RTM_NEWLINK, &message, NETNS) {
            Ok(Some(Observation::Link { link, .. })) => link.parent,
            other => panic!("{other:?}"),
        }
    };
    let known = Parent { bus: "pci".into(), address: "0000:00:05.0".into(), driver: None };
    assert_eq!(parent(&[name, address, bus]), Some(known));
    assert_eq!(parent(&[name, address]), None);
    assert_eq!(parent(&[name]), None);
}

#[test]
fn what_borrows_a_link_message_is_no_link() {
    let name = (libc::IFLA_IFNAME, &b"v0\0"[..]);
    let bridge = with(ifinfo(libc::AF_BRIDGE as u8), &[name]);
    let wireless = with(ifinfo(0), &[name, (libc::IFLA_WIRELESS, &[0; 8])]);
    for message in [&bridge, &wireless] {
        assert_eq!(what(libc::RTM_NEWLINK, message, NETNS).unwrap(), None);
    }
    let left = what(libc::RTM_DELLINK, &bridge, NETNS).unwrap();
    assert_eq!(left, Some(Observation::Vlans { netns: NETNS, ifindex: 7, vlans: Vec::new() }));
    let gone = what(libc::RTM_DELLINK, &ifinfo(0), NETNS).unwrap();
    assert_eq!(gone, Some(Observation::LinkGone { netns: NETNS, ifindex: 7 }));
    assert!(what(libc::RTM_NEWLINK, &ifinfo(0), NETNS).is_err(), "a link without a name");
}

#[test]
fn the_address_held_is_the_local_one() {
    let mut header = vec![libc::AF_INET as u8, 32, 0x80, 0];
    header.extend(7_u32.to_ne_bytes());
    let far = (libc::IFA_ADDRESS, &[198, 51, 100, 1][..]);
    let near = (libc::IFA_LOCAL, &[192, 0, 2, 7][..]);
    let flags = 0x8_0080_u32.to_ne_bytes();
    let message = with(header.clone(), &[far, near, (IFA_FLAGS, &flags)]);
    let Ok(Some(Observation::Address { address, .. })) = what(libc::RTM_NEWADDR, &message, NETNS)
    else {
        panic!("no address")
    };
    assert_eq!(address.key.local.to_string(), "192.0.2.7");
    assert_eq!(address.key.peer, Some("198.51.100.1".parse().unwrap()));
    assert_eq!((address.flags, address.scope), (Some(0x8_0080), Some(0)));

    let same = with(header.clone(), &[(libc::IFA_ADDRESS, &[192, 0, 2, 7]), near]);
    let Ok(Some(Observation::AddressGone { key, .. })) = what(libc::RTM_DELADDR, &same, NETNS)
    else {
        panic!("no address")
    };
    assert_eq!(key.peer, None);
    assert!(what(libc::RTM_NEWADDR, &header, NETNS).is_err());
}

#[test]
fn neighbours_of_other_families_and_of_multicast_are_passed_over() {
    let header = |family: libc::c_int| {
        let mut bytes = vec![family as u8, 0, 0, 0];
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend([0x20, 0, 0, 1]);
        bytes
    };
    let at = |family, ip: &[u8]| with(header(family), &[(libc::NDA_DST, ip)]);
    let failed = what(libc::RTM_NEWNEIGH, &at(libc::AF_INET, &[192, 0, 2, 9]), NETNS).unwrap();
    assert!(
        matches!(failed, Some(Observation::Neighbour { neighbour, .. }) if neighbour.state == 0x20)
    );
    let multicast = at(libc::AF_INET, &[224, 0, 0, 1]);
    assert_eq!(what(libc::RTM_NEWNEIGH, &multicast, NETNS).unwrap(), None);
    assert_eq!(what(libc::RTM_NEWNEIGH, &header(libc::AF_BRIDGE), NETNS).unwrap(), None);
}

#[test]
fn an_nsid_of_minus_one_is_none() {
    let message = |id: i32| with(vec![0; 4], &[(NETNSA_NSID, &id.to_ne_bytes())]);
    assert_eq!(nsid(&message(4)).unwrap(), Some(4));
    assert_eq!(nsid(&message(-1)).unwrap(), None);
}

#[test]
fn a_datagram_holds_several_messages_and_ends_at_nonsense() {
    let mut datagram = framed(libc::RTM_DELLINK, &ifinfo(0));
    datagram.extend(framed(libc::RTM_NEWNSID, &[0; 5])); // padded to a multiple of four
    datagram.resize(datagram.len().next_multiple_of(4), 0);
    datagram.extend(framed(libc::RTM_DELNSID, &[]));
    datagram.extend([1, 2, 3]);
    let kinds: Vec<_> =
        messages(&datagram).map(|message| message.map(|m| m.kind).map_err(drop)).collect();
    let all = [libc::RTM_DELLINK, libc::RTM_NEWNSID, libc::RTM_DELNSID];
    assert_eq!(kinds, [Ok(all[0]), Ok(all[1]), Ok(all[2]), Err(())]);
}

mod real;

proptest! {
    #[test]
    fn no_bytes_make_it_panic_or_run_for_ever(
        bytes in proptest::collection::vec(any::<u8>(), 0..256),
        kind in 14_u16..32,
    ) {
        let _ = all(kind, &bytes);
        let _ = nsid(&bytes);
        prop_assert!(messages(&bytes).count() <= 17);
        for message in messages(&framed(kind, &bytes)).flatten() {
            let _ = all(message.kind, message.payload);
        }
    }
}
