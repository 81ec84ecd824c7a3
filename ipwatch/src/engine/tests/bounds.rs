//! What strangers cause is bounded, and costs nobody else a finding or a tenure.

use super::*;

const USERS: NetnsRef = NetnsRef { cookie: Some(9_000), inode: Some(9_000), nsid: None };

/// The address that is the nth of a user's netns.
fn address_of_user(n: u32) -> AddressKey {
    let local = Ipv4Addr::from_bits(0xc000_0200 + n).into();
    AddressKey { ifindex: 2, local, prefix_len: 24, peer: None }
}

/// A netns in a user namespace, with an address.
fn of_a_user() -> Vec<Fact> {
    let address = Address { key: address_of_user(1), scope: Some(0), flags: Some(0) };
    let all = [
        Observation::Netns { netns: USERS },
        Observation::NetnsUser { netns: USERS, uid: 1_000, nested: true },
        Observation::Address { netns: USERS, address },
        ended(Scope::Addresses { netns: USERS }, 3),
    ];
    all.into_iter().map(|what| fact(3, what)).collect()
}

/// A user who adds and removes addresses without end costs no other tenure its end.
#[test]
fn tenures_of_one_user_do_not_crowd_out_the_end_of_a_pods() {
    let mut run = Run::whole();
    run.step(3, &of_a_user());
    let mut facts = Vec::new();
    for n in 0..33_000 {
        let at = |after| BootNs(1_000 * MS + 2 * n + after);
        let key = address_of_user(2);
        let address = Address { key, scope: Some(0), flags: Some(0) };
        let [came, gone] = [
            Observation::Address { netns: USERS, address },
            Observation::AddressGone { netns: USERS, key },
        ];
        let told = |after, what| Fact { at: at(after), origin: Origin::Probe, what };
        facts.extend([told(0, came), told(1, gone)]);
    }
    facts.push(fact(2_000, Observation::NetnsGone { netns: POD }));
    let effects = run.step(2_000, &facts);
    let ended = effects.tenures.iter().any(|change| {
        let pods = Ipv4Addr::new(10, 0, 0, 5);
        matches!(change, TenureChange::Released(row) if row.tenure().ip == pods
            && row.tenure().ended_by.as_deref() == Some("netns-gone"))
    });
    assert!(ended, "the pod's end is told");
    assert!(run.0.ledger().forgotten() > 0, "what is not told is counted");
}
