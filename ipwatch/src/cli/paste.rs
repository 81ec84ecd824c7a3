//! Interprets an error as kubelet, a runtime or a CNI plugin logged it: its meaning, and the findings about what it
//! names. Pure.
//!
//! The text is split into words, and findings are matched by them, independent of how a version of kubelet quotes its
//! errors. An error without a matching finding still has a kind, and the kind has a runbook.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use crate::contract::{Pod, Prefix};
use crate::finding::{Code, Finding};

/// Maximum size of a text in bytes; kubelet's longest errors have some kilobytes.
pub(super) const LONGEST: usize = 64 * 1024;
/// Minimum length of a word that counts as a container id: crictl and docker show 12 characters.
const SHORTEST_ID: usize = 12;

/// A parsed error.
#[derive(Debug)]
pub(super) struct Pasted<'a> {
    trouble: Option<&'static Trouble>,
    words: HashSet<&'a str>,
    places: Vec<IpSpan>,
}

/// A kind of error.
#[derive(Debug)]
struct Trouble {
    /// Alternatives in lower case; of an alternative all parts must occur.
    says: &'static [&'static [&'static str]],
    means: &'static str,
    /// The findings that may be the cause, the most likely first; its runbook is suggested.
    codes: &'static [Code],
}

/// The kinds of errors, specific ones before general ones. The texts are those of the CNI plugins' host-local, bridge
/// and host-device, Whereabouts, Calico, Cilium, Amazon's VPC CNI, containerd, CRI-O, Docker, podman, kubelet and the
/// kernel.
const TROUBLES: &[Trouble] = &[
    Trouble {
        says: &[
            &["no ip addresses available in range set"],
            &["could not allocate ip in range"],
            &["assigned 0 out of 1 requested"],
            &["failed to assign an ip address to container"],
            &["no available ipv4 addresses"],
            &["no available ipv6 addresses"],
            &["failed to find free ip in range"],
            &["postipamfailure", "range is full"],
            &["no more ips available"],
            &["cidr ranges are exhausted"],
        ],
        means: "no IP is left to be given out",
        codes: &[
            Code::IpamRangeExhausting,
            Code::IpamReservationLeaked,
            Code::NetnsLeaked,
            Code::SandboxCrashLoop,
            Code::IpHeldByDeadSandbox,
            Code::IpHeldByStuckProcess,
        ],
    },
    Trouble {
        says: &[
            &["duplicate allocation is not allowed"],
            &["is already allocated to container"],
            &["is not available in range set"],
        ],
        means: "the IP that was asked for is reserved already",
        codes: &[Code::IpamReservationLeaked, Code::IpReleasedButHeld, Code::IpConflictImminent],
    },
    Trouble {
        says: &[&["address already in use"]],
        means: "the IP is up somewhere else already",
        codes: &[
            Code::IpReleasedButHeld,
            Code::IpConflictImminent,
            Code::IpDuplicate,
            Code::IpHeldByStuckProcess,
            Code::IpHeldByDeadSandbox,
            Code::NetnsLeaked,
        ],
    },
    Trouble {
        says: &[&["duplicate address"], &["duplicate use of"], &["address conflict"]],
        means: "two hosts on a link have one IP",
        codes: &[Code::IpDuplicate, Code::NeighbourConflict],
    },
    Trouble {
        says: &[&["no route to host"], &["host is unreachable"], &["host unreachable"]],
        means: "the machine that has the IP, or the router to it, does not answer on its link",
        codes: &[Code::NeighbourFailed, Code::GatewayNeighbourLost, Code::EndpointMissing],
    },
    Trouble {
        says: &[&["unexpected end of json input"], &["failed to load cache", "sandbox"]],
        means: "a file that the network's state is kept in is torn or empty",
        codes: &[Code::IpamStoreUnreadable],
    },
    Trouble {
        says: &[
            &["failed (delete)"],
            &["failed to destroy network for sandbox"],
            &["failed to teardown pod", "network"],
        ],
        means: "the network of a sandbox cannot be released",
        codes: &[Code::CniDelFailing, Code::CniDelHitsSuccessor, Code::IpamStoreUnreadable],
    },
    Trouble {
        says: &[&["waiting to become leader"], &["overlappingrangeipreservation error"]],
        means: "Whereabouts cannot reach its reservations in the API server, or not in time",
        codes: &[Code::SandboxCrashLoop, Code::IpamReservationLeaked],
    },
    Trouble {
        says: &[&["container veth name", "already exists"]],
        means: "an earlier attempt left its device in the sandbox's network namespace",
        codes: &[Code::SandboxCrashLoop, Code::NetnsLeaked, Code::VethOrphaned],
    },
    Trouble {
        says: &[&["device or resource busy"], &["ebusy"]],
        means: "what is to be removed is still mounted somewhere",
        codes: &[Code::MountLeakBlocksRemoval],
    },
    Trouble {
        says: &[&["unregister_netdevice: waiting for"]],
        means: "the kernel cannot finish tearing a network namespace down",
        codes: &[Code::NetnsTeardownStuck],
    },
    Trouble {
        says: &[&["no net directory under pci device"], &["failed to find host device"]],
        means: "a network device of the node is not where it should be",
        codes: &[Code::DeviceHeldByDeadSandbox],
    },
    Trouble {
        says: &[
            &["stop", "deadline exceeded"],
            &["stop", "deadlineexceeded"],
            &["kill", "deadline exceeded"],
            &["kill", "deadlineexceeded"],
            &["failedkillpod"],
        ],
        means: "something in the container does not end",
        codes: &[
            Code::IpHeldByStuckProcess,
            Code::NetnsTeardownStuck,
            Code::IpHeldByDeadSandbox,
            Code::IpHeldByDeletedPod,
        ],
    },
    Trouble {
        says: &[
            &["failedcreatepodsandbox"],
            &["failed to create pod sandbox"],
            &["failed to setup network for sandbox"],
            &["sandbox changed, it will be killed and re-created"],
        ],
        means: "the pod's sandbox does not come up",
        codes: &[Code::SandboxCrashLoop, Code::NetnsTeardownStuck],
    },
];

/// IPs in a text.
#[derive(Debug, Clone, Copy, PartialEq)]
enum IpSpan {
    /// An IP, or a prefix.
    Within(Prefix),
    /// A range from the first IP to the last.
    Between(IpAddr, IpAddr),
}

/// How findings match an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// They are about something that the error names.
    Named,
    /// They are of the same kind, but no finding is about anything that the error names.
    Alike,
}

