//! The messages of `runtime.v1` (Kubernetes, `cri-api/pkg/apis/runtime/v1/api.proto`) that are used here, with the
//! fields that are used. They are written by hand: the generated client needs protoc and is a hundred times as large.

use std::collections::HashMap;

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$field:meta])* $key:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub(crate) struct $name { $($(#[$field])* pub(crate) $key: $kind,)* }
    };
}

message! {
    /// A message of which no field is read.
    Nothing {}
}

message! {
    StatusRequest {
        #[prost(bool, tag = "1")]
        verbose: bool,
    }
}

message! {
    VersionResponse {
        #[prost(string, tag = "1")]
        version: String,
        #[prost(string, tag = "2")]
        runtime_name: String,
        #[prost(string, tag = "3")]
        runtime_version: String,
        #[prost(string, tag = "4")]
        runtime_api_version: String,
    }
}

message! {
    StatusResponse {
        #[prost(message, optional, tag = "1")]
        status: Option<RuntimeStatus>,
        /// Specific to each runtime; only sent for a verbose request.
        #[prost(map = "string, string", tag = "2")]
        info: HashMap<String, String>,
    }
}

message! {
    RuntimeStatus {
        #[prost(message, repeated, tag = "1")]
        conditions: Vec<RuntimeCondition>,
    }
}

message! {
    RuntimeCondition {
        #[prost(string, tag = "1")]
        kind: String,
        #[prost(bool, tag = "2")]
        status: bool,
        #[prost(string, tag = "4")]
        message: String,
    }
}

message! {
    RunPodSandboxRequest {
        #[prost(message, optional, tag = "1")]
        config: Option<PodSandboxConfig>,
        #[prost(string, tag = "2")]
        runtime_handler: String,
    }
}

message! {
    RunPodSandboxResponse {
        #[prost(string, tag = "1")]
        pod_sandbox_id: String,
    }
}

message! {
    PodSandboxConfig {
        #[prost(message, optional, tag = "1")]
        metadata: Option<PodSandboxMetadata>,
        #[prost(map = "string, string", tag = "6")]
        labels: HashMap<String, String>,
        #[prost(map = "string, string", tag = "7")]
        annotations: HashMap<String, String>,
        #[prost(message, optional, tag = "8")]
        linux: Option<LinuxPodSandboxConfig>,
    }
}

message! {
    PodSandboxMetadata {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "2")]
        uid: String,
        #[prost(string, tag = "3")]
        namespace: String,
        #[prost(uint32, tag = "4")]
        attempt: u32,
    }
}

message! {
    LinuxPodSandboxConfig {
        #[prost(string, tag = "1")]
        cgroup_parent: String,
        #[prost(message, optional, tag = "2")]
        security_context: Option<LinuxSandboxSecurityContext>,
    }
}

message! {
    LinuxSandboxSecurityContext {
        #[prost(message, optional, tag = "1")]
        namespace_options: Option<NamespaceOption>,
    }
}

message! {
    NamespaceOption {
        /// `NamespaceMode`: 0 is the pod's own, 2 the node's.
        #[prost(int32, tag = "1")]
        network: i32,
        /// `NamespaceMode`: 1 is each container's own, which kubelet asks for unless the pod shares it.
        #[prost(int32, tag = "2")]
        pid: i32,
        #[prost(message, optional, tag = "5")]
        user: Option<UserNamespace>,
    }
}

message! {
    UserNamespace {
        /// `NamespaceMode`: 0 is the pod's own.
        #[prost(int32, tag = "1")]
        mode: i32,
        #[prost(message, repeated, tag = "2")]
        uids: Vec<IdMapping>,
        #[prost(message, repeated, tag = "3")]
        gids: Vec<IdMapping>,
    }
}

message! {
    IdMapping {
        #[prost(uint32, tag = "1")]
        host_id: u32,
        #[prost(uint32, tag = "2")]
        container_id: u32,
        #[prost(uint32, tag = "3")]
        length: u32,
    }
}

