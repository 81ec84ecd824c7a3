//! Every event that ipwatch observes, the ways to observe it from the best to the worst, and the climb: try one way
//! after the other, keep the first that the kernel accepts, and record why no better one works.

use std::fmt;

use super::attach::{Attach, Loader, Refusal};
use super::offsets::need;
use super::{Rung, Settings};
use crate::contract;
use crate::sources::arp::Watch;
use ipwatch_common::kind;

/// Shown as the rung of an event that nothing else reports.
const NOTHING: &str = "none";

/// One event and the ways to observe it.
pub(super) struct Event {
    /// Its name in `doctor`.
    pub name: &'static str,
    /// Kernel struct members without which its programs would report wrong data.
    needs: &'static [&'static [&'static str]],
    /// The best first.
    rungs: &'static [Attachment],
    /// How it is observed if no program can be used: rung and hook, as `doctor` shows them.
    fallback: (&'static str, &'static str),
    /// The kinds of records that its programs write.
    pub kinds: &'static [u16],
}

/// One way: all of these programs, or none.
struct Attachment {
    rung: Rung,
    programs: &'static [(&'static str, Attach)],
}

const fn attachment(rung: Rung, programs: &'static [(&'static str, Attach)]) -> Attachment {
    Attachment { rung, programs }
}

/// A tracepoint: typed, or else raw. Both see the same events.
macro_rules! tracepoint {
    ($tp:literal, $raw:literal, $name:literal) => {
        &[
            attachment(Rung::TpBtf, &[($tp, Attach::TpBtf($name))]),
            attachment(Rung::RawTp, &[($raw, Attach::RawTp($name))]),
        ]
    };
}

/// The entry of a function, by whichever name it has.
macro_rules! function {
    ($fentry:literal, $kprobe:literal, $($name:literal),+) => {
        &[
            $(attachment(Rung::Fentry, &[($fentry, Attach::Fentry($name))]),)+
            $(attachment(Rung::Kprobe, &[($kprobe, Attach::Kprobe($name))]),)+
        ]
    };
}

/// The event that [`ARP_WATCH`] reports.
pub(super) const ARP_CLAIM: &str = "arp-claim";
/// The socket filter on the host's links.
pub(super) const ARP_WATCH: &[(&str, Attach)] = &[("sk_arp", Attach::Arp)];

