//! Deletes a pair of devices in the host's netns if neither end leads to a pod, has an address, or is used by another
//! device or a route.

use super::{Node, SEARCHED, is_complete};
use crate::clock;
use crate::contract::Interface;
use crate::fact::{Fact, Link, Observation, Scope};
use crate::remedy::said;
use crate::sources::netlink::remove_link;

impl Node {
    /// Deletes a pair of devices if both are still the same devices, in the host's netns and without an address, and nothing
    /// else refers to either.
    ///
    /// # Errors
    /// What prevents it.
    pub(in crate::fix) fn delete_pair(
        &mut self,
        one: &Interface,
        other: &Interface,
    ) -> Result<(), String> {
        let facts = self.requests.dump_host().map_err(|error| error.to_string())?;
        is_orphaned(&facts, one, other)?;
        let until = clock::now().plus(SEARCHED);
        self.each_netns(until, false, |inode, facts| {
            if !is_complete(facts, |scope| matches!(scope, Scope::Links { .. })) {
                return Err(format!("not all devices of net:[{inode}] could be read"));
            }
            match child_of(facts, [one.index, other.index]) {
                Some(child) => Err(format!("{} in net:[{inode}] may be a part of it", said(child))),
                None => Ok(()),
            }
        })?;
        remove_link(one.index).map_err(|error| format!("the kernel refuses: {error}"))
    }
}

/// Succeeds if, by the facts of the host's netns, two devices are the ends of a pair that connects no pod.
fn is_orphaned(facts: &[Fact], one: &Interface, other: &Interface) -> Result<(), String> {
    let whole = |is: fn(&Scope) -> bool| is_complete(facts, is);
    if !whole(|scope| matches!(scope, Scope::Links { .. }))
        || !whole(|scope| matches!(scope, Scope::Addresses { .. }))
        || !whole(|scope| matches!(scope, Scope::Routes { .. }))
    {
        return Err("not all devices, addresses and routes of the node could be read".to_owned());
    }
    let link = |wanted: &Interface| {
        let link = facts.iter().find_map(|fact| match &fact.what {
            Observation::Link { link, .. } if link.ifindex == wanted.index => Some(link),
            _ => None,
        });
        let name = wanted.name.as_deref().unwrap_or_default();
        match link {
            Some(link) if link.name == name && link.mac == wanted.mac && link.is_pair() => Ok(link),
            Some(_) => Err(format!("index {} is another device's by now", wanted.index)),
            None => Err(format!("{} is not on the node any more", said(name))),
        }
    };
    let ends: [&Link; 2] = [link(one)?, link(other)?];
    let [near, far] = ends;
    let leads = |from: &Link, to: &Link| from.peer == Some(to.ifindex) && from.peer_nsid.is_none();
    if !leads(near, far) || !leads(far, near) {
        return Err("they are not each other's ends any more".to_owned());
    }
    if let Some(end) = ends.iter().find(|end| end.master.is_some()) {
        return Err(format!("{} was plugged into another device", said(&end.name)));
    }
    let indexes = ends.map(|end| end.ifindex);
    if let Some(child) = facts.iter().find_map(|fact| refers(fact, indexes)) {
        return Err(child);
    }
    let used = facts.iter().any(|fact| match &fact.what {
        Observation::Address { address, .. } => {
            ends.iter().any(|end| end.ifindex == address.key.ifindex)
        }
        _ => false,
    });
    if used { Err("one of the two has an address by now".to_owned()) } else { Ok(()) }
}

/// What in the host's netns depends on one of these two devices: a device above it, a port of it, or a route.
fn refers(fact: &Fact, ends: [u32; 2]) -> Option<String> {
    match &fact.what {
        Observation::Link { link, .. } if !ends.contains(&link.ifindex) => {
            let on = link.peer_nsid.is_none() && link.peer.is_some_and(|on| ends.contains(&on));
            let within = link.master.is_some_and(|master| ends.contains(&master));
            (on || within).then(|| format!("{} rests on one of the two", said(&link.name)))
        }
        Observation::Route { route, .. } => {
            let by = route.hops.iter().any(|hop| ends.contains(&hop.ifindex));
            by.then(|| {
                format!(
                    "the route to {}/{} goes through one of the two",
                    route.key.to, route.key.prefix_len
                )
            })
        }
        _ => None,
    }
}

/// A device of another netns that may be a macvlan, ipvlan or vlan on one of these: its parent has such an index and is in
/// another netns. It is not checked that this is the host's, so a pair may be left although it could be deleted.
fn child_of(facts: &[Fact], ends: [u32; 2]) -> Option<&str> {
    facts.iter().find_map(|fact| match &fact.what {
        Observation::Link { link, .. } if link.peer_nsid.is_some() => {
            link.peer.filter(|on| ends.contains(on)).map(|_| link.name.as_str())
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests;