message! {
    /// `ListPodSandboxRequest` and `ListContainersRequest`, without a filter.
    ListRequest {}
}

message! {
    ListPodSandboxResponse {
        #[prost(message, repeated, tag = "1")]
        items: Vec<PodSandbox>,
    }
}

message! {
    PodSandbox {
        #[prost(string, tag = "1")]
        id: String,
        #[prost(message, optional, tag = "2")]
        metadata: Option<PodSandboxMetadata>,
        /// `PodSandboxState`: 0 is ready, 1 is not ready.
        #[prost(int32, tag = "3")]
        state: i32,
        #[prost(int64, tag = "4")]
        created_at: i64,
    }
}

message! {
    ListContainersResponse {
        #[prost(message, repeated, tag = "1")]
        containers: Vec<Container>,
    }
}

message! {
    Container {
        #[prost(string, tag = "1")]
        id: String,
        #[prost(string, tag = "2")]
        pod_sandbox_id: String,
        #[prost(message, optional, tag = "3")]
        metadata: Option<ContainerMetadata>,
        /// `ContainerState`: created, running, exited, unknown.
        #[prost(int32, tag = "6")]
        state: i32,
    }
}

message! {
    /// `StopPodSandboxRequest` and `RemovePodSandboxRequest`.
    SandboxId {
        #[prost(string, tag = "1")]
        pod_sandbox_id: String,
    }
}

message! {
    CreateContainerRequest {
        #[prost(string, tag = "1")]
        pod_sandbox_id: String,
        #[prost(message, optional, tag = "2")]
        config: Option<ContainerConfig>,
        #[prost(message, optional, tag = "3")]
        sandbox_config: Option<PodSandboxConfig>,
    }
}

message! {
    /// `CreateContainerResponse` and `StartContainerRequest`.
    ContainerId {
        #[prost(string, tag = "1")]
        container_id: String,
    }
}

message! {
    StopContainerRequest {
        #[prost(string, tag = "1")]
        container_id: String,
        /// In seconds.
        #[prost(int64, tag = "2")]
        timeout: i64,
    }
}

message! {
    ContainerConfig {
        #[prost(message, optional, tag = "1")]
        metadata: Option<ContainerMetadata>,
        #[prost(message, optional, tag = "2")]
        image: Option<ImageSpec>,
        #[prost(string, repeated, tag = "3")]
        command: Vec<String>,
        #[prost(message, repeated, tag = "6")]
        envs: Vec<KeyValue>,
        #[prost(message, repeated, tag = "7")]
        mounts: Vec<Mount>,
        #[prost(map = "string, string", tag = "9")]
        labels: HashMap<String, String>,
        #[prost(map = "string, string", tag = "10")]
        annotations: HashMap<String, String>,
        #[prost(message, optional, tag = "15")]
        linux: Option<LinuxContainerConfig>,
    }
}

message! {
    LinuxContainerConfig {
        #[prost(message, optional, tag = "2")]
        security_context: Option<LinuxContainerSecurityContext>,
    }
}

message! {
    LinuxContainerSecurityContext {
        #[prost(message, optional, tag = "1")]
        capabilities: Option<Capability>,
        #[prost(message, optional, tag = "3")]
        namespace_options: Option<NamespaceOption>,
    }
}

message! {
    Capability {
        /// Without `CAP_`.
        #[prost(string, repeated, tag = "1")]
        add_capabilities: Vec<String>,
    }
}

message! {
    KeyValue {
        #[prost(string, tag = "1")]
        key: String,
        #[prost(string, tag = "2")]
        value: String,
    }
}

message! {
    Mount {
        #[prost(string, tag = "1")]
        container_path: String,
        #[prost(string, tag = "2")]
        host_path: String,
    }
}

message! {
    ContainerMetadata {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(uint32, tag = "2")]
        attempt: u32,
    }
}

message! {
    ImageSpec {
        #[prost(string, tag = "1")]
        image: String,
    }
}