/// In the order in which `doctor` shows them.
pub(super) const EVENTS: &[Event] = &[
    Event {
        name: "process-fork",
        needs: &[need::TASK],
        rungs: tracepoint!("tp_fork", "rt_fork", "sched_process_fork"),
        fallback: ("procfs", "/proc"),
        kinds: &[kind::TASK_FORK],
    },
    Event {
        name: "process-exec",
        needs: &[need::TASK],
        rungs: tracepoint!("tp_exec", "rt_exec", "sched_process_exec"),
        fallback: ("procfs", "/proc/PID/comm"),
        kinds: &[kind::TASK_EXEC],
    },
    Event {
        name: "process-exit",
        needs: &[need::TASK],
        rungs: tracepoint!("tp_exit", "rt_exit", "sched_process_exit"),
        fallback: ("procfs", "/proc/PID/task/TID/stat"),
        kinds: &[kind::TASK_EXIT],
    },
    Event {
        name: "netns-release",
        needs: &[need::TASK],
        // do_exit() calls it from another file, so that it cannot be inlined there; switch_task_namespaces(), which it
        // consists of, can. Split in two in 6.19.
        rungs: function!(
            "fe_release",
            "kp_release",
            "exit_task_namespaces",
            "exit_nsproxy_namespaces"
        ),
        fallback: ("procfs", "/proc/PID/task/TID/ns/net"),
        kinds: &[kind::TASK_RELEASE],
    },
    Event {
        name: "task-freed",
        needs: &[need::TASK],
        rungs: tracepoint!("tp_free", "rt_free", "sched_process_free"),
        fallback: ("procfs", "/proc/PID/task/TID"),
        kinds: &[kind::TASK_FREE],
    },
    Event {
        name: "netns-join",
        needs: &[need::TASK],
        rungs: function!("fe_switch", "kp_switch", "switch_task_namespaces"),
        fallback: ("snapshot", "iter/task"),
        kinds: &[kind::TASK_JOIN],
    },
    Event {
        name: "sigkill",
        needs: &[need::TASK],
        rungs: tracepoint!("tp_signal", "rt_signal", "signal_generate"),
        fallback: ("procfs", "/proc/PID/task/TID/status"),
        kinds: &[kind::SIGNAL],
    },
    Event {
        name: "group-exit",
        needs: &[need::TASK],
        // The ways without `do_coredump` are for 6.16 and newer, which have another function instead; there a signal
        // reports every core dump.
        rungs: &[
            attachment(
                Rung::Fentry,
                &[
                    ("fe_zap", Attach::Fentry("zap_other_threads")),
                    ("fe_dump", Attach::Fentry("do_coredump")),
                ],
            ),
            attachment(Rung::Fentry, &[("fe_zap", Attach::Fentry("zap_other_threads"))]),
            attachment(
                Rung::Kprobe,
                &[
                    ("kp_zap", Attach::Kprobe("zap_other_threads")),
                    ("kp_dump", Attach::Kprobe("do_coredump")),
                ],
            ),
            attachment(Rung::Kprobe, &[("kp_zap", Attach::Kprobe("zap_other_threads"))]),
        ],
        fallback: ("snapshot", "iter/task"),
        kinds: &[kind::GROUP_EXIT],
    },
    Event {
        name: "netns-created",
        needs: &[need::NETNS],
        rungs: function!("fe_netns_init", "kp_netns_init", "netns_bpf_pernet_init"),
        fallback: ("snapshot", "netns walk, RTNLGRP_NSID"),
        kinds: &[kind::NETNS_CREATED],
    },
    Event {
        name: "netns-teardown-begin",
        needs: &[need::NETNS],
        rungs: function!("fe_netns_pre_exit", "kp_netns_pre_exit", "netns_bpf_pernet_pre_exit"),
        fallback: ("netlink", "RTNLGRP_NSID"),
        kinds: &[kind::NETNS_DYING],
    },
    Event {
        name: "netns-teardown-end",
        needs: &[need::NETNS],
        rungs: function!("fe_netns_exit", "kp_netns_exit", "proc_net_ns_exit"),
        fallback: ("netlink", "RTNLGRP_NSID"),
        kinds: &[kind::NETNS_GONE],
    },
    Event {
        name: "ipv4-address",
        needs: &[need::IPV4],
        // The notifier's argument is untyped; under lockdown=confidentiality a typed argument is needed (`read.rs` of
        // the kernel half).
        rungs: &[
            attachment(Rung::Fentry, &[("fe_ipv4", Attach::Fentry("fib_inetaddr_event"))]),
            attachment(Rung::Fentry, &[("fe_ipv4_message", Attach::Fentry("rtmsg_ifa"))]),
            attachment(Rung::Kprobe, &[("kp_ipv4", Attach::Kprobe("fib_inetaddr_event"))]),
        ],
        fallback: ("netlink", "RTNLGRP_IPV4_IFADDR"),
        kinds: &[kind::IPV4_UP, kind::IPV4_DOWN],
    },
    Event {
        name: "ipv6-address",
        needs: &[need::IPV6],
        rungs: function!("fe_ipv6", "kp_ipv6", "inet6addr_notifier_call_chain"),
        fallback: ("netlink", "RTNLGRP_IPV6_IFADDR"),
        kinds: &[kind::IPV6_UP, kind::IPV6_DOWN],
    },
    Event {
        name: "ipv6-usable",
        needs: &[need::IPV6],
        // `__ipv6_ifa_notify` is called with event 0 for an address that changes in place. If the compiler inlines that
        // call into its caller, only `inet6_ifa_notify` can be hooked (Debian's 5.10); otherwise `inet6_ifa_notify` is
        // inlined.
        rungs: function!(
            "fe_ipv6_notify",
            "kp_ipv6_notify",
            "inet6_ifa_notify",
            "__ipv6_ifa_notify"
        ),
        fallback: ("netlink", "RTNLGRP_IPV6_IFADDR"),
        kinds: &[kind::IPV6_READY, kind::IPV6_REMOVED],
    },
    Event {
        name: "ipv6-dad-failure",
        needs: &[need::IPV6, &["SKB_HEAD", "SKB_MAC_HEADER"]],
        rungs: function!("fe_dad_failure", "kp_dad_failure", "addrconf_dad_failure"),
        fallback: ("netlink", "RTNLGRP_IPV6_IFADDR, without who answered"),
        kinds: &[kind::DAD_FAILED],
    },
    Event {
        name: "device-moved",
        needs: &[need::DEVICE],
        // Split in two in 5.12.
        rungs: &[
            attachment(
                Rung::Fentry,
                &[
                    ("fe_move", Attach::Fentry("__dev_change_net_namespace")),
                    ("fx_move", Attach::Fexit("__dev_change_net_namespace")),
                ],
            ),
            attachment(
                Rung::Fentry,
                &[
                    ("fe_move", Attach::Fentry("dev_change_net_namespace")),
                    ("fx_move", Attach::Fexit("dev_change_net_namespace")),
                ],
            ),
            attachment(
                Rung::Kprobe,
                &[
                    ("kp_move", Attach::Kprobe("__dev_change_net_namespace")),
                    ("kr_move", Attach::Kretprobe("__dev_change_net_namespace")),
                ],
            ),
            attachment(
                Rung::Kprobe,
                &[
                    ("kp_move", Attach::Kprobe("dev_change_net_namespace")),
                    ("kr_move", Attach::Kretprobe("dev_change_net_namespace")),
                ],
            ),
        ],
        fallback: ("netlink", "RTNLGRP_LINK"),
        kinds: &[kind::DEVICE_MOVED],
    },
    Event {
        name: "neighbour-update",
        needs: &[need::NEIGHBOUR],
        rungs: tracepoint!("tp_neigh_update", "rt_neigh_update", "neigh_update"),
        fallback: ("netlink", "RTNLGRP_NEIGH, without claims that lose"),
        kinds: &[kind::NEIGHBOUR],
    },
    Event {
        name: ARP_CLAIM,
        needs: &[need::CLAIM],
        // Called through NF_HOOK(), which takes its address: although static, it has its own body.
        rungs: &[
            attachment(Rung::Fentry, &[("fe_arp", Attach::Fentry("arp_process"))]),
            attachment(Rung::Kprobe, &[("kp_arp", Attach::Kprobe("arp_process"))]),
            attachment(Rung::Socket, ARP_WATCH),
        ],
        fallback: ("netlink", "RTNLGRP_NEIGH, without who claims an IP of ours"),
        kinds: &[kind::CLAIM, kind::CLAIM_ON_WIRE],
    },
    Event {
        name: "cni-call",
        needs: &[need::CALL],
        rungs: &[
            attachment(
                Rung::TpBtf,
                &[
                    ("tp_call_end", Attach::TpBtf("sched_process_exit")),
                    ("tp_call", Attach::TpBtf("sched_process_exec")),
                ],
            ),
            attachment(
                Rung::RawTp,
                &[
                    ("rt_call_end", Attach::RawTp("sched_process_exit")),
                    ("rt_call", Attach::RawTp("sched_process_exec")),
                ],
            ),
        ],
        fallback: (NOTHING, "runs of CNI plugins are not seen"),
        kinds: &[kind::CALL_BEGAN, kind::CALL_ENDED, kind::CALL_REFUSED],
    },
    Event {
        name: "netns-list",
        needs: &[need::WALK],
        rungs: &[attachment(Rung::Snapshot, &[("walk_netns", Attach::TestRun)])],
        fallback: ("procfs", "/proc/PID/ns/net, mountinfo"),
        kinds: &[],
    },
    Event {
        name: "task-list",
        needs: &[need::TASK],
        rungs: &[attachment(
            Rung::Snapshot,
            &[("it_task", Attach::Iter("task")), ("it_leaving", Attach::Iter("task"))],
        )],
        fallback: ("procfs", "/proc/PID/task/TID/ns/net"),
        kinds: &[],
    },
    Event {
        name: "file-list",
        needs: &[need::FILE],
        rungs: &[attachment(Rung::Snapshot, &[("it_file", Attach::Iter("task_file"))])],
        fallback: ("procfs", "/proc/PID/fd"),
        kinds: &[],
    },
];

