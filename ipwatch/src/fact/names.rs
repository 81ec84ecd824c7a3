//! Valid names from outside, each by its own specification.
//!
//! Runtimes, CNI plugins, stores and API servers pass on names that others chose. These names appear in findings, in
//! commands for root, in metrics and in a journal, so a name is accepted only with the alphabet and the length that its
//! specification allows. [`super::Gate`] applies this to every fact.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum length of a container id, in bytes. The specification gives no length. Docker, CRI-O and containerd's CRI
/// use 64 characters, containerd allows 76 (`identifiers.Validate`), nerdctl puts its namespace before an id of 64.
pub(super) const LONGEST_CONTAINER_ID: usize = 128;
/// Maximum length of an RFC 1123 label.
pub(super) const LONGEST_LABEL: usize = 63;
/// Maximum length of an RFC 1123 subdomain in Kubernetes.
pub(super) const LONGEST_SUBDOMAIN: usize = 253;
/// Maximum length of a device name: `IFNAMSIZ` without the NUL at its end (include/uapi/linux/if.h).
pub(super) const LONGEST_DEVICE: usize = 15;
/// Maximum length of a path: `PATH_MAX` without the NUL at its end (include/uapi/linux/limits.h).
pub(super) const LONGEST_PATH: usize = 4095;

/// A kind of name that others choose, or something else that is accepted only under conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// A container or a sandbox. CNI specification, "CNI operations": `CNI_CONTAINERID` starts with an alphanumeric
    /// character, followed by alphanumeric characters, `_`, `.` or `-`.
    ContainerId,
    /// A Kubernetes namespace: an RFC 1123 label.
    Namespace,
    /// A pod: an RFC 1123 subdomain.
    PodName,
    /// A pod's uid, never reused: a UUID, or for a static pod the hash of its manifest. The API specifies only a
    /// string; accepted are letters, digits and dashes, up to the length of a label.
    PodUid,
    /// A container within its pod (an RFC 1123 label), or a container of Docker's (`[a-zA-Z0-9][a-zA-Z0-9_.-]+`,
    /// `RestrictedNameChars`).
    ContainerName,
    /// A network. libcni accepts the same alphabet as for container ids (`ValidateNetworkName`), which also fits
    /// networks of Docker and podman, and pools of Calico and Whereabouts.
    Network,
    /// A network interface in a container. `CNI_IFNAME` follows the kernel's rule (`dev_valid_name`, net/core/dev.c):
    /// no `/`, `:` or white space, not `.` or `..`, at most 15 bytes. Of these, only names that need no quoting
    /// anywhere are accepted.
    Device,
    /// A file: absolute, at most 4,095 bytes, without a NUL.
    Path,
    /// A run of a CNI plugin: only a run by root of the node's own user namespace is accepted.
    PluginRun,
    /// The file of a CNI plugin: only a file that nobody except root can change is trusted.
    PluginFile,
}

impl Name {
    /// Every kind.
    pub const ALL: [Name; 10] = [
        Name::ContainerId,
        Name::Namespace,
        Name::PodName,
        Name::PodUid,
        Name::ContainerName,
        Name::Network,
        Name::Device,
        Name::Path,
        Name::PluginRun,
        Name::PluginFile,
    ];

