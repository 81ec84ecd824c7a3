//! The codes of findings: one row for each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines [`Code`]. A row has the name as JSON, logs, metrics and docs spell it; the runbook is the page of that name
/// in `docs/findings`. What the detectors need to know of a code is in [`crate::detect`]'s own table.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $name:literal,)*) => {
        /// The stable name of a kind of finding. One detector file in [`crate::detect`] and one runbook page in
        /// `docs/findings/` have the same name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $name)] $code,)*
        }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &[Code] = &[$(Code::$code),*];

            /// The name as JSON, logs, metrics and docs spell it.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Code::$code => $name,)*
                }
            }

            /// The code's runbook, `docs/findings/CODE.md`.
            #[must_use]
            pub fn runbook(self) -> &'static str {
                match self {
                    $(Code::$code => include_str!(concat!("../../../docs/findings/", $name, ".md")),)*
                }
            }
        }
    };
}

codes! {
    /// A netns with an IP is held by a thread that is exiting or killed and does not end.
    IpHeldByStuckProcess = "ip-held-by-stuck-process",
    /// A netns with an IP has tasks, and its sandbox is dead according to the runtime.
    IpHeldByDeadSandbox = "ip-held-by-dead-sandbox",
    /// The API server has deleted a pod whose netns with an IP is still here.
    IpHeldByDeletedPod = "ip-held-by-deleted-pod",
    /// A NIC of the node is in the netns of a dead sandbox.
    DeviceHeldByDeadSandbox = "device-held-by-dead-sandbox",
    /// A netns without tasks, whose sandbox no longer exists, is kept alive by something else.
    NetnsLeaked = "netns-leaked",
    /// The kernel makes no progress with tearing down netns.
    NetnsTeardownStuck = "netns-teardown-stuck",
    /// A dead container's file system is still mounted in another mount namespace.
    MountLeakBlocksRemoval = "mount-leak-blocks-removal",
    /// Sandboxes of one pod are recreated again and again.
    SandboxCrashLoop = "sandbox-crash-loop",
    /// A store released an IP that a netns still has.
    IpReleasedButHeld = "ip-released-but-held",
    /// A store hands an IP to a container while another one's netns has it.
    IpConflictImminent = "ip-conflict-imminent",
    /// An IP is reserved for a container that no longer exists.
    IpamReservationLeaked = "ipam-reservation-leaked",
    /// A network has hardly any IP left to hand out.
    IpamRangeExhausting = "ipam-range-exhausting",
    /// A file of an IPAM store or of the CNI result cache cannot be read.
    IpamStoreUnreadable = "ipam-store-unreadable",
    /// The DEL of an old sandbox removes something from the pod's new one.
    CniDelHitsSuccessor = "cni-del-hits-successor",
    /// A sandbox's network is not released: DEL fails again and again, or was never called.
    CniDelFailing = "cni-del-failing",
    /// Calico's datastore has no endpoint for a living pod, or one whose pod no longer exists.
    EndpointMissing = "endpoint-missing",
    /// A pod's device on the node leads nowhere.
    VethOrphaned = "veth-orphaned",
    /// Two netns that can reach each other have one IP.
    IpDuplicate = "ip-duplicate",
    /// Two MACs answer for one IP on a link.
    NeighbourConflict = "neighbour-conflict",
    /// A pod's IP does not answer on the node's side of its link.
    NeighbourFailed = "neighbour-failed",
    /// A pod's default next hop does not answer.
    GatewayNeighbourLost = "gateway-neighbour-lost",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Code {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Code::ALL
            .iter()
            .copied()
            .find(|code| code.as_str() == text)
            .ok_or_else(|| format!("unknown finding code {text:?}"))
    }
}