/// Why no better rung is used: one reason for each rung.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Why(Vec<(Option<Rung>, Reason)>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    Forbidden,
    Lacks(String),
    Refused(Refusal),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Forbidden => f.write_str("forbidden by the configuration"),
            Reason::Lacks(member) => write!(f, "this kernel's BTF has no {member}"),
            Reason::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl Why {
    /// Adds a reason. If a function has two names, the absence of one says less than the kernel's answer for the other.
    fn add(&mut self, rung: Option<Rung>, reason: Reason) {
        let absent = |reason: &Reason| matches!(reason, Reason::Refused(Refusal::NoHook(_)));
        match self.0.iter_mut().find(|(known, _)| *known == rung) {
            Some((_, known)) if absent(known) => *known = reason,
            Some(_) => {}
            None => self.0.push((rung, reason)),
        }
    }

    /// Another hook of this rung was accepted: the reason why the first was not is dropped.
    fn reached(&mut self, rung: Rung) {
        self.0.retain(|(known, _)| *known != Some(rung));
    }

    fn text(&self) -> Option<String> {
        let one = |(rung, reason): &(Option<Rung>, Reason)| match rung {
            Some(rung) => format!("{rung}: {reason}"),
            None => reason.to_string(),
        };
        (!self.0.is_empty()).then(|| self.0.iter().map(one).collect::<Vec<_>>().join("; "))
    }
}

