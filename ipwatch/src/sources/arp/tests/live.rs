//! Tests the socket on the running kernel: frames are sent into one end of a veth and received on the other, both in a
//! netns of the test's own. Needs root.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use tokio::sync::mpsc;

use super::super::*;
use crate::fact::{Claim, ClaimKind, Fact, Mac, Observation, Origin};
use crate::reading::Readings;
use crate::sources::Emit;
use crate::sources::netlink::testing::{in_new_netns, root, run};
use crate::sources::probes::{Probes, Settings};

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const C: [u8; 6] = [2, 0, 0, 0, 0, 0xc];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
/// The IP that is requested, or the target of a reply.
const TARGET: [u8; 4] = [10, 0, 0, 1];
/// Each test ends with a claim of this IP: everything before it has then been reported.
const LAST: [u8; 4] = [10, 9, 9, 9];

/// A broadcast frame with this ARP packet.
fn frame(operation: u8, mac: [u8; 6], ip: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &mac, &[8, 6]].concat();
    frame.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(mac.iter().chain(&ip).chain(&[0; 6]).chain(&target));
    frame
}

/// The same frame with a VLAN tag.
fn tagged(frame: &[u8], vlan: u8) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, vlan], &frame[12..]].concat()
}

/// A netns with both ends of a veth, and probes for which it is the host's netns.
struct Link {
    probes: Probes,
    out: OwnedFd,
    /// The end into which frames are sent.
    from: u32,
    /// The end that receives them.
    to: u32,
}

impl Link {
    fn new() -> Self {
        run(Command::new("ip").args("link add in0 type veth peer name out0".split(' ')));
        for end in ["in0", "out0"] {
            // Prevents other traffic: the kernel would announce an IPv6 address.
            run(Command::new("ip").args(["link", "set", end, "addrgenmode", "none", "up"]));
        }
        // SAFETY: a name that ends in NUL.
        let index = |name: &std::ffi::CStr| unsafe { libc::if_nametoindex(name.as_ptr()) };
        // Rungs that observe every netns would also report other tests.
        let forbid = vec![Rung::Fentry, Rung::Kprobe];
        let probes = Probes::load(&Settings { forbid, ..Settings::default() }).unwrap();
        assert_eq!((probes.hears_arp(), probes.listens_for_arp()), (Some(Rung::Socket), true));
        Self { probes, out: socket().unwrap(), from: index(c"in0"), to: index(c"out0") }
    }

    /// Sends a frame, valid or not.
    fn send(&self, frame: &[u8]) {
        // SAFETY: a struct of integers, for which all 0 is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = u16::from_ne_bytes([frame[12], frame[13]]);
        address.sll_ifindex = self.from as i32;
        address.sll_halen = 6;
        address.sll_addr[..6].copy_from_slice(&frame[..6]);
        let body = &frame[14..];
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: both live for the whole call, and have the lengths that are passed.
        let sent = unsafe {
            let to = (&raw const address).cast();
            libc::sendto(self.out.as_raw_fd(), body.as_ptr().cast(), body.len(), 0, to, size)
        };
        assert_eq!(sent, body.len() as isize, "{}", io::Error::last_os_error());
    }

    /// Sends the frames and returns the reported claims.
    fn claims(&mut self, frames: &[Vec<u8>]) -> Vec<Claim> {
        frames.iter().for_each(|frame| self.send(frame));
        self.send(&frame(REQUEST, C, LAST, TARGET));
        let host = self.probes.host();
        let (emit, mut facts) = Emit::channel(64);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let reader = tokio::spawn(self.probes.events().unwrap().run(emit, Readings::default()));
            let mut told = Vec::new();
            let all = async {
                loop {
                    for fact in facts.recv().await.unwrap() {
                        let Fact { origin, what: Observation::Claimed { netns, claim }, .. } = fact
                        else {
                            continue;
                        };
                        assert_eq!((origin, netns), (Origin::Wire, host));
                        assert_eq!(claim.ifindex, self.to);
                        if claim.ip == IpAddr::from(LAST) {
                            return;
                        }
                        told.push(claim);
                    }
                }
            };
            let all = tokio::time::timeout(Duration::from_secs(30), all).await;
            assert!(all.is_ok(), "the last claim is not told, but {told:?}");
            reader.abort();
            told
        })
    }
}

/// Runs a test while the probes of a link are read, and passes it the received facts. Needs root.
fn hearing(test: impl AsyncFnOnce(&Link, &mut mpsc::Receiver<Vec<Fact>>) + Send + 'static) {
    if !root() {
        return;
    }
    in_new_netns(move || {
        let mut link = Link::new();
        let (emit, mut facts) = Emit::channel(64);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let reader = tokio::spawn(link.probes.events().unwrap().run(emit, Readings::default()));
            test(&link, &mut facts).await;
            reader.abort();
        });
    });
}

/// Number of bytes queued on the sockets that receive ARP.
fn queued() -> Vec<String> {
    let path = std::path::Path::new("/proc/thread-self/net/packet");
    let text = crate::bounded::read_text(path, 1 << 16).unwrap();
    // sk RefCnt Type Proto Iface R Rmem User Inode (`packet_seq_show`).
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    lines.filter(|words| words[3] == "0806").map(|words| words[6].to_owned()).collect()
}

/// The claims reported when these frames are sent.
fn told(frames: Vec<Vec<u8>>) -> Option<Vec<(IpAddr, Mac, ClaimKind)>> {
    root().then(|| {
        in_new_netns(move || {
            let mut link = Link::new();
            let claims = link.claims(&frames);
            assert_eq!(queued(), ["0"]);
            claims.into_iter().map(|claim| (claim.ip, claim.mac, claim.kind)).collect()
        })
    })
}

