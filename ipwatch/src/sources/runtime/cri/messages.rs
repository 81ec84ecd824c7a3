//! The messages of `runtime.v1` (Kubernetes, `cri-api/pkg/apis/runtime/v1/api.proto`) that are used here, and of
//! containerd's events, with only the fields that are used: other fields are never stored. `runtime.v1alpha2` has the
//! same field numbers for all of them.
//!
//! Written by hand: the generated client needs protoc and is a hundred times their size. Texts are `bytes`, which is
//! the same on the wire: one name that is not UTF-8 must not invalidate a whole list.

use std::collections::BTreeMap;
use std::fmt;

use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType, message as codec, skip_field};
use prost::{DecodeError, Message};

use super::super::reporter::MOST;

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$field:meta])* $key:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub(in super::super) struct $name { $($(#[$field])* pub(in super::super) $key: $kind,)* }
    };
}

message! {
    /// A request for everything.
    All {}
}

message! {
    VersionResponse {
        #[prost(bytes = "bytes", tag = "2")]
        runtime_name: Bytes,
        #[prost(bytes = "bytes", tag = "3")]
        runtime_version: Bytes,
    }
}

message! {
    /// An entry of a list.
    PodSandbox {
        #[prost(bytes = "bytes", tag = "1")]
        id: Bytes,
        #[prost(message, optional, tag = "2")]
        metadata: Option<PodSandboxMetadata>,
        #[prost(int32, tag = "3")]
        state: i32,
        #[prost(int64, tag = "4")]
        created_at: i64,
    }
}

message! {
    PodSandboxMetadata {
        #[prost(bytes = "bytes", tag = "1")]
        name: Bytes,
        #[prost(bytes = "bytes", tag = "2")]
        uid: Bytes,
        #[prost(bytes = "bytes", tag = "3")]
        namespace: Bytes,
        #[prost(uint32, tag = "4")]
        attempt: u32,
    }
}

message! {
    /// An entry of a list.
    Container {
        #[prost(bytes = "bytes", tag = "1")]
        id: Bytes,
        #[prost(bytes = "bytes", tag = "2")]
        pod_sandbox_id: Bytes,
        #[prost(message, optional, tag = "3")]
        metadata: Option<ContainerMetadata>,
        #[prost(int32, tag = "6")]
        state: i32,
    }
}

message! {
    ContainerMetadata {
        #[prost(bytes = "bytes", tag = "1")]
        name: Bytes,
    }
}

message! {
    PodSandboxStatusRequest {
        #[prost(string, tag = "1")]
        pod_sandbox_id: String,
        #[prost(bool, tag = "2")]
        verbose: bool,
    }
}

/// `info` contains the sandbox's whole configuration, including secrets: it is never printed.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(in super::super) struct PodSandboxStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(in super::super) status: Option<PodSandboxStatus>,
    #[prost(btree_map = "string, bytes", tag = "2")]
    pub(in super::super) info: BTreeMap<String, Vec<u8>>,
}

impl fmt::Debug for PodSandboxStatusResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodSandboxStatusResponse")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

message! {
    PodSandboxStatus {
        #[prost(int32, tag = "3")]
        state: i32,
        #[prost(message, optional, tag = "5")]
        network: Option<PodSandboxNetworkStatus>,
        #[prost(message, optional, tag = "6")]
        linux: Option<LinuxPodSandboxStatus>,
    }
}

message! {
    PodSandboxNetworkStatus {
        #[prost(bytes = "bytes", tag = "1")]
        ip: Bytes,
        #[prost(message, repeated, tag = "2")]
        additional_ips: Vec<PodIp>,
    }
}

message! {
    PodIp {
        #[prost(bytes = "bytes", tag = "1")]
        ip: Bytes,
    }
}

message! {
    LinuxPodSandboxStatus {
        #[prost(message, optional, tag = "1")]
        namespaces: Option<Namespace>,
    }
}

message! {
    Namespace {
        #[prost(message, optional, tag = "2")]
        options: Option<NamespaceOption>,
    }
}

message! {
    NamespaceOption {
        /// `NamespaceMode`.
        #[prost(int32, tag = "1")]
        network: i32,
    }
}

message! {
    /// `ContainerEventResponse` without the states, because a list follows.
    ContainerEvent {
        #[prost(bytes = "bytes", tag = "1")]
        container_id: Bytes,
        #[prost(int32, tag = "2")]
        kind: i32,
    }
}

message! {
    /// `containerd.services.events.v1.SubscribeRequest`
    SubscribeRequest {
        #[prost(string, repeated, tag = "1")]
        filters: Vec<String>,
    }
}

message! {
    /// `containerd.services.events.v1.Envelope`
    Envelope {
        #[prost(bytes = "bytes", tag = "3")]
        topic: Bytes,
        #[prost(message, optional, tag = "4")]
        event: Option<Any>,
    }
}

message! {
    /// `google.protobuf.Any`
    Any {
        #[prost(bytes = "bytes", tag = "2")]
        value: Bytes,
    }
}

message! {
    /// `containerd.events.TaskExit`
    TaskExit {
        #[prost(bytes = "bytes", tag = "1")]
        container_id: Bytes,
        /// Id of the process: the container's id for its first process, another id for an exec.
        #[prost(bytes = "bytes", tag = "2")]
        id: Bytes,
    }
}

message! {
    /// `containerd.events.ContainerDelete`
    ContainerDelete {
        #[prost(bytes = "bytes", tag = "1")]
        id: Bytes,
    }
}

/// A list: the first entries, and the number of further ones. An entry takes a hundred times more memory than on the
/// wire, so a limit on the size of the message does not suffice.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Capped<T> {
    pub(in super::super) items: Vec<T>,
    pub(in super::super) more: usize,
}

impl<T> Default for Capped<T> {
    fn default() -> Self {
        Self { items: Vec::new(), more: 0 }
    }
}

/// Field number of the list in `ListPodSandboxResponse` and in `ListContainersResponse`.
const ITEMS: u32 = 1;

impl<T: Message + Default> Message for Capped<T> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        codec::encode_repeated(ITEMS, &self.items, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag != ITEMS {
            return skip_field(wire_type, tag, buf, context);
        }
        if self.items.len() < MOST {
            return codec::merge_repeated(wire_type, &mut self.items, buf, context);
        }
        self.more += 1;
        skip_field(wire_type, tag, buf, context)
    }

    fn encoded_len(&self) -> usize {
        codec::encoded_len_repeated(ITEMS, &self.items)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}
