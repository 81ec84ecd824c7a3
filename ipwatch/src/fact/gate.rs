//! The way in: no fact gets past here with a name that is none.
//!
//! Every source hands its facts over through [`crate::sources::Emit`], which asks this of each; a recording that
//! is replayed goes through it too. The match over [`Observation`] has no wildcard, so that a new fact cannot forget it.
//!
//! What becomes of a fact whose name is refused depends on what its absence would say, for unknown is not absent:
//!
//! - What the kernel tells keeps its place. An address on a device with a strange name is still held there: the
//!   device gets a name of ours.
//! - A reservation keeps its IP reserved. For whom is unknown then: it is neither free nor anybody's leak.
//! - A sandbox, a container, a pod, a cached result, a range or an endpoint without a name that identifies it is
//!   dropped, and the list that it was in does not count as complete, so that nothing is concluded from what is not
//!   in there.
//! - A run of a plugin for a container whose id CNI does not allow is dropped. libcni and every plugin that is built
//!   on its `skel` refuse that id before they touch anything.
//! - Where a name only adds to what is told, it alone is left out.
//!
//! Each refusal is counted, by source and kind, and told as [`Observation::Refused`].

use std::collections::{BTreeMap, HashSet};

use super::names::{LONGEST_DEVICE, LONGEST_PATH, Name, harmless, stand_in};
use super::{
    Attachment, CniCall, Container, ContainerMount, Endpoint, Fact, Holder, Link, Monitor,
    Observation, Origin, Pod, PodName, Process, Range, Reservation, RuntimeProcess, Sandbox, Scope,
};
use crate::fact::SourceName;

/// Longest text that is for people alone: a line of a log, a state, a reason.
const LONGEST_TEXT: usize = 8192;

/// Longest key of an entry in a store: a file's path, and what leads to the entry in it.
const LONGEST_KEY: usize = LONGEST_PATH + 1024;

/// Stands for a path that is none. No path of a mount begins like this.
const UNNAMED: &str = "unnamed";

/// Lists that are remembered as having lost an entry. There is one for each source.
const MOST: usize = 256;

/// What stands between the sources and the map.
#[derive(Debug, Default)]
pub struct Gate {
    /// What is being listed and has lost an entry.
    short: HashSet<Scope>,
}

/// What was refused within one batch.
type Refused = BTreeMap<(String, Name), u64>;

impl Gate {
    /// Keeps of these facts what may be kept, and says what may not.
    pub fn admit(&mut self, facts: &mut Vec<Fact>) {
        let Some((at, origin)) = facts.last().map(|fact| (fact.at, fact.origin)) else { return };
        let mut refused = Refused::new();
        facts.retain_mut(|fact| {
            let mut check = Check { origin: fact.origin, refused: &mut refused };
            match check.what(&mut fact.what) {
                Verdict::Kept => {}
                Verdict::Dropped => return false,
                Verdict::Missing(scope) => {
                    // What is more than is remembered was never so many sources'.
                    if self.short.len() < MOST {
                        self.short.insert(scope);
                    }
                    return false;
                }
            }
            match &mut fact.what {
                Observation::Began(scope) => {
                    self.short.remove(scope);
                }
                Observation::Ended { scope, complete, .. } => {
                    *complete &= !self.short.remove(scope)
                }
                _ => {}
            }
            true
        });
        let told = refused.into_iter().map(|((source, name), count)| Observation::Refused {
            source,
            name,
            count,
        });
        facts.extend(told.map(|what| Fact { at, origin, what }));
    }
}

/// What becomes of a fact.
enum Verdict {
    Kept,
    Dropped,
    /// Dropped, and whoever lists this does not list all of it.
    Missing(Scope),
}

use Verdict::{Dropped, Kept, Missing};

struct Check<'a> {
    origin: Origin,
    refused: &'a mut Refused,
}

