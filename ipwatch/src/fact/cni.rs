//! Runs of CNI plugins, as the kernel saw them.

use serde::{Deserialize, Serialize};

use super::{PodName, TaskKey};

/// A plugin began to run. All but the plugin comes from its environment, which says no more than the
/// runtime chose: it may lie. Nothing but these variables is ever read of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniCall {
    /// The process: the identity of the call.
    pub task: TaskKey,
    /// The process that runs it: a runtime, or the plugin that this one works for.
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
    /// Put a container into the network.
    Add,
    /// Take it out.
    Del,
    /// See whether it is in it.
    Check,
    /// Free what no container has.
    Gc,
    /// Whether the plugin can work.
    Status,
    /// Which versions it speaks.
    Version,
}

impl CniCommand {
    /// As the variable spells it.
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