impl<'a> Pasted<'a> {
    /// Parses a text.
    pub(super) fn read(text: &'a str) -> Self {
        let text = text.get(..text.floor_char_boundary(LONGEST)).unwrap_or(text);
        let said = text.to_lowercase();
        let is = |parts: &&[&str]| parts.iter().all(|part| said.contains(part));
        let trouble = TROUBLES.iter().find(|trouble| trouble.says.iter().any(is));
        let words = split(text, |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect();
        let ips = split(text, |c| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/' | '-'));
        Self { trouble, words, places: ips.filter_map(place).collect() }
    }

    /// The meaning of the error, if its kind is known.
    pub(super) fn means(&self) -> Option<&'static str> {
        self.trouble.map(|trouble| trouble.means)
    }

    /// The code with the nearest runbook.
    pub(super) fn code(&self) -> Option<Code> {
        self.trouble.and_then(|trouble| trouble.codes.first().copied())
    }

    /// The matching findings, those of the error's kind first. An error about a range of IPs is not about everything
    /// in it: a finding that matches only because its IP is in the range must be of the error's kind, and if findings
    /// about the range itself match, only these and their causes do.
    pub(super) fn matching(&self, findings: &[Finding]) -> Option<(Fit, Vec<Finding>)> {
        let codes = self.trouble.map_or(&[][..], |trouble| trouble.codes);
        let place = |finding: &Finding| codes.iter().position(|code| *code == finding.code);
        let mut found: Vec<Finding> =
            findings.iter().filter(|finding| self.names(finding)).cloned().collect();
        let of_range = |finding: &Finding| {
            let single =
                finding.subject.ip.is_some() && finding.code != Code::IpamReservationLeaked;
            finding.subject.network.is_some() && !single && place(finding).is_some()
        };
        let causes: HashSet<String> = found
            .iter()
            .filter(|finding| of_range(finding))
            .flat_map(|finding| [Some(finding.id.clone()), finding.caused_by.clone()])
            .flatten()
            .collect();
        let single = self.without_ranges();
        found.retain(|finding| {
            let of_kind = self.trouble.is_none() || place(finding).is_some();
            let in_range = causes.is_empty() && of_kind;
            in_range || causes.contains(&finding.id) || single.names(finding)
        });
        let mut fit = Fit::Named;
        if found.is_empty() {
            fit = Fit::Alike;
            found = findings.iter().filter(|finding| place(finding).is_some()).cloned().collect();
        }
        found.sort_by_key(|finding| place(finding).unwrap_or(usize::MAX));
        (!found.is_empty()).then_some((fit, found))
    }

    /// The same without prefixes and ranges of IPs.
    fn without_ranges(&self) -> Self {
        let is_ip = |span: &&IpSpan| matches!(span, IpSpan::Within(prefix) if prefix.is_host());
        let places = self.places.iter().filter(is_ip).copied().collect();
        Self { trouble: self.trouble, words: self.words.clone(), places }
    }

    /// Whether the error names the subject of a finding.
    fn names(&self, finding: &Finding) -> bool {
        let subject = &finding.subject;
        let has = |name: Option<&str>| name.is_some_and(|name| self.words.contains(name));
        // A pod's name alone is too often a common word.
        let by_name = |pod: &Pod| {
            has(pod.name.as_deref()) && (pod.namespace.is_none() || has(pod.namespace.as_deref()))
        };
        let is_named = |id: &str| self.ids().any(|word| id.starts_with(word));
        let netns = subject.netns.as_ref().and_then(|netns| netns.path.as_deref());
        subject.pods().any(|pod| by_name(pod) || has(pod.uid.as_deref()))
            || has(netns.and_then(|path| path.rsplit('/').next()))
            || has(Some(&finding.id))
            || subject.ips().any(|ip| self.is_at(ip))
            || subject.containers().filter_map(|one| one.id.as_deref()).any(is_named)
            || finding.evidence.iter().any(|item| self.is_in(&item.text))
    }

    /// Words that look like a container id.
    fn ids(&self) -> impl Iterator<Item = &str> {
        let is_id = |word: &&str| {
            word.len() >= SHORTEST_ID && word.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        self.words.iter().copied().filter(is_id)
    }

    /// Whether the evidence contains something that the error names: a sandbox's id, or another IP of the same netns.
    fn is_in(&self, proof: &str) -> bool {
        let other = Pasted::read(proof);
        let ids: Vec<&str> = other.ids().collect();
        let same = |a: &str, b: &str| a.starts_with(b) || b.starts_with(a);
        self.ids().any(|own| ids.iter().any(|id| same(own, id)))
            || other.places.iter().any(|place| match place {
                IpSpan::Within(prefix) if prefix.is_host() => self.is_at(prefix.ip),
                _ => false,
            })
    }

    fn is_at(&self, ip: IpAddr) -> bool {
        self.places.iter().any(|place| match place {
            IpSpan::Within(prefix) => prefix.contains(ip),
            IpSpan::Between(first, last) => *first <= ip && ip <= *last,
        })
    }
}

/// The words of a text that consist of such characters, without punctuation at their ends.
fn split(text: &str, of: impl Fn(char) -> bool) -> impl Iterator<Item = &str> {
    text.split(move |c| !of(c))
        .map(|word| word.trim_matches(['-', '.', '/']).trim_end_matches(':'))
        .filter(|word| !word.is_empty())
}

/// The IPs that a word stands for: `10.0.3.17/24` is an address with its prefix length, `10.0.3.0/24` a prefix.
/// Loopback and `0.0.0.0` are ignored.
fn place(word: &str) -> Option<IpSpan> {
    if let Some((first, last)) = word.split_once('-') {
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        return Some(IpSpan::Between(first, last));
    }
    let with_port = word.parse::<SocketAddr>().ok().map(|address| Prefix::host(address.ip()));
    let prefix = word.parse::<Prefix>().ok().or(with_port)?;
    if prefix.ip.is_loopback() || prefix.ip.is_unspecified() {
        return None;
    }
    let is_network = match prefix.ip {
        IpAddr::V4(ip) => ip.to_bits().trailing_zeros() >= 32 - u32::from(prefix.len),
        IpAddr::V6(ip) => ip.to_bits().trailing_zeros() >= 128 - u32::from(prefix.len),
    };
    Some(IpSpan::Within(if is_network { prefix } else { Prefix::host(prefix.ip) }))
}

#[cfg(test)]
mod tests;
