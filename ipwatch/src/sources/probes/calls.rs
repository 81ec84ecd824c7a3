//! Turns the kernel half's records of CNI calls into facts. The texts come from a plugin's environment and contain
//! whatever its caller wrote there.

use std::path::Path;

use ipwatch_common::{CallEndRecord, CallRecord, CallRefusedRecord, kind};

use super::events::{TICK, whole};
use super::plugin_file::{self, File};
use crate::fact::{CniCall, Name, Observation, PodName, SourceName, TaskKey};

/// The source for which refused runs are counted.
const SOURCE: &str = SourceName::Probes.as_str();

/// Parses a record of the start or the end of a call. `None` if it is neither, is incomplete, or has a command that is
/// not a CNI command.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Observation> {
    if let Some(record) = whole::<CallRecord>(bytes)
        && record.header.kind == kind::CALL_BEGAN
    {
        return began(&record);
    }
    if let Some(record) = whole::<CallEndRecord>(bytes)
        && record.header.kind == kind::CALL_ENDED
    {
        return Some(ended(&record));
    }
    let record = whole::<CallRefusedRecord>(bytes)?;
    (record.header.kind == kind::CALL_REFUSED).then(|| refused(Name::PluginRun))
}

/// A run that is ignored.
pub(super) fn refused(name: Name) -> Observation {
    Observation::Refused { source: SOURCE.to_owned(), name, count: 1 }
}

/// Whether anybody but root can change the plugin of a run: its exit status could then be forged, and what it did is
/// unknown. Checks the executed file, as the kernel half saw it, and the path, as it is now.
pub(super) fn is_doubtful(record: &CallRecord) -> bool {
    let path = cut(&record.plugin).unwrap_or_default();
    record.loose != 0
        || match plugin_file::look(Path::new(&path)) {
            File::Roots => false,
            File::Others => true,
            // A plugin called from within a container, where it need not be mounted. The kernel half has checked the
            // plugin file itself, unless it is a script; then nothing has checked it.
            File::Unseen => record.script != 0,
        }
}

/// The start of a call; `None` if its command is not a CNI command.
pub(super) fn began(record: &CallRecord) -> Option<Observation> {
    let call = CniCall {
        task: TaskKey { pid: record.pid, tid: record.pid, start: record.start / TICK },
        parent: record.parent,
        plugin: cut(&record.plugin).unwrap_or_default(),
        command: cut(&record.command)?.parse().ok()?,
        container_id: text(&record.container_id),
        netns_path: text(&record.netns_path),
        ifname: text(&record.ifname),
        pod: pod(record),
    };
    Some(Observation::CniBegan(call))
}

fn pod(record: &CallRecord) -> Option<PodName> {
    Some(PodName {
        namespace: text(&record.pod_namespace)?,
        name: text(&record.pod_name)?,
        uid: text(&record.pod_uid),
    })
}

/// The end of a call, from the wait status.
pub(super) fn ended(record: &CallEndRecord) -> Observation {
    let signal = record.code & 0x7f;
    let (status, signal) = match signal {
        0 => (Some(record.code >> 8 & 0xff), None),
        signal => (None, Some(signal)),
    };
    let task = TaskKey { pid: record.pid, tid: record.pid, start: record.start / TICK };
    Observation::CniEnded { task, status, signal }
}

/// A value that is present and complete: one that fills its field may have been longer, and a truncated name is a
/// different name.
fn text<const N: usize>(bytes: &[u8; N]) -> Option<String> {
    cut(bytes).filter(|text| bytes.get(N - 2) == Some(&0) && !text.is_empty())
}

