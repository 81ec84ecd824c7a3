//! The part of the contract about runs of CNI plugins, as the kernel saw them: `query history`, beside the tenures.

use serde::{Deserialize, Serialize};

use super::Pod;

/// One run of a CNI plugin. Whatever its environment said of it was chosen by whoever started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginRun {
    /// `CNI_COMMAND`: `ADD`, `DEL`, `CHECK`, `GC`, `STATUS`, `VERSION`.
    pub command: String,
    /// The plugin's executable, without its directory. Hostile text.
    pub plugin: String,
    /// The process.
    pub pid: u32,
    /// The process of the run that it works for: an IPAM plugin's main plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<u32>,
    /// For which container. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// For which pod. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// When it began, RFC 3339.
    pub began: String,
    /// When it ended, RFC 3339; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Its exit status. Without this and a signal its end was not seen, only that it had ended by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<u32>,
}

impl PluginRun {
    /// Whether the plugin said that it failed, or was killed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.status.is_some_and(|status| status != 0) || self.signal.is_some()
    }
}
