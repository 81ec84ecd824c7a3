//! How devices are connected: the ends of a pair, the parent of a stacked device, the ports of a bridge. Only known
//! connections count, and only pairs on which both ends agree.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Endpoint, flood};
use crate::fact::{Link, LinkDetail, Vlans};
use crate::map::kernel::Netns;
use crate::map::{NetnsId, NodeMap, Table};

/// A device's index in [`Plan::devs`].
pub(super) type DevId = usize;

/// Maximum number of Vxlan devices with the same VNI and port that are compared with each other.
const MAX_TUNNEL_ENDS: usize = 64;
/// Maximum number of steps to find out which of them meet.
const TUNNEL_STEPS: usize = 1 << 18;
/// Maximum depth of stacked devices.
const MAX_STACK: usize = 8;

/// How a device forwards frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One end of a veth or netkit pair.
    Veth,
    /// With VLAN filtering or without, if known.
    Bridge(Option<bool>),
    Vlan(u16),
    Macvlan(Mode),
    /// `bridge`: siblings reach each other. `l2`: frames leave by the parent.
    Ipvlan {
        bridge: bool,
        l2: bool,
    },
    Vxlan,
    Bond,
    Vrf,
    Loopback,
    /// Leads nowhere that is known.
    Other,
}

/// `MACVLAN_MODE_*`, except `source`, which receives only from the MACs in its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Private,
    Vepa,
    Bridge,
    Passthru,
}

#[derive(Debug)]
pub(super) struct Dev {
    pub(super) at: Endpoint,
    pub(super) kind: Kind,
    /// Whether it is up, and so is everything that it needs below.
    pub(super) carries: bool,
    up: bool,
    /// Whether it has a master; `master` is set if the master is known.
    pub(super) enslaved: bool,
    pub(super) master: Option<DevId>,
    /// The other end of a pair, or the parent.
    pub(super) lower: Option<DevId>,
    /// Devices stacked on it.
    pub(super) uppers: Vec<DevId>,
    /// Its ports or slaves.
    pub(super) ports: Vec<DevId>,
    /// The other ends of a tunnel.
    pub(super) tunnel: Vec<DevId>,
    pub(super) isolated: bool,
    vlans: Option<Vec<Vlans>>,
    /// Representative of all devices that a frame could reach if nothing separated VLANs, ports or modes.
    island: DevId,
}

/// Every device of the node, and the connections between them.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) devs: Vec<Dev>,
    index: Table<Endpoint, DevId>,
    /// Netns with a device of the machine, or one whose other end or parent is in the host's netns.
    pub(super) leads_to_host: BTreeSet<NetnsId>,
}

impl Dev {
    /// A device that represents all devices connected to this one.
    pub(super) fn island(&self) -> DevId {
        self.island
    }

    /// The VLAN of untagged frames that come in.
    pub(super) fn pvid(&self) -> Option<u16> {
        self.vlans.as_ref()?.iter().find(|vlans| vlans.pvid).map(|vlans| vlans.first)
    }

    /// Whether this VLAN passes, and if so, whether untagged.
    pub(super) fn passes(&self, vlan: u16) -> Option<bool> {
        let mut all = self.vlans.as_ref()?.iter();
        all.find(|vlans| (vlans.first..=vlans.last).contains(&vlan)).map(|vlans| vlans.untagged)
    }
}

impl Plan {
    pub(super) fn of(map: &NodeMap) -> Self {
        let mut plan = Self::default();
        for netns in map.all_netns().filter(|netns| netns.dying.is_none()) {
            plan.add(netns);
        }
        plan.pair_up(map);
        plan.stack(map);
        plan.find_ways_to(map.host());
        for id in 0..plan.devs.len() {
            plan.devs[id].carries = plan.carrier(id, MAX_STACK);
        }
        plan.join_islands();
        plan.dig_tunnels(map);
        plan
    }

    pub(super) fn find(&self, at: Endpoint) -> Option<DevId> {
        self.index.get(&at).copied()
    }

