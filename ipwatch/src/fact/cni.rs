//! Runs of CNI plugins, as observed in the kernel.

use serde::{Deserialize, Serialize};

use super::{PodName, TaskKey};

/// A plugin was started. All fields except the plugin come from its environment, which the runtime chose and which may
/// be wrong. No other variables are ever read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniCall {
    /// The process, which identifies the call.
    pub task: TaskKey,
    /// The process that started it: a runtime, or another plugin.
    pub parent: u32,
    /// Path of the plugin's executable. Hostile text.
    pub plugin: String,
    /// `CNI_COMMAND`.
    pub command: CniCommand,
    /// `CNI_CONTAINERID`. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// `CNI_NETNS`; absent when empty, which a DEL may be. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_path: Option<String>,
    /// `CNI_IFNAME`. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
    /// The `K8S_POD_*` keys of `CNI_ARGS`. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
}

/// `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum CniCommand {
    /// Adds a container to the network.
    Add,
    /// Removes a container from the network.
    Del,
    /// Checks that a container is in the network.
    Check,
    /// Frees resources that no container uses.
    Gc,
    /// Whether the plugin is ready.
    Status,
    /// The supported versions.
    Version,
}

impl CniCommand {
    /// The spelling in the variable.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CniCommand::Add => "ADD",
            CniCommand::Del => "DEL",
            CniCommand::Check => "CHECK",
            CniCommand::Gc => "GC",
            CniCommand::Status => "STATUS",
            CniCommand::Version => "VERSION",
        }
    }
}

impl std::str::FromStr for CniCommand {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        const ALL: [CniCommand; 6] = [
            CniCommand::Add,
            CniCommand::Del,
            CniCommand::Check,
            CniCommand::Gc,
            CniCommand::Status,
            CniCommand::Version,
        ];
        ALL.into_iter().find(|command| command.as_str() == text).ok_or(())
    }
}
