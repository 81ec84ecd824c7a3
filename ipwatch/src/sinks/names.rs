//! The names of all attributes. An attribute can only be built from a [`Name`], so no other name is ever sent.
//! `docs/telemetry.md` documents each; a test compares the two.

use opentelemetry_semantic_conventions::attribute;

/// The name of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(&'static str);

impl Name {
    /// The name as a string.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

macro_rules! names {
    ($($constant:ident = $name:expr),* $(,)?) => {
        $(pub(super) const $constant: Name = Name($name);)*
        /// Every name.
        pub const ALL: &[Name] = &[$($constant),*];
    };
}

// Names from OpenTelemetry's semantic conventions come first. If an update of the crate changes one of them,
// `sinks::otlp::tests::golden` fails.
names! {
    SERVICE_NAME = attribute::SERVICE_NAME,
    SERVICE_INSTANCE_ID = attribute::SERVICE_INSTANCE_ID,
    SERVICE_VERSION = attribute::SERVICE_VERSION,
    HOST_ID = attribute::HOST_ID,
    HOST_NAME = attribute::HOST_NAME,
    ERROR_TYPE = attribute::ERROR_TYPE,
    CONTAINER_ID = attribute::CONTAINER_ID,
    CONTAINER_NAME = attribute::CONTAINER_NAME,
    CONTAINER_RUNTIME_NAME = attribute::CONTAINER_RUNTIME_NAME,
    K8S_CLUSTER_NAME = attribute::K8S_CLUSTER_NAME,
    K8S_NAMESPACE_NAME = attribute::K8S_NAMESPACE_NAME,
    K8S_NODE_NAME = attribute::K8S_NODE_NAME,
    K8S_POD_NAME = attribute::K8S_POD_NAME,
    K8S_POD_UID = attribute::K8S_POD_UID,
    NETWORK_LOCAL_ADDRESS = attribute::NETWORK_LOCAL_ADDRESS,
    PROCESS_COMMAND = attribute::PROCESS_COMMAND,
    PROCESS_EXECUTABLE_PATH = attribute::PROCESS_EXECUTABLE_PATH,
    PROCESS_EXIT_CODE = attribute::PROCESS_EXIT_CODE,
    PROCESS_PARENT_PID = attribute::PROCESS_PARENT_PID,
    PROCESS_PID = attribute::PROCESS_PID,
    THREAD_ID = attribute::THREAD_ID,
    THREAD_NAME = attribute::THREAD_NAME,
    CNI_COMMAND = "ipwatch.cni.command",
    CNI_ERROR = "ipwatch.cni.error",
    CNI_IFNAME = "ipwatch.cni.ifname",
    CNI_NETWORK = "ipwatch.cni.network",
    CNI_PLUGIN = "ipwatch.cni.plugin",
    CNI_SIGNAL = "ipwatch.cni.signal",
    EVIDENCE_SOURCE = "ipwatch.evidence.source",
    EVIDENCE_TEXT = "ipwatch.evidence.text",
    FINDING_ACKED = "ipwatch.finding.acked",
    FINDING_CAUSED_BY = "ipwatch.finding.caused_by",
    FINDING_CHANGE = "ipwatch.finding.change",
    FINDING_CODE = "ipwatch.finding.code",
    FINDING_ID = "ipwatch.finding.id",
    FINDING_IMPACT = "ipwatch.finding.impact",
    FINDING_IPS = "ipwatch.finding.ips",
    FINDING_PREEXISTING = "ipwatch.finding.preexisting",
    FINDING_REMEDIATION = "ipwatch.finding.remediation",
    FINDING_SEVERITY = "ipwatch.finding.severity",
    FINDING_SINCE = "ipwatch.finding.since",
    FINDING_STATUS = "ipwatch.finding.status",
    HOLDERS = "ipwatch.holders",
    HOLDERS_COUNT = "ipwatch.holders.count",
    LINK_KIND = "ipwatch.link.kind",
    NETNS_COOKIE = "ipwatch.netns.cookie",
    NETNS_INODE = "ipwatch.netns.inode",
    NETNS_PATH = "ipwatch.netns.path",
    PROBE_EVENT = "ipwatch.probe.event",
    TEARDOWN_ADDRESSES = "ipwatch.teardown.addresses",
    TEARDOWN_CHANGE = "ipwatch.teardown.change",
    TEARDOWN_WORKER_STATE = "ipwatch.teardown.worker.state",
    TEARDOWN_WORKER_WCHAN = "ipwatch.teardown.worker.wchan",
    TELEMETRY_KIND = "ipwatch.telemetry.kind",
    TENURE_CHANGE = "ipwatch.tenure.change",
    TENURE_ENDED_BY = "ipwatch.tenure.ended_by",
    TENURE_SINCE = "ipwatch.tenure.since",
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sinks::tests::everything_sent;

    /// The names in backquotes at the beginning of the table's rows.
    fn documented() -> BTreeSet<String> {
        let page = include_str!("../../../docs/telemetry.md");
        let (_, table) = page.split_once("## Attributes").unwrap();
        let table = table.split("\n## ").next().unwrap();
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
        rows.map(|row| row.split('`').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_page_names_every_attribute_and_no_other() {
        let known: BTreeSet<String> = ALL.iter().map(|name| name.0.to_owned()).collect();
        assert_eq!(known.len(), ALL.len(), "no name twice");
        assert_eq!(documented(), known);
    }

    #[test]
    fn every_name_is_sent_by_something() {
        let known: BTreeSet<String> = ALL.iter().map(|name| name.0.to_owned()).collect();
        assert_eq!(everything_sent(), known);
    }
}
