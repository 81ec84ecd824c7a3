//! The only fields that are read of Calico's documents.
//!
//! - of a block: `cidr`, `affinity` (formerly `hostAffinity`), `deleted`, `allocations`, and of `attributes` each
//!   `handle_id` and from `secondary` node, pod, namespace, type and timestamp;
//! - of a pool: `cidr`, `disabled`, `allowedUses` (formerly `ipam`);
//! - of an endpoint: node, namespace, pod, container, the device's name, its IPs.
//!
//! Versions differ in the fields that they add, so a document is read field by field: a field with another structure is
//! unknown, and affects no other.

use std::net::IpAddr;

use serde_json::Value;

use crate::prefix::Prefix;

/// Maximum length in bytes of a text that is kept.
const LONGEST: usize = 512;
/// Maximum number of addresses in one block: Calico allows a /20 and a /116.
pub(super) const MOST_OF_BLOCK: u128 = 4096;
/// Maximum number of attributes of one block: one for each address, usually fewer.
const MOST_ATTRIBUTES: usize = 4096;
/// Maximum number of IPs of one endpoint.
const MOST_IPS: usize = 64;

/// A text of bounded length that is not empty.
fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    let text = value.get(field)?.as_str()?;
    (1..=LONGEST).contains(&text.len()).then_some(text)
}

/// An IPAM block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) cidr: Prefix,
    /// The node that it is assigned to.
    pub(super) host: Option<String>,
    /// It is being deleted: nothing is allocated from it.
    pub(super) deleted: bool,
    /// By ordinal.
    pub(super) slots: Vec<Slot>,
    /// How many of its addresses are allocated, by any node. `None`: the block does not list all addresses.
    pub(super) taken: Option<u32>,
    /// Number of entries that cannot be parsed, exceed the block's addresses, or are missing.
    pub(super) wrong: usize,
}

/// The state of one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    Taken(Owner),
    /// It is allocated to an unknown owner, or the block does not list it.
    Unknown,
}

/// The owner of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) handle: Option<String>,
    pub(super) node: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) pod: Option<String>,
    /// `ipipTunnelAddress` and similar.
    pub(super) kind: Option<String>,
    pub(super) timestamp: Option<String>,
}

impl Owner {
    fn read(value: &Value) -> Option<Self> {
        let own = value.as_object()?;
        let handle = match own.get("handle_id") {
            None | Some(Value::Null) => None,
            Some(Value::String(none)) if none.is_empty() => None,
            Some(Value::String(_)) => Some(text(value, "handle_id")?.to_owned()),
            Some(_) => return None,
        };
        let secondary = own.get("secondary").unwrap_or(&Value::Null);
        if !secondary.is_object() && !secondary.is_null() {
            return None;
        }
        let told = |field| text(secondary, field).map(str::to_owned);
        Some(Self {
            handle,
            node: told("node"),
            namespace: told("namespace"),
            pod: told("pod"),
            kind: told("type"),
            timestamp: told("timestamp"),
        })
    }
}

impl Block {
    /// `None`: it is not a block, or larger than allowed.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let cidr =
            Prefix::from_cidr(text(value, "cidr")?).filter(|one| one.size() <= MOST_OF_BLOCK)?;
        let list = |field| match value.get(field) {
            None | Some(Value::Null) => Some([].as_slice()),
            Some(Value::Array(list)) => Some(list.as_slice()),
            Some(_) => None,
        };
        let (allocations, attributes) = (list("allocations")?, list("attributes")?);
        let owners: Vec<Option<Owner>> =
            attributes.iter().take(MOST_ATTRIBUTES).map(Owner::read).collect();
        let slot = |value: &Value| {
            if value.is_null() {
                return Slot::Free;
            }
            let at = value.as_u64().and_then(|at| usize::try_from(at).ok());
            let owner = at.and_then(|at| owners.get(at)?.clone());
            owner.map_or(Slot::Unknown, Slot::Taken)
        };
        // At most a few thousand.
        let size = usize::try_from(cidr.size()).ok()?;
        let mut slots: Vec<Slot> = allocations.iter().take(size).map(slot).collect();
        let unknown = slots.iter().filter(|slot| **slot == Slot::Unknown).count();
        slots.resize(size, Slot::Unknown);
        let taken = allocations.iter().filter(|slot| !slot.is_null()).count();
        let host = text(value, "affinity").and_then(|text| text.strip_prefix("host:"));
        Some(Self {
            cidr,
            host: host.or_else(|| text(value, "hostAffinity")).map(str::to_owned),
            deleted: value.get("deleted").and_then(Value::as_bool) == Some(true),
            slots,
            taken: u32::try_from(taken).ok().filter(|_| allocations.len() == size),
            wrong: unknown + allocations.len().abs_diff(size),
        })
    }
}

