//! The part of the contract that `ipwatch-ipam` asks: who still has an address that a store hands out or is told to free.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Container, Netns, Pod};

/// What an IPAM plugin asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldQuestion {
    /// What the plugin is called for.
    pub call: HeldCall,
    /// The store: the type of the IPAM plugin.
    pub store: String,
    /// The network.
    pub network: String,
    /// The runtime's id of the container.
    pub container: String,
    /// Its interface.
    pub ifname: Option<String>,
    /// ADD: the addresses that were handed out.
    pub ips: Vec<IpAddr>,
    /// DEL: inode of the netns that the interface plugin can enter.
    pub netns: Option<u64>,
    /// Parked addresses, each with the cookie of the netns that had it; 0: unknown.
    pub parked: Vec<(IpAddr, u64)>,
}

/// What an IPAM plugin is called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeldCall {
    /// ADD: does anybody still have these addresses?
    #[default]
    Add,
    /// DEL: does this container still have its addresses, and cannot let go of them?
    Del,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// ADD: of each address that was asked about. DEL: of each that is reserved for the container.
    pub addresses: Vec<HeldAddress>,
    /// Of each parked address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parked: Vec<HeldAddress>,
    /// Pods that the network has room for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable: Option<u64>,
}

/// The answer about one address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldAddress {
    /// Which.
    pub ip: IpAddr,
    /// Whether somebody has it.
    pub state: HeldState,
    /// Where it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Netns>,
    /// Whose container that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Whose pod it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// Who has it and why, in one line. What a program chose is quoted in it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    /// By what it is known: `released`, `reserved`, `cached` (ADD), `stuck` (DEL), `cookie` (parked).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub proof: String,
    /// The firing finding that says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
    /// A critical finding about it fires.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub critical: bool,
    /// For how many seconds that finding has been so.
    #[serde(default)]
    pub for_secs: u64,
}

impl HeldAddress {
    /// One of which no more is known.
    #[must_use]
    pub fn of(ip: IpAddr, state: HeldState) -> Self {
        Self {
            ip,
            state,
            netns: None,
            container: None,
            pod: None,
            who: String::new(),
            proof: String::new(),
            finding: None,
            critical: false,
            for_secs: 0,
        }
    }
}

/// Whether somebody has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeldState {
    /// Nobody who counts.
    Free,
    /// ADD: the sandbox that had it from this store still has it. DEL: this container does, and cannot let go of it.
    Held,
    /// The same, and its own DEL is running, or has just ended.
    Leaving,
    /// Nobody knows.
    Unknown,
}