    fn add(&mut self, netns: &Netns) {
        for entry in netns.links() {
            let link = &entry.link;
            let at = Endpoint { netns: netns.id, ifindex: link.ifindex };
            let id = self.devs.len();
            self.index.insert(at, id);
            // Only a device of the machine has no kind (`rtnl_link_ops`), and only root of the node can have moved it here.
            if link.kind.is_none() && !link.loopback {
                self.leads_to_host.insert(netns.id);
            }
            let filtered = link.master.is_some() || link.kind.as_deref() == Some("bridge");
            let vlans = netns.vlans(link.ifindex).filter(|_| filtered);
            self.devs.push(Dev {
                at,
                kind: kind(link),
                carries: false,
                up: link.up,
                enslaved: link.master.is_some(),
                master: None,
                lower: None,
                uppers: Vec::new(),
                ports: Vec::new(),
                tunnel: Vec::new(),
                isolated: link.isolated,
                vlans: vlans.map(<[Vlans]>::to_vec),
                island: id,
            });
        }
    }

    /// Connects the ends of veth pairs. An end that does not know the other's netns is connected if the other end
    /// points back to it; an end that two others point to is not connected.
    fn pair_up(&mut self, map: &NodeMap) {
        let mut pairs: Vec<(DevId, DevId)> = Vec::new();
        for (id, dev) in self.devs.iter().enumerate() {
            if dev.kind != Kind::Veth {
                continue;
            }
            let Some(other) = self.lower_of(map, id, None).filter(|other| *other != id) else {
                continue;
            };
            let back = self.link(map, other).and_then(|link| link.peer);
            let agrees = match self.lower_of(map, other, None) {
                Some(end) => end == id,
                // The end that is created first is reported before it has a peer (`veth_newlink`, 6.18).
                None if back.is_none() => true,
                None => back == Some(dev.at.ifindex) && !self.says_same_netns(map, other),
            };
            if self.devs[other].kind == Kind::Veth && agrees {
                pairs.push((id.min(other), id.max(other)));
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut claims: Table<DevId, u32> = Table::default();
        for (a, b) in &pairs {
            *claims.entry(*a).or_default() += 1;
            *claims.entry(*b).or_default() += 1;
        }
        for (a, b) in pairs {
            if claims[&a] == 1 && claims[&b] == 1 {
                self.devs[a].lower = Some(b);
                self.devs[b].lower = Some(a);
            }
        }
    }

    /// Connects masters and stacked devices. The nsids that a netns uses for others are also learned from the pairs
    /// between them.
    fn stack(&mut self, map: &NodeMap) {
        let mut learned: Table<(NetnsId, i32), NetnsId> = Table::default();
        for (id, dev) in self.devs.iter().enumerate() {
            if let (Kind::Veth, Some(end)) = (dev.kind, dev.lower)
                && let Some(nsid) = self.link(map, id).and_then(|link| link.peer_nsid)
            {
                learned.insert((dev.at.netns, nsid), self.devs[end].at.netns);
            }
        }
        for id in 0..self.devs.len() {
            let at = self.devs[id].at;
            let Some(link) = self.link(map, id) else { continue };
            let master = link.master.and_then(|ifindex| self.find(Endpoint { ifindex, ..at }));
            if let Some(master) = master {
                self.devs[id].master = Some(master);
                self.devs[master].ports.push(id);
            }
            if matches!(self.devs[id].kind, Kind::Vlan(_) | Kind::Macvlan(_) | Kind::Ipvlan { .. })
                && let Some(lower) = self.lower_of(map, id, Some(&learned))
                && lower != id
            {
                self.devs[id].lower = Some(lower);
                self.devs[lower].uppers.push(id);
            }
        }
    }

    /// Adds the netns with a device that is connected with one of the host's netns.
    fn find_ways_to(&mut self, host: Option<NetnsId>) {
        let below =
            |dev: &&Dev| dev.lower.is_some_and(|lower| Some(self.devs[lower].at.netns) == host);
        let connected: Vec<NetnsId> =
            self.devs.iter().filter(below).map(|dev| dev.at.netns).collect();
        self.leads_to_host.extend(connected);
    }

    fn link<'a>(&self, map: &'a NodeMap, id: DevId) -> Option<&'a Link> {
        let Endpoint { netns, ifindex } = self.devs[id].at;
        map.netns(netns)?.link(ifindex)
    }

