//! The wanted pod, from the command line to the messages of the CRI.

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail};

use crate::cri;

/// A pod and, if a command is given, its container.
#[derive(Default)]
pub(crate) struct Wanted<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    attempt: u32,
    host_network: bool,
    handler: &'a str,
    image: &'a str,
    dir: Option<&'a str>,
    secret: Option<&'a str>,
    net_admin: bool,
    /// The first of the 65,536 ids of the pod's user namespace, if it has one of its own.
    ids: Option<u32>,
    command: &'a [&'a str],
}

impl<'a> Wanted<'a> {
    /// Parses `KEY=VALUE… [-- COMMAND…]`.
    pub(crate) fn parse(words: &'a [&'a str]) -> Result<Self> {
        let mut wanted = Self::default();
        for (index, word) in words.iter().enumerate() {
            if *word == "--" {
                wanted.command = &words[index + 1..];
                break;
            }
            let (key, value) = word.split_once('=').with_context(|| format!("{word}: no `=`"))?;
            match key {
                "namespace" => wanted.namespace = value,
                "name" => wanted.name = value,
                "uid" => wanted.uid = value,
                "attempt" => wanted.attempt = value.parse().context("attempt")?,
                "host-network" => wanted.host_network = true,
                "handler" => wanted.handler = value,
                "image" => wanted.image = value,
                "dir" => wanted.dir = Some(value),
                "secret" => wanted.secret = Some(value),
                "net-admin" => wanted.net_admin = true,
                "ids" => wanted.ids = Some(value.parse().context("ids")?),
                _ => bail!("{key}: no such key"),
            }
        }
        Ok(wanted)
    }

    /// Name of the runtime's handler; empty for the default one.
    pub(crate) fn handler(&self) -> &str {
        self.handler
    }

    pub(crate) fn sandbox(&self) -> cri::PodSandboxConfig {
        let context =
            cri::LinuxSandboxSecurityContext { namespace_options: Some(self.namespaces()) };
        cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: self.name.to_owned(),
                uid: self.uid.to_owned(),
                namespace: self.namespace.to_owned(),
                attempt: self.attempt,
            }),
            labels: self.secrets(),
            annotations: self.secrets(),
            linux: Some(cri::LinuxPodSandboxConfig {
                // As kubelet's cgroupfs driver names it.
                cgroup_parent: format!("/kubepods/besteffort/pod{}", self.uid),
                security_context: Some(context),
            }),
        }
    }

    pub(crate) fn container(&self) -> cri::ContainerConfig {
        let mount = |dir: &str| cri::Mount {
            container_path: "/host".to_owned(),
            host_path: dir.to_owned(),
        };
        let env =
            |secret: &str| cri::KeyValue { key: "API_TOKEN".to_owned(), value: secret.to_owned() };
        let admin = || cri::Capability { add_capabilities: vec!["NET_ADMIN".to_owned()] };
        let context = cri::LinuxContainerSecurityContext {
            capabilities: self.net_admin.then(admin),
            namespace_options: Some(self.namespaces()),
        };
        cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
            image: Some(cri::ImageSpec { image: self.image.to_owned() }),
            command: self.command.iter().map(|&word| word.to_owned()).collect(),
            envs: self.secret.map(env).into_iter().collect(),
            mounts: self.dir.map(mount).into_iter().collect(),
            labels: self.secrets(),
            annotations: self.secrets(),
            linux: Some(cri::LinuxContainerConfig { security_context: Some(context) }),
        }
    }

    fn namespaces(&self) -> cri::NamespaceOption {
        let ids = |host_id| vec![cri::IdMapping { host_id, container_id: 0, length: 65_536 }];
        let user = |first| cri::UserNamespace { mode: 0, uids: ids(first), gids: ids(first) };
        let network = if self.host_network { 2 } else { 0 };
        cri::NamespaceOption { network, pid: 1, user: self.ids.map(user) }
    }

    fn secrets(&self) -> HashMap<String, String> {
        self.secret.map(|secret| ("token".to_owned(), secret.to_owned())).into_iter().collect()
    }
}
