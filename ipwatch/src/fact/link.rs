//! Network devices, and their properties that decide who can reach whom.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Mac;

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Link {
    /// Its index in its netns.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Its MAC, if it has one of six bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// `veth`, `netkit`, `bridge`, `macvlan`, …; absent for physical devices and `lo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Index of its master (bridge, bond, vrf) in the same netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<u32>,
    /// `IFLA_LINK`: the veth's peer, the macvlan's parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<u32>,
    /// `IFLA_LINK_NETNSID`: the netns of `peer`, as an nsid **of the netns this link is in**
    /// ([`super::Observation::PeerNetns`] resolves it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_nsid: Option<i32>,
    /// Whether `IFF_UP` is set.
    #[serde(default)]
    pub up: bool,
    /// Whether `IFF_LOOPBACK` is set.
    #[serde(default)]
    pub loopback: bool,
    /// The hardware behind it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// Attributes of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<LinkDetail>,
    /// Whether it is a bridge port that is isolated from other isolated ports (`IFLA_BRPORT_ISOLATED`).
    #[serde(default)]
    pub isolated: bool,
}

impl Link {
    /// Whether it is one of two ends (`drivers/net/veth.c`; `drivers/net/netkit.c`, 6.7): what enters one end leaves
    /// the other, which is `peer`.
    #[must_use]
    pub fn is_pair(&self) -> bool {
        matches!(self.kind.as_deref(), Some("veth" | "netkit"))
    }
}

/// The device on a bus that a network device belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// `pci`, `virtio`, … (`IFLA_PARENT_DEV_BUS_NAME`, 5.14+).
    pub bus: String,
    /// Its address on the bus, `0000:00:05.0` (`IFLA_PARENT_DEV_NAME`).
    pub address: String,
    /// Its driver, if it was queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
}

/// Attributes of a kind of device (`IFLA_INFO_DATA`), as far as they decide who can reach whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "of")]
pub enum LinkDetail {
    /// A macvlan or macvtap.
    Macvlan {
        /// `MACVLAN_MODE_*`: 1 private, 2 vepa, 4 bridge, 8 passthru, 16 source.
        mode: u32,
    },
    /// An ipvlan or ipvtap.
    Ipvlan {
        /// `IPVLAN_MODE_*`: 0 l2, 1 l3, 2 l3s.
        mode: u16,
        /// `IPVLAN_F_*`: 1 private, 2 vepa, 0 bridge.
        flags: u16,
    },
    /// A vlan.
    Vlan {
        /// VLAN id.
        id: u16,
    },
    /// A vxlan.
    Vxlan {
        /// VNI; absent if it is chosen per packet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vni: Option<u32>,
        /// The remote end, or the multicast group of all remote ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        remote: Option<IpAddr>,
        /// Its own IP on the underlay.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        local: Option<IpAddr>,
        /// UDP port.
        port: u16,
    },
    /// A VRF.
    Vrf {
        /// Its routing table.
        table: u32,
    },
    /// A bridge.
    Bridge {
        /// Whether VLAN filtering is on (`IFLA_BR_VLAN_FILTERING`).
        vlan_filtering: bool,
    },
}

/// VLANs of a bridge's port, or of the bridge itself (`IFLA_BRIDGE_VLAN_INFO`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vlans {
    /// The first VLAN id.
    pub first: u16,
    /// The last VLAN id.
    pub last: u16,
    /// Whether untagged frames that come in belong to it (`BRIDGE_VLAN_INFO_PVID`).
    #[serde(default)]
    pub pvid: bool,
    /// Whether its frames leave untagged (`BRIDGE_VLAN_INFO_UNTAGGED`).
    #[serde(default)]
    pub untagged: bool,
}