/// An IP pool.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) cidr: Prefix,
    /// Whether pods get IPs from it.
    pub(super) is_for_pods: bool,
}

impl Pool {
    pub(super) fn read(value: &Value) -> Option<Self> {
        let says =
            |field: &str, what: bool| value.get(field).and_then(Value::as_bool) == Some(what);
        // Without a list it is for all uses.
        let uses = value.get("allowedUses").and_then(Value::as_array);
        let uses = uses.filter(|uses| !uses.is_empty());
        let for_pods = uses.is_none_or(|uses| uses.iter().any(|one| one == "Workload"));
        Some(Self {
            cidr: Prefix::from_cidr(text(value, "cidr")?)?,
            is_for_pods: for_pods && !says("disabled", true) && !says("ipam", false),
        })
    }
}

/// A workload endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) node: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) pod: Option<String>,
    pub(super) container: Option<String>,
    pub(super) device: Option<String>,
    pub(super) ips: Vec<IpAddr>,
}

impl Workload {
    /// Reads a v3 resource.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let (meta, spec) = (value.get("metadata")?, value.get("spec")?);
        let told = |value, field| text(value, field).map(str::to_owned);
        Some(Self {
            node: told(spec, "node"),
            namespace: told(meta, "namespace"),
            pod: told(spec, "pod"),
            container: told(spec, "containerID"),
            device: told(spec, "interfaceName"),
            ips: ips(spec.get("ipNetworks")),
        })
    }

    /// Reads a v1 value: node, namespace and pod are in its key.
    pub(super) fn read_first(value: &Value) -> Option<Self> {
        value.as_object()?;
        let told = |field| text(value, field).map(str::to_owned);
        let mut all = ips(value.get("ipv4_nets"));
        all.extend(ips(value.get("ipv6_nets")));
        all.truncate(MOST_IPS);
        Some(Self {
            container: told("active_instance_id"),
            device: told("name"),
            ips: all,
            ..Self::default()
        })
    }
}

fn ips(list: Option<&Value>) -> Vec<IpAddr> {
    let list = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|one| ip(one.as_str()?)).take(MOST_IPS).collect()
}

/// Parses `10.0.0.5/32`, or an IP without a length.
fn ip(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_broken_in_a_block_spoils_no_other_entry() {
        let block = Block::read(&json!({
            "cidr": "10.0.0.0/29", "affinity": "host:node-1", "news": {"of": ["a", "newer", "schema"]},
            "allocations": [0, 9, -1, "0", 1.5, null, 1, 2, 0, 0],
            "attributes": [
                {"handle_id": "net.c", "secondary": {"node": "node-1", "news": 7}, "more": []},
                {"handle_id": 7},
                {"handle_id": null, "secondary": null},
            ],
        }))
        .unwrap();
        let owner = |slot: &Slot| match slot {
            Slot::Free => "free".to_owned(),
            Slot::Unknown => "?".to_owned(),
            Slot::Taken(owner) => owner.handle.clone().unwrap_or_default(),
        };
        let slots: Vec<String> = block.slots.iter().map(owner).collect();
        assert_eq!(slots, ["net.c", "?", "?", "?", "?", "free", "?", ""]);
        assert_eq!((block.wrong, block.host.as_deref()), (7, Some("node-1")), "two are too many");
        let short = json!({"cidr": "10.0.0.0/29", "hostAffinity": "n", "allocations": [null]});
        let short = Block::read(&short).unwrap();
        assert_eq!((short.slots.len(), short.wrong), (8, 7));
        assert_eq!(short.slots[1], Slot::Unknown, "it says nothing of it");
        for no_block in [
            json!({}),
            json!(7),
            json!({"cidr": 7}),
            json!({"cidr": "10.0.0.0/8"}),
            json!({"cidr": "10.0.0.0/26", "allocations": {}}),
            json!({"cidr": "10.0.0.0/26", "attributes": "x"}),
        ] {
            assert!(Block::read(&no_block).is_none(), "{no_block}");
        }
    }
}
