//! The messages of `v1alpha1.Pods` (Kubernetes, `kubelet/pkg/apis/pods/v1alpha1/api.proto`) that are used here, and the
//! fields of `k8s.io.api.core.v1.Pod` that [`documents::Pod`] has: other fields are never stored.
//!
//! Written by hand: the generated code needs protoc and is a thousand times its size.

use std::fmt;

use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType, bytes as bytes_codec, message, skip_field};
use prost::{DecodeError, Message};

use super::super::documents::{self, Annotations};
use crate::sources::json::{Few, LONGEST_NAME, Name};

/// Maximum number of pods read of one list. The map keeps no more.
pub(super) const MOST: usize = 4096;
/// Maximum size in bytes of a pod. The API server accepts no object above 3 MiB.
const LONGEST: usize = 4 << 20;
/// Maximum number of IPs of one pod.
const MOST_IPS: usize = 64;
/// The annotation that marks the mirror of a static pod.
const MIRROR: &[u8] = b"kubernetes.io/config.mirror";

/// `ListPodsRequest`, `WatchPodsRequest`; and `WatchPodsEvent`, of which no field is read: `v1alpha1` may still
/// renumber its types, and a list follows.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}

/// `ListPodsResponse`: the first pods, undecoded, and the number of further ones.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Pods {
    pub(super) pods: Vec<Bytes>,
    pub(super) more: usize,
}

/// Never prints the pods, which contain their environments.
impl fmt::Debug for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pods and {} more", self.pods.len(), self.more)
    }
}

/// Field number of the pods in `ListPodsResponse`.
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

/// `Time` without the nanoseconds, which the API server does not use.
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

/// The annotations of a `Pod` that are read. Others are skipped during decoding, because there may be many.
#[derive(Debug, Clone, Default, PartialEq)]
struct Marks {
    mirror: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Annotation {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) value: Bytes,
}

/// Field number of the annotations in `ObjectMeta`.
pub(super) const ANNOTATIONS: u32 = 12;

impl Message for Marks {
    // Never sent.
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

/// A `Pod` with undecoded metadata.
#[derive(Clone, PartialEq, Message)]
struct Outer {
    #[prost(bytes = "bytes", tag = "1")]
    metadata: Bytes,
}

/// Converts a pod to the form of the API server's. `None`: it cannot be parsed.
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
    // As text, like in JSON.
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

/// A text of bounded length, `None` if it is too long.
fn name(text: String) -> Option<Name> {
    (text.len() <= LONGEST_NAME).then_some(Name(text))
}
