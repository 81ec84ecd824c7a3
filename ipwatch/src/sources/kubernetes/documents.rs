//! The only fields that are read of the API server's answers: nothing of a spec beyond the node, the host network and
//! the grace period, no environment, and no annotations except those named here and in `cluster::objects`.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::branch_enis;
use crate::sources::json::{Few, Name};

/// `Status`: the body of an error.
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

/// The entries of a page, each parsed separately, so that a malformed entry affects no other.
#[derive(Debug)]
pub(super) struct Items<T> {
    pub(super) read: Vec<T>,
    /// Number of entries that could not be parsed, or were too many.
    pub(super) dropped: usize,
}

/// Maximum number of entries in one list.
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
#[serde(default, bound = "A: Annotated")]
pub(crate) struct Pod<A = Annotations> {
    pub(crate) metadata: PodMeta<A>,
    pub(crate) spec: PodSpec,
    pub(crate) status: PodStatus,
}

/// Fields of its `ObjectMeta`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", bound = "A: Annotated")]
pub(crate) struct PodMeta<A = Annotations> {
    pub(crate) name: Name,
    pub(crate) namespace: Name,
    pub(crate) uid: Name,
    pub(crate) deletion_timestamp: Option<Name>,
    pub(crate) deletion_grace_period_seconds: Option<i64>,
    #[serde(deserialize_with = "annotations")]
    pub(crate) annotations: A,
}

/// Fields of its `PodSpec`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    pub(crate) node_name: Name,
    pub(crate) host_network: bool,
    pub(crate) termination_grace_period_seconds: Option<i64>,
}

/// Fields of its `PodStatus`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodStatus {
    pub(crate) phase: Name,
    #[serde(rename = "podIPs")]
    pub(crate) pod_ips: Few<PodIp, 64>,
}

/// `PodIP`
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodIp {
    pub(crate) ip: Name,
}

/// The annotations that are read of a pod. Others are skipped unread, because they may be long and contain anything.
pub(crate) trait Annotated: Default {
    /// The keys that are read.
    const KEYS: &[&str];

    /// Reads the value of one of [`Self::KEYS`]. An error rejects the whole pod.
    fn read(&mut self, key: &str, value: Value) -> Result<(), serde_json::Error>;
}

fn annotations<'de, A: Annotated, D: Deserializer<'de>>(deserializer: D) -> Result<A, D::Error> {
    struct Entries<A>(PhantomData<A>);
    impl<'de, A: Annotated> Visitor<'de> for Entries<A> {
        type Value = A;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }
        fn visit_unit<E>(self) -> Result<A, E> {
            Ok(A::default())
        }
        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<A, M::Error> {
            let mut all = A::default();
            while let Some(key) = map.next_key::<String>()? {
                if A::KEYS.contains(&&*key) {
                    all.read(&key, map.next_value()?).map_err(serde::de::Error::custom)?;
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(Entries(PhantomData))
}

/// The annotation that marks the mirror of a static pod, and those that Calico and AWS write.
#[derive(Debug, Default)]
pub(crate) struct Annotations {
    pub(super) mirror: Option<String>,
    /// The pod's IPs, separated by commas; empty after a DEL.
    pub(super) calico_ips: Option<String>,
    /// The container id of the ADD.
    pub(super) calico_container: Option<String>,
    /// The pod's branch ENIs, unparsed.
    pub(super) pod_eni: Option<String>,
}

const MIRROR: &str = "kubernetes.io/config.mirror";
const CALICO_IPS: &str = "cni.projectcalico.org/podIPs";
/// Older versions write only one IP, in this one.
const CALICO_IP: &str = "cni.projectcalico.org/podIP";
const CALICO_CONTAINER: &str = "cni.projectcalico.org/containerID";
const POD_ENI: &str = "vpc.amazonaws.com/pod-eni";

impl Annotated for Annotations {
    const KEYS: &[&str] = &[MIRROR, CALICO_IPS, CALICO_IP, CALICO_CONTAINER, POD_ENI];

    fn read(&mut self, key: &str, value: Value) -> Result<(), serde_json::Error> {
        if key == POD_ENI {
            // Longer than a name, and ignored if it is invalid, as those below.
            self.pod_eni = match value {
                Value::String(text) => Some(text).filter(|text| text.len() <= branch_enis::LONGEST),
                _ => None,
            };
            return Ok(());
        }
        let text = serde_json::from_value(value).map(|Name(text)| text);
        match (key, text) {
            (MIRROR, text) => self.mirror = Some(text?),
            // The creator of a pod can write anything into these annotations: invalid values are ignored.
            (_, Err(_)) => {}
            (CALICO_IPS, Ok(text)) => self.calico_ips = Some(text),
            (CALICO_IP, Ok(text)) => {
                self.calico_ips.get_or_insert(text);
            }
            (_, Ok(text)) => self.calico_container = Some(text),
        }
        Ok(())
    }
}
