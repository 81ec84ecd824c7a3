//! Network devices, and what of them says who can reach whom.

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
    /// Its MAC, where it has one of six bytes.
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
    /// ([`super::Observation::PeerNetns`] says which netns that is).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_nsid: Option<i32>,
    /// `IFF_UP` is set.
    #[serde(default)]
    pub up: bool,
    /// `IFF_LOOPBACK` is set.
    #[serde(default)]
    pub loopback: bool,
    /// The hardware behind it, where there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// What its kind adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<LinkDetail>,
    /// It is a bridge's port that is kept from the other isolated ones (`IFLA_BRPORT_ISOLATED`).
    #[serde(default)]
    pub isolated: bool,
}

impl Link {
    /// It is one of two ends (`drivers/net/veth.c`; `drivers/net/netkit.c`, 6.7): what goes into one comes out of the
    /// other, and `peer` is that.
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
    /// Its address there, `0000:00:05.0` (`IFLA_PARENT_DEV_NAME`).
    pub address: String,
    /// Its driver, when it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
}

/// What a kind of device adds (`IFLA_INFO_DATA`), as far as it decides who can reach whom.
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
        /// Its number.
        id: u16,
    },
    /// A vxlan.
    Vxlan {
        /// Its number; absent where it is chosen packet by packet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vni: Option<u32>,
        /// The other end, or the multicast group of all others.
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
        /// It keeps VLANs apart (`IFLA_BR_VLAN_FILTERING`).
        vlan_filtering: bool,
    },
}

/// VLANs of a bridge's port, or of the bridge itself (`IFLA_BRIDGE_VLAN_INFO`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Vlans {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
    /// What comes in without a tag is of this one (`BRIDGE_VLAN_INFO_PVID`).
    #[serde(default)]
    pub pvid: bool,
    /// It leaves without a tag (`BRIDGE_VLAN_INFO_UNTAGGED`).
    #[serde(default)]
    pub untagged: bool,
}
