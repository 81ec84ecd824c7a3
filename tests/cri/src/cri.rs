//! The messages of `runtime.v1` (Kubernetes, `cri-api/pkg/apis/runtime/v1/api.proto`) that are used
//! here, with the fields that are used. Written by hand: the generated client needs protoc and is
//! a hundred times their size.

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$field:meta])* $key:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub(crate) struct $name { $($(#[$field])* pub(crate) $key: $kind,)* }
    };
}

message! {
    /// An answer of which nothing is read.
    Nothing {}
}

message! { StatusRequest {} }

message! {
    StatusResponse {
        #[prost(message, optional, tag = "1")]
        status: Option<RuntimeStatus>,
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
    }
}

message! {
    /// `StopPodSandboxRequest`, `RemovePodSandboxRequest`.
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
    /// `CreateContainerResponse`, `StartContainerRequest`.
    ContainerId {
        #[prost(string, tag = "1")]
        container_id: String,
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
        #[prost(message, repeated, tag = "7")]
        mounts: Vec<Mount>,
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
