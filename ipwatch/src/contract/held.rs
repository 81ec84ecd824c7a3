//! The part of the contract that `ipwatch-ipam` uses: what still holds an address that a store assigns or is to free.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Container, Netns, Pod};

/// What an IPAM plugin asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldQuestion {
    /// The call that the plugin serves.
    pub call: HeldCall,
    /// The store: the type of the IPAM plugin.
    pub store: String,
    /// The network.
    pub network: String,
    /// The container id (`CNI_CONTAINERID`).
    pub container: String,
    /// The container's interface (`CNI_IFNAME`).
    pub ifname: Option<String>,
    /// ADD: the addresses that the store assigned.
    pub ips: Vec<IpAddr>,
    /// DEL: inode of the netns that the interface plugin can enter.
    pub netns: Option<u64>,
    /// Parked addresses, each with the cookie of the netns that had it; 0: unknown.
    pub parked: Vec<(IpAddr, u64)>,
}

/// The call that an IPAM plugin serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeldCall {
    /// ADD: are the assigned addresses still held by another sandbox?
    #[default]
    Add,
    /// DEL: does a stuck process in this container's netns still hold its addresses?
    Del,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Held {
    /// ADD: one for each address of the question. DEL: one for each address that is reserved for the container.
    pub addresses: Vec<HeldAddress>,
    /// One for each parked address of the question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parked: Vec<HeldAddress>,
    /// Number of addresses of the network that can be assigned to pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable: Option<u64>,
}

/// The answer about one address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldAddress {
    /// The address.
    pub ip: IpAddr,
    /// Whether it is still held.
    pub state: HeldState,
    /// The netns in which it is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Netns>,
    /// The container of that netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// The pod of that netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// What holds it and why, in one line for people. Names that a container chose are quoted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    /// The proof: `released`, `reserved`, `cached` (ADD), `stuck` (DEL), `cookie` (parked).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub proof: String,
    /// Id of the firing finding that explains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
    /// Whether a critical finding about the address fires.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub critical: bool,
    /// Seconds since that finding's `since`.
    #[serde(default)]
    pub for_secs: u64,
}

impl HeldAddress {
    /// An answer with the state alone.
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

/// Whether an address is still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeldState {
    /// No sandbox that was given it by a store has it.
    Free,
    /// ADD: the sandbox that was given it by this store still has it. DEL: this container still has it, and a process in its
    /// netns is stuck.
    Held,
    /// As [`HeldState::Held`] of an ADD, but the sandbox's own DEL is running or has just ended.
    Leaving,
    /// It is not known.
    Unknown,
}
