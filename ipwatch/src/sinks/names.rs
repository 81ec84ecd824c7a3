//! The names of every attribute that leaves the node. Nothing else can be sent: an attribute is made of a
//! [`Name`], and there are no others. `docs/telemetry.md` explains each, and a test compares the two.

/// The name of an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(&'static str);

impl Name {
    /// As it is sent.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

macro_rules! names {
    ($($constant:ident = $name:literal),* $(,)?) => {
        $(pub(super) const $constant: Name = Name($name);)*
        /// Every name.
        pub const ALL: &[Name] = &[$($constant),*];
    };
}

// Names that OpenTelemetry's semantic conventions have come first.
names! {
    SERVICE_NAME = "service.name",
    SERVICE_VERSION = "service.version",
    HOST_NAME = "host.name",
    CONTAINER_ID = "container.id",
    CONTAINER_NAME = "container.name",
    CONTAINER_RUNTIME_NAME = "container.runtime.name",
    K8S_NAMESPACE_NAME = "k8s.namespace.name",
    K8S_POD_NAME = "k8s.pod.name",
    K8S_POD_UID = "k8s.pod.uid",
    NETWORK_LOCAL_ADDRESS = "network.local.address",
    PROCESS_COMMAND = "process.command",
    PROCESS_EXECUTABLE_PATH = "process.executable.path",
    PROCESS_EXIT_CODE = "process.exit.code",
    PROCESS_PARENT_PID = "process.parent_pid",
    PROCESS_PID = "process.pid",
    THREAD_ID = "thread.id",
    THREAD_NAME = "thread.name",
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

    /// What stands in backquotes at the beginning of a table's rows.
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