const IP: [u8; 4] = [10, 0, 0, 7];

#[test]
fn a_claim_is_told_once_and_another_mac_is_told_too() {
    let mut frames = vec![frame(REQUEST, A, IP, TARGET); 1000];
    frames.extend(vec![frame(REPLY, B, IP, TARGET); 1000]);
    let Some(told) = told(frames) else { return };
    let of = |mac, kind| (IpAddr::from(IP), Mac(mac), kind);
    assert_eq!(told, [of(A, ClaimKind::Request), of(B, ClaimKind::Reply)]);
}

#[test]
fn a_quarrel_is_told_turn_by_turn_but_not_for_ever() {
    let turn = [frame(REPLY, A, IP, TARGET), frame(REPLY, B, IP, TARGET)];
    let mut frames: Vec<_> = turn.iter().cycle().take(500).cloned().collect();
    frames.push(frame(REPLY, C, IP, TARGET));
    let Some(told) = told(frames) else { return };
    let macs: Vec<[u8; 6]> = told.iter().map(|(_, Mac(mac), _)| *mac).collect();
    assert!(macs.starts_with(&[A, B, A, B]), "{macs:?}");
    assert!(macs.len() < 30, "{macs:?}");
    assert_eq!(macs.last(), Some(&C), "a third one is news");
}

#[test]
fn while_two_go_on_each_is_told_again() {
    hearing(async |link, facts| {
        let mut claims = [0; 2];
        link.send(&frame(REPLY, A, IP, TARGET));
        let again = async {
            // The first holder stops claiming, the second continues.
            while claims[1] < 3 {
                link.send(&frame(REPLY, B, IP, TARGET));
                let pause = Duration::from_millis(200);
                let Ok(batch) = tokio::time::timeout(pause, facts.recv()).await else {
                    continue;
                };
                for fact in batch.unwrap() {
                    if let Observation::Claimed { claim, .. } = fact.what {
                        claims[usize::from(claim.mac == Mac(B))] += 1;
                    }
                }
            }
        };
        let again = tokio::time::timeout(Duration::from_secs(60), again).await;
        assert!(again.is_ok(), "{claims:?}");
        assert_eq!(claims[0], 1);
    });
}

#[test]
fn what_announces_an_ip_says_so() {
    let other = [10, 0, 0, 8];
    let frames = vec![frame(REQUEST, A, IP, IP), frame(REPLY, B, other, other)];
    let Some(told) = told(frames) else { return };
    let of = |ip, mac| (IpAddr::from(ip), Mac(mac), ClaimKind::Announcement);
    assert_eq!(told, [of(IP, A), of(other, B)]);
}

#[test]
fn what_claims_nothing_tells_nothing() {
    let good = frame(REQUEST, A, IP, TARGET);
    let with = |at: usize, byte| {
        let mut frame = good.clone();
        frame[14 + at] = byte;
        frame
    };
    let mut frames = vec![
        // An ARP probe (RFC 5227).
        frame(REQUEST, A, [0; 4], TARGET),
        frame(REPLY, A, [255; 4], TARGET),
        frame(REPLY, A, [224, 0, 0, 1], TARGET),
        frame(REPLY, A, [127, 0, 0, 1], TARGET),
        frame(REPLY, [0; 6], IP, TARGET),
        frame(REPLY, [0xff; 6], IP, TARGET),
        // Of a VLAN that is not this device's.
        tagged(&good, 9),
        // Other hardware type, protocol, lengths, operations.
        with(1, 6),
        with(3, 6),
        with(4, 20),
        with(5, 16),
        with(6, 1),
        with(7, 3),
        with(7, 0),
    ];
    // Truncated at every length.
    frames.extend((14..good.len()).map(|end| good[..end].to_vec()));
    let Some(told) = told(frames) else { return };
    assert_eq!(told, []);
}

#[test]
fn a_packet_with_more_behind_it_is_read_like_any() {
    let long = [frame(REQUEST, A, IP, TARGET), vec![0xa5; 1400]].concat();
    let priority = tagged(&frame(REQUEST, B, IP, TARGET), 0);
    let Some(told) = told(vec![long, priority]) else { return };
    let of = |mac| (IpAddr::from(IP), Mac(mac), ClaimKind::Request);
    assert_eq!(told, [of(A), of(B)], "tag 0 is no VLAN");
}

/// More claims than may be reported, and more than are remembered: each is reported or counted.
#[test]
fn nothing_of_a_flood_is_lost_without_being_counted() {
    const FRAMES: u32 = 20_000;
    hearing(async |link, facts| {
        for n in 0..FRAMES {
            let [_, x, y, z] = n.to_be_bytes();
            link.send(&frame(REPLY, A, [10, x, y, z], TARGET));
        }
        let lost = || {
            let report = link.probes.report();
            let probe = report.into_iter().find(|probe| probe.event == "arp-claim");
            probe.unwrap().lost.unwrap_or_default()
        };
        let mut told = BTreeSet::new();
        let all = async {
            while told.len() as u64 + lost() < u64::from(FRAMES) {
                let pause = Duration::from_millis(200);
                let batch = tokio::time::timeout(pause, facts.recv()).await;
                let facts = batch.into_iter().flatten().flatten();
                told.extend(facts.filter_map(|fact| match fact.what {
                    Observation::Claimed { claim, .. } => Some(claim.ip),
                    _ => None,
                }));
            }
        };
        let all = tokio::time::timeout(Duration::from_secs(60), all).await;
        let (told, lost) = (told.len() as u64, lost());
        assert!(all.is_ok(), "{told} told, {lost} counted");
        assert_eq!(told + lost, u64::from(FRAMES), "{told} told, {lost} counted");
        assert!(told > 0 && lost > 0, "{told} told, {lost} counted");
    });
}
