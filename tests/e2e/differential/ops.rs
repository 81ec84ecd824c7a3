//! Random changes of networks, reproducible by a seed.
//!
//! There are few names and few addresses, so that commands collide: an address that exists already, with another peer
//! or prefix, on a device that was just renamed. Many commands fail for that reason, which is intended.

use std::fmt;

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("less than an usize")
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

/// A change in one netns.
#[derive(Debug)]
pub(super) enum Step {
    /// Lines for `ip -force -batch -`.
    Ip(String),
    /// A file below `/proc/sys/net`, and its new value.
    Sysctl(String, &'static str),
}

/// Changes made at the same time: concurrent lanes, each a list of steps with the slot of its netns.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) lanes: Vec<Vec<(usize, Step)>>,
    /// Slots whose netns lose their names meanwhile.
    pub(super) ends: Vec<usize>,
}

impl Batch {
    /// Draws a batch for these netns.
    pub(super) fn draw(rng: &mut Rng, names: &[String]) -> Self {
        let lanes = (0..2)
            .map(|_| {
                let steps = 2 + rng.below(5);
                (0..steps).map(|_| (rng.below(names.len()), step(rng, names))).collect()
            })
            .collect();
        let ends = if rng.percent(30) { vec![rng.below(names.len())] } else { Vec::new() };
        Self { lanes, ends }
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (lane, steps) in self.lanes.iter().enumerate() {
            writeln!(f, "lane {lane}:")?;
            for (slot, step) in steps {
                match step {
                    Step::Ip(lines) => {
                        for line in lines.lines() {
                            writeln!(f, "  [{slot}] ip {line}")?;
                        }
                    }
                    Step::Sysctl(file, value) => writeln!(f, "  [{slot}] {file} = {value}")?,
                }
            }
        }
        writeln!(f, "netns that end meanwhile: {:?}", self.ends)
    }
}

const DEVICES: &[&str] = &[
    "lo", "eth0", "v0", "v1", "v2", "v3", "d0", "d1", "br0", "br1", "mv0", "mv1", "vrf0", "vl0",
    "iv0", "nk0", "nk1",
];

/// Sysctls of devices and netns.
const SYSCTLS: &[(&str, &[&str])] = &[
    ("ipv6/conf/DEV/disable_ipv6", &["0", "1", "0"]),
    ("ipv6/conf/all/disable_ipv6", &["0", "1", "0", "0"]),
    ("ipv6/conf/DEV/keep_addr_on_down", &["0", "1", "1"]),
    ("ipv6/conf/all/keep_addr_on_down", &["0", "1"]),
    ("ipv6/conf/DEV/use_tempaddr", &["0", "2"]),
    ("ipv4/conf/all/promote_secondaries", &["0", "1"]),
    ("ipv4/conf/DEV/promote_secondaries", &["0", "1"]),
];

fn step(rng: &mut Rng, names: &[String]) -> Step {
    if rng.percent(12) {
        let (file, values) = SYSCTLS[rng.below(SYSCTLS.len())];
        return Step::Sysctl(file.replace("DEV", rng.one(DEVICES)), rng.one(values));
    }
    let lines = 1 + rng.below(16);
    Step::Ip((0..lines).map(|_| line(rng, names) + "\n").collect())
}

fn line(rng: &mut Rng, names: &[String]) -> String {
    let device = rng.one(DEVICES);
    match rng.below(100) {
        0..35 => address4(rng, device),
        35..65 => address6(rng, device),
        65..70 => flush(rng, device),
        70..82 => new_link(rng, names),
        82..96 => set_link(rng, device, names),
        _ => format!("link del {device}"),
    }
}

