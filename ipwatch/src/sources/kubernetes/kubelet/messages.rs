//! The messages of `v1alpha1.Pods` (Kubernetes, `kubelet/pkg/apis/pods/v1alpha1/api.proto`) that are used here, and of
//! `k8s.io.api.core.v1.Pod` the fields that [`documents::Pod`] has: what has no field here is never stored.
//!
//! Written by hand: the generated ones need protoc and are a thousand times their size.

use std::fmt;

use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType, bytes as bytes_codec, message, skip_field};
use prost::{DecodeError, Message};

use super::super::documents::{self, Annotations};
use crate::sources::json::{Few, LONGEST_NAME, Name};

/// Pods of one list that are read. The map keeps no more.
pub(super) const MOST: usize = 4096;
/// Longest pod that is read. The API server takes no object above 3 MiB.
const LONGEST: usize = 4 << 20;
/// IPs of one pod.
const MOST_IPS: usize = 64;
/// The annotation that says that the pod is a static pod's mirror.
const MIRROR: &[u8] = b"kubernetes.io/config.mirror";

/// `ListPodsRequest`, `WatchPodsRequest`; and `WatchPodsEvent`, of which nothing is read: `v1alpha1` may still number
/// its types anew, and a list that follows tells the rest.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}

/// `ListPodsResponse`: the first pods, each as it came, and how many more there were.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Pods {
    pub(super) pods: Vec<Bytes>,
    pub(super) more: usize,
}

/// Never the pods: they come with their environments.
impl fmt::Debug for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pods and {} more", self.pods.len(), self.more)
    }
}

/// The number of the pods in `ListPodsResponse`.
const PODS: u32 = 1;

impl Message for Pods {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        bytes_codec::encode_repeated(PODS, &self.pods, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag != PODS {
            return skip_field(wire_type, tag, buf, context);
        }
        if self.pods.len() < MOST {
            return bytes_codec::merge_repeated(wire_type, &mut self.pods, buf, context);
        }
        self.more += 1;
        skip_field(wire_type, tag, buf, context)
    }

    fn encoded_len(&self) -> usize {
        bytes_codec::encoded_len_repeated(PODS, &self.pods)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// `Pod`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Pod {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(super) spec: Option<PodSpec>,
    #[prost(message, optional, tag = "3")]
    pub(super) status: Option<PodStatus>,
}

/// `ObjectMeta`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ObjectMeta {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
    #[prost(string, tag = "5")]
    pub(super) uid: String,
    #[prost(message, optional, tag = "9")]
    pub(super) deletion_timestamp: Option<Time>,
    #[prost(int64, optional, tag = "10")]
    pub(super) deletion_grace_period_seconds: Option<i64>,
}

/// `Time`, less the nanoseconds: the API server has none.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Time {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
}

/// `PodSpec`
#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSpec {
    #[prost(int64, optional, tag = "4")]
    pub(super) termination_grace_period_seconds: Option<i64>,
    #[prost(string, tag = "10")]
    pub(super) node_name: String,
}

/// `PodStatus`
#[derive(Clone, PartialEq, Message)]
pub(super) struct PodStatus {
    #[prost(string, tag = "1")]
    pub(super) phase: String,
    #[prost(message, repeated, tag = "12")]
    pub(super) pod_ips: Vec<PodIp>,
}

/// `PodIP`
#[derive(Clone, PartialEq, Message)]
pub(super) struct PodIp {
    #[prost(string, tag = "1")]
    pub(super) ip: String,
}

/// Of a `Pod`, what stands in its annotations. Others are skipped as they are read: they may be many.
#[derive(Debug, Clone, Default, PartialEq)]
struct Marks {
    mirror: Option<Bytes>,
}

/// One annotation.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Annotation {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// Their number in `ObjectMeta`.
pub(super) const ANNOTATIONS: u32 = 12;

impl Message for Marks {
    // It is never sent.
    fn encode_raw(&self, _: &mut impl BufMut) {}

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag != ANNOTATIONS {
            return skip_field(wire_type, tag, buf, context);
        }
        let mut one = Annotation::default();
        message::merge(wire_type, &mut one, buf, context)?;
        if one.key == MIRROR {
            self.mirror = Some(one.value);
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        0
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A `Pod` with its metadata unread.
#[derive(Clone, PartialEq, Message)]
struct Outer {
    #[prost(bytes = "bytes", tag = "1")]
    metadata: Bytes,
}

/// A pod as the API server's would be read. `None`: it is not understood.
pub(super) fn read(bytes: &Bytes) -> Option<documents::Pod> {
    if bytes.len() > LONGEST {
        return None;
    }
    let pod = Pod::decode(bytes.clone()).ok()?;
    let marks = Marks::decode(Outer::decode(bytes.clone()).ok()?.metadata).ok()?;
    let (meta, spec) = (pod.metadata?, pod.spec.unwrap_or_default());
    let status = pod.status.unwrap_or_default();
    if meta.uid.is_empty() || status.pod_ips.len() > MOST_IPS {
        return None;
    }
    let mirror = marks.mirror.map(|value| String::from_utf8(value.into()).ok());
    let mirror = mirror.map(|value| name(value?).map(|Name(value)| value));
    // As JSON has it.
    let date = meta.deletion_timestamp.map(|date| jiff::Timestamp::from_second(date.seconds));
    let date = date.and_then(Result::ok).map(|date| Name(date.to_string()));
    let ip = |one: PodIp| name(one.ip).map(|ip| documents::PodIp { ip });
    Some(documents::Pod {
        metadata: documents::PodMeta {
            name: name(meta.name)?,
            namespace: name(meta.namespace)?,
            uid: name(meta.uid)?,
            deletion_timestamp: date,
            deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
            annotations: Annotations {
                mirror: match mirror {
                    Some(mirror) => Some(mirror?),
                    None => None,
                },
                ..Annotations::default()
            },
        },
        spec: documents::PodSpec {
            node_name: name(spec.node_name)?,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            ..documents::PodSpec::default()
        },
        status: documents::PodStatus {
            phase: name(status.phase)?,
            pod_ips: Few(status.pod_ips.into_iter().map(ip).collect::<Option<_>>()?),
        },
    })
}

/// A text of bounded length.
fn name(text: String) -> Option<Name> {
    (text.len() <= LONGEST_NAME).then_some(Name(text))
}
