//! The two fields that are read of a sandbox's verbose status: its first pid and the path of its netns.
//!
//! containerd (`toCRISandboxInfo`) and CRI-O (`createSandboxInfo`) return JSON with the whole configuration and the OCI
//! spec, including environment and annotations. serde skips all of that without storing it.

use serde::Deserialize;

use super::super::reporter;

/// Maximum number of namespaces that are read. There are eight kinds.
const MOST: usize = 32;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) pid: Option<u32>,
    pub(super) netns_path: Option<String>,
}

/// Parses `info["info"]`. Fields that are missing or malformed are `None`.
pub(super) fn read(json: &[u8]) -> Info {
    let Ok(verbose) = serde_json::from_slice::<Verbose>(json) else { return Info::default() };
    let spec = verbose.runtime_spec.and_then(|spec| spec.linux).unwrap_or_default();
    let network = spec.namespaces.unwrap_or_default().0;
    Info {
        pid: verbose.pid.filter(|pid| *pid > 0).and_then(|pid| u32::try_from(pid).ok()),
        netns_path: network.and_then(|path| reporter::path(&path)),
    }
}

#[derive(Deserialize)]
struct Verbose {
    pid: Option<i64>,
    #[serde(rename = "runtimeSpec")]
    runtime_spec: Option<Spec>,
}

#[derive(Deserialize)]
struct Spec {
    linux: Option<Linux>,
}

#[derive(Deserialize, Default)]
struct Linux {
    namespaces: Option<Namespaces>,
}

/// The path of the network namespace in a list of namespaces.
#[derive(Default)]
struct Namespaces(Option<String>);

impl<'de> Deserialize<'de> for Namespaces {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Namespace {
            #[serde(rename = "type")]
            kind: Option<String>,
            path: Option<String>,
        }
        struct List;
        impl<'de> serde::de::Visitor<'de> for List {
            type Value = Namespaces;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("namespaces")
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<Namespaces, A::Error> {
                let (mut found, mut seen) = (None, 0);
                while let Some(namespace) = list.next_element::<Namespace>()? {
                    seen += 1;
                    if seen <= MOST && namespace.kind.as_deref() == Some("network") {
                        found = namespace.path;
                    }
                }
                Ok(Namespaces(found))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTAINERD: &str = r#"{"pid":4711,"processStatus":"running","netNamespaceClosed":false,
        "config":{"metadata":{"name":"api-0"},"annotations":{"a":"t0ken"}},
        "runtimeSpec":{"ociVersion":"1.0.2","process":{"env":["SECRET=t0ken"],"args":["/pause"]},
          "annotations":{"b":"t0ken"},
          "linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/var/run/netns/cni-1"}]}},
        "cniResult":{"Interfaces":{"eth0":{"IPConfigs":[{"IP":"10.0.0.2"}]}}}}"#;

    #[test]
    fn pid_and_netns_are_read_and_nothing_else() {
        let info = read(CONTAINERD.as_bytes());
        assert_eq!(info.pid, Some(4711));
        assert_eq!(info.netns_path.as_deref(), Some("/var/run/netns/cni-1"));
        assert!(!format!("{info:?}").contains("t0ken"));
    }

    #[test]
    fn what_is_not_there_is_not_told() {
        for other in [
            "",
            "{}",
            "[]",
            "null",
            "\u{0}\u{1}",
            r#"{"pid":0}"#,
            r#"{"pid":-1}"#,
            r#"{"pid":"x"}"#,
            r#"{"runtimeSpec":null}"#,
            r#"{"runtimeSpec":{"linux":null}}"#,
            r#"{"runtimeSpec":{"linux":{"namespaces":null}}}"#,
            r#"{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"relative"}]}}}"#,
        ] {
            assert_eq!(read(other.as_bytes()), Info::default(), "{other}");
        }
    }
}