/// The outcome for one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    pub event: &'static str,
    /// The rung in use, if any.
    pub rung: Option<Rung>,
    /// The programs in use.
    pub programs: &'static [(&'static str, Attach)],
    hook: &'static str,
    /// Why no better rung is used.
    why: Why,
}

impl Standing {
    /// Whether a probe reports ARP, so that no socket has to.
    fn is_above_the_watch(&self) -> bool {
        self.event == ARP_CLAIM && self.rung.is_some_and(|rung| rung != Rung::Socket)
    }

    /// Records why the socket, which was requested in addition, could not be opened, if so.
    fn lacks_the_watch(&mut self, refused: Option<Reason>) {
        if let Some(reason) = refused {
            tracing::warn!(%reason, "probes: ARP on the host's links is not observed");
            self.why.add(Some(Rung::Socket), reason);
        }
    }
}

/// Tries the ways of every event. No error is fatal: refusals are recorded.
pub(super) fn climb(loader: &mut Loader<'_>, settings: &Settings) -> Vec<Standing> {
    let mut forbid = settings.forbid.clone();
    if settings.watch == Watch::Off {
        forbid.push(Rung::Socket);
    }
    let mut climb = |event| settle(event, loader, &forbid);
    let mut standings: Vec<Standing> = EVENTS.iter().map(&mut climb).collect();
    let higher = standings.iter_mut().find(|standing| standing.is_above_the_watch());
    if settings.watch == Watch::Always
        && let Some(standing) = higher
    {
        let refused = if forbid.contains(&Rung::Socket) {
            Some(Reason::Forbidden)
        } else {
            loader.attach(Rung::Socket, ARP_WATCH).err().map(Reason::Refused)
        };
        standing.lacks_the_watch(refused);
    }
    standings
}