    /// The spelling in JSON and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Name::ContainerId => "container-id",
            Name::Namespace => "namespace",
            Name::PodName => "pod-name",
            Name::PodUid => "pod-uid",
            Name::ContainerName => "container-name",
            Name::Network => "network",
            Name::Device => "device",
            Name::Path => "path",
            Name::PluginRun => "plugin-run",
            Name::PluginFile => "plugin-file",
        }
    }

    /// Whether a text is a valid name of this kind. Always false for kinds that are no text (a run, a file).
    #[must_use]
    pub fn fits(self, text: &str) -> bool {
        match self {
            Name::ContainerId => {
                text.len() <= LONGEST_CONTAINER_ID && is_word(text.as_bytes(), is_of_cni)
            }
            Name::Namespace => is_label(text),
            Name::PodName => is_subdomain(text),
            Name::PodUid => {
                let fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                text.len() <= LONGEST_LABEL && is_word(text.as_bytes(), fine)
            }
            Name::ContainerName => is_cni_word(text),
            // Calico's first pools have no name, and are identified by their prefix.
            Name::Network => is_cni_word(text) || is_prefix(text),
            Name::Device => is_device(text) || is_stand_in(text),
            Name::Path => {
                text.starts_with('/') && text.len() <= LONGEST_PATH && !text.contains('\0')
            }
            Name::PluginRun | Name::PluginFile => false,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Replaces a device name that cannot be shown as it is. The kernel accepts nearly any bytes; no device can have the
/// replacement, because the kernel rejects a `:`.
#[must_use]
pub(super) fn stand_in(ifindex: u32) -> String {
    format!("{STAND_IN}{ifindex}")
}

/// Replaces the name of an interface in a container that cannot be shown as it is, if there is no other name. The
/// creator of a pod can choose it (Multus' `interface`). The same name always gets the same replacement.
#[must_use]
pub(super) fn harmless(ifname: &str) -> String {
    // FNV-1a, 32 bits.
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    format!("odd-{:08x}", ifname.bytes().fold(0x811c_9dc5, step))
}

fn is_cni_word(text: &str) -> bool {
    text.len() <= LONGEST_SUBDOMAIN && is_word(text.as_bytes(), is_of_cni)
}

/// An address and a prefix length, as `10.0.0.0/16`.
fn is_prefix(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    address.parse::<std::net::IpAddr>().is_ok()
        && (1..=3).contains(&length.len())
        && length.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the kernel accepts this as a device name (`dev_valid_name`, net/core/dev.c), and CNI as an interface name
/// (`ValidateInterfaceName`).
#[must_use]
pub fn is_legal_device(text: &str) -> bool {
    let wrong = |char: char| matches!(char, '/' | ':' | '\0') || char.is_whitespace();
    !matches!(text, "" | "." | "..") && text.len() <= LONGEST_DEVICE && !text.contains(wrong)
}

const STAND_IN: &str = "ifindex:";

fn is_stand_in(text: &str) -> bool {
    let index = text.strip_prefix(STAND_IN);
    index.is_some_and(|index| index.parse::<u32>().is_ok_and(|number| number.to_string() == index))
}

/// A device name that needs no quoting: letters, digits and `_.-@+=,`; the first character is a letter, a digit or `_`.
fn is_device(text: &str) -> bool {
    let fine = |byte: u8| is_of_cni(byte) || matches!(byte, b'@' | b'+' | b'=' | b',');
    text.len() <= LONGEST_DEVICE
        && text.bytes().all(fine)
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_')
}

fn is_of_cni(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

/// An alphanumeric character, followed by characters of an alphabet.
fn is_word(text: &[u8], fine: impl Fn(u8) -> bool) -> bool {
    match text {
        [first, rest @ ..] => first.is_ascii_alphanumeric() && rest.iter().all(|byte| fine(*byte)),
        [] => false,
    }
}

fn is_label(text: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    text.len() <= LONGEST_LABEL
        && bytes.iter().all(|byte| fine(*byte) || *byte == b'-')
        && bytes.first().is_some_and(|byte| fine(*byte))
        && bytes.last().is_some_and(|byte| fine(*byte))
}

/// Kubernetes does not limit the single labels of a subdomain (`IsDNS1123Subdomain`).
fn is_subdomain(text: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.iter().all(|byte| fine(*byte) || *byte == b'-')
            && bytes.first().is_some_and(|byte| fine(*byte))
            && bytes.last().is_some_and(|byte| fine(*byte))
    };
    text.len() <= LONGEST_SUBDOMAIN && text.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "8f4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";

    #[test]
    fn names_of_the_field_fit() {
        for (kind, names) in [
            (Name::ContainerId, &[ID, "cnitool-77383ca0a0715733ca6f", "default-8f4c", "a"][..]),
            (Name::Namespace, &["default", "kube-system", "0", "a-0"]),
            (
                Name::PodName,
                &["api-0", "coredns-5d78c9869d-x2x7k", "web.example", "etcd-node.internal"],
            ),
            (
                Name::PodUid,
                &["1c0de3f2-8a5b-4c9d-9e8f-0123456789ab", "5f1d2c3b4a59687706152433f2e1d0c9"],
            ),
            (Name::ContainerName, &["POD", "nginx", "k8s_api_api-0_shop_1c0de3f2_0", "a"]),
            (
                Name::Network,
                &[
                    "cbr0",
                    "k8s-pod-network",
                    "10.0.0.0-27",
                    "eni-0a1b",
                    "192.0.2.0/24",
                    "fd00::/64",
                ],
            ),
            (
                Name::Device,
                &["eth0", "cali1a2b3c4d5e6", "veth0@if3", "bond0.100", "_x", "ifindex:7", "br+0"],
            ),
            (Name::Path, &["/", "/run/netns/cni-1", "/a b/;id"]),
        ] {
            for name in names {
                assert!(kind.fits(name), "{kind}: {name}");
            }
        }
    }

    #[test]
    fn what_is_no_name_does_not() {
        let long = |length: usize| "a".repeat(length);
        for (kind, length) in [
            (Name::ContainerId, LONGEST_CONTAINER_ID),
            (Name::Namespace, LONGEST_LABEL),
            (Name::PodName, LONGEST_SUBDOMAIN),
            (Name::PodUid, LONGEST_LABEL),
            (Name::ContainerName, LONGEST_SUBDOMAIN),
            (Name::Network, LONGEST_SUBDOMAIN),
            (Name::Device, LONGEST_DEVICE),
        ] {
            assert!(kind.fits(&long(length)) && !kind.fits(&long(length + 1)), "{kind}");
            for text in [
                "",
                " ",
                "a b",
                "--all",
                "-a",
                "a;id",
                "$(id)",
                "`id`",
                "a'b",
                "a\"b",
                "a/b",
                "../a",
                "a\n",
                "\u{1b}[2J",
                "aé",
                "a\0",
                "a|b",
                "a&b",
                "a>b",
                "~a",
                "#a",
                "*",
            ] {
                assert!(!kind.fits(text), "{kind}: {text:?}");
            }
        }
        for text in
            [".", "..", "a:b", "ifindex:", "ifindex:x", "ifindex:07", "ifindex:99999999999", "=a"]
        {
            assert!(!Name::Device.fits(text), "{text}");
        }
        for text in
            ["10.0.0.0/;id", "/24", "10.0.0.0/2400", "10.0.0.0/+4", "a/24", "10.0.0.0/24/.."]
        {
            assert!(!Name::Network.fits(text), "{text}");
        }
        for text in ["Shop", "shop-", "a_b", "a.b"] {
            assert!(!Name::Namespace.fits(text), "{text}");
        }
        for text in ["Api-0", "api-", "a..b", ".a", "a.", "a_b", "a.-b"] {
            assert!(!Name::PodName.fits(text), "{text}");
        }
        for text in ["", "run", "/a\0b"] {
            assert!(!Name::Path.fits(text), "{text:?}");
        }
    }

    #[test]
    fn a_stand_in_is_a_name_that_no_device_has() {
        for ifindex in [0, 7, u32::MAX] {
            let name = stand_in(ifindex);
            assert!(Name::Device.fits(&name) && !is_device(&name), "{name}");
        }
    }

    #[test]
    fn a_legal_name_becomes_a_harmless_one() {
        for odd in ["a;id", "$(id)", "--all", "-a", "~", "\u{1b}[2J"] {
            assert!(is_legal_device(odd) && !Name::Device.fits(odd), "{odd}");
            assert!(Name::Device.fits(&harmless(odd)), "{odd}");
        }
        assert_ne!(harmless("a;b"), harmless("a'b"));
        for wrong in ["", ".", "..", "a b", "a/b", "a:b", "sixteen-bytes-xx", "a\u{a0}"] {
            assert!(!is_legal_device(wrong), "{wrong}");
        }
    }

    #[test]
    fn every_kind_is_spelt_as_json_does() {
        for kind in Name::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }

    proptest! {
        /// A valid name is never more than one word to a shell, an option parser or a terminal.
        #[test]
        fn a_name_that_fits_is_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let text = String::from_utf8_lossy(&bytes);
            for kind in Name::ALL {
                if kind != Name::Path && kind.fits(&text) {
                    prop_assert!(text.len() <= LONGEST_SUBDOMAIN);
                    prop_assert!(!text.starts_with('-') && !text.is_empty());
                    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-@+=,:".contains(&byte);
                    prop_assert!(text.bytes().all(fine), "{} {:?}", kind, text);
                }
            }
        }
    }
}
