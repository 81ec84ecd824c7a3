//! What is read of the API server's answers, and nothing else: no spec beyond the node's own fields, no
//! environment, no annotation but those that are named here.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::sources::json::{Few, Name};

/// `Status`: why there is no answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) message: Name,
    pub(super) details: StatusDetails,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct StatusDetails {
    pub(super) retry_after_seconds: Option<u64>,
}

/// `ListMeta`
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListMeta {
    pub(super) resource_version: Name,
    #[serde(rename = "continue")]
    pub(super) more: Name,
}

/// One page of a list.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
pub(super) struct Page<T> {
    pub(super) metadata: ListMeta,
    pub(super) items: Items<T>,
}

/// The entries of a page, each read by itself: one that is not understood spoils no other.
#[derive(Debug)]
pub(super) struct Items<T> {
    pub(super) read: Vec<T>,
    /// That are not understood, or too many.
    pub(super) dropped: usize,
}

/// Most entries of one list.
pub(super) const MOST: usize = 65_536;

impl<'de, T: DeserializeOwned> Deserialize<'de> for Items<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: DeserializeOwned> Visitor<'de> for Entries<T> {
            type Value = Items<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Items { read: Vec::new(), dropped: 0 })
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut items = Items { read: Vec::new(), dropped: 0 };
                while items.read.len() < MOST {
                    let Some(raw) = list.next_element::<Value>()? else { return Ok(items) };
                    match serde_json::from_value(raw) {
                        Ok(item) => items.read.push(item),
                        Err(_) => items.dropped += 1,
                    }
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    items.dropped += 1;
                }
                Ok(items)
            }
        }
        deserializer.deserialize_any(Entries(PhantomData))
    }
}

/// One line of a watch.
#[derive(Debug, Deserialize)]
pub(super) struct Line {
    #[serde(rename = "type")]
    pub(super) kind: Name,
    pub(super) object: Value,
}

/// `Pod`
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: PodMeta,
    pub(super) spec: PodSpec,
    pub(super) status: PodStatus,
}

/// Of its `ObjectMeta`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodMeta {
    pub(super) name: Name,
    pub(super) namespace: Name,
    pub(super) uid: Name,
    pub(super) deletion_timestamp: Option<Name>,
    pub(super) deletion_grace_period_seconds: Option<i64>,
    pub(super) annotations: Annotations,
}

/// Of its `PodSpec`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) node_name: Name,
    pub(super) termination_grace_period_seconds: Option<i64>,
}

/// Of its `PodStatus`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodStatus {
    pub(super) phase: Name,
    #[serde(rename = "podIPs")]
    pub(super) pod_ips: Few<PodIp, 64>,
}

/// `PodIP`
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodIp {
    pub(super) ip: Name,
}

/// Of the annotations, the one that says that the pod is a static pod's mirror, and what Calico writes there. Others
/// are skipped unread: they may be long, and hold anything.
#[derive(Debug, Default)]
pub(super) struct Annotations {
    pub(super) mirror: Option<String>,
    /// The pod's IPs, apart by commas; empty after a DEL.
    pub(super) calico_ips: Option<String>,
    /// The container that the ADD was for.
    pub(super) calico_container: Option<String>,
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Annotations;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Annotations::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let (mut all, mut first) = (Annotations::default(), None);
                while let Some(key) = map.next_key::<String>()? {
                    let field = match &*key {
                        "kubernetes.io/config.mirror" => {
                            all.mirror = Some(map.next_value::<Name>()?.0);
                            continue;
                        }
                        "cni.projectcalico.org/podIPs" => &mut all.calico_ips,
                        "cni.projectcalico.org/podIP" => &mut first,
                        "cni.projectcalico.org/containerID" => &mut all.calico_container,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    // Whoever makes a pod may write anything there: it says nothing then.
                    *field = serde_json::from_value(map.next_value()?).ok().map(|Name(text)| text);
                }
                // Older ones write one alone.
                all.calico_ips = all.calico_ips.or(first);
                Ok(all)
            }
        }
        deserializer.deserialize_any(Entries)
    }
}
