//! Runs of CNI plugins: those under way and those of the last minutes.

use crate::contract::{PluginRun, Pod};
use crate::map::{CallEntry, NodeMap};

impl NodeMap {
    /// Runs under way and those that ended within the last minutes, the oldest first: all, or those for one pod, by its
    /// name or its uid.
    #[must_use]
    pub fn runs_view(&self, of: Option<&str>) -> Vec<PluginRun> {
        let calendar = self.calendar();
        let date = |at| calendar.date(at);
        let view = |entry: &CallEntry| {
            let call = &entry.call;
            let pod = call.pod.as_ref().map(|pod| Pod {
                namespace: Some(pod.namespace.clone()),
                name: Some(pod.name.clone()),
                uid: pod.uid.clone(),
                ..Pod::default()
            });
            PluginRun {
                command: call.command.as_str().to_owned(),
                plugin: call.plugin.rsplit('/').next().unwrap_or_default().to_owned(),
                pid: call.task.pid,
                within: entry.within.map(|task| task.pid),
                container_id: call.container_id.clone(),
                pod,
                began: date(entry.began),
                ended: entry.ended.map(|end| date(end.at)),
                status: entry.ended.and_then(|end| end.status),
                signal: entry.ended.and_then(|end| end.signal),
            }
        };
        let wanted = |run: &PluginRun| {
            of.is_none_or(|of| run.pod.as_ref().is_some_and(|pod| pod.is_called(of)))
        };
        let mut entries: Vec<&CallEntry> = self.calls().collect();
        entries.sort_by_key(|entry| entry.began);
        entries.into_iter().map(view).filter(wanted).collect()
    }
}