impl Check<'_> {
    /// Whether it is such a name; counted if not.
    fn fits(&mut self, source: &str, name: Name, text: &str) -> bool {
        let fits = name.fits(text);
        if !fits {
            *self.refused.entry((source.to_owned(), name)).or_default() += 1;
        }
        fits
    }

    /// Leaves out what is no such name.
    fn maybe(&mut self, source: &str, name: Name, text: &mut Option<String>) {
        if text.as_deref().is_some_and(|text| !self.fits(source, name, text)) {
            *text = None;
        }
    }

    /// Leaves out what is no such name, where there need be none.
    fn or_none(&mut self, source: &str, name: Name, text: &mut String) {
        if !text.is_empty() && !self.fits(source, name, text) {
            text.clear();
        }
    }

    fn pod(&mut self, source: &str, pod: &mut Option<PodName>) {
        let Some(named) = pod else { return };
        let namespace = self.fits(source, Name::Namespace, &named.namespace);
        let name = self.fits(source, Name::PodName, &named.name);
        self.maybe(source, Name::PodUid, &mut named.uid);
        if !(namespace && name) {
            *pod = None;
        }
    }

    fn what(&mut self, what: &mut Observation) -> Verdict {
        let origin = self.origin.source();
        match what {
            // The daemon's own words, the kernel's numbers, and what is bounded where it is read.
            Observation::Boot(_)
            | Observation::ClockSet { .. }
            | Observation::Sight(_)
            | Observation::SourceGone { .. }
            | Observation::Refused { .. }
            | Observation::FirstAnswers
            | Observation::Lost { .. }
            | Observation::ProcessDoubted { .. }
            | Observation::Began(_)
            | Observation::Ended { .. }
            | Observation::Netns { .. }
            | Observation::NetnsCreated { .. }
            | Observation::NetnsUser { .. }
            | Observation::NetnsDying { .. }
            | Observation::NetnsGone { .. }
            | Observation::NetnsClosed { .. }
            | Observation::LinkGone { .. }
            | Observation::PeerNetns { .. }
            | Observation::Port { .. }
            | Observation::Vlans { .. }
            | Observation::Address { .. }
            | Observation::AddressGone { .. }
            | Observation::DadFailed { .. }
            | Observation::Neighbour { .. }
            | Observation::NeighbourGone { .. }
            | Observation::Claimed { .. }
            | Observation::Route { .. }
            | Observation::RouteGone { .. }
            | Observation::TaskExiting { .. }
            | Observation::TaskReleased { .. }
            | Observation::Signalled { .. }
            | Observation::HoldersSearched { .. }
            | Observation::PodsConfirmed
            | Observation::EndpointsConfirmed { .. }
            | Observation::CniEnded { .. }
            | Observation::Task(_)
            | Observation::Cleanup { .. } => Kept,

            Observation::Source(source) => {
                cut(&mut source.detail, LONGEST_TEXT);
                Kept
            }
            Observation::Link { link, .. } => {
                self.link(origin, link);
                Kept
            }
            Observation::Look { look, .. } => {
                bound(&mut look.cgroup, LONGEST_PATH);
                for system in &mut look.file_systems {
                    cut(&mut system.point, LONGEST_PATH);
                    cut(&mut system.source, LONGEST_PATH);
                }
                Kept
            }
            // Longer than the kernel shows one: a part of a path is another path.
            Observation::Cgroup { path, .. } => kept(path.len() <= LONGEST_PATH),
            Observation::Holder { holder, .. } => self.holder(origin, holder),

            Observation::Attachment(attachment) => self.attachment(attachment),
            Observation::AttachmentGone { container_id, ifname } => {
                if !Name::Device.fits(ifname) {
                    *ifname = harmless(ifname);
                }
                kept(Name::ContainerId.fits(container_id))
            }
            Observation::Sandbox(sandbox) => self.sandbox(sandbox),
            Observation::Container(container) => self.container(container),
            Observation::SandboxGone { id, .. } | Observation::ContainerGone { id, .. } => {
                kept(Name::ContainerId.fits(id))
            }
            Observation::RuntimeProcesses { runtimes, monitors, complete } => {
                *complete &= self.runtime_processes(origin, runtimes, monitors);
                Kept
            }
            Observation::Pod(pod) => self.api_pod(origin, pod),
            Observation::PodGone { uid } => kept(Name::PodUid.fits(uid)),

            Observation::ContainerMount(mount) => self.container_mount(origin, mount),
            Observation::ContainerMountsSearched { ids, .. } => {
                ids.retain(|id| Name::ContainerId.fits(id));
                Kept
            }

            Observation::Reservation(reservation) => self.reservation(reservation),
            Observation::Range(range) => self.range(range),
            Observation::ReservationGone { key, .. }
            | Observation::Block(super::Block { key, .. })
            | Observation::BlockGone { key, .. }
            | Observation::EndpointGone { key, .. } => kept(key.len() <= LONGEST_KEY),
            Observation::StoreUnreadable(file) => {
                cut(&mut file.path, LONGEST_PATH);
                cut(&mut file.reason, LONGEST_TEXT);
                Kept
            }
            Observation::StoreReadable { path, .. } => {
                cut(path, LONGEST_PATH);
                Kept
            }
            Observation::Endpoint(endpoint) => self.endpoint(endpoint),

            Observation::CniBegan(call) => self.call(origin, call),
            Observation::CniError { container_id, text, .. } => {
                cut(text, LONGEST_TEXT);
                kept(self.fits(origin, Name::ContainerId, container_id))
            }
        }
    }

    /// Whether nothing was left out: a runtime without one of its directories is no longer known to own what lies there.
    fn runtime_processes(
        &mut self,
        source: &str,
        runtimes: &mut [RuntimeProcess],
        monitors: &mut [Monitor],
    ) -> bool {
        let mut whole = true;
        for paths in runtimes.iter_mut().flat_map(|one| [&mut one.sockets, &mut one.dirs]) {
            paths.retain(|path| {
                let fits = self.fits(source, Name::Path, path);
                whole &= fits;
                fits
            });
        }
        for monitor in monitors {
            // Without its container it may be anybody's, and so it owns more, not less.
            self.maybe(source, Name::ContainerId, &mut monitor.container_id);
            self.maybe(source, Name::Path, &mut monitor.dir);
            // containerd names its namespaces by the same alphabet (`identifiers.Validate`).
            self.maybe(source, Name::ContainerId, &mut monitor.namespace);
        }
        whole
    }

    fn link(&mut self, source: &str, link: &mut Link) {
        if !self.fits(source, Name::Device, &link.name) {
            link.name = stand_in(link.ifindex);
        }
        // The kernel's own words, and a driver's: letters and digits.
        let plain =
            |text: &str| text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_graphic());
        link.kind = link.kind.take().filter(|kind| plain(kind) && kind.len() <= LONGEST_DEVICE);
        link.parent =
            link.parent.take().filter(|parent| plain(&parent.bus) && plain(&parent.address));
        if let Some(parent) = &mut link.parent {
            parent.driver = parent.driver.take().filter(|driver| plain(driver));
        }
    }

    fn holder(&mut self, source: &str, holder: &mut Holder) -> Verdict {
        match holder {
            Holder::Mount { path, cgroup, .. } => {
                bound(cgroup, LONGEST_PATH);
                // A netns that is held by a mount which nobody can name is held all the same: a search that
                // leaves out a holder would call it a leak without one.
                if !self.fits(source, Name::Path, path) {
                    UNNAMED.clone_into(path);
                }
                Kept
            }
            Holder::Fd { .. } | Holder::Socket { .. } => Kept,
            Holder::Orphan { text } => {
                cut(text, LONGEST_TEXT);
                Kept
            }
        }
    }

    fn attachment(&mut self, attachment: &mut Attachment) -> Verdict {
        const SOURCE: &str = SourceName::Cni.as_str();
        let id = self.fits(SOURCE, Name::ContainerId, &attachment.container_id);
        // Whoever makes a pod may choose it: that must not cost the others' results.
        if !self.fits(SOURCE, Name::Device, &attachment.ifname) {
            attachment.ifname = harmless(&attachment.ifname);
        }
        self.or_none(SOURCE, Name::Network, &mut attachment.network);
        self.maybe(SOURCE, Name::Path, &mut attachment.netns_path);
        self.pod(SOURCE, &mut attachment.pod);
        if id { Kept } else { Missing(Scope::Cni) }
    }

    fn sandbox(&mut self, sandbox: &mut Sandbox) -> Verdict {
        let source = sandbox.runtime.clone();
        self.pod(&source, &mut sandbox.pod);
        self.maybe(&source, Name::ContainerName, &mut sandbox.name);
        self.maybe(&source, Name::Path, &mut sandbox.netns_path);
        word(&mut sandbox.word);
        if self.fits(&source, Name::ContainerId, &sandbox.id) {
            return Kept;
        }
        Missing(Scope::Runtime { runtime: source })
    }

    fn container(&mut self, container: &mut Container) -> Verdict {
        let source = container.runtime.clone();
        self.maybe(&source, Name::ContainerName, &mut container.name);
        word(&mut container.word);
        let id = self.fits(&source, Name::ContainerId, &container.id);
        let sandbox = container.sandbox.as_deref();
        if id && sandbox.is_none_or(|id| self.fits(&source, Name::ContainerId, id)) {
            return Kept;
        }
        Missing(Scope::Runtime { runtime: source })
    }

    fn api_pod(&mut self, source: &str, pod: &mut Pod) -> Verdict {
        if let Some(phase) = &mut pod.phase {
            word(phase);
        }
        let named = self.fits(source, Name::Namespace, &pod.namespace)
            & self.fits(source, Name::PodName, &pod.name)
            & self.fits(source, Name::PodUid, &pod.uid);
        // Without it a static pod's mirror would pass for a pod, and its deletion for the pod's.
        let mirror = pod.mirror_of.as_deref();
        let mirror = mirror.is_none_or(|uid| self.fits(source, Name::PodUid, uid));
        if named && mirror { Kept } else { Missing(Scope::Pods) }
    }

    fn container_mount(&mut self, source: &str, mount: &mut ContainerMount) -> Verdict {
        bound(&mut mount.cgroup, LONGEST_PATH);
        for Process { comm, .. } in &mut mount.processes {
            cut(comm, LONGEST_TEXT);
        }
        cut(&mut mount.fs_type, LONGEST_PATH);
        let id = self.fits(source, Name::ContainerId, &mount.container_id);
        kept(id && self.fits(source, Name::Path, &mount.path))
    }

    fn reservation(&mut self, reservation: &mut Reservation) -> Verdict {
        let source = reservation.store.clone();
        self.or_none(&source, Name::Network, &mut reservation.network);
        self.maybe(&source, Name::ContainerId, &mut reservation.container_id);
        self.maybe(&source, Name::Device, &mut reservation.ifname);
        self.pod(&source, &mut reservation.pod);
        if reservation.key.len() <= LONGEST_KEY {
            return Kept;
        }
        *self.refused.entry((source.clone(), Name::Path)).or_default() += 1;
        Missing(Scope::Reservations { store: source })
    }

    fn range(&mut self, range: &mut Range) -> Verdict {
        let source = range.store.clone();
        cut(&mut range.path, LONGEST_PATH);
        self.maybe(&source, Name::Path, &mut range.data_dir);
        if range.network.is_empty() || self.fits(&source, Name::Network, &range.network) {
            return Kept;
        }
        Missing(Scope::Ranges { store: source })
    }

    fn endpoint(&mut self, endpoint: &mut Endpoint) -> Verdict {
        let source = endpoint.store.clone();
        self.maybe(&source, Name::ContainerId, &mut endpoint.container);
        self.maybe(&source, Name::Device, &mut endpoint.device);
        let named = self.fits(&source, Name::Namespace, &endpoint.namespace)
            & self.fits(&source, Name::PodName, &endpoint.pod);
        if named && endpoint.key.len() <= LONGEST_KEY {
            return Kept;
        }
        Missing(Scope::Endpoints { store: source })
    }

    fn call(&mut self, source: &str, call: &mut CniCall) -> Verdict {
        self.pod(source, &mut call.pod);
        // A DEL with a strange path or interface may still free an IP: it is under way for its container.
        self.maybe(source, Name::Path, &mut call.netns_path);
        self.maybe(source, Name::Device, &mut call.ifname);
        cut(&mut call.plugin, LONGEST_PATH);
        let id = call.container_id.as_deref();
        kept(id.is_none_or(|id| self.fits(source, Name::ContainerId, id)))
    }
}

fn kept(kept: bool) -> Verdict {
    if kept { Kept } else { Dropped }
}

/// Cuts a text that is for people alone, between two characters.
fn cut(text: &mut String, longest: usize) {
    text.truncate(text.floor_char_boundary(longest));
}

/// Leaves out what is longer than it can be: a part of a path is another path.
fn bound(text: &mut Option<String>, longest: usize) {
    *text = text.take().filter(|text| text.len() <= longest);
}

/// A runtime's or the API server's word for a state.
fn word(text: &mut String) {
    if text.len() > LONGEST_DEVICE * 4 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        "unknown".clone_into(text);
    }
}

#[cfg(test)]
mod tests;
