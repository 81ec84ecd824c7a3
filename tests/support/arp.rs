//! Finds out who answers whom on a link: sends probes of RFC 5227 on packet sockets, and collects the answers. An
//! [`Answerer`] answers for machines elsewhere on the LAN.
//!
//! The sender IP of a probe is 0.0.0.0, so that the answer does not depend on routing tables; with `arp_ignore` 1 a
//! netns answers only for the device that received the probe.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::{Netns, patience};

/// `ETH_P_ARP`.
const ARP: u16 = 0x0806;
/// `PACKET_AUXDATA` and `TP_STATUS_VLAN_VALID`: a tagged frame belongs to a VLAN, not to the device.
const AUXDATA: libc::c_int = 8;
const TAGGED: u32 = 0x10;

/// A device with an IP, and a packet socket on it.
#[derive(Debug)]
pub struct Prober {
    socket: OwnedFd,
    mac: Mac,
}

impl Prober {
    /// A socket on a device of a netns. It keeps the netns alive: must be dropped before the netns is to end.
    #[must_use]
    pub fn new(netns: &Netns, device: &str) -> Self {
        netns.run(|| {
            let told = crate::netns::ip(&format!("-j link show dev {device}"));
            let told: serde_json::Value = serde_json::from_str(&told).expect("ip -j prints JSON");
            let mac = mac(told[0]["address"].as_str().expect("a device with a MAC"));
            let index = told[0]["ifindex"].as_i64().expect("a device with an index");
            Self { socket: open(index as libc::c_int).expect("a packet socket"), mac }
        })
    }

    /// Sends a probe for an IP. On a device that is down sending fails, and nobody is asked.
    pub fn ask(&self, ip: Ipv4Addr) {
        let (sender, target) = ((self.mac, [0; 4]), ([0; 6], ip.octets()));
        send(&self.socket, &frame([0xff; 6], REQUEST, sender, target));
    }

    /// The IPs whose answers to this device have arrived.
    pub fn answers(&self) -> BTreeSet<Ipv4Addr> {
        let mut from = BTreeSet::new();
        while let Some((frame, tagged)) = receive(&self.socket) {
            let reply = is_arp(&frame, REPLY);
            if reply && !tagged && frame[..6] == self.mac && frame[32..38] == self.mac {
                from.insert(Ipv4Addr::new(frame[28], frame[29], frame[30], frame[31]));
            }
        }
        from
    }
}

/// Answers requests on a link for IPs that no netns of this machine has, each time with the next of some MACs: for
/// machines elsewhere on the LAN.
#[derive(Debug)]
pub struct Answerer {
    prober: Prober,
    claims: Vec<(Ipv4Addr, Vec<Mac>)>,
    asked: usize,
}

impl Answerer {
    /// On a device of a netns, for these IPs, each with its MACs.
    #[must_use]
    pub fn new(netns: &Netns, device: &str, claims: &[(Ipv4Addr, &[&str])]) -> Self {
        let macs = |texts: &[&str]| texts.iter().map(|text| mac(text)).collect();
        let claims = claims.iter().map(|(ip, texts)| (*ip, macs(texts))).collect();
        Self { prober: Prober::new(netns, device), claims, asked: 0 }
    }

    /// Answers the requests that have arrived: with all MACs of an IP if `together`, else with one of them in turn.
    pub fn answer(&mut self, together: bool) {
        while let Some((asked, tagged)) = receive(&self.prober.socket) {
            if tagged || !is_arp(&asked, REQUEST) {
                continue;
            }
            let wanted: [u8; 4] = asked[38..42].try_into().expect("four bytes");
            let wanted = Ipv4Addr::from(wanted);
            let Some((_, macs)) = self.claims.iter().find(|(ip, _)| *ip == wanted) else {
                continue;
            };
            self.asked += 1;
            let one = self.asked % macs.len();
            let asker = (asked[22..28].try_into(), asked[28..32].try_into());
            let (Ok(asker_mac), Ok(asker_ip)) = asker else { continue };
            let chosen = if together { &macs[..] } else { &macs[one..=one] };
            for mac in chosen {
                let (sender, target) = ((*mac, wanted.octets()), (asker_mac, asker_ip));
                send(&self.prober.socket, &frame(asker_mac, REPLY, sender, target));
            }
        }
    }
}

/// Every prober asks for every other IP, three times, until no more answers arrive. Returns the pairs of asker and
/// answerer.
#[must_use]
pub fn all_ask_all(probers: &BTreeMap<Ipv4Addr, Prober>) -> BTreeSet<(Ipv4Addr, Ipv4Addr)> {
    let mut answered = BTreeSet::new();
    for _ in 0..3 {
        for (own, prober) in probers {
            probers.keys().filter(|ip| *ip != own).for_each(|ip| prober.ask(*ip));
        }
        let (mut last, pause) = (Instant::now(), Duration::from_millis(100) * patience());
        while last.elapsed() < pause {
            for (own, prober) in probers {
                for ip in prober.answers() {
                    if answered.insert((*own, ip)) {
                        last = Instant::now();
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    answered
}

type Mac = [u8; 6];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;

fn mac(text: &str) -> Mac {
    let mut mac = [0; 6];
    for (byte, part) in mac.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(part, 16).expect("a MAC");
    }
    mac
}

/// A frame of ARP from the sender's MAC.
fn frame(to: Mac, what: u8, sender: (Mac, [u8; 4]), target: (Mac, [u8; 4])) -> Vec<u8> {
    let mut frame = Vec::with_capacity(42);
    frame.extend(to);
    frame.extend(sender.0);
    frame.extend(ARP.to_be_bytes());
    // Ethernet, IPv4, lengths.
    frame.extend([0, 1, 8, 0, 6, 4, 0, what]);
    frame.extend(sender.0);
    frame.extend(sender.1);
    frame.extend(target.0);
    frame.extend(target.1);
    frame
}

fn is_arp(frame: &[u8], what: u8) -> bool {
    frame.len() >= 42 && frame[12..14] == ARP.to_be_bytes() && frame[20..22] == [0, what]
}

/// On a device that is down, sending fails.
fn send(socket: &OwnedFd, frame: &[u8]) {
    // SAFETY: the frame lives until the call returns, and is as long as is said.
    let _ = unsafe {
        libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_DONTWAIT)
    };
}

/// A packet socket on a device of the calling thread's netns.
fn open(index: libc::c_int) -> io::Result<OwnedFd> {
    let protocol = libc::c_int::from(ARP.to_be());
    // SAFETY: no memory of ours is passed; a descriptor that is not negative is ours alone.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: all zeroes is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ARP.to_be();
    address.sll_ifindex = index;
    let (on, size) = (1 as libc::c_int, size_of::<libc::sockaddr_ll>() as libc::socklen_t);
    // SAFETY: address and option live until the calls return, each as long as is said.
    let failed = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) != 0
            || libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                AUXDATA,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            ) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// The next queued frame, and whether it had a VLAN tag.
fn receive(socket: &OwnedFd) -> Option<(Vec<u8>, bool)> {
    let (mut frame, mut control) = (vec![0_u8; 128], [0_u64; 16]);
    let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message points to buffers that live until the end of this function.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    frame.truncate(usize::try_from(len).ok()?);
    // SAFETY: the kernel filled the control buffer; tpacket_auxdata begins with its status, a u32.
    let tagged = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        !header.is_null()
            && (*header).cmsg_level == libc::SOL_PACKET
            && (*header).cmsg_type == AUXDATA
            && libc::CMSG_DATA(header).cast::<u32>().read_unaligned() & TAGGED != 0
    };
    Some((frame, tagged))
}
