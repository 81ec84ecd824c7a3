//! Finds out who answers whom on a link: sends probes of RFC 5227 on packet sockets, and collects the answers.
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
    mac: [u8; 6],
}

impl Prober {
    /// A socket on a device of a netns. It keeps the netns alive: must be dropped before the netns is to end.
    #[must_use]
    pub fn new(netns: &Netns, device: &str) -> Self {
        netns.run(|| {
            let told = crate::netns::ip(&format!("-j link show dev {device}"));
            let told: serde_json::Value = serde_json::from_str(&told).expect("ip -j prints JSON");
            let text = told[0]["address"].as_str().expect("a device with a MAC");
            let mut mac = [0; 6];
            for (byte, part) in mac.iter_mut().zip(text.split(':')) {
                *byte = u8::from_str_radix(part, 16).expect("a MAC");
            }
            let index = told[0]["ifindex"].as_i64().expect("a device with an index");
            Self { socket: open(index as libc::c_int).expect("a packet socket"), mac }
        })
    }

    /// Sends a probe for an IP. On a device that is down sending fails, and nobody is asked.
    pub fn ask(&self, ip: Ipv4Addr) {
        let mut frame = Vec::with_capacity(42);
        frame.extend([0xff; 6]);
        frame.extend(self.mac);
        frame.extend(ARP.to_be_bytes());
        // Ethernet, IPv4, lengths, request.
        frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend(self.mac);
        frame.extend([0; 4]);
        frame.extend([0; 6]);
        frame.extend(ip.octets());
        // SAFETY: the frame lives until the call returns, and is as long as is said.
        let _ = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT,
            )
        };
    }

    /// The IPs whose answers to this device have arrived.
    pub fn answers(&self) -> BTreeSet<Ipv4Addr> {
        let mut from = BTreeSet::new();
        while let Some((frame, tagged)) = receive(&self.socket) {
            let reply =
                frame.len() >= 42 && frame[12..14] == ARP.to_be_bytes() && frame[20..22] == [0, 2];
            if reply && !tagged && frame[..6] == self.mac && frame[32..38] == self.mac {
                from.insert(Ipv4Addr::new(frame[28], frame[29], frame[30], frame[31]));
            }
        }
        from
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