fn settle(event: &Event, loader: &mut Loader<'_>, forbid: &[Rung]) -> Standing {
    let mut why = Why::default();
    let lacking = event.needs.iter().find_map(|needed| loader.offsets().lacking(needed));
    if let Some(member) = lacking {
        why.add(None, Reason::Lacks(member));
        return Standing { event: event.name, rung: None, programs: &[], hook: "", why };
    }
    for way in event.rungs {
        if forbid.contains(&way.rung) {
            why.add(Some(way.rung), Reason::Forbidden);
            continue;
        }
        match loader.attach(way.rung, way.programs) {
            Ok(()) => {
                let hook = way.programs.first().map_or("", |(_, attach)| attach.hook());
                why.reached(way.rung);
                let (rung, programs) = (Some(way.rung), way.programs);
                return Standing { event: event.name, rung, programs, hook, why };
            }
            Err(refusal) => why.add(Some(way.rung), Reason::Refused(refusal)),
        }
    }
    Standing { event: event.name, rung: None, programs: &[], hook: "", why }
}

/// The kinds of records that an event's programs write.
pub(super) fn kinds(event: &str) -> &'static [u16] {
    EVENTS.iter().find(|one| one.name == event).map_or(&[], |one| one.kinds)
}

#[cfg(test)]
pub(crate) fn event_names() -> impl Iterator<Item = &'static str> {
    EVENTS.iter().map(|event| event.name)
}

/// The report for `doctor`. `seen` is the number of events of a kind, `lost` the number of those that were not
/// reported.
pub(super) fn report(
    standings: &[Standing],
    seen: &dyn Fn(u16) -> u64,
    lost: &dyn Fn(u16) -> u64,
    proof: &dyn Fn(&str) -> Option<contract::Proof>,
) -> Vec<contract::Probe> {
    EVENTS
        .iter()
        .zip(standings)
        .map(|(event, standing)| {
            let seen = event.kinds.iter().map(|kind| seen(*kind)).sum();
            let lost = event.kinds.iter().map(|kind| lost(*kind)).sum();
            let why = standing.why.text();
            let canary = proof(event.name);
            let blind = canary.as_ref().and_then(|proof| unseen(event, proof));
            let status = match (&blind, &why) {
                (Some(_), _) => "degraded",
                (None, Some(_)) => "fallback",
                (None, None) => "active",
            };
            match standing.rung {
                Some(rung) => contract::Probe {
                    event: event.name.to_owned(),
                    rung: rung.to_string(),
                    hook: standing.hook.to_owned(),
                    status: status.to_owned(),
                    why: join(blind, why),
                    canary,
                    seen: (!event.kinds.is_empty()).then_some(seen),
                    lost: Some(lost).filter(|lost| *lost > 0),
                    missed: None,
                    attached_again: None,
                },
                None => fallen(event, why),
            }
        })
        .collect()
}

/// Explains that a program is attached but does not report, and what reports the event instead.
fn unseen(event: &Event, proof: &contract::Proof) -> Option<String> {
    let (rung, hook) = event.fallback;
    let what = proof.why.as_deref().filter(|_| proof.verdict == "not-seen")?;
    let instead =
        if rung == NOTHING { hook.to_owned() } else { format!("instead: {rung}, {hook}") };
    Some(format!("attached, not seen by the canary: {what}; {instead}"))
}

fn join(one: Option<String>, other: Option<String>) -> Option<String> {
    let both: Vec<String> = one.into_iter().chain(other).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

/// The report if no program at all can be loaded, because of `reason`.
pub(super) fn unavailable(reason: &str) -> Vec<contract::Probe> {
    EVENTS.iter().map(|event| fallen(event, Some(reason.to_owned()))).collect()
}

fn fallen(event: &Event, why: Option<String>) -> contract::Probe {
    let (rung, hook) = event.fallback;
    contract::Probe {
        event: event.name.to_owned(),
        rung: rung.to_owned(),
        hook: hook.to_owned(),
        status: if rung == NOTHING { "missing" } else { "fallback" }.to_owned(),
        why,
        seen: None,
        lost: None,
        canary: None,
        missed: None,
        attached_again: None,
    }
}

#[cfg(test)]
mod tests;