fn address4(rng: &mut Rng, device: &str) -> String {
    let word = rng.one(&["add", "add", "add", "change", "replace", "del", "del"]);
    let local = 1 + rng.below(6);
    let len = rng.one(&["8", "24", "24", "25", "32", "32"]);
    let mut line = match rng.below(4) {
        0 => {
            let peer = rng.one(&["10.66.0.9", "10.66.1.1", "10.66.1.2", "10.67.0.1", "0.0.0.0"]);
            format!("addr {word} 10.66.0.{local} peer {peer}/{len} dev {device}")
        }
        _ => format!("addr {word} 10.66.0.{local}/{len} dev {device}"),
    };
    if rng.percent(15) {
        line += &format!(" label {device}:{}", rng.below(2));
    }
    if word == "del" {
        return line;
    }
    if rng.percent(15) {
        line += rng.one(&[" scope link", " scope host", " scope global"]);
    }
    if rng.percent(10) {
        line += " noprefixroute";
    }
    line + &lifetime(rng)
}

fn address6(rng: &mut Rng, device: &str) -> String {
    let word = rng.one(&["add", "add", "add", "change", "change", "replace", "del", "del"]);
    let local = 1 + rng.below(5);
    let len = rng.one(&["64", "64", "96", "128", "128"]);
    let mut line = match rng.below(3) {
        0 => {
            let peer = 1 + rng.below(3);
            format!("addr {word} fd66::{local} peer fd66::f{peer}/{len} dev {device}")
        }
        _ => format!("addr {word} fd66::{local}/{len} dev {device}"),
    };
    if word == "del" {
        return line;
    }
    if rng.percent(60) {
        line += " nodad";
    }
    if rng.percent(20) {
        line += rng.one(&[" noprefixroute", " home", " mngtmpaddr", " optimistic"]);
    }
    line + &lifetime(rng)
}

fn lifetime(rng: &mut Rng) -> String {
    let valid = match rng.below(10) {
        0 => 1 + rng.below(3),
        1 => 100,
        2 => return " valid_lft forever preferred_lft forever".to_owned(),
        _ => return String::new(),
    };
    format!(" valid_lft {valid} preferred_lft {}", rng.below(valid + 1))
}

fn flush(rng: &mut Rng, device: &str) -> String {
    let which = rng.one(&["", " scope global", " scope link", " to 10.66.0.0/30", " permanent"]);
    format!("addr flush dev {device}{which}")
}

fn new_link(rng: &mut Rng, names: &[String]) -> String {
    let (device, parent) = (rng.one(DEVICES), rng.one(DEVICES));
    match rng.below(8) {
        0 => format!("link add {} type dummy", rng.one(&["d0", "d1"])),
        1 => format!("link add {} type bridge", rng.one(&["br0", "br1"])),
        2 => format!("link add vrf0 type vrf table {}", 10 + rng.below(3)),
        3 => {
            format!("link add {} link {parent} type macvlan mode bridge", rng.one(&["mv0", "mv1"]))
        }
        4 if rng.percent(40) => "link add nk0 type netkit".to_owned(),
        4 => format!("link add vl0 link {parent} type vlan id {}", 1 + rng.below(3)),
        5 => format!("link add iv0 link {parent} type ipvlan mode l2"),
        6 => format!("link add {device} type veth peer name {}", rng.one(&["v0", "v1"])),
        _ => {
            let (other, name) = (&names[rng.below(names.len())], rng.one(&["eth0", "v2", "v3"]));
            format!("link add {device} type veth peer name {name} netns {other}")
        }
    }
}

fn set_link(rng: &mut Rng, device: &str, names: &[String]) -> String {
    let change = match rng.below(20) {
        0..7 => "up".to_owned(),
        7..10 => "down".to_owned(),
        10..13 => format!("netns {}", names[rng.below(names.len())]),
        13..15 => format!("name {}", rng.one(&DEVICES[1..])),
        15..17 => format!("master {}", rng.one(&["br0", "br1", "vrf0"])),
        17 => "nomaster".to_owned(),
        // Below 1280 a device has no IPv6.
        18 => format!("mtu {}", rng.one(&["1500", "1200", "1400"])),
        _ => format!("addrgenmode {}", rng.one(&["none", "eui64", "random"])),
    };
    format!("link set {device} {change}")
}
