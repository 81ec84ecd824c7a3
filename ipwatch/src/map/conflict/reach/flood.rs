//! A broadcast frame: the devices that it passes, as the kernel forwards it.
//!
//! A walk over states (device, direction, VLAN tags), each visited once. A frame that loops between two bridges is
//! visited once.

use std::collections::{BTreeMap, VecDeque};

use super::plan::{DevId, Kind, Mode, Plan};
use super::{Endpoint, Reach};
use crate::map::Table;

/// The number of steps left for one query. A link with 250 pods takes about 1,250; the owner of a netns can wire it to
/// take any number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget(pub(super) usize);

impl Budget {
    pub(super) fn spend(&mut self, steps: usize) -> bool {
        let enough = self.0 >= steps;
        self.0 = self.0.saturating_sub(steps);
        enough
    }
}

/// VLAN tags of a frame, the outermost last; 0 is none. A third tag is not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Tags([u16; 2]);

impl Tags {
    fn top(self) -> Option<u16> {
        self.0.into_iter().rev().find(|tag| *tag != 0)
    }

    fn pop(self) -> Self {
        match self.0 {
            [first, second] if second != 0 => Self([first, 0]),
            _ => Self::default(),
        }
    }

    fn push(self, tag: u16) -> Option<Self> {
        match self.0 {
            [0, _] => Some(Self([tag, 0])),
            [first, 0] => Some(Self([first, tag])),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Direction {
    /// Received by the device.
    In,
    /// Sent by the device.
    Out,
}

type State = (DevId, Direction, Tags);

/// By which port a flooding device was entered. The first entry floods to all others, so a second one need not repeat
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entered {
    By(DevId),
    Often,
}

struct Flood<'a> {
    plan: &'a Plan,
    origin: DevId,
    /// The sender's lower devices with the kind of device above each: a frame that returns there is recognised by its
    /// MAC.
    own: Vec<(DevId, Kind)>,
    seen: Table<State, ()>,
    queue: VecDeque<(State, Option<DevId>)>,
    entered: Table<(DevId, u16, Tags, bool), Entered>,
    found: BTreeMap<DevId, Option<DevId>>,
    /// The walk took a step that has no way back.
    skewed: bool,
    complete: bool,
    budget: &'a mut Budget,
}

/// The endpoints that can both receive from and send to a device.
pub(super) fn reach(plan: &Plan, from: DevId, budget: &mut Budget) -> Reach {
    let (mut found, skewed, mut complete) = Flood::run(plan, from, budget);
    if skewed {
        found.retain(|to, _| {
            let (back, _, whole) = Flood::run(plan, *to, budget);
            complete &= whole;
            back.contains_key(&from)
        });
    }
    let bottom = plan.devs[bottom(plan, from)].at;
    let at = |dev: Option<DevId>| dev.map_or(bottom, |dev| plan.devs[dev].at);
    let mut endpoints: Vec<(Endpoint, Endpoint)> =
        found.into_iter().map(|(to, by)| (plan.devs[to].at, at(by))).collect();
    endpoints.sort_unstable();
    Reach { endpoints, complete }
}

/// The lowest device that a device is stacked on.
fn bottom(plan: &Plan, mut dev: DevId) -> DevId {
    for _ in 0..8 {
        match (plan.devs[dev].kind, plan.devs[dev].lower) {
            (Kind::Vlan(_) | Kind::Macvlan(_) | Kind::Ipvlan { .. }, Some(lower)) => dev = lower,
            _ => break,
        }
    }
    dev
}

/// Whether frames that a device receives are for the IP stack of its own netns.
fn is_endpoint(plan: &Plan, dev: DevId) -> bool {
    let one = &plan.devs[dev];
    let enslaved = one.enslaved && one.master.is_none_or(|of| plan.devs[of].kind != Kind::Vrf);
    let taken = || {
        let passthru = Kind::Macvlan(Mode::Passthru);
        one.uppers.iter().any(|upper| plan.devs[*upper].kind == passthru)
    };
    !enslaved && !matches!(one.kind, Kind::Vrf | Kind::Loopback) && !taken()
}

/// Whether a device stacked on another hears what arrives there, from elsewhere or from a sibling of kind `own`
/// (`macvlan_process_broadcast`, `ipvlan_external_frame`). VLANs are handled before.
fn hears(kind: Kind, own: Option<Kind>) -> bool {
    match (kind, own) {
        (Kind::Vlan(_) | Kind::Ipvlan { l2: false, .. }, _) => false,
        (_, None | Some(Kind::Vlan(_))) => true,
        (Kind::Macvlan(mode), Some(Kind::Macvlan(Mode::Vepa))) => {
            matches!(mode, Mode::Vepa | Mode::Bridge)
        }
        (Kind::Macvlan(mode), Some(Kind::Macvlan(Mode::Bridge))) => mode == Mode::Vepa,
        _ => false,
    }
}

impl<'a> Flood<'a> {
    /// Returns who hears the frame and through what, whether a step may have no way back, and whether it was followed
    /// to the end.
    fn run(
        plan: &'a Plan,
        origin: DevId,
        budget: &'a mut Budget,
    ) -> (BTreeMap<DevId, Option<DevId>>, bool, bool) {
        let mut flood = Self {
            plan,
            origin,
            own: Vec::new(),
            seen: Table::default(),
            queue: VecDeque::new(),
            entered: Table::default(),
            found: BTreeMap::new(),
            skewed: false,
            complete: true,
            budget,
        };
        if !is_endpoint(plan, origin) {
            return (flood.found, false, true);
        }
        let mut dev = origin;
        while let (Kind::Vlan(_) | Kind::Macvlan(_) | Kind::Ipvlan { .. }, Some(lower)) =
            (plan.devs[dev].kind, plan.devs[dev].lower)
            && flood.own.len() < 8
        {
            flood.own.push((lower, plan.devs[dev].kind));
            dev = lower;
        }
        flood.go((origin, Direction::Out, Tags::default()), None);
        while let Some(((dev, way, tags), by)) = flood.queue.pop_front() {
            match way {
                Direction::In => flood.received(dev, tags, by),
                Direction::Out => flood.sent(dev, tags, by),
            }
        }
        (flood.found, flood.skewed, flood.complete)
    }

    fn go(&mut self, state: State, by: Option<DevId>) {
        if !self.plan.devs[state.0].carries || self.seen.contains_key(&state) {
            return;
        }
        if !self.budget.spend(1) {
            self.complete = false;
            return;
        }
        self.seen.insert(state, ());
        self.queue.push_back((state, by));
    }

    /// A device sends the frame on behalf of another. A frame with this tag that comes back goes elsewhere if the
    /// device has a VLAN of that number.
    fn pass(&mut self, dev: DevId, tags: Tags, by: Option<DevId>) {
        self.skewed |= self.vlan_of(dev, tags).is_some();
        self.go((dev, Direction::Out, tags), by);
    }

    /// The VLAN device on top of a device for the outermost tag.
    fn vlan_of(&self, dev: DevId, tags: Tags) -> Option<DevId> {
        let kind = Kind::Vlan(tags.top()?);
        let devs = &self.plan.devs;
        devs[dev].uppers.iter().copied().find(|upper| devs[*upper].kind == kind)
    }

    fn sent(&mut self, dev: DevId, tags: Tags, by: Option<DevId>) {
        let one = &self.plan.devs[dev];
        match one.kind {
            Kind::Veth => {
                if let Some(end) = one.lower {
                    self.go((end, Direction::In, tags), by);
                }
            }
            Kind::Bridge(filtering) => self.bridge(dev, filtering, dev, tags, by),
            Kind::Vlan(id) => {
                if let (Some(lower), Some(tags)) = (one.lower, tags.push(id)) {
                    self.go((lower, Direction::Out, tags), by);
                }
            }
            Kind::Macvlan(_) | Kind::Ipvlan { .. } => self.child_sent(dev, tags, by),
            Kind::Vxlan => {
                for end in &one.tunnel {
                    self.go((*end, Direction::In, tags), by.or(Some(dev)));
                }
            }
            Kind::Bond => {
                if let Some(slave) = self.only_slave(dev) {
                    self.pass(slave, tags, by);
                }
            }
            Kind::Vrf | Kind::Loopback | Kind::Other => {}
        }
    }

    /// `macvlan_queue_xmit`, `ipvlan_process_multicast`: to siblings in the same mode, and out by the parent.
    fn child_sent(&mut self, dev: DevId, tags: Tags, by: Option<DevId>) {
        let plan = self.plan;
        let kind = plan.devs[dev].kind;
        let Some(parent) = plan.devs[dev].lower else { return };
        let meets = matches!(kind, Kind::Macvlan(Mode::Bridge) | Kind::Ipvlan { bridge: true, .. });
        if meets {
            let all = plan.devs[parent].uppers.iter().copied();
            let same = all.filter(|other| plan.devs[*other].kind == kind);
            for other in self.flood_from(dev, (parent, u16::MAX, tags, false), same) {
                self.go((other, Direction::In, tags), by.or(Some(parent)));
            }
        }
        if !matches!(kind, Kind::Ipvlan { l2: false, .. }) {
            self.pass(parent, tags, by);
        }
    }

    /// `__netif_receive_skb_core`: VLANs first, then the bridge, then devices stacked on the device, then its own
    /// netns.
    fn received(&mut self, dev: DevId, tags: Tags, by: Option<DevId>) {
        let plan = self.plan;
        let one = &plan.devs[dev];
        if let Some(vlan) = self.vlan_of(dev, tags) {
            self.go((vlan, Direction::In, tags.pop()), by);
            return;
        }
        match one.master.map(|master| (master, plan.devs[master].kind)) {
            Some((master, Kind::Bridge(filtering))) => {
                self.bridge(master, filtering, dev, tags, by);
                return;
            }
            Some((master, Kind::Bond)) => {
                if self.only_slave(master) == Some(dev) {
                    self.go((master, Direction::In, tags), by);
                }
                return;
            }
            Some((_, Kind::Vrf)) => {}
            Some(_) => return,
            None if one.enslaved => return,
            None => {}
        }
        let own = self.own.iter().find(|(lower, _)| *lower == dev).map(|(_, kind)| *kind);
        for upper in &one.uppers {
            if hears(plan.devs[*upper].kind, own) {
                self.go((*upper, Direction::In, tags), by.or(Some(dev)));
            }
        }
        if tags == Tags::default() && dev != self.origin && is_endpoint(plan, dev) {
            self.found.entry(dev).or_insert(by);
        }
    }

    /// `br_handle_frame_finish`, `br_dev_xmit`: in by one port or from the bridge itself, out by the others.
    fn bridge(
        &mut self,
        bridge: DevId,
        filtering: Option<bool>,
        from: DevId,
        tags: Tags,
        by: Option<DevId>,
    ) {
        let plan = self.plan;
        let (Some(filtering), true) = (filtering, plan.devs[bridge].carries) else { return };
        let vlan = if filtering { self.admitted(from, tags) } else { Some((0, tags)) };
        let Some((vlan, inner)) = vlan else { return };
        let isolated = from != bridge && plan.devs[from].isolated;
        let by = by.or(Some(bridge));
        let all = plan.devs[bridge].ports.iter().copied().chain([bridge]);
        let targets = self.flood_from(from, (bridge, vlan, inner, isolated), all);
        if !self.budget.spend(targets.len()) {
            self.complete = false;
            return;
        }
        for to in targets {
            if isolated && to != bridge && plan.devs[to].isolated {
                continue;
            }
            let leaves = if filtering { self.let_out(to, vlan, inner) } else { Some(inner) };
            let Some(leaves) = leaves else { continue };
            if filtering {
                let back = self.admitted(to, leaves) == Some((vlan, inner))
                    && self.let_out(from, vlan, inner) == Some(tags);
                self.skewed |= !back;
            }
            if to == bridge {
                self.go((bridge, Direction::In, leaves), by);
            } else {
                self.pass(to, leaves, by);
            }
        }
    }

    /// `br_allowed_ingress`: the VLAN of an incoming frame, and the remaining tags.
    fn admitted(&self, port: DevId, tags: Tags) -> Option<(u16, Tags)> {
        let port = &self.plan.devs[port];
        match tags.top() {
            None => port.pvid().map(|vlan| (vlan, tags)),
            Some(vlan) => port.passes(vlan).map(|_| (vlan, tags.pop())),
        }
    }

    /// `br_handle_vlan`: the tags with which a frame of a VLAN leaves.
    fn let_out(&self, port: DevId, vlan: u16, inner: Tags) -> Option<Tags> {
        match self.plan.devs[port].passes(vlan)? {
            true => Some(inner),
            false => inner.push(vlan),
        }
    }

    /// The targets of a flood that entered here: all others the first time; the second time only the first entrance;
    /// then none.
    fn flood_from(
        &mut self,
        from: DevId,
        key: (DevId, u16, Tags, bool),
        all: impl Iterator<Item = DevId>,
    ) -> Vec<DevId> {
        match self.entered.get(&key) {
            None => {
                self.entered.insert(key, Entered::By(from));
                all.filter(|to| *to != from).collect()
            }
            Some(Entered::By(first)) if *first != from => {
                let first = *first;
                self.entered.insert(key, Entered::Often);
                vec![first]
            }
            _ => Vec::new(),
        }
    }

    /// The slave of a bond with exactly one: of several, it is not known which is in use.
    fn only_slave(&self, bond: DevId) -> Option<DevId> {
        match *self.plan.devs[bond].ports {
            [slave] => Some(slave),
            _ => None,
        }
    }
}