/// The text up to the first NUL; `None` if it is empty.
fn cut(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (end > 0).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::CniCommand;
    use ipwatch_common::{Header, Wire};
    use proptest::prelude::*;

    /// A record of zeroes except for these fields.
    fn record(command: &[u8], container: &[u8], pod: [&[u8]; 3]) -> CallRecord {
        let zeroes = [0; CallRecord::SIZE];
        let mut record = CallRecord::take(&mut &zeroes[..]).unwrap();
        let size = CallRecord::SIZE as u16;
        record.header = Header { kind: kind::CALL_BEGAN, size, reserved: 0, time: 1 };
        (record.pid, record.parent, record.start) = (9, 8, 7 * TICK + 3);
        fill(&mut record.plugin, b"/opt/cni/bin/bridge");
        fill(&mut record.command, command);
        fill(&mut record.container_id, container);
        fill(&mut record.ifname, b"eth0");
        fill(&mut record.pod_namespace, pod[0]);
        fill(&mut record.pod_name, pod[1]);
        fill(&mut record.pod_uid, pod[2]);
        record
    }

    fn fill(field: &mut [u8], text: &[u8]) {
        field[..text.len()].copy_from_slice(text);
    }

    fn call(record: &CallRecord) -> CniCall {
        match began(record) {
            Some(Observation::CniBegan(call)) => call,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_call_says_what_it_is_about() {
        let call = call(&record(b"ADD", b"abc", [b"shop", b"api-0", b""]));
        let pod = PodName { namespace: "shop".into(), name: "api-0".into(), uid: None };
        assert_eq!(call.task, TaskKey { pid: 9, tid: 9, start: 7 });
        assert_eq!((call.parent, call.plugin.as_str()), (8, "/opt/cni/bin/bridge"));
        assert_eq!((call.command, call.container_id.as_deref()), (CniCommand::Add, Some("abc")));
        assert_eq!((call.ifname.as_deref(), call.netns_path), (Some("eth0"), None));
        assert_eq!(call.pod, Some(pod));
    }

    #[test]
    fn a_part_of_a_name_is_no_name() {
        let whole = [b'x'; 254];
        assert!(call(&record(b"DEL", &whole, [b"", b"", b""])).container_id.is_some());
        let longer = [b'x'; 255];
        assert_eq!(call(&record(b"DEL", &longer, [b"", b"", b""])).container_id, None);
        assert_eq!(call(&record(b"DEL", b"", [b"shop", b"", b"u"])).pod, None);
    }

    proptest! {
        /// Whatever an environment contains, only legal names pass the gate.
        #[test]
        fn an_environment_is_anybodys(
            id in prop::collection::vec(1u8.., 0..256),
            names in prop::collection::vec(prop::collection::vec(1u8.., 0..32), 4),
        ) {
            let pod = [&*names[0], &*names[1], &*names[2]];
            let mut record = record(b"DEL", &id, pod);
            record.ifname = [0; 32];
            fill(&mut record.ifname, &names[3]);
            let what = began(&record).unwrap();
            let (at, origin) = (crate::fact::BootNs(1), crate::fact::Origin::Probe);
            let mut facts = vec![crate::fact::Fact { at, origin, what }];
            crate::fact::Gate::default().admit(&mut facts);
            for fact in facts {
                let Observation::CniBegan(call) = fact.what else { continue };
                prop_assert!(call.container_id.is_none_or(|id| Name::ContainerId.fits(&id)));
                prop_assert!(call.ifname.is_none_or(|name| Name::Device.fits(&name)));
                if let Some(pod) = call.pod {
                    prop_assert!(Name::Namespace.fits(&pod.namespace));
                    prop_assert!(Name::PodName.fits(&pod.name));
                    prop_assert!(pod.uid.is_none_or(|uid| Name::PodUid.fits(&uid)));
                }
            }
        }
    }

    #[test]
    fn what_is_no_call_says_nothing() {
        assert_eq!(began(&record(b"add", b"abc", [b"", b"", b""])), None);
        assert_eq!(began(&record(b"", b"abc", [b"", b"", b""])), None);
        for size in 0..CallRecord::SIZE + 2 {
            assert_eq!(decode(&vec![0xff; size]), None, "{size}");
        }
    }

    #[test]
    fn a_run_that_does_not_count_says_only_that() {
        let mut bytes = vec![0; CallRefusedRecord::SIZE];
        bytes[..2].copy_from_slice(&kind::CALL_REFUSED.to_ne_bytes());
        assert_eq!(decode(&bytes), Some(refused(Name::PluginRun)));
        assert_eq!(decode(&bytes[1..]), None);
    }

    #[test]
    fn a_plugin_that_others_can_change_is_doubtful() {
        // Only root can change anything on the way to this path, as on every node.
        let mut record = record(b"ADD", b"abc", [b"", b"", b""]);
        record.plugin = [0; ipwatch_common::LONGEST_PATH];
        fill(&mut record.plugin, b"/usr/bin/env");
        assert!(!is_doubtful(&record));
        assert!(is_doubtful(&CallRecord { loose: 1, ..record }), "the file itself");
        // Not visible from here: the kernel half has checked a program, but not a script.
        fill(&mut record.plugin, b"/nowhere/at/all");
        assert!(!is_doubtful(&record));
        assert!(is_doubtful(&CallRecord { script: 1, ..record }));
    }

    #[test]
    fn an_end_is_a_status_or_a_signal() {
        let end = |code| {
            let header = Header { kind: kind::CALL_ENDED, size: 32, reserved: 0, time: 1 };
            match ended(&CallEndRecord { header, pid: 9, code, start: 7 * TICK }) {
                Observation::CniEnded { status, signal, .. } => (status, signal),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end(0), (Some(0), None));
        assert_eq!(end(1 << 8), (Some(1), None));
        assert_eq!(end(9), (None, Some(9)));
        // With a core dump.
        assert_eq!(end(0x80 | 11), (None, Some(11)));
    }
}