    fn says_same_netns(&self, map: &NodeMap, id: DevId) -> bool {
        self.link(map, id).is_some_and(|link| link.peer_nsid.is_none())
    }

    /// The device that a link names as its peer or parent.
    fn lower_of(
        &self,
        map: &NodeMap,
        id: DevId,
        learned: Option<&Table<(NetnsId, i32), NetnsId>>,
    ) -> Option<DevId> {
        let link = self.link(map, id)?;
        let own = self.devs[id].at.netns;
        let netns = match link.peer_nsid {
            None => own,
            Some(nsid) => map
                .peer_netns(own, nsid)
                .or_else(|| learned.and_then(|learned| learned.get(&(own, nsid)).copied()))?,
        };
        self.find(Endpoint { netns, ifindex: link.peer? })
    }

    /// Whether a device is up and so is everything that it needs below (`netif_stacked_transfer_operstate`,
    /// `br_port_carrier_check`). A physical device counts as connected, because the map does not know otherwise.
    fn carrier(&self, id: DevId, depth: usize) -> bool {
        let dev = &self.devs[id];
        if !dev.up || depth == 0 {
            return false;
        }
        match dev.kind {
            Kind::Veth => dev.lower.is_some_and(|end| self.devs[end].up),
            Kind::Vlan(_) | Kind::Macvlan(_) | Kind::Ipvlan { .. } => {
                dev.lower.is_some_and(|lower| self.carrier(lower, depth - 1))
            }
            Kind::Bridge(_) | Kind::Bond => {
                dev.ports.iter().any(|port| self.carrier(*port, depth - 1))
            }
            Kind::Vxlan | Kind::Vrf | Kind::Loopback | Kind::Other => true,
        }
    }

    /// Computes the islands: sets of connected devices.
    fn join_islands(&mut self) {
        for id in 0..self.devs.len() {
            let dev = &self.devs[id];
            let master = dev.master.filter(|master| self.devs[*master].kind != Kind::Vrf);
            for other in [dev.lower, master].into_iter().flatten() {
                self.join(id, other);
            }
        }
        for id in 0..self.devs.len() {
            self.devs[id].island = self.island(id);
        }
    }

    fn island(&mut self, mut id: DevId) -> DevId {
        while self.devs[id].island != id {
            let next = self.devs[id].island;
            self.devs[id].island = self.devs[next].island;
            id = next;
        }
        id
    }

    fn join(&mut self, a: DevId, b: DevId) {
        let (a, b) = (self.island(a), self.island(b));
        self.devs[a.max(b)].island = a.min(b);
    }

    /// Connects Vxlan devices that are each other's remote end, over an underlay in which they meet.
    fn dig_tunnels(&mut self, map: &NodeMap) {
        let mut nets: BTreeMap<(u32, u16), Vec<(DevId, End)>> = BTreeMap::new();
        for id in 0..self.devs.len() {
            let Some(link) = self.link(map, id) else { continue };
            if let Some(LinkDetail::Vxlan { vni: Some(vni), remote: Some(remote), local, port }) =
                link.detail
                && let Some(under) = map.under(self.devs[id].at.netns, link)
            {
                let net = nets.entry((vni, port)).or_default();
                if net.len() < MAX_TUNNEL_ENDS {
                    net.push((id, End { under, device: link.peer, local, remote }));
                }
            }
        }
        let mut tunnels = Vec::new();
        let mut budget = flood::Budget(TUNNEL_STEPS);
        for net in nets.values() {
            for (place, (a, one)) in net.iter().enumerate() {
                let others = net[place + 1..].iter();
                let meet =
                    others.filter(|(_, other)| self.is_one_tunnel(map, one, other, &mut budget));
                tunnels.extend(meet.map(|(b, _)| (*a, *b)));
            }
        }
        for (a, b) in tunnels {
            self.devs[a].tunnel.push(b);
            self.devs[b].tunnel.push(a);
            self.join(a, b);
        }
        for id in 0..self.devs.len() {
            self.devs[id].island = self.island(id);
        }
    }

