//! The only fields that are read of the API server's answers: nothing of a spec beyond the node, the host network and
//! the grace period, no environment, and no annotations except those named here and in `cluster::objects`.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
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
#[derive(Debug)]
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

/// Maximum number of entries in one list, unless its kind has less.
pub(super) const MOST: usize = 65_536;

/// Reads a page of which at most so many entries are kept.
pub(super) struct Reader<T> {
    most: usize,
    of: PhantomData<T>,
}

impl<T> Reader<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, of: PhantomData }
    }
}

impl<'de, T: DeserializeOwned> DeserializeSeed<'de> for Reader<T> {
    type Value = Page<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Page<T>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: DeserializeOwned> Visitor<'de> for Reader<T> {
    type Value = Page<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a page of a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut page: A) -> Result<Page<T>, A::Error> {
        #[derive(Deserialize)]
        #[serde(field_identifier, rename_all = "camelCase")]
        enum Field {
            Metadata,
            Items,
            #[serde(other)]
            Other,
        }
        let (mut metadata, mut items) = (None, None);
        while let Some(field) = page.next_key()? {
            match field {
                Field::Metadata if metadata.is_some() => {
                    return Err(A::Error::duplicate_field("metadata"));
                }
                Field::Metadata => metadata = Some(page.next_value()?),
                Field::Items if items.is_some() => {
                    return Err(A::Error::duplicate_field("items"));
                }
                Field::Items => {
                    items = Some(page.next_value_seed(Entries { most: self.most, of: self.of })?);
                }
                Field::Other => _ = page.next_value::<IgnoredAny>()?,
            }
        }
        Ok(Page {
            metadata: metadata.ok_or_else(|| A::Error::missing_field("metadata"))?,
            items: items.ok_or_else(|| A::Error::missing_field("items"))?,
        })
    }
}

struct Entries<T> {
    most: usize,
    of: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> DeserializeSeed<'de> for Entries<T> {
    type Value = Items<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Items<T>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: DeserializeOwned> Visitor<'de> for Entries<T> {
    type Value = Items<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E>(self) -> Result<Items<T>, E> {
        Ok(Items { read: Vec::new(), dropped: 0 })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Items<T>, A::Error> {
        let mut items = Items { read: Vec::new(), dropped: 0 };
        while items.read.len() < self.most {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_no_more_than_its_kind_and_counts_the_rest() {
        let read = |text: &str, most| {
            Reader::<u8>::new(most).deserialize(&mut serde_json::Deserializer::from_str(text))
        };
        let text = r#"{"kind":"List","items":[1,"x",2,3],"metadata":{"continue":"c"},"n":[{}]}"#;
        for (most, kept, dropped) in [(9, &[1, 2, 3][..], 1), (2, &[1, 2], 2), (0, &[], 4)] {
            let page = read(text, most).unwrap();
            assert_eq!((&page.items.read[..], page.items.dropped), (kept, dropped), "{most}");
            assert_eq!(page.metadata.more.0, "c");
        }
        let none = read(r#"{"metadata":{},"items":null}"#, 9).unwrap();
        assert_eq!((none.items.read.len(), none.items.dropped), (0, 0));
        for wrong in
            [r#"{"items":[]}"#, r#"{"metadata":{}}"#, r#"{"metadata":{},"items":[],"items":[]}"#]
        {
            assert!(read(wrong, 9).is_err(), "{wrong}");
        }
    }
}