    fn is_one_tunnel(&self, map: &NodeMap, a: &End, b: &End, budget: &mut flood::Budget) -> bool {
        let device = |end: &End, ip: Option<IpAddr>| -> Option<DevId> {
            let netns = map.netns(end.under)?;
            let mut all = netns.addresses().filter(|(key, _)| Some(key.local) == ip);
            let ifindex = end.device.or_else(|| all.next().map(|(key, _)| key.ifindex))?;
            self.find(Endpoint { netns: end.under, ifindex })
        };
        // Within one netns, routes decide where packets go, and they are not evaluated here.
        if a.under == b.under {
            return false;
        }
        let names = |end: &End, by: &End| {
            if by.remote.is_multicast() {
                return end.remote == by.remote;
            }
            let own = end.local.is_none_or(|local| local == by.remote);
            let netns = map.netns(end.under);
            own && netns.is_some_and(|netns| netns.with_ip(by.remote).next().is_some())
        };
        if !names(a, b) || !names(b, a) {
            return false;
        }
        let by_group = a.remote.is_multicast();
        let of_a = device(a, if by_group { a.local } else { Some(b.remote) });
        let of_b = device(b, if by_group { b.local } else { Some(a.remote) });
        let (Some(of_a), Some(of_b)) = (of_a, of_b) else { return false };
        self.devs[of_a].island == self.devs[of_b].island
            && flood::reach(self, of_a, budget)
                .endpoints
                .iter()
                .any(|(to, _)| *to == self.devs[of_b].at)
    }
}

/// One end of a tunnel.
struct End {
    /// The netns that carries it.
    under: NetnsId,
    /// The device that carries it, if it is bound to one.
    device: Option<u32>,
    local: Option<IpAddr>,
    remote: IpAddr,
}

impl NodeMap {
    /// The netns in which a tunnel's packets travel.
    fn under(&self, own: NetnsId, link: &Link) -> Option<NetnsId> {
        link.peer_nsid.map_or(Some(own), |nsid| self.peer_netns(own, nsid))
    }
}

fn kind(link: &Link) -> Kind {
    if link.loopback {
        return Kind::Loopback;
    }
    if link.is_pair() {
        return Kind::Veth;
    }
    match (link.kind.as_deref(), &link.detail) {
        (Some("bridge"), Some(LinkDetail::Bridge { vlan_filtering })) => {
            Kind::Bridge(Some(*vlan_filtering))
        }
        (Some("bridge"), _) => Kind::Bridge(None),
        (Some("vlan"), Some(LinkDetail::Vlan { id: id @ 1..=4094 })) => Kind::Vlan(*id),
        (Some("macvlan" | "macvtap"), Some(LinkDetail::Macvlan { mode })) => match mode {
            1 => Kind::Macvlan(Mode::Private),
            2 => Kind::Macvlan(Mode::Vepa),
            4 => Kind::Macvlan(Mode::Bridge),
            8 => Kind::Macvlan(Mode::Passthru),
            _ => Kind::Other,
        },
        (Some("ipvlan" | "ipvtap"), Some(LinkDetail::Ipvlan { mode, flags })) => {
            Kind::Ipvlan { bridge: *flags == 0, l2: *mode == 0 }
        }
        (Some("vxlan"), _) => Kind::Vxlan,
        (Some("bond" | "team"), _) => Kind::Bond,
        (Some("vrf"), _) => Kind::Vrf,
        _ => Kind::Other,
    }
}
